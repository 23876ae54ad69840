// Helpers that every .cu uses. It includes no torch header: those take ten times as long to compile as the kernel.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace warpwatch {

// Null for a success, else the runtime's description of an error that a call returned. The runtime forgets the error, so
// that it is not taken for that of a later launch.
inline const char* words_of(cudaError_t error) {
  if (error == cudaSuccess) return nullptr;
  cudaGetLastError();
  return cudaGetErrorString(error);
}

// Null when the launches since the last call were accepted, else the runtime's description of the error.
inline const char* launch_error() { return words_of(cudaGetLastError()); }

// Multiprocessors of the current device, queried once per device; 1 where there is none, so that the launch reports why.
inline int multiprocessors() {
  constexpr int kDevices = 64;
  // 0 until queried. Accessed by builtins, because <atomic> takes as long to compile as an empty .cu.
  static int counts[kDevices];
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 1;
  const bool cached = device < kDevices;
  if (cached && (count = __atomic_load_n(&counts[device], __ATOMIC_RELAXED)) > 0) return count;
  if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 1;
  if (cached) __atomic_store_n(&counts[device], count, __ATOMIC_RELAXED);
  return count;
}

// Compute capability of the current device, times ten, as in CUDA_ARCHS; 0 where there is none.
inline int compute_capability() {
  int device = 0, major = 0, minor = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  return major * 10 + minor;
}

inline cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }

__host__ __device__ constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Threads of a block, and blocks per multiprocessor, of kernels that stride over their elements: 8 * 256 threads fill one.
constexpr int kStrideThreads = 256;
constexpr int64_t kStrideBlocksEach = 8;

// Blocks of kStrideThreads for `work` threads, at most as many as fill the device.
inline int64_t stride_blocks(int64_t work) { return std::min(ceil_div(work, kStrideThreads), multiprocessors() * kStrideBlocksEach); }

// Four elements of 4 bytes, or two of 8: what one thread moves in a single 16-byte access.
template <class T>
struct alignas(16) Vector16 {
  static constexpr int size = 16 / sizeof(T);
  T element[size];
};

inline bool aligned16(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

}  // namespace warpwatch
