// Machine instructions for one stage that C++ cannot express: prefetching, tensor cores in either precision.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "common/machine.cuh"

namespace kron {

// W neighbouring elements, moved in one access.
template <class T, int W>
struct alignas(W * sizeof(T)) Pack {
  T at[W];
};

template <class T>
constexpr int kVector = 16 / sizeof(T);  // Elements of one 16-byte access, the widest there is.

template <class T>
__device__ T* shared_memory() {
  extern __shared__ __align__(16) unsigned char bytes[];
  return reinterpret_cast<T*>(bytes);
}

using warpwatch::await_copies;
using warpwatch::close_copies;
using warpwatch::cluster_arrive;
using warpwatch::cluster_await;
using warpwatch::cluster_rank;
using warpwatch::copy16;
using warpwatch::of_block;

// Asks for the 128 bytes around an address to be brought into the L2 cache.
__device__ inline void prefetch(const void* global) { asm volatile("prefetch.global.L2 [%0];" ::"l"(global)); }

// sum (16 x 8) += a (16 x 8) * b (8 x 8) by one warp. With g = lane / 4 and t = lane % 4 a lane holds
// sum: (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1); a: (g, t), (g+8, t), (g, t+4), (g+8, t+4); b: (t, g), (t+4, g).
__device__ inline void tensor_product(float (&sum)[4], const float (&a)[4], const float (&b)[2]) {
  const uint32_t x[4] = {warpwatch::to_tf32(a[0]), warpwatch::to_tf32(a[1]), warpwatch::to_tf32(a[2]), warpwatch::to_tf32(a[3])};
  const uint32_t y[2] = {warpwatch::to_tf32(b[0]), warpwatch::to_tf32(b[1])};
  warpwatch::tensor_step<float>(sum, x, y);
}

__device__ inline void tensor_product(double (&sum)[4], const double (&a)[4], const double (&b)[2]) {
#if __CUDA_ARCH__ >= 900
  asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+d"(sum[0]), "+d"(sum[1]), "+d"(sum[2]), "+d"(sum[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#else
  // Before Hopper the instruction is 8 x 8 x 4, of which this product takes four.
#pragma unroll
  for (int k = 0; k < 2; ++k)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
          : "+d"(sum[2 * half]), "+d"(sum[2 * half + 1])
          : "d"(a[2 * k + half]), "d"(b[k]));
#endif
}

}  // namespace kron
