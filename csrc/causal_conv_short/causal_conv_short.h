// The seam between the binding (g++, torch) and the kernels (nvcc, no torch).
#pragma once

#include <cstdint>

namespace causal_conv_short {

constexpr int kNarrowest = 2, kWidest = 4;

// x lies as (batch, channels, length); a filter of `width` taps per channel.
struct Shape {
  int64_t batch, channels, length;
  int width;
  bool silu;
};

// y = f(b + sum over j of w[c][j] * x[t - (width - 1) + j]), f the identity or z / (1 + exp(-z)); `bias` may be null.
template <class T>
struct Forward {
  const T* x;
  const T* w;
  const T* bias;
  T* y;
};

// `partial` has room for partial_sums numbers: the taps' and the bias's share of every part of every row. The last kernel adds them up into
// dw and, where it is not null, dbias. S: float, or double for double.
template <class T, class S>
struct Backward {
  const T* g;
  const T* x;
  const T* w;
  const T* bias;
  T* dx;
  T* dw;
  T* dbias;
  S* partial;
};

constexpr int64_t kThreads = 256;

// A part of a row is what one block takes: as many elements as threads, or packs.
inline int64_t partial_sums(const Shape& shape) {
  return shape.batch * shape.channels * ((shape.length + kThreads - 1) / kThreads) * (kWidest + 1);
}

// Both return null, or why a launch was refused. T: float, double, Bf16, F16.
template <class T>
const char* forward_on(const Shape& shape, const Forward<T>& call, void* stream);
template <class T, class S>
const char* backward_on(const Shape& shape, const Backward<T, S>& call, void* stream);

}  // namespace causal_conv_short
