// The few machine instructions that C++ has no words for: asynchronous copies, clusters, tensor cores.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

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

// Starts a copy of 16 bytes from global to shared memory, or of zeros when `inside` is false.
__device__ inline void copy16(void* shared, const void* global, bool inside) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(inside ? 16 : 0) : "memory");
}

// Asks for the 128 bytes around an address to be brought into the L2 cache.
__device__ inline void prefetch(const void* global) { asm volatile("prefetch.global.L2 [%0];" ::"l"(global)); }

// Closes the group of this thread's copies since the last call.
__device__ inline void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most Open of this thread's latest groups are under way.
template <int Open>
__device__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Open) : "memory");
}

// This block's place in its cluster.
__device__ inline uint32_t cluster_rank() {
#if __CUDA_ARCH__ >= 900
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return 0;
#endif
}

// A barrier of all threads of all blocks of the cluster, in two halves; shared memory written before is seen after.
__device__ inline void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

__device__ inline void cluster_await() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// The same place of shared memory in another block of the cluster.
template <class T>
__device__ T* of_block(T* shared, uint32_t rank) {
#if __CUDA_ARCH__ >= 900
  uint64_t there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(reinterpret_cast<uint64_t>(shared)), "r"(rank));
  return reinterpret_cast<T*>(there);
#else
  return shared;
#endif
}

// sum (16 x 8) += a (16 x 8) * b (8 x 8) by one warp. With g = lane / 4 and t = lane % 4 a lane holds
// sum: (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1); a: (g, t), (g+8, t), (g, t+4), (g+8, t+4); b: (t, g), (t+4, g).
__device__ inline void tensor_product(float (&sum)[4], const float (&a)[4], const float (&b)[2]) {
  uint32_t x[4], y[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(x[i]) : "f"(a[i]));
#pragma unroll
  for (int i = 0; i < 2; ++i) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y[i]) : "f"(b[i]));
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
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
