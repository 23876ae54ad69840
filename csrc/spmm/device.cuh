// What the kernels share: vectors of V elements, and how many columns of a dense matrix one warp covers.
#pragma once

#include "common/launch.cuh"
#include "spmm/spmm.h"

namespace spmm {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kGroup = 8;  // Lanes that share one dot product.

// V neighbours that a thread moves in one access. V is 1 where a row does not begin at a multiple of 16 bytes.
template <class T, int V>
struct alignas(V * sizeof(T)) Vector {
  T element[V];
};

template <class T>
constexpr int kWide = 16 / sizeof(T);

template <class T>
bool takes_vectors(int64_t n, const T* a, const T* b) {
  return n % kWide<T> == 0 && warpwatch::aligned16(a) && warpwatch::aligned16(b);
}

template <class T, int V>
__device__ inline Vector<T, V> load(const T* from) {
  return *reinterpret_cast<const Vector<T, V>*>(from);
}

template <class T, int V>
__device__ inline void multiply_add(Vector<T, V>& sum, T factor, const Vector<T, V>& v) {
#pragma unroll
  for (int i = 0; i < V; ++i) sum.element[i] += factor * v.element[i];
}

// The sum of `value` over the eight lanes of a group; every lane of the warp must call it.
template <class T>
__device__ inline T group_sum(T value) {
#pragma unroll
  for (int step = kGroup / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

}  // namespace spmm
