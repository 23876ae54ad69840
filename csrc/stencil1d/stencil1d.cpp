// Binds the stencil and its gradients to torch for CPU and CUDA.
#include "stencil1d/stencil1d.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <vector>

#include "common/tensor.h"

namespace {

using stencil1d::kPart;
using stencil1d::kRadius;
using stencil1d::kTaps;
using torch::stable::Tensor;

constexpr int64_t kGrain = 16384;  // Below this many elements a second thread costs more than it saves.

void check(const Tensor& x, const Tensor& w) {
  STD_TORCH_CHECK(x.dim() == 1 && w.dim() == 1 && w.size(0) == kTaps, "stencil1d takes a line and ", kTaps, " taps");
  STD_TORCH_CHECK(x.scalar_type() == w.scalar_type(), "both operands must have the same dtype");
  STD_TORCH_CHECK(x.is_cuda() == w.is_cuda() && x.get_device_index() == w.get_device_index(), "both operands must be on one device");
}

// The element in every type this operator is for.
template <class Run>
void with_type(const Tensor& x, const Run& run) {
  warpwatch::dispatch<float, double>(x.scalar_type(), run);
}

template <class T>
std::array<T, kTaps> taps_of(const T* w, bool mirrored) {
  std::array<T, kTaps> taps;
  for (int j = 0; j < kTaps; ++j) taps[j] = w[mirrored ? kTaps - 1 - j : j];
  return taps;
}

// Beyond the ends lie zeros, which are multiplied like all else: a NaN that meets one is no number.
template <class T>
T at_or_zero(const T* x, int64_t i, int64_t n) {
  return i >= 0 && i < n ? x[i] : T{0};
}

// y[begin .. end). Elements whose neighbours all exist go through one loop without a question in it.
template <class T>
void stencil(const T* x, const std::array<T, kTaps>& w, T* y, int64_t begin, int64_t end, int64_t n) {
  const auto edge = [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      T sum{0};
      for (int64_t j = 0; j < kTaps; ++j) sum += w[j] * at_or_zero(x, i + j - kRadius, n);
      y[i] = sum;
    }
  };
  const int64_t first = std::clamp<int64_t>(kRadius, begin, end), last = std::clamp<int64_t>(n - kRadius, first, end);
  edge(begin, first);
  const T w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3], w4 = w[4], w5 = w[5], w6 = w[6];
  for (int64_t i = first; i < last; ++i)
    y[i] = w0 * x[i - 3] + w1 * x[i - 2] + w2 * x[i - 1] + w3 * x[i] + w4 * x[i + 1] + w5 * x[i + 2] + w6 * x[i + 3];
  edge(last, end);
}

// One part's share of every tap's gradient. Lanes are summed apart, because a single sum could not be vectorised.
template <class T>
std::array<T, kTaps> taps_of_part(const T* g, const T* x, int64_t begin, int64_t end, int64_t n) {
  constexpr int kLanes = 64 / sizeof(T);
  T lane[kTaps][kLanes] = {};
  const int64_t first = std::clamp<int64_t>(kRadius, begin, end), last = std::clamp<int64_t>(n - kRadius, first, end);
  const int64_t whole = first + (last - first) / kLanes * kLanes;
  for (int64_t i = first; i < whole; i += kLanes)
#pragma GCC unroll 7
    for (int j = 0; j < kTaps; ++j)
      for (int l = 0; l < kLanes; ++l) lane[j][l] += g[i + l] * x[i + l + j - kRadius];
  std::array<T, kTaps> sum{};
  for (int j = 0; j < kTaps; ++j) {
    for (const T& part : lane[j]) sum[j] += part;
    const auto rest = [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) sum[j] += g[i] * at_or_zero(x, i + j - kRadius, n);
    };
    rest(begin, first);
    rest(whole, end);
  }
  return sum;
}

// Both gradients, part by part while it lies in cache. The parts have a fixed length, however many threads there are: the same bits
// every time.
template <class T>
void gradients(const T* g, const T* x, const T* w, T* dx, T* dw, int64_t n) {
  const auto mirrored = taps_of(w, true);
  const int64_t parts = (n + kPart - 1) / kPart;
  std::vector<std::array<T, kTaps>> partial(parts);
  warpwatch::parallel_for(parts, kGrain / kPart, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      const int64_t begin = part * kPart, end = std::min(n, begin + kPart);
      stencil(g, mirrored, dx, begin, end, n);
      partial[part] = taps_of_part(g, x, begin, end, n);
    }
  });
  for (int j = 0; j < kTaps; ++j) {
    // Thousands of parts add up in double, whose rounding does not count.
    double total = 0;
    for (const auto& part : partial) total += part[j];
    dw[j] = static_cast<T>(total);
  }
}

Tensor stencil1d_cpu(const Tensor& x_given, const Tensor& w_given, int64_t) {
  check(x_given, w_given);
  const Tensor x = warpwatch::contiguous(x_given), w = warpwatch::contiguous(w_given);
  Tensor y = torch::stable::empty_like(x);
  with_type(x, [&](auto zero) {
    using T = decltype(zero);
    const T* in = x.const_data_ptr<T>();
    T* out = y.mutable_data_ptr<T>();
    const auto taps = taps_of(w.const_data_ptr<T>(), false);
    const int64_t n = x.numel();
    warpwatch::parallel_for(n, kGrain, [=](int64_t begin, int64_t end) { stencil(in, taps, out, begin, end, n); });
  });
  return y;
}

std::tuple<Tensor, Tensor> backward_cpu(const Tensor& g_given, const Tensor& x_given, const Tensor& w_given, int64_t) {
  check(x_given, w_given);
  warpwatch::check_same_shape(g_given, x_given);
  const Tensor g = warpwatch::contiguous(g_given), x = warpwatch::contiguous(x_given), w = warpwatch::contiguous(w_given);
  Tensor dx = torch::stable::empty_like(x), dw = torch::stable::empty_like(w);
  with_type(x, [&](auto zero) {
    using T = decltype(zero);
    gradients(g.const_data_ptr<T>(), x.const_data_ptr<T>(), w.const_data_ptr<T>(), dx.mutable_data_ptr<T>(), dw.mutable_data_ptr<T>(),
              x.numel());
  });
  return {dx, dw};
}

#if !defined(WARPWATCH_NO_CUDA)
Tensor stencil1d_cuda(const Tensor& x_given, const Tensor& w_given, int64_t version) {
  check(x_given, w_given);
  const warpwatch::DeviceGuard guard(x_given.get_device_index());
  const Tensor x = warpwatch::contiguous(x_given), w = warpwatch::contiguous(w_given);
  Tensor y = torch::stable::empty_like(x);
  if (x.numel() == 0) return y;
  with_type(x, [&](auto zero) {
    using T = decltype(zero);
    warpwatch::check_launch(stencil1d::forward_on(stencil1d::Version{version}, x.const_data_ptr<T>(), w.const_data_ptr<T>(),
                                                y.mutable_data_ptr<T>(), x.numel(), warpwatch::current_stream(x)));
  });
  return y;
}

std::tuple<Tensor, Tensor> backward_cuda(const Tensor& g_given, const Tensor& x_given, const Tensor& w_given, int64_t version) {
  check(x_given, w_given);
  warpwatch::check_same_shape(g_given, x_given);
  const warpwatch::DeviceGuard guard(x_given.get_device_index());
  const Tensor g = warpwatch::contiguous(g_given), x = warpwatch::contiguous(x_given), w = warpwatch::contiguous(w_given);
  Tensor dx = torch::stable::empty_like(x), dw = torch::stable::empty_like(w);
  if (x.numel() == 0) return {dx, torch::stable::fill_(dw, 0)};
  Tensor partial = torch::stable::new_empty(x, {(x.numel() + kPart - 1) / kPart, kTaps});
  with_type(x, [&](auto zero) {
    using T = decltype(zero);
    warpwatch::check_launch(stencil1d::backward_on(stencil1d::Version{version}, g.const_data_ptr<T>(), x.const_data_ptr<T>(),
                                                   w.const_data_ptr<T>(), dx.mutable_data_ptr<T>(), partial.mutable_data_ptr<T>(),
                                                   dw.mutable_data_ptr<T>(), x.numel(), warpwatch::current_stream(x)));
  });
  return {dx, dw};
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def("stencil1d(Tensor x, Tensor w, int version=3) -> Tensor");
  m.def("stencil1d_backward(Tensor gradient, Tensor x, Tensor w, int version=3) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) {
  m.impl("stencil1d", TORCH_BOX(&stencil1d_cpu));
  m.impl("stencil1d_backward", TORCH_BOX(&backward_cpu));
}

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) {
  m.impl("stencil1d", TORCH_BOX(&stencil1d_cuda));
  m.impl("stencil1d_backward", TORCH_BOX(&backward_cuda));
}
#endif
