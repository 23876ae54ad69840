// Launches a kernel whose blocks form clusters and take more shared memory than a launch gets by default.
#pragma once

#include <cuda_runtime.h>

#include "common/launch.cuh"

namespace kron {

// A launch's configuration, which points into itself.
struct Launch {
  cudaLaunchAttribute attribute{};
  cudaLaunchConfig_t config{};

  Launch(dim3 blocks, int threads, int shared_bytes, int cluster, cudaStream_t stream) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    config.gridDim = blocks;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = cluster > 1 ? 1 : 0;
  }
  Launch(const Launch&) = delete;
};

template <class Kernel>
void allow_shared(Kernel* kernel, int bytes) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

template <class Kernel, class Call>
void launch_kernel(Kernel* kernel, const Call& call, dim3 blocks, int threads, int shared_bytes, int cluster, cudaStream_t stream) {
  allow_shared(kernel, shared_bytes);
  const Launch launch(blocks, threads, shared_bytes, cluster, stream);
  cudaLaunchKernelEx(&launch.config, kernel, call);
}

// Of each device, how many clusters of some launch run at once; 0 until queried.
constexpr int kDevices = 64;
using DeviceCounts = int[kDevices];

// How many clusters of such a launch the current device runs at once, queried once per device; 0 where it cannot say, and the next
// launch_error() why.
template <class Kernel>
int clusters_at_once(DeviceCounts& counts, Kernel* kernel, int threads, int shared_bytes, int cluster) {
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= kDevices) return 0;
  // By builtins, because <atomic> takes as long to compile as an empty .cu.
  if ((count = __atomic_load_n(&counts[device], __ATOMIC_RELAXED)) > 0) return count;
  allow_shared(kernel, shared_bytes);
  const Launch launch(dim3(cluster * warpwatch::multiprocessors()), threads, shared_bytes, cluster, nullptr);
  if (cudaOccupancyMaxActiveClusters(&count, kernel, &launch.config) != cudaSuccess) return 0;
  __atomic_store_n(&counts[device], count, __ATOMIC_RELAXED);
  return count;
}

}  // namespace kron
