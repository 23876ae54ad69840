// A warp takes a few rows of W and loops along them, 32 codes per lane and access, for a few rows of x, which come out of the
// first-level cache.
#include <algorithm>

#include "common/launch.cuh"
#include "common/wide.cuh"
#include "int4_linear/int4_linear.h"

namespace {

using int4_linear::Shape;
using warpwatch::ceil_div;
using warpwatch::Pack;
using warpwatch::widen;

constexpr int kWarp = 32, kWarps = 4, kOutputs = 2, kCodes = 32;
constexpr int64_t kLargestGridY = 65535;

__device__ float sum_over_warp(float value) {
#pragma unroll
  for (int apart = kWarp / 2; apart > 0; apart /= 2) value += __shfl_xor_sync(~0u, value, apart);
  return value;
}

// The code at 4 * i bits of a word: both shifts are of signed numbers, so that its sign bit fills the bits above it.
__device__ float code_at(uint32_t word, int i) { return static_cast<float>(static_cast<int32_t>(word << (28 - 4 * i)) >> 28); }

// Columns are a multiple of 32. Rows past the last repeat it and are not stored.
template <class T, int Batch>
__global__ void __launch_bounds__(kWarps * kWarp) rows_of_words(Shape shape, const T* x, const uint8_t* w, const float* scale, T* y) {
  const int lane = threadIdx.x % kWarp;
  const int64_t first = (int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp) * kOutputs, top = int64_t{blockIdx.y} * Batch;
  if (first >= shape.out) return;
  const uint8_t* codes[kOutputs];
  const float* scales[kOutputs];
  const T* from[Batch];
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
    const int64_t row = min(first + o, shape.out - 1);
    codes[o] = w + row * shape.columns / 2;
    scales[o] = scale + row * shape.groups;
  }
#pragma unroll
  for (int b = 0; b < Batch; ++b) from[b] = x + min(top + b, shape.rows - 1) * shape.columns;
  float total[Batch][kOutputs] = {};
#pragma unroll 2
  for (int64_t k = int64_t{lane} * kCodes; k < shape.columns; k += kWarp * kCodes) {
    uint4 words[kOutputs];
    float factor[kOutputs];
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      words[o] = *reinterpret_cast<const uint4*>(codes[o] + k / 2);
      factor[o] = scales[o][k >> shape.shift];
    }
    float sum[Batch][kOutputs] = {};
#pragma unroll
    for (int part = 0; part < kCodes / 8; ++part) {
      Pack<T, 8> pack[Batch];
#pragma unroll
      for (int b = 0; b < Batch; ++b) pack[b] = *reinterpret_cast<const Pack<T, 8>*>(from[b] + k + 8 * part);
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
        const uint32_t word = part == 0 ? words[o].x : part == 1 ? words[o].y : part == 2 ? words[o].z : words[o].w;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float code = code_at(word, i);
#pragma unroll
          for (int b = 0; b < Batch; ++b) sum[b][o] += code * widen(pack[b].element[i]);
        }
      }
    }
#pragma unroll
    for (int b = 0; b < Batch; ++b)
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) total[b][o] += sum[b][o] * factor[o];
  }
#pragma unroll
  for (int b = 0; b < Batch; ++b)
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      const float result = sum_over_warp(total[b][o]);
      if (lane == 0 && top + b < shape.rows && first + o < shape.out)
        y[(top + b) * shape.out + first + o] = warpwatch::narrow<T>(result);
    }
}

// Any even number of columns: a warp takes one element of y, a lane two columns at a time.
template <class T>
__global__ void __launch_bounds__(kWarps * kWarp) rows_of_bytes(Shape shape, const T* x, const uint8_t* w, const float* scale, T* y) {
  const int64_t output = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp, row = blockIdx.y;
  if (output >= shape.out) return;
  float total = 0;
  for (int64_t i = threadIdx.x % kWarp; i < shape.columns / 2; i += kWarp) {
    const uint32_t pair = w[output * shape.columns / 2 + i];
    const T* two = x + row * shape.columns + 2 * i;
    total += (code_at(pair, 0) * widen(two[0]) + code_at(pair, 1) * widen(two[1])) * scale[output * shape.groups + (2 * i >> shape.shift)];
  }
  total = sum_over_warp(total);
  if (threadIdx.x % kWarp == 0) y[row * shape.out + output] = warpwatch::narrow<T>(total);
}

template <class T, int Batch>
const char* launch(const Shape& shape, const T* x, const uint8_t* w, const float* scale, T* y, void* stream) {
  const int64_t down = ceil_div(shape.rows, Batch);
  if (down > kLargestGridY) return "int4_linear: too many rows";
  const dim3 grid(ceil_div(shape.out, kWarps * kOutputs), down);
  rows_of_words<T, Batch><<<grid, kWarps * kWarp, 0, warpwatch::as_stream(stream)>>>(shape, x, w, scale, y);
  return warpwatch::launch_error();
}

}  // namespace

template <class T>
const char* int4_linear::forward_on(const Shape& shape, const T* x, const uint8_t* w, const float* scale, T* y, void* stream) {
  if (shape.columns % kCodes != 0) {
    if (shape.rows > kLargestGridY) return "int4_linear: too many rows";
    const dim3 grid(ceil_div(shape.out, kWarps), shape.rows);
    rows_of_bytes<T><<<grid, kWarps * kWarp, 0, warpwatch::as_stream(stream)>>>(shape, x, w, scale, y);
    return warpwatch::launch_error();
  }
  if (shape.rows == 1) return launch<T, 1>(shape, x, w, scale, y, stream);
  if (shape.rows == 2) return launch<T, 2>(shape, x, w, scale, y, stream);
  return launch<T, 4>(shape, x, w, scale, y, stream);
}

template const char* int4_linear::forward_on<float>(const Shape&, const float*, const uint8_t*, const float*, float*, void*);
template const char* int4_linear::forward_on<warpwatch::Bf16>(const Shape&, const warpwatch::Bf16*, const uint8_t*, const float*,
                                                              warpwatch::Bf16*, void*);
template const char* int4_linear::forward_on<warpwatch::F16>(const Shape&, const warpwatch::F16*, const uint8_t*, const float*,
                                                             warpwatch::F16*, void*);
