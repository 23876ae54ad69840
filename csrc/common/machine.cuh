// The few machine instructions that C++ cannot express and several operators use: asynchronous copies, clusters, tensor cores.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "common/sixteen.h"

namespace warpwatch {

__device__ inline uint32_t shared_address(const void* shared) { return static_cast<uint32_t>(__cvta_generic_to_shared(shared)); }

// Starts a copy of the first `bytes` of 16 from global to shared memory and fills the rest with zeros; 0 reads nothing.
__device__ inline void copy16_part(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes) : "memory");
}

// Starts a copy of 16 bytes from global to shared memory, or of zeros when `inside` is false.
__device__ inline void copy16(void* shared, const void* global, bool inside) { copy16_part(shared, global, inside ? 16 : 0); }

// The same for 4 bytes, which need to lie at multiples of 4 only.
__device__ inline void copy4(void* shared, const void* global, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(inside ? 4 : 0)
               : "memory");
}

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

// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8, and gets of each matrix the pair
// (l / 4, 2 * (l % 4)). Read as 32-bit elements a matrix is 8 x 4, and the lane gets element (l / 4, l % 4).
__device__ inline void load_matrices(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

// The same with each matrix transposed.
__device__ inline void load_transposed(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

// Rounded to the 10 bits of mantissa that tensor cores keep of a float.
__device__ inline uint32_t to_tf32(float value) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}

// sum (16 x 8) += a * b by one warp, a row-major and b column-major. With g = lane / 4 and t = lane % 4 a lane holds
// sum: (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1). For float, a (16 x 8): (g, t), (g+8, t), (g, t+4), (g+8, t+4) and b (8 x 8): (t, g),
// (t+4, g), of which the hardware drops the lowest 13 bits. For 16-bit elements, a (16 x 16): the pairs (g, 2t), (g+8, 2t), (g, 2t+8),
// (g+8, 2t+8) and b (16 x 8): the pairs (2t, g), (2t+8, g).
template <class T>
__device__ void tensor_step(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

#define WARPWATCH_TENSOR_STEP(T, INSTRUCTION)                                                                          \
  template <>                                                                                                          \
  __device__ inline void tensor_step<T>(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {              \
    asm(INSTRUCTION " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                 \
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                                       \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                           \
  }
WARPWATCH_TENSOR_STEP(float, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
WARPWATCH_TENSOR_STEP(Bf16, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
WARPWATCH_TENSOR_STEP(F16, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
#undef WARPWATCH_TENSOR_STEP

// Two numbers rounded and packed, `low` at the lower address.
template <class T>
__device__ uint32_t pack_pair(float low, float high) {
  uint32_t pair;
  if constexpr (T::kIsBf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(Bf16 value) { return __uint_as_float(uint32_t{value.bits} << 16); }
__device__ inline float to_float(F16 value) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
  return wide;
}

template <class T>
__device__ T from_float(float value) {
  if constexpr (sizeof(T) == 4) {
    return value;
  } else {
    return T{static_cast<uint16_t>(pack_pair<T>(value, 0.0f))};
  }
}

// A float as the sum of two that tensor cores take, but for the last bit: `high`, which takes its place, is rounded to the 10 leading
// bits of the mantissa, so that the product of two low parts, which is left out, is smaller than the last bit of the whole.
__device__ inline void split(uint32_t& high, uint32_t& low) {
  const float whole = __uint_as_float(high);
  high = (high + 0x1000u) & 0xffffe000u;
  low = __float_as_uint(whole - __uint_as_float(high));
}

// What tensor cores leave of a float, which they take without its lowest 13 bits; the difference is exact.
__device__ inline uint32_t low_part(uint32_t bits) {
  return __float_as_uint(__uint_as_float(bits) - __uint_as_float(bits & 0xffffe000u));
}

// Two neighbours in one access; `to` lies at a multiple of their size.
template <class T>
__device__ void store_pair(T* to, float first, float second) {
  if constexpr (sizeof(T) == 4) {
    *reinterpret_cast<float2*>(to) = make_float2(first, second);
  } else {
    *reinterpret_cast<uint32_t*>(to) = pack_pair<T>(first, second);
  }
}

}  // namespace warpwatch
