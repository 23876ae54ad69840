// Kernels and launchers of row_products.h; instantiated by WARPWATCH_ROW_PRODUCTS, one type per .cu.
//
// Forward: a warp takes a few rows of w and loops along them, 16 bytes per lane and access, so that every weight is read once and
// coalesced; the rows of x come out of the first-level cache. Backward: a thread owns 16 bytes of columns and loops over a slab of
// rows of w; it adds up its part of dx in registers and writes dw on the way. Parts of dx are summed in a fixed order by a second launch.
#pragma once

#include <algorithm>

#include "common/launch.cuh"
#include "common/row_products.h"
#include "common/wide.cuh"

namespace row_products {

using warpwatch::ceil_div;

constexpr int kWarps = 4;
constexpr int kColumnThreads = 64;
constexpr int64_t kBlocksEach = 8;  // Blocks of the backward kernel per multiprocessor.
constexpr int kSumColumns = 32, kSumLanes = 8;
constexpr int64_t kLargestGridY = 65535;

template <class T>
using Sum = warpwatch::Wide<T>;

// Elements of one access: a whole vector of 16 bytes, or one where something is not aligned.
template <class T, bool Vectors>
constexpr int kAccess = Vectors ? 16 / int{sizeof(T)} : 1;

// Elements of one thread's columns in the backward kernel: eight would take two thirds of the registers.
template <class T, bool Vectors>
constexpr int kColumns = Vectors ? 4 : 1;

template <class T, int Size>
__device__ inline void load(const T* from, Sum<T> (&to)[Size]) {
  if constexpr (Size == 1) {
    to[0] = warpwatch::widen(*from);
  } else {
    const auto vector = *reinterpret_cast<const warpwatch::Pack<T, Size>*>(from);
#pragma unroll
    for (int i = 0; i < Size; ++i) to[i] = warpwatch::widen(vector.element[i]);
  }
}

template <class T, int Size>
__device__ inline void store(T* to, const Sum<T> (&from)[Size]) {
  if constexpr (Size == 1) {
    *to = warpwatch::narrow<T>(from[0]);
  } else {
    warpwatch::Pack<T, Size> vector;
#pragma unroll
    for (int i = 0; i < Size; ++i) vector.element[i] = warpwatch::narrow<T>(from[i]);
    *reinterpret_cast<warpwatch::Pack<T, Size>*>(to) = vector;
  }
}

// One warp: `Outputs` rows of w against `Batch` rows of x. Rows past the end repeat the last one and are not stored.
template <class T, int Batch, int Outputs, bool Vectors>
__global__ void __launch_bounds__(kWarps * 32) forward_kernel(const __grid_constant__ Forward<T> call) {
  static_assert(Batch * Outputs <= 32, "every lane stores at most one result");
  constexpr int kSize = kAccess<T, Vectors>;
  const int lane = threadIdx.x % 32;
  const int64_t first = (int64_t{blockIdx.x} * kWarps + threadIdx.x / 32) * Outputs;
  if (first >= call.outputs) return;
  const T* __restrict__ weights[Outputs];
#pragma unroll
  for (int r = 0; r < Outputs; ++r) weights[r] = call.w + min(first + r, call.outputs - 1) * call.w_stride;
  const int64_t top = int64_t{blockIdx.y} * Batch;
  Sum<T> sum[Batch][Outputs] = {};
  for (int p = 0; p < call.x.count; ++p) {
    const T* __restrict__ rows[Batch];
#pragma unroll
    for (int b = 0; b < Batch; ++b) rows[b] = call.x.data[p] + min(top + b, call.batch - 1) * call.x.stride[p];
    const int width = static_cast<int>(call.x.width[p]);
#pragma unroll(Batch == 1 ? 4 : Vectors ? 2 : 1)
    for (int k = lane * kSize; k < width; k += 32 * kSize) {
      Sum<T> w[Outputs][kSize];
#pragma unroll
      for (int r = 0; r < Outputs; ++r) load<T, kSize>(weights[r] + k, w[r]);
#pragma unroll
      for (int b = 0; b < Batch; ++b) {
        Sum<T> x[kSize];
        load<T, kSize>(rows[b] + k, x);
#pragma unroll
        for (int r = 0; r < Outputs; ++r)
#pragma unroll
          for (int i = 0; i < kSize; ++i) sum[b][r] += x[i] * w[r][i];
      }
    }
#pragma unroll
    for (int r = 0; r < Outputs; ++r) weights[r] += width;
  }
#pragma unroll
  for (int b = 0; b < Batch; ++b)
#pragma unroll
    for (int r = 0; r < Outputs; ++r) {
      Sum<T> total = sum[b][r];
#pragma unroll
      for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
      const int64_t row = top + b, column = first + r;
      if (lane == b * Outputs + r && row < call.batch && column < call.outputs) {
        if (call.bias != nullptr) total += warpwatch::widen(call.bias[row * call.bias_stride + column]);
        call.y[row * call.outputs + column] = warpwatch::narrow<T>(total);
      }
    }
}

// `column` of the concatenated x, for one row of it; a vector never lies across two parts.
template <class T>
__device__ inline const T* column_of(const Parts<T>& x, int64_t row, int64_t column) {
  for (int p = 0; p < x.count; ++p) {
    if (column < x.width[p]) return x.data[p] + row * x.stride[p] + column;
    column -= x.width[p];
  }
  return nullptr;
}

template <class T, int Batch, bool Vectors>
__global__ void __launch_bounds__(kColumnThreads)
    slab_kernel(const __grid_constant__ Backward<T> call, int64_t slab_rows, Sum<T>* __restrict__ partial) {
  constexpr int kSize = kColumns<T, Vectors>;
  const int64_t column = (int64_t{blockIdx.x} * kColumnThreads + threadIdx.x) * kSize;
  if (column >= call.depth) return;
  Sum<T> x[Batch][kSize] = {}, dx[Batch][kSize] = {};
#pragma unroll
  for (int b = 0; b < Batch; ++b)
    if (b < call.batch) load<T, kSize>(column_of(call.x, b, column), x[b]);
  const int64_t from = int64_t{blockIdx.y} * slab_rows, to = min(from + slab_rows, call.outputs);
  const T* __restrict__ weights = call.w + column;
  const T* __restrict__ gradient = call.gradient;
  T* __restrict__ w_gradient = call.w_gradient + column;
#pragma unroll(Batch == 1 ? 4 : 2)
  for (int64_t v = from; v < to; ++v) {
    Sum<T> g[Batch], w[kSize], dw[kSize] = {}, total = 0;
    load<T, kSize>(weights + v * call.depth, w);
#pragma unroll
    for (int b = 0; b < Batch; ++b) {
      g[b] = b < call.batch ? warpwatch::widen(gradient[b * call.outputs + v]) : Sum<T>{0};
      total += g[b];
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        dx[b][i] += g[b] * w[i];
        dw[i] += g[b] * x[b][i];
      }
    }
    store<T, kSize>(w_gradient + v * call.depth, dw);
    if (column == 0 && call.b_gradient != nullptr) call.b_gradient[v] = warpwatch::narrow<T>(total);
  }
#pragma unroll
  for (int b = 0; b < Batch; ++b)
    if (b < call.batch)
#pragma unroll
      for (int i = 0; i < kSize; ++i) partial[(blockIdx.y * call.batch + b) * call.depth + column + i] = dx[b][i];
}

// dx[i] = sum over slabs of partial[slab][i], always in the same order.
template <class T>
__global__ void __launch_bounds__(kSumColumns* kSumLanes)
    slab_sums(const Sum<T>* __restrict__ partial, int64_t slabs, T* __restrict__ dx, int64_t count) {
  __shared__ Sum<T> parts[kSumLanes][kSumColumns];
  const int64_t i = int64_t{blockIdx.x} * kSumColumns + threadIdx.x;
  Sum<T> sum = 0;
  if (i < count) {
#pragma unroll 4
    for (int64_t s = threadIdx.y; s < slabs; s += kSumLanes) sum += partial[s * count + i];
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || i >= count) return;
  for (int lane = 1; lane < kSumLanes; ++lane) sum += parts[lane][threadIdx.x];
  dx[i] = warpwatch::narrow<T>(sum);
}

// Whether every access of 16 bytes would be aligned and inside one part.
template <class T>
bool all_aligned(const Parts<T>& x, const T* w, int64_t w_stride) {
  constexpr int64_t kSize = kAccess<T, true>;
  bool aligned = warpwatch::aligned16(w) && w_stride % kSize == 0;
  for (int p = 0; p < x.count; ++p)
    aligned = aligned && warpwatch::aligned16(x.data[p]) && x.stride[p] % kSize == 0 && x.width[p] % kSize == 0;
  return aligned;
}

template <class T, int Batch, int Outputs, bool Vectors>
const char* launch_forward(const Forward<T>& call, void* stream) {
  const int64_t tiles = ceil_div(call.batch, Batch);
  if (tiles > kLargestGridY) return "too many rows";
  const dim3 grid(ceil_div(call.outputs, kWarps * Outputs), tiles);
  forward_kernel<T, Batch, Outputs, Vectors><<<grid, kWarps * 32, 0, warpwatch::as_stream(stream)>>>(call);
  return warpwatch::launch_error();
}

template <class T>
const char* forward(const Forward<T>& call, void* stream) {
  if (call.batch == 0 || call.outputs == 0) return nullptr;
  if constexpr (sizeof(T) <= 4) {
    if (all_aligned(call.x, call.w, call.w_stride))
      return call.batch == 1 ? launch_forward<T, 1, 2, true>(call, stream) : launch_forward<T, 8, sizeof(T), true>(call, stream);
  }
  return launch_forward<T, 4, 2, false>(call, stream);
}

// Slabs of rows of w that the backward pass is split into: as many as fill the device.
inline int64_t slab_count(int64_t outputs, int64_t depth) {
  const int64_t tiles = ceil_div(depth, kColumnThreads * 4), blocks = warpwatch::multiprocessors() * kBlocksEach;
  return std::max<int64_t>(1, std::min(outputs, blocks / std::max<int64_t>(1, tiles)));
}

template <class T, int Batch, bool Vectors>
const char* launch_backward(const Backward<T>& call, void* stream) {
  const int64_t slabs = slab_count(call.outputs, call.depth), slab_rows = ceil_div(call.outputs, slabs);
  const int64_t used = ceil_div(call.outputs, slab_rows), count = call.batch * call.depth;
  auto* partial = static_cast<Sum<T>*>(call.scratch);
  const dim3 grid(ceil_div(call.depth, kColumnThreads * kColumns<T, Vectors>), used);
  slab_kernel<T, Batch, Vectors><<<grid, kColumnThreads, 0, warpwatch::as_stream(stream)>>>(call, slab_rows, partial);
  const dim3 block(kSumColumns, kSumLanes);
  slab_sums<T><<<ceil_div(count, kSumColumns), block, 0, warpwatch::as_stream(stream)>>>(partial, used, call.x_gradient, count);
  return warpwatch::launch_error();
}

// Every slab leaves a sum for each element of dx, in the type that sums are kept in.
template <class T>
int64_t backward_scratch_bytes(const Backward<T>& call) {
  return slab_count(call.outputs, call.depth) * call.batch * call.depth * static_cast<int64_t>(sizeof(Sum<T>));
}

template <class T>
const char* backward(const Backward<T>& call, void* stream) {
  if (call.batch > kMostGradientRows) return "too many rows for the backward kernel";
  if (call.batch == 0 || call.outputs == 0 || call.depth == 0) return "nothing to do is the caller's case";
  if constexpr (sizeof(T) <= 4) {
    if (all_aligned(call.x, call.w, call.depth) && warpwatch::aligned16(call.w_gradient))
      return call.batch == 1 ? launch_backward<T, 1, true>(call, stream) : launch_backward<T, 8, true>(call, stream);
  }
  return launch_backward<T, 8, false>(call, stream);
}

}  // namespace row_products

// The functions of row_products.h for one type; operators without gradients of their own take the first alone.
#define WARPWATCH_ROW_PRODUCTS_FORWARD(T) \
  const char* row_products::forward_on(const Forward<T>& call, void* stream) { return row_products::forward(call, stream); }
#define WARPWATCH_ROW_PRODUCTS(T)                                                                                             \
  WARPWATCH_ROW_PRODUCTS_FORWARD(T)                                                                                           \
  int64_t row_products::scratch_bytes(const Backward<T>& call) { return row_products::backward_scratch_bytes(call); }         \
  const char* row_products::backward_on(const Backward<T>& call, void* stream) { return row_products::backward(call, stream); }
