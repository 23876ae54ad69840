// The kernel and launcher of decoder_step.h: a warp per hidden unit, 16 bytes per lane and access, every weight read once.
#pragma once

#include "common/decoder_step.h"
#include "common/gru_cell.h"
#include "common/row_products.cuh"

namespace decoder_step {

using row_products::kAccess;
using row_products::load;
using warpwatch::ceil_div;

constexpr int kWarps = 4;
constexpr int kSums = 4;  // Of r and z, and of n on either side, which r keeps apart.

// Adds three rows of weights times `Batch` rows of x: gates 0 and 1 to the first two sums, gate 2 to sum `Last`.
template <class T, int Batch, bool Vectors, int Last>
__device__ inline void add_products(const T* (&rows)[Batch], const T* weights, int64_t gate_stride, int width, T (&sum)[Batch][kSums]) {
  constexpr int kSize = kAccess<T, Vectors>;
#pragma unroll(Batch == 1 ? 4 : 1)
  for (int k = threadIdx.x % 32 * kSize; k < width; k += 32 * kSize) {
    T w[3][kSize];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) load<T, kSize>(weights + gate * gate_stride + k, w[gate]);
#pragma unroll
    for (int b = 0; b < Batch; ++b) {
      T x[kSize];
      load<T, kSize>(rows[b] + k, x);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        sum[b][0] += x[i] * w[0][i];
        sum[b][1] += x[i] * w[1][i];
        sum[b][Last] += x[i] * w[2][i];
      }
    }
  }
}

// Rows past the end repeat the last one and are not stored.
template <class T, int Batch, bool Vectors>
__global__ void __launch_bounds__(kWarps * 32) cells_kernel(const __grid_constant__ Cells<T> call) {
  const int lane = threadIdx.x % 32;
  const int64_t unit = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32, n = call.hidden, top = int64_t{blockIdx.y} * Batch;
  if (unit >= n) return;
  const T *e[Batch], *h[Batch];
#pragma unroll
  for (int b = 0; b < Batch; ++b) {
    const int64_t row = min(top + b, call.batch - 1);
    e[b] = call.e + (call.tokens == nullptr ? row : call.tokens[row * call.token_stride]) * call.e_stride;
    h[b] = call.h + row * n;
  }
  T sum[Batch][kSums] = {};
  add_products<T, Batch, Vectors, 2>(e, call.w_e + unit * call.w_stride, n * call.w_stride, static_cast<int>(call.inputs), sum);
  add_products<T, Batch, Vectors, 3>(h, call.w_h + unit * n, n * n, static_cast<int>(n), sum);
#pragma unroll
  for (int b = 0; b < Batch; ++b) {
#pragma unroll
    for (int s = 0; s < kSums; ++s)
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sum[b][s] += __shfl_xor_sync(0xffffffffu, sum[b][s], step);
    const int64_t row = top + b;
    if (lane != b || row >= call.batch) continue;
    const T *added = call.added + row * call.added_stride + unit, *bias = call.bias + unit;
    const gru_cell::Gates<T> gates = gru_cell::open<T>(sum[b][0] + added[0], sum[b][1] + added[n], sum[b][2] + added[2 * n], bias[0],
                                                       bias[n], sum[b][3] + bias[2 * n]);
    call.out[row * n + unit] = gru_cell::next_state(gates, h[b][unit]);
    if (call.saved == nullptr) continue;
    T* saved = call.saved + row * 4 * n + unit;
    saved[0] = gates.r;
    saved[n] = gates.z;
    saved[2 * n] = gates.n;
    saved[3 * n] = gates.q;
  }
}

template <class T, int Batch, bool Vectors>
const char* launch_cells(const Cells<T>& call, void* stream) {
  const int64_t tiles = ceil_div(call.batch, Batch);
  if (tiles > row_products::kLargestGridY) return "too many rows";
  const dim3 grid(ceil_div(call.hidden, kWarps), tiles);
  cells_kernel<T, Batch, Vectors><<<grid, kWarps * 32, 0, warpwatch::as_stream(stream)>>>(call);
  return warpwatch::launch_error();
}

template <class T>
const char* cells(const Cells<T>& call, void* stream) {
  if (call.batch == 0 || call.hidden == 0) return nullptr;
  if constexpr (sizeof(T) == 4) {
    const bool whole = call.inputs % 4 == 0 && call.hidden % 4 == 0 && call.e_stride % 4 == 0 && call.w_stride % 4 == 0;
    const bool aligned = warpwatch::aligned16(call.e) && warpwatch::aligned16(call.h) && warpwatch::aligned16(call.w_e) &&
                         warpwatch::aligned16(call.w_h);
    if (whole && aligned) return call.batch == 1 ? launch_cells<T, 1, true>(call, stream) : launch_cells<T, 8, true>(call, stream);
  }
  return launch_cells<T, 4, false>(call, stream);
}

}  // namespace decoder_step

// The function of decoder_step.h for one type.
#define WARPWATCH_DECODER_STEP(T) \
  const char* decoder_step::cells_on(const Cells<T>& call, void* stream) { return decoder_step::cells(call, stream); }
