// The short convolution on a CPU: a row at a time, in buffers that end in zeros or begin with them, so that no loop tests for the ends.
#pragma once

#include <algorithm>
#include <vector>

#include "causal_conv_short/causal_conv_short.h"
#include "common/gru_cell.h"
#include "common/products.h"
#include "common/wide.h"

namespace causal_conv_short {

constexpr int64_t kGrain = 16384;  // Elements below which a second thread costs more than it saves.
constexpr int64_t kHalo = 16;      // Zeros on either side of a row, more than any filter reaches: whole vectors.

// A row with zeros around it, in the type that sums are computed in.
template <class S>
class Row {
 public:
  explicit Row(int64_t length) : values_(kHalo + length + kHalo, S{0}) {}
  S* data() { return values_.data() + kHalo; }
  const S* data() const { return values_.data() + kHalo; }

 private:
  std::vector<S> values_;
};

// out[i] = the sigmoid of in[i], eight at a time; up to seven elements past the end are written as well.
inline void sigmoids(const float* in, float* out, int64_t length) {
  for (int64_t i = 0; i < length; i += 8) {
    gru_cell::Lanes z;
    std::memcpy(&z, in + i, sizeof z);
    const gru_cell::Lanes s = gru_cell::sigmoid(z);
    std::memcpy(out + i, &s, sizeof s);
  }
}

inline void sigmoids(const double* in, double* out, int64_t length) {
  for (int64_t i = 0; i < length; ++i) out[i] = gru_cell::sigmoid(in[i]);
}

// z[t] = bias + sum over j of w[j] * x[t - (width - 1) + j].
template <class S>
void filter_row(const S* x, const S* w, int width, S bias, S* z, int64_t length) {
  for (int64_t t = 0; t < length; ++t) z[t] = bias;
  for (int j = 0; j < width; ++j) {
    const S tap = w[j];
    const S* from = x - (width - 1) + j;
    for (int64_t t = 0; t < length; ++t) z[t] += tap * from[t];
  }
}

// One channel's taps and bias in the type that sums are computed in.
template <class T>
struct Channel {
  using S = warpwatch::WideType<T>;
  S w[kWidest], bias;

  Channel(const Shape& shape, const T* taps, const T* biases, int64_t channel) : bias(biases ? static_cast<S>(biases[channel]) : S{0}) {
    for (int j = 0; j < shape.width; ++j) w[j] = static_cast<S>(taps[channel * shape.width + j]);
  }
};

template <class T>
struct Buffers {
  using S = warpwatch::WideType<T>;
  Row<S> x, z, s, dx;
  explicit Buffers(int64_t length) : x(length), z(length), s(length), dx(length) {}
};

template <class T>
void forward_row(const Shape& shape, const Channel<T>& channel, const T* x, T* y, Buffers<T>& row) {
  const int64_t n = shape.length;
  warpwatch::widen_row(x, row.x.data(), n);
  filter_row(row.x.data(), channel.w, shape.width, channel.bias, row.z.data(), n);
  if (shape.silu) {
    sigmoids(row.z.data(), row.s.data(), n);
    for (int64_t t = 0; t < n; ++t) row.z.data()[t] *= row.s.data()[t];
  }
  warpwatch::narrow_row(row.z.data(), y, n);
}

// The sum of a[i] * b[i]; lanes are summed apart, because a single sum could not be vectorised.
template <class S>
S dot(const S* a, const S* b, int64_t count) {
  constexpr int kLanes = 64 / sizeof(S);
  S lane[kLanes] = {}, sum{0};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int l = 0; l < kLanes; ++l) lane[l] += a[i + l] * b[i + l];
  for (; i < count; ++i) sum += a[i] * b[i];
  for (const S& part : lane) sum += part;
  return sum;
}

// dx of one row; adds the row's share to the gradients of the taps and, last, of the bias.
template <class T, class S = warpwatch::WideType<T>>
void backward_row(const Shape& shape, const Channel<T>& channel, const T* g, const T* x, T* dx, Buffers<T>& row, const Row<S>& ones,
                  S (&share)[kWidest + 1]) {
  const int64_t n = shape.length;
  S *z = row.z.data(), *s = row.s.data();
  warpwatch::widen_row(x, row.x.data(), n);
  if (shape.silu) {
    filter_row(row.x.data(), channel.w, shape.width, channel.bias, z, n);
    sigmoids(z, s, n);
    for (int64_t t = 0; t < n; ++t) s[t] *= S{1} + z[t] * (S{1} - s[t]);
    warpwatch::widen_row(g, z, n);
    for (int64_t t = 0; t < n; ++t) z[t] *= s[t];
  } else {
    warpwatch::widen_row(g, z, n);
  }
  // Behind z lie zeros, where the mirrored filter reaches past the end.
  S mirrored[kWidest];
  std::reverse_copy(channel.w, channel.w + shape.width, mirrored);
  filter_row(z + shape.width - 1, mirrored, shape.width, S{0}, row.dx.data(), n);
  warpwatch::narrow_row(row.dx.data(), dx, n);
  for (int j = 0; j < shape.width; ++j) share[j] += dot(z, row.x.data() - (shape.width - 1) + j, n);
  share[kWidest] += dot(z, ones.data(), n);
}

template <class T>
void run(const Shape& shape, const Forward<warpwatch::KernelType<T>>& call, T) {
  const auto own = [](const auto* pointer) { return reinterpret_cast<const T*>(pointer); };
  T* y = reinterpret_cast<T*>(call.y);
  warpwatch::parallel_for(shape.batch * shape.channels, std::max<int64_t>(1, kGrain / shape.length), [&](int64_t begin, int64_t end) {
    Buffers<T> buffers(shape.length);
    for (int64_t row = begin; row < end; ++row) {
      const Channel<T> channel(shape, own(call.w), own(call.bias), row % shape.channels);
      forward_row(shape, channel, own(call.x) + row * shape.length, y + row * shape.length, buffers);
    }
  });
}

template <class T, class S = warpwatch::WideType<T>>
void run(const Shape& shape, const Backward<warpwatch::KernelType<T>, S>& call, T) {
  const auto own = [](const auto* pointer) { return reinterpret_cast<const T*>(pointer); };
  const int64_t n = shape.length, grain = std::max<int64_t>(1, kGrain / (n * shape.batch));
  // Threads share the channels, so that each sum over batch rows is one thread's.
  warpwatch::parallel_for(shape.channels, grain, [&](int64_t begin, int64_t end) {
    Buffers<T> buffers(n);
    Row<S> ones(n);
    std::fill(ones.data(), ones.data() + n, S{1});
    for (int64_t c = begin; c < end; ++c) {
      const Channel<T> channel(shape, own(call.w), own(call.bias), c);
      S share[kWidest + 1] = {};
      for (int64_t b = 0; b < shape.batch; ++b) {
        const int64_t start = (b * shape.channels + c) * n;
        backward_row(shape, channel, own(call.g) + start, own(call.x) + start, reinterpret_cast<T*>(call.dx) + start, buffers, ones, share);
      }
      for (int j = 0; j < shape.width; ++j) reinterpret_cast<T*>(call.dw)[c * shape.width + j] = static_cast<T>(share[j]);
      if (call.dbias) reinterpret_cast<T*>(call.dbias)[c] = static_cast<T>(share[kWidest]);
    }
  });
}

}  // namespace causal_conv_short
