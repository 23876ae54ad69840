// A warp per row of A, with no more than A's CSR arrays to go by: every entry fetches its row of the dense matrix from the L2.
#include <algorithm>

#include "spmm/device.cuh"

namespace {

using spmm::kAllLanes;
using spmm::kGroup;
using spmm::kWarp;
using spmm::kWide;
using spmm::Pattern;
using spmm::Vector;
using warpwatch::ceil_div;

constexpr int kWarps = 8;
constexpr int64_t kLargestGridY = 65535;

// y's columns [32 V c, 32 V (c + 1)) of one row per warp. Lanes fetch 32 entries side by side and hand them round.
template <class T, int V>
__global__ void __launch_bounds__(kWarps* kWarp) spmm_rows(Pattern a, const T* values, const T* b, T* y, int64_t n) {
  const int lane = threadIdx.x % kWarp;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (row >= a.rows) return;
  const int begin = a.crow[row], end = a.crow[row + 1];
  for (int64_t j = (int64_t{blockIdx.y} * kWarp + lane) * V; j - lane * V < n; j += int64_t{gridDim.y} * kWarp * V) {
    const bool inside = j < n;
    Vector<T, V> sum = {};
    for (int first = begin; first < end; first += kWarp) {
      const int mine = first + lane;
      const int column = mine < end ? a.col[mine] : 0;
      const T value = mine < end ? values[mine] : T{0};
      const int count = min(kWarp, end - first);
#pragma unroll 4
      for (int i = 0; i < count; ++i) {
        const int64_t c = __shfl_sync(kAllLanes, column, i);
        const T factor = __shfl_sync(kAllLanes, value, i);
        if (inside) multiply_add(sum, factor, spmm::load<T, V>(b + c * n + j));
      }
    }
    if (inside) *reinterpret_cast<Vector<T, V>*>(y + row * n + j) = sum;
  }
}

template <class T, int V>
__device__ inline void add_to_global(T* to, T factor, const Vector<T, V>& v) {
#if __CUDA_ARCH__ >= 900
  // Hopper adds four floats at once: a quarter of the requests to the L2.
  if constexpr (sizeof(T) == 4 && V == 4) {
    atomicAdd(reinterpret_cast<float4*>(to),
              make_float4(factor * v.element[0], factor * v.element[1], factor * v.element[2], factor * v.element[3]));
    return;
  }
#endif
#pragma unroll
  for (int i = 0; i < V; ++i) atomicAdd(to + i, factor * v.element[i]);
}

// d[col] += value * g[row] for every entry of one row per warp, whose part of g stays in registers.
template <class T, int V>
__global__ void __launch_bounds__(kWarps* kWarp) spmm_scatter(Pattern a, const T* values, const T* g, T* d, int64_t n) {
  const int lane = threadIdx.x % kWarp;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (row >= a.rows) return;
  const int begin = a.crow[row], end = a.crow[row + 1];
  for (int64_t j = (int64_t{blockIdx.y} * kWarp + lane) * V; j < n; j += int64_t{gridDim.y} * kWarp * V) {
    const Vector<T, V> from = spmm::load<T, V>(g + row * n + j);
    for (int p = begin; p < end; ++p) add_to_global<T, V>(d + int64_t{a.col[p]} * n + j, values[p], from);
  }
}

// d[p] = g[row] . b[col[p]] for one row per warp, four entries at a time, eight lanes each.
template <class T, int V>
__global__ void __launch_bounds__(kWarps* kWarp) spmm_dots(Pattern a, const T* g, const T* b, T* d, int64_t n) {
  const int lane = threadIdx.x % kWarp, group = lane / kGroup, member = lane % kGroup;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (row >= a.rows) return;
  const int end = a.crow[row + 1];
  for (int first = a.crow[row]; first < end; first += kWarp / kGroup) {
    const int p = first + group;
    T sum = 0;
    if (p < end) {
      const T* theirs = b + int64_t{a.col[p]} * n;
#pragma unroll 4
      for (int64_t j = member * V; j < n; j += kGroup * V) {
        const Vector<T, V> u = spmm::load<T, V>(g + row * n + j), v = spmm::load<T, V>(theirs + j);
#pragma unroll
        for (int i = 0; i < V; ++i) sum += u.element[i] * v.element[i];
      }
    }
    sum = spmm::group_sum(sum);
    if (p < end && member == 0) d[p] = sum;
  }
}

template <int V>
dim3 grid_for(int64_t rows, int64_t n) {
  return dim3(ceil_div(rows, kWarps), std::min(ceil_div(n, kWarp * V), kLargestGridY));
}

template <class T>
const char* rows(const Pattern& a, const T* values, const T* b, T* y, int64_t n, cudaStream_t stream) {
  if (a.rows == 0 || n == 0) return nullptr;
  if (spmm::takes_vectors(n, b, y))
    spmm_rows<T, kWide<T>><<<grid_for<kWide<T>>(a.rows, n), kWarps * kWarp, 0, stream>>>(a, values, b, y, n);
  else
    spmm_rows<T, 1><<<grid_for<1>(a.rows, n), kWarps * kWarp, 0, stream>>>(a, values, b, y, n);
  return warpwatch::launch_error();
}

template <class T>
const char* scatter(const Pattern& a, const T* values, const T* g, T* d, int64_t n, cudaStream_t stream) {
  if (a.rows == 0 || n == 0) return nullptr;
  if (spmm::takes_vectors(n, g, d))
    spmm_scatter<T, kWide<T>><<<grid_for<kWide<T>>(a.rows, n), kWarps * kWarp, 0, stream>>>(a, values, g, d, n);
  else
    spmm_scatter<T, 1><<<grid_for<1>(a.rows, n), kWarps * kWarp, 0, stream>>>(a, values, g, d, n);
  return warpwatch::launch_error();
}

template <class T>
const char* dots(const Pattern& a, const T* g, const T* b, T* d, int64_t n, cudaStream_t stream) {
  if (a.rows == 0) return nullptr;
  const int64_t blocks = ceil_div(a.rows, kWarps);
  if (spmm::takes_vectors(n, g, b))
    spmm_dots<T, kWide<T>><<<blocks, kWarps * kWarp, 0, stream>>>(a, g, b, d, n);
  else
    spmm_dots<T, 1><<<blocks, kWarps * kWarp, 0, stream>>>(a, g, b, d, n);
  return warpwatch::launch_error();
}

}  // namespace

const char* spmm::rows_on(const Pattern& a, const float* values, const float* b, float* y, int64_t n, void* stream) {
  return rows(a, values, b, y, n, warpwatch::as_stream(stream));
}

const char* spmm::rows_on(const Pattern& a, const double* values, const double* b, double* y, int64_t n, void* stream) {
  return rows(a, values, b, y, n, warpwatch::as_stream(stream));
}

const char* spmm::scatter_on(const Pattern& a, const float* values, const float* g, float* d, int64_t n, void* stream) {
  return scatter(a, values, g, d, n, warpwatch::as_stream(stream));
}

const char* spmm::scatter_on(const Pattern& a, const double* values, const double* g, double* d, int64_t n, void* stream) {
  return scatter(a, values, g, d, n, warpwatch::as_stream(stream));
}

const char* spmm::dots_on(const Pattern& a, const float* g, const float* b, float* d, int64_t n, void* stream) {
  return dots(a, g, b, d, n, warpwatch::as_stream(stream));
}

const char* spmm::dots_on(const Pattern& a, const double* g, const double* b, double* d, int64_t n, void* stream) {
  return dots(a, g, b, d, n, warpwatch::as_stream(stream));
}
