// Binds the long causal convolution and its gradients to torch for CPU and CUDA.
#include "causal_conv/causal_conv.h"

#include <tuple>

#include "causal_conv/cpu.h"
#include "common/tensor.h"

namespace {

using causal_conv::Shape;
using causal_conv::Version;
using torch::stable::Tensor;

constexpr int64_t kMostChannels = 65535;  // Of a launch.

void check_like(const Tensor& k, const Tensor& other) {
  STD_TORCH_CHECK(other.scalar_type() == k.scalar_type(), "all operands must have the same dtype");
  STD_TORCH_CHECK(other.is_cuda() == k.is_cuda() && other.get_device_index() == k.get_device_index(), "all operands must be on one device");
}

Shape shape_of(const Tensor& k, const Tensor& w) {
  STD_TORCH_CHECK(k.dim() == 3 && w.dim() == 2 && w.size(0) == k.size(1) && w.size(1) == k.size(2),
                  "k must be (batch, channels, length), w (channels, length)");
  STD_TORCH_CHECK(k.size(1) <= kMostChannels, "causal_conv takes at most ", kMostChannels, " channels");
  check_like(k, w);
  return {k.size(0), k.size(1), k.size(2)};
}

template <class Run>
void with_type(const Tensor& k, const Run& run) {
  warpwatch::dispatch<float, double>(k.scalar_type(), run);
}

// run(shape, k, w, eps, y), all but shape pointers.
template <class Run>
Tensor forward(const Tensor& k_given, const Tensor& w_given, const Tensor& eps, const Run& run) {
  const Shape shape = shape_of(k_given, w_given);
  check_like(k_given, eps);
  STD_TORCH_CHECK(eps.numel() == 1, "eps must be one number");
  const Tensor k = warpwatch::contiguous(k_given), w = warpwatch::contiguous(w_given);
  Tensor y = torch::stable::empty_like(k);
  if (k.numel() == 0) return y;
  with_type(k, [&](auto zero) {
    using T = decltype(zero);
    run(shape, k.const_data_ptr<T>(), w.const_data_ptr<T>(), eps.const_data_ptr<T>(), y.mutable_data_ptr<T>());
  });
  return y;
}

using Gradients = std::tuple<Tensor, Tensor>;

// run(shape, g, k, w, dk, dw), all but shape pointers.
template <class Run>
Gradients backward(const Tensor& g_given, const Tensor& k_given, const Tensor& w_given, const Run& run) {
  const Shape shape = shape_of(k_given, w_given);
  warpwatch::check_same_shape(g_given, k_given);
  const Tensor g = warpwatch::contiguous(g_given), k = warpwatch::contiguous(k_given), w = warpwatch::contiguous(w_given);
  Tensor dk = torch::stable::empty_like(k), dw = torch::stable::empty_like(w);
  if (k.numel() == 0) return {dk, torch::stable::fill_(dw, 0)};
  with_type(k, [&](auto zero) {
    using T = decltype(zero);
    run(shape, g.const_data_ptr<T>(), k.const_data_ptr<T>(), w.const_data_ptr<T>(), dk.mutable_data_ptr<T>(), dw.mutable_data_ptr<T>());
  });
  return {dk, dw};
}

Tensor forward_cpu(const Tensor& k, const Tensor& w, const Tensor& eps, int64_t) {
  return forward(k, w, eps, [](const Shape& shape, const auto* k, const auto* w, const auto* eps, auto* y) {
    warpwatch::parallel_for(shape.channels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) causal_conv::convolve_channel(shape, k, w, *eps, y, c);
    });
  });
}

Gradients backward_cpu(const Tensor& g, const Tensor& k, const Tensor& w, int64_t) {
  return backward(g, k, w, [](const Shape& shape, const auto* g, const auto* k, const auto* w, auto* dk, auto* dw) {
    warpwatch::parallel_for(shape.channels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        causal_conv::turned_channel(shape, g, w, dk, c);
        causal_conv::correlate_channel(shape, k, g, dw, c);
      }
    });
  });
}

#if !defined(WARPWATCH_NO_CUDA)
template <class T>
const char* convolve(Version version, const Shape& shape, bool turned, const T* k, const T* w, const T* eps, T* y, void* stream) {
  if constexpr (sizeof(T) == 4) {
    if (version == Version::tensor_cores) return causal_conv::convolve_tf32_on(shape, turned, k, w, eps, y, stream);
    if (version == Version::split_tensor_cores) return causal_conv::convolve_split_on(shape, turned, k, w, eps, y, stream);
  }
  return causal_conv::convolve_on(shape, turned, k, w, eps, y, stream);
}

// The gradient of the filter has no split form: it is a float's on CUDA cores.
template <class T>
const char* correlate(Version version, const Shape& shape, const T* k, const T* g, T* dw, void* stream) {
  if constexpr (sizeof(T) == 4)
    if (version == Version::tensor_cores) return causal_conv::correlate_tf32_on(shape, k, g, dw, stream);
  return causal_conv::correlate_on(shape, k, g, dw, stream);
}

Tensor forward_cuda(const Tensor& k_given, const Tensor& w, const Tensor& eps, int64_t version) {
  const warpwatch::DeviceGuard guard(k_given.get_device_index());
  return forward(k_given, w, eps, [&](const Shape& shape, const auto* k, const auto* w, const auto* eps, auto* y) {
    warpwatch::check_launch(convolve(Version{version}, shape, false, k, w, eps, y, warpwatch::current_stream(k_given)));
  });
}

Gradients backward_cuda(const Tensor& g_given, const Tensor& k, const Tensor& w, int64_t version) {
  const warpwatch::DeviceGuard guard(g_given.get_device_index());
  return backward(g_given, k, w, [&](const Shape& shape, const auto* g, const auto* k, const auto* w, auto* dk, auto* dw) {
    void* stream = warpwatch::current_stream(g_given);
    const decltype(k) no_eps = nullptr;
    warpwatch::check_launch(convolve(Version{version}, shape, true, g, w, no_eps, dk, stream));
    warpwatch::check_launch(correlate(Version{version}, shape, k, g, dw, stream));
  });
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def("causal_conv(Tensor k, Tensor w, Tensor eps, int version=3) -> Tensor");
  m.def("causal_conv_backward(Tensor gradient, Tensor k, Tensor w, int version=3) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) {
  m.impl("causal_conv", TORCH_BOX(&forward_cpu));
  m.impl("causal_conv_backward", TORCH_BOX(&backward_cpu));
}

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) {
  m.impl("causal_conv", TORCH_BOX(&forward_cuda));
  m.impl("causal_conv_backward", TORCH_BOX(&backward_cuda));
}
#endif
