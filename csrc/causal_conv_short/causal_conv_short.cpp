// Binds the short causal convolution and its gradients to torch for CPU and CUDA.
#include "causal_conv_short/causal_conv_short.h"

#include <optional>
#include <tuple>

#include "causal_conv_short/cpu.h"
#include "common/wide.h"

namespace {

using causal_conv_short::Shape;
using torch::stable::Tensor;

using Bias = std::optional<Tensor>;

void check_like(const Tensor& x, const Tensor& other) {
  STD_TORCH_CHECK(other.scalar_type() == x.scalar_type(), "all operands must have the same dtype");
  STD_TORCH_CHECK(other.is_cuda() == x.is_cuda() && other.get_device_index() == x.get_device_index(), "all operands must be on one device");
}

Shape shape_of(const Tensor& x, const Tensor& w, const Bias& bias, bool silu) {
  STD_TORCH_CHECK(x.dim() == 3 && w.dim() == 2 && w.size(0) == x.size(1), "x must be (batch, channels, length), w (channels, width)");
  STD_TORCH_CHECK(w.size(1) >= causal_conv_short::kNarrowest && w.size(1) <= causal_conv_short::kWidest, "width must be 2, 3 or 4");
  check_like(x, w);
  if (bias.has_value()) {
    STD_TORCH_CHECK(bias->dim() == 1 && bias->size(0) == x.size(1), "there must be one bias per channel");
    check_like(x, *bias);
  }
  STD_TORCH_CHECK(x.size(0) * x.size(1) < (int64_t{1} << 31), "causal_conv_short takes fewer than 2^31 rows");
  return {x.size(0), x.size(1), x.size(2), static_cast<int>(w.size(1)), silu};
}

template <class Run>
void with_type(const Tensor& x, const Run& run) {
  warpwatch::dispatch<float, double, c10::BFloat16, c10::Half>(x.scalar_type(), run);
}

Bias contiguous(const Bias& bias) { return bias.has_value() ? Bias(warpwatch::contiguous(*bias)) : Bias(); }

// Elements in the type of the kernels; null for an absent tensor.
template <class K, class T>
const K* in(const Tensor& tensor) {
  return reinterpret_cast<const K*>(tensor.const_data_ptr<T>());
}
template <class K, class T>
const K* in(const Bias& bias) {
  return bias.has_value() ? in<K, T>(*bias) : nullptr;
}
template <class K, class T>
K* out(Tensor& tensor) {
  return tensor.numel() > 0 ? reinterpret_cast<K*>(tensor.mutable_data_ptr<T>()) : nullptr;
}

// run(shape, call, T{}) with the operands of one forward call, K being what the kernels call T.
template <class Run>
Tensor forward(const Tensor& x_given, const Tensor& w_given, const Bias& bias_given, bool silu, const Run& run) {
  const Shape shape = shape_of(x_given, w_given, bias_given, silu);
  const Tensor x = warpwatch::contiguous(x_given), w = warpwatch::contiguous(w_given);
  const Bias bias = contiguous(bias_given);
  Tensor y = torch::stable::empty_like(x);
  if (x.numel() == 0) return y;
  with_type(x, [&](auto zero) {
    using T = decltype(zero);
    using K = warpwatch::KernelType<T>;
    run(shape, causal_conv_short::Forward<K>{in<K, T>(x), in<K, T>(w), in<K, T>(bias), out<K, T>(y)}, zero);
  });
  return y;
}

using Gradients = std::tuple<Tensor, Tensor, Tensor>;

// The gradient of a bias that is not there is empty.
template <class Run>
Gradients backward(const Tensor& g_given, const Tensor& x_given, const Tensor& w_given, const Bias& bias_given, bool silu, const Run& run) {
  const Shape shape = shape_of(x_given, w_given, bias_given, silu);
  warpwatch::check_same_shape(g_given, x_given);
  const Tensor g = warpwatch::contiguous(g_given), x = warpwatch::contiguous(x_given), w = warpwatch::contiguous(w_given);
  const Bias bias = contiguous(bias_given);
  Tensor dx = torch::stable::empty_like(x), dw = torch::stable::empty_like(w);
  Tensor dbias = torch::stable::new_empty(w, {bias.has_value() ? shape.channels : 0});
  if (x.numel() == 0) return {dx, torch::stable::fill_(dw, 0), torch::stable::fill_(dbias, 0)};
  with_type(x, [&](auto zero) {
    using T = decltype(zero);
    using K = warpwatch::KernelType<T>;
    using S = warpwatch::WideType<T>;
    run(shape,
        causal_conv_short::Backward<K, S>{in<K, T>(g), in<K, T>(x), in<K, T>(w), in<K, T>(bias), out<K, T>(dx), out<K, T>(dw),
                                          out<K, T>(dbias), nullptr},
        zero);
  });
  return {dx, dw, dbias};
}

Tensor forward_cpu(const Tensor& x, const Tensor& w, Bias bias, bool silu) {
  return forward(x, w, bias, silu, [](const Shape& shape, const auto& call, auto zero) { causal_conv_short::run(shape, call, zero); });
}

Gradients backward_cpu(const Tensor& g, const Tensor& x, const Tensor& w, Bias bias, bool silu) {
  return backward(g, x, w, bias, silu,
                  [](const Shape& shape, const auto& call, auto zero) { causal_conv_short::run(shape, call, zero); });
}

#if !defined(WARPWATCH_NO_CUDA)
Tensor forward_cuda(const Tensor& x, const Tensor& w, Bias bias, bool silu) {
  const warpwatch::DeviceGuard guard(x.get_device_index());
  return forward(x, w, bias, silu, [&](const Shape& shape, const auto& call, auto) {
    warpwatch::check_launch(causal_conv_short::forward_on(shape, call, warpwatch::current_stream(x)));
  });
}

Gradients backward_cuda(const Tensor& g, const Tensor& x, const Tensor& w, Bias bias, bool silu) {
  const warpwatch::DeviceGuard guard(x.get_device_index());
  return backward(g, x, w, bias, silu, [&](const Shape& shape, auto call, auto zero) {
    using S = warpwatch::WideType<decltype(zero)>;
    Tensor partial = torch::stable::new_empty(x, {causal_conv_short::partial_sums(shape)}, warpwatch::scalar_type_of<S>);
    call.partial = partial.template mutable_data_ptr<S>();
    warpwatch::check_launch(causal_conv_short::backward_on(shape, call, warpwatch::current_stream(x)));
  });
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def("causal_conv_short(Tensor x, Tensor w, Tensor? bias=None, bool silu=False) -> Tensor");
  m.def("causal_conv_short_backward(Tensor gradient, Tensor x, Tensor w, Tensor? bias=None, bool silu=False) -> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) {
  m.impl("causal_conv_short", TORCH_BOX(&forward_cpu));
  m.impl("causal_conv_short_backward", TORCH_BOX(&backward_cpu));
}

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) {
  m.impl("causal_conv_short", TORCH_BOX(&forward_cuda));
  m.impl("causal_conv_short_backward", TORCH_BOX(&backward_cuda));
}
#endif
