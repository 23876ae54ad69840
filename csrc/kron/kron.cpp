// Binds the chain of stages and its gradients to torch for CPU and CUDA.
#include "kron/kron.h"

#include <tuple>
#include <vector>

#include "common/tensor.h"

namespace {

using kron::Shape;
using kron::Version;
using torch::stable::Tensor;

Shape shape_of(const Tensor& x, const std::vector<int64_t>& factors) {
  const int64_t layer = static_cast<int64_t>(factors.size());
  STD_TORCH_CHECK(layer >= 1 && 2 * layer <= kron::kMostStages, "kron takes 1 to ", kron::kMostStages / 2, " factors");
  Shape shape{.batch = x.size(0), .size = 1, .stages = static_cast<int>(2 * layer), .factor = {}, .weight = {}, .weights = 0};
  for (int64_t k = 0; k < layer; ++k) {
    STD_TORCH_CHECK(factors[k] >= 1, "every factor must be at least 1");
    shape.factor[k] = shape.factor[layer + k] = static_cast<int>(factors[k]);
    shape.weight[k] = shape.weight[layer + k] = shape.weights;
    shape.weights += factors[k] * factors[k];
    shape.size *= factors[k];
  }
  STD_TORCH_CHECK(x.dim() == layer + 1, "x must be (batch, f_K, ..., f_1)");
  for (int64_t k = 0; k < layer; ++k) STD_TORCH_CHECK(x.size(layer - k) == factors[k], "x must be (batch, f_K, ..., f_1)");
  return shape;
}

void check_weights(const Shape& shape, const Tensor& x, const Tensor& w1, const Tensor& w2) {
  for (const Tensor* w : {&w1, &w2}) {
    STD_TORCH_CHECK(w->dim() == 1 && w->size(0) == shape.weights, "packed weights must have sum of f * f elements");
    STD_TORCH_CHECK(w->scalar_type() == x.scalar_type(), "weights must have the dtype of x");
    STD_TORCH_CHECK(w->is_cuda() == x.is_cuda() && w->get_device_index() == x.get_device_index(), "weights must be where x is");
  }
}

Tensor empty_states(const Tensor& x, int64_t count) {
  std::vector<int64_t> sizes{count};
  for (int64_t i = 0; i < x.dim(); ++i) sizes.push_back(x.size(i));
  return torch::stable::new_empty(x, sizes);
}

// run(shape, call) with the operands of one forward call, in the C++ type of x.
template <class Run>
std::tuple<Tensor, Tensor> forward(const Tensor& x_given, const Tensor& w1_given, const Tensor& w2_given,
                                   const std::vector<int64_t>& factors, bool keep, const Run& run) {
  const Shape shape = shape_of(x_given, factors);
  check_weights(shape, x_given, w1_given, w2_given);
  const Tensor x = warpwatch::contiguous(x_given), w1 = warpwatch::contiguous(w1_given), w2 = warpwatch::contiguous(w2_given);
  Tensor y = torch::stable::empty_like(x);
  Tensor states = empty_states(x, keep ? shape.stages - 1 : 0);
  if (x.numel() == 0) return {y, states};
  warpwatch::dispatch<float, double>(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    run(shape, kron::Forward<T>{x.const_data_ptr<T>(),
                                {w1.const_data_ptr<T>(), w2.const_data_ptr<T>()},
                                y.mutable_data_ptr<T>(),
                                keep ? states.mutable_data_ptr<T>() : nullptr,
                                nullptr});
  });
  return {y, states};
}

template <class Run>
std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& gradient_given, const Tensor& x_given, const Tensor& states_given,
                                            const Tensor& w1_given, const Tensor& w2_given, const std::vector<int64_t>& factors,
                                            const Run& run) {
  const Shape shape = shape_of(x_given, factors);
  check_weights(shape, x_given, w1_given, w2_given);
  warpwatch::check_same_shape(gradient_given, x_given);
  STD_TORCH_CHECK(states_given.numel() == (shape.stages - 1) * x_given.numel(), "states must come from kron(..., keep=True)");
  const Tensor gradient = warpwatch::contiguous(gradient_given), x = warpwatch::contiguous(x_given);
  const Tensor states = warpwatch::contiguous(states_given);
  const Tensor w1 = warpwatch::contiguous(w1_given), w2 = warpwatch::contiguous(w2_given);
  Tensor dx = torch::stable::empty_like(x), dw1 = torch::stable::empty_like(w1), dw2 = torch::stable::empty_like(w2);
  if (x.numel() == 0) return {dx, torch::stable::fill_(dw1, 0), torch::stable::fill_(dw2, 0)};
  warpwatch::dispatch<float, double>(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    run(shape, kron::Backward<T>{gradient.const_data_ptr<T>(),
                                 x.const_data_ptr<T>(),
                                 states.const_data_ptr<T>(),
                                 {w1.const_data_ptr<T>(), w2.const_data_ptr<T>()},
                                 dx.mutable_data_ptr<T>(),
                                 {dw1.mutable_data_ptr<T>(), dw2.mutable_data_ptr<T>()},
                                 nullptr});
  });
  return {dx, dw1, dw2};
}

std::tuple<Tensor, Tensor> kron_cpu(const Tensor& x, const Tensor& w1, const Tensor& w2, std::vector<int64_t> factors, int64_t,
                                    bool keep) {
  return forward(x, w1, w2, factors, keep, [](const Shape& shape, auto call) { kron::forward_cpu(shape, call); });
}

std::tuple<Tensor, Tensor, Tensor> kron_backward_cpu(const Tensor& gradient, const Tensor& x, const Tensor& states, const Tensor& w1,
                                                     const Tensor& w2, std::vector<int64_t> factors, int64_t) {
  return backward(gradient, x, states, w1, w2, factors, [](const Shape& shape, auto call) { kron::backward_cpu(shape, call); });
}

#if !defined(WARPWATCH_NO_CUDA)
constexpr int64_t kUnit = 4;  // Scratch is counted in whole 16-byte vectors, so that every part of it is aligned.

Tensor empty_scratch(const Tensor& x, int64_t elements) {
  const std::vector<int64_t> sizes{(elements + kUnit - 1) / kUnit * kUnit};
  return torch::stable::new_empty(x, sizes);
}

// Tensor cores are fed 16 bytes at a time; the other versions have a path for operands that do not begin at such an address.
Tensor aligned_for(Version version, const Tensor& tensor) {
  return version >= Version::tensor ? warpwatch::contiguous16(tensor) : tensor;
}

std::tuple<Tensor, Tensor> kron_cuda(const Tensor& x, const Tensor& w1, const Tensor& w2, std::vector<int64_t> factors,
                                     int64_t number, bool keep) {
  const warpwatch::DeviceGuard guard(x.get_device_index());
  const Version version{number};
  const auto aligned = [version](const Tensor& tensor) { return aligned_for(version, tensor); };
  return forward(aligned(x), aligned(w1), aligned(w2), factors, keep, [&](const Shape& shape, auto call) {
    const Tensor scratch = empty_scratch(x, kron::forward_scratch(shape, version, keep, sizeof(*call.y)));
    call.scratch = static_cast<decltype(call.y)>(scratch.mutable_data_ptr());
    warpwatch::check_launch(kron::forward_on(shape, version, call, warpwatch::current_stream(x)));
  });
}

std::tuple<Tensor, Tensor, Tensor> kron_backward_cuda(const Tensor& gradient, const Tensor& x, const Tensor& states, const Tensor& w1,
                                                      const Tensor& w2, std::vector<int64_t> factors, int64_t number) {
  const warpwatch::DeviceGuard guard(x.get_device_index());
  const Version version{number};
  const auto aligned = [version](const Tensor& tensor) { return aligned_for(version, tensor); };
  return backward(aligned(gradient), aligned(x), aligned(states), aligned(w1), aligned(w2), factors, [&](const Shape& shape, auto call) {
    const Tensor scratch = empty_scratch(x, kron::backward_scratch(shape, version, sizeof(*call.x)));
    call.scratch = static_cast<decltype(call.scratch)>(scratch.mutable_data_ptr());
    warpwatch::check_launch(kron::backward_on(shape, version, call, warpwatch::current_stream(x)));
  });
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def("kron(Tensor x, Tensor w1, Tensor w2, int[] factors, int version=3, bool keep=False) -> (Tensor, Tensor)");
  m.def(
      "kron_backward(Tensor gradient, Tensor x, Tensor states, Tensor w1, Tensor w2, int[] factors, int version=3) -> (Tensor, "
      "Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) {
  m.impl("kron", TORCH_BOX(&kron_cpu));
  m.impl("kron_backward", TORCH_BOX(&kron_backward_cpu));
}

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) {
  m.impl("kron", TORCH_BOX(&kron_cuda));
  m.impl("kron_backward", TORCH_BOX(&kron_backward_cuda));
}
#endif
