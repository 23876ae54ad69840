// Short causal convolutions: a thread takes one pack of 16 bytes of a row, and reads its neighbours' packs from the first-level cache.
#pragma once

#include <algorithm>

#include "causal_conv_short/causal_conv_short.h"
#include "common/launch.cuh"
#include "common/reduce.cuh"
#include "common/wide.cuh"

namespace causal_conv_short {

using warpwatch::ceil_div;
using warpwatch::narrow;
using warpwatch::Pack;
using warpwatch::Wide;
using warpwatch::widen;

constexpr int kWarp = 32;
constexpr int W = kWidest;

// 1 / (1 + exp(-z)). For 16-bit results the special function unit is exact enough, and more would take longer than the memory does.
template <class T>
__device__ Wide<T> sigmoid(Wide<T> z) {
  if constexpr (sizeof(T) == 2) {
    return __fdividef(1.0f, 1.0f + __expf(-z));
  } else if constexpr (sizeof(T) == 4) {
    return 1.0f / (1.0f + expf(-z));
  } else {
    return 1.0 / (1.0 + exp(-z));
  }
}

// Row[i - kSide .. i + V + kRight) with zeros beyond the row's ends, where i and the row's length are multiples of V.
template <class T, int V, int kLeft, int kRight>
struct Window {
  static constexpr int kBefore = (kLeft + V - 1) / V, kAfter = (kRight + V - 1) / V;  // Packs on either side.
  static constexpr int kSide = kBefore * V;
  Wide<T> value[(kBefore + 1 + kAfter) * V];

  __device__ Window(const T* row, int64_t i, int64_t length) {
#pragma unroll
    for (int p = 0; p < kBefore + 1 + kAfter; ++p) {
      const int64_t at = i + (p - kBefore) * V;
      const bool inside = at >= 0 && at < length;
      Pack<T, V> pack;
      if (inside) pack = *reinterpret_cast<const Pack<T, V>*>(row + at);
#pragma unroll
      for (int e = 0; e < V; ++e) value[p * V + e] = inside ? widen(pack.element[e]) : Wide<T>{0};
    }
  }

  // row[i + offset].
  __device__ Wide<T> at(int offset) const { return value[kSide + offset]; }
};

// One channel's taps and bias. Narrower filters are filters of the widest kind without their first taps, so that one kernel serves all:
// which taps there are is the same question for all threads.
template <class T>
struct Filter {
  Wide<T> w[W], bias;
  int first;  // Taps before this one are missing.

  __device__ Filter(const Shape& shape, const T* w_of, const T* bias_of, int64_t channel) : first(W - shape.width) {
#pragma unroll
    for (int j = 0; j < W; ++j) w[j] = j >= first ? widen(w_of[channel * shape.width + j - first]) : Wide<T>{0};
    bias = bias_of ? widen(bias_of[channel]) : Wide<T>{0};
  }

  // What goes into f at row[i + offset]. A missing tap is left out and no product with zero, which a NaN would get through.
  template <class X>
  __device__ Wide<T> sum(const X& x, int offset) const {
    Wide<T> z = bias;
#pragma unroll
    for (int j = 0; j < W; ++j)
      if (j >= first) z += w[j] * x.at(offset - (W - 1) + j);
    return z;
  }

  // The gradient of x[i + offset] out of those of what it went into.
  template <int N>
  __device__ Wide<T> turned(const Wide<T> (&dz)[N], int offset) const {
    Wide<T> sum{0};
#pragma unroll
    for (int j = 0; j < W; ++j)
      if (j >= first) sum += w[j] * dz[offset + W - 1 - j];
    return sum;
  }
};

// A block per row along x, parts of the row along y.
template <class T, int V>
__global__ void __launch_bounds__(kThreads) forward(Shape shape, Forward<T> call) {
  const int64_t row = blockIdx.x, i = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * V;
  if (i >= shape.length) return;
  const Filter<T> filter(shape, call.w, call.bias, row % shape.channels);
  const Window<T, V, W - 1, 0> x(call.x + row * shape.length, i, shape.length);
  Pack<T, V> y;
#pragma unroll
  for (int e = 0; e < V; ++e) {
    Wide<T> z = filter.sum(x, e);
    if (shape.silu) z *= sigmoid<T>(z);
    y.element[e] = narrow<T>(z);
  }
  *reinterpret_cast<Pack<T, V>*>(call.y + row * shape.length + i) = y;
}

// Gradient of what goes into f, for the V elements of a thread and the W - 1 after them, which those went into as well.
template <class T, int V, class X, class G>
__device__ void slopes(const Filter<T>& filter, const X& x, const G& g, bool silu, Wide<T> (&dz)[V + W - 1]) {
#pragma unroll
  for (int e = 0; e < V + W - 1; ++e) {
    dz[e] = g.at(e);
    if (silu) {
      const Wide<T> z = filter.sum(x, e), s = sigmoid<T>(z);
      dz[e] *= s * (Wide<T>{1} + z * (Wide<T>{1} - s));
    }
  }
}

template <class T, int V, class S>
__global__ void __launch_bounds__(kThreads) backward(Shape shape, Backward<T, S> call) {
  const int64_t row = blockIdx.x, channel = row % shape.channels, i = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * V;
  Wide<T> share[W + 1] = {};
  // A thread behind the row's end adds zero and still takes part in the block's sums.
  if (i < shape.length) {
    const Filter<T> filter(shape, call.w, call.bias, channel);
    const Window<T, V, W - 1, W - 1> x(call.x + row * shape.length, i, shape.length);
    const Window<T, V, 0, W - 1> g(call.g + row * shape.length, i, shape.length);
    Wide<T> dz[V + W - 1];
    slopes<T, V>(filter, x, g, shape.silu, dz);
    Pack<T, V> dx;
#pragma unroll
    for (int e = 0; e < V; ++e) {
      dx.element[e] = narrow<T>(filter.turned(dz, e));
#pragma unroll
      for (int j = 0; j < W; ++j) share[j] += dz[e] * x.at(e - (W - 1) + j);
      share[W] += dz[e];
    }
    *reinterpret_cast<Pack<T, V>*>(call.dx + row * shape.length + i) = dx;
  }
  warpwatch::sum_over_block(share);
  if (threadIdx.x == 0) {
    const int64_t part = row / shape.channels * gridDim.y + blockIdx.y;
#pragma unroll
    for (int j = 0; j <= W; ++j) call.partial[(part * shape.channels + channel) * (W + 1) + j] = share[j];
  }
}

// A thread per channel and sum adds up what the parts left.
template <class T, class S>
__global__ void __launch_bounds__(kThreads) finish(Shape shape, Backward<T, S> call, int64_t parts) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x, all = shape.channels * (W + 1);
  if (at >= all) return;
  S sum{0};
  for (int64_t part = 0; part < parts; ++part) sum += call.partial[part * all + at];
  const int64_t channel = at / (W + 1);
  const int j = static_cast<int>(at % (W + 1)), first = W - shape.width;
  if (j == W) {
    if (call.dbias) call.dbias[channel] = narrow<T>(sum);
  } else if (j >= first) {
    call.dw[channel * shape.width + j - first] = narrow<T>(sum);
  }
}

// Elements of one access: 16 bytes where rows begin and end at such multiples, else one element. Double precision is for checking, and
// kernels cost compile time.
template <class T>
constexpr int kPack = sizeof(T) == 8 ? 1 : 16 / sizeof(T);

template <class T>
bool in_packs(const Shape& shape, const T* a, const T* b, const T* c) {
  return shape.length % kPack<T> == 0 && warpwatch::aligned16(a) && warpwatch::aligned16(b) && warpwatch::aligned16(c);
}

struct Launch {
  dim3 grid;
  int threads;

  Launch(const Shape& shape, int pack) {
    const int64_t packs = shape.length / pack;
    threads = static_cast<int>(std::min<int64_t>(kThreads, ceil_div(packs, kWarp) * kWarp));
    grid = dim3(static_cast<unsigned>(shape.batch * shape.channels), static_cast<unsigned>(ceil_div(packs, threads)));
  }
};

}  // namespace causal_conv_short
