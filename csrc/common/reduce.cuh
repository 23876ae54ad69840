// Sums over the threads of a block, in an order that never changes.
#pragma once

#include <cuda_runtime.h>

namespace warpwatch {

// value[j] becomes the block's sum of all threads' value[j]; thread 0 has it. Every thread of the block takes part, and the block is a
// line of whole warps. Called twice in a kernel, a barrier belongs between.
template <int Count, class T>
__device__ void sum_over_block(T (&value)[Count]) {
  constexpr int kWarp = 32, kLargestBlock = 1024;
  __shared__ T of_warp[kLargestBlock / kWarp][Count];
#pragma unroll
  for (int j = 0; j < Count; ++j)
    for (int apart = kWarp / 2; apart > 0; apart /= 2) value[j] += __shfl_down_sync(~0u, value[j], apart);
  if (threadIdx.x % kWarp == 0)
    for (int j = 0; j < Count; ++j) of_warp[threadIdx.x / kWarp][j] = value[j];
  __syncthreads();
  if (threadIdx.x == 0)
    for (int warp = 1; warp < static_cast<int>(blockDim.x) / kWarp; ++warp)
      for (int j = 0; j < Count; ++j) value[j] += of_warp[warp][j];
}

}  // namespace warpwatch
