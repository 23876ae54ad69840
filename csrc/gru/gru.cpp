// Binds the scan of a GRU layer through time, and its gradients, to torch for CPU and CUDA.
#include "gru/gru.h"

#include <tuple>
#include <vector>

#include "common/tensor.h"

namespace {

using gru::Shape;
using gru::Version;
using torch::stable::Tensor;

void check_like(const Tensor& tensor, const Tensor& like, const std::vector<int64_t>& sizes, const char* what) {
  bool same = tensor.dim() == static_cast<int64_t>(sizes.size());
  for (size_t i = 0; same && i < sizes.size(); ++i) same = tensor.size(static_cast<int64_t>(i)) == sizes[i];
  STD_TORCH_CHECK(same, what, " has the wrong shape");
  STD_TORCH_CHECK(tensor.scalar_type() == like.scalar_type(), what, " has another dtype");
  STD_TORCH_CHECK(tensor.is_cuda() == like.is_cuda() && tensor.get_device_index() == like.get_device_index(), what,
                  " is on another device");
}

Shape shape_of(const Tensor& input, const Tensor& h0, const Tensor& w) {
  STD_TORCH_CHECK(input.dim() == 3 && h0.dim() == 2, "input must be (steps, batch, 3 hidden), h0 (batch, hidden)");
  const Shape shape{input.size(0), input.size(1), h0.size(1)};
  STD_TORCH_CHECK(shape.steps >= 1, "a scan needs at least one step");
  check_like(input, w, {shape.steps, shape.batch, gru::kGates * shape.hidden}, "input");
  check_like(h0, w, {shape.batch, shape.hidden}, "h0");
  check_like(w, h0, {gru::kGates * shape.hidden, shape.hidden}, "w");
  return shape;
}

Tensor empty(const Tensor& like, const std::vector<int64_t>& sizes) { return torch::stable::new_empty(like, sizes); }

// run(shape, call) with the operands of one forward scan, in the C++ type of `input`.
template <class Run>
std::tuple<Tensor, Tensor> forward(const Tensor& input_given, const Tensor& h0_given, const Tensor& w_given, const Tensor& bias_given,
                                   bool keep, const Run& run) {
  const Shape shape = shape_of(input_given, h0_given, w_given);
  check_like(bias_given, w_given, {gru::kGates * shape.hidden}, "bias");
  const Tensor input = warpwatch::contiguous(input_given), h0 = warpwatch::contiguous(h0_given);
  const Tensor w = warpwatch::contiguous(w_given), bias = warpwatch::contiguous(bias_given);
  Tensor out = empty(h0, {shape.steps, shape.batch, shape.hidden});
  Tensor saved = empty(h0, {keep ? shape.steps : 0, shape.batch, gru::kSaved * shape.hidden});
  if (out.numel() == 0) return {out, saved};
  warpwatch::dispatch<float, double>(input.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    run(shape,
        gru::Forward<T>{input.const_data_ptr<T>(), h0.const_data_ptr<T>(), w.const_data_ptr<T>(), bias.const_data_ptr<T>(),
                        out.mutable_data_ptr<T>(), keep ? saved.mutable_data_ptr<T>() : nullptr, nullptr},
        w, h0, out);
  });
  return {out, saved};
}

template <class Run>
std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& gradient_given, const Tensor& h0_given, const Tensor& w_given,
                                            const Tensor& out_given, const Tensor& saved_given, const Run& run) {
  const Shape shape{out_given.size(0), h0_given.size(0), h0_given.size(1)};
  check_like(gradient_given, w_given, {shape.steps, shape.batch, shape.hidden}, "gradient");
  check_like(out_given, w_given, {shape.steps, shape.batch, shape.hidden}, "out");
  check_like(saved_given, w_given, {shape.steps, shape.batch, gru::kSaved * shape.hidden}, "saved");
  check_like(w_given, h0_given, {gru::kGates * shape.hidden, shape.hidden}, "w");
  const Tensor gradient = warpwatch::contiguous(gradient_given), h0 = warpwatch::contiguous(h0_given);
  const Tensor w = warpwatch::contiguous(w_given), out = warpwatch::contiguous(out_given), saved = warpwatch::contiguous(saved_given);
  const std::vector<int64_t> gates{shape.steps, shape.batch, gru::kGates * shape.hidden};
  Tensor d_input = empty(h0, gates), d_hidden = empty(h0, gates), d_h0 = torch::stable::empty_like(h0);
  if (out.numel() == 0) return {d_input, d_hidden, d_h0};
  warpwatch::dispatch<float, double>(w.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    run(shape,
        gru::Backward<T>{gradient.const_data_ptr<T>(), h0.const_data_ptr<T>(), w.const_data_ptr<T>(), out.const_data_ptr<T>(),
                         saved.const_data_ptr<T>(), d_input.mutable_data_ptr<T>(), d_hidden.mutable_data_ptr<T>(),
                         d_h0.mutable_data_ptr<T>(), nullptr},
        w, d_hidden);
  });
  return {d_input, d_hidden, d_h0};
}

std::tuple<Tensor, Tensor> scan_cpu(const Tensor& input, const Tensor& h0, const Tensor& w, const Tensor& bias, int64_t, bool keep) {
  return forward(input, h0, w, bias, keep, [](const Shape& shape, auto call, auto&&...) { gru::forward_cpu(shape, call); });
}

std::tuple<Tensor, Tensor, Tensor> scan_backward_cpu(const Tensor& gradient, const Tensor& h0, const Tensor& w, const Tensor& out,
                                                     const Tensor& saved, int64_t) {
  return backward(gradient, h0, w, out, saved, [](const Shape& shape, auto call, auto&&...) { gru::backward_cpu(shape, call); });
}

#if !defined(WARPWATCH_NO_CUDA)
// out = a · b by torch's own library call, with the precision that torch is set to.
void multiply_into(Tensor& out, const Tensor& a, const Tensor& b) {
  std::array<StableIValue, 3> stack{torch::stable::detail::from(a), torch::stable::detail::from(b), torch::stable::detail::from(out)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::mm", "out", stack.data(), TORCH_ABI_VERSION));
  torch::stable::detail::to<Tensor>(stack[0]);
}

// The same numbers, of which autograd keeps no record: a product into a given tensor has no gradient, and torch refuses to start one.
Tensor detached(const Tensor& tensor) {
  std::array<StableIValue, 1> stack{torch::stable::detail::from(tensor)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::detach", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

Tensor counters_for(const Shape& shape, const Tensor& like) {
  const std::vector<int64_t> sizes{gru::scan_counters(shape)};
  return torch::stable::new_empty(like, sizes, warpwatch::ScalarType::Int);
}

// A product and a launch per step.
template <class T>
void step_by_step(const Shape& shape, const gru::Forward<T>& call, const Tensor& w, const Tensor& h0, const Tensor& out, void* stream) {
  const Tensor turned = torch::stable::transpose(detached(w), 0, 1), first = detached(h0);
  Tensor hidden = empty(w, {shape.batch, gru::kGates * shape.hidden});
  for (int64_t t = 0; t < shape.steps; ++t) {
    multiply_into(hidden, t == 0 ? first : torch::stable::select(out, 0, t - 1), turned);
    warpwatch::check_launch(gru::cells_on(shape, call, t, hidden.const_data_ptr<T>(), stream));
  }
}

template <class T>
void step_by_step_back(const Shape& shape, const gru::Backward<T>& call, const Tensor& w, const Tensor& d_hidden, void* stream) {
  const Tensor weights = detached(w);
  Tensor recurrent = empty(w, {shape.batch, shape.hidden}), carry = empty(w, {shape.batch, shape.hidden});
  for (int64_t t = shape.steps - 1; t >= -1; --t) {
    const T* later = t == shape.steps - 1 ? nullptr : recurrent.const_data_ptr<T>();
    warpwatch::check_launch(gru::cell_slopes_on(shape, call, t, later, carry.mutable_data_ptr<T>(), stream));
    if (t >= 0) multiply_into(recurrent, torch::stable::select(d_hidden, 0, t), weights);
  }
}

std::tuple<Tensor, Tensor> scan_cuda(const Tensor& input, const Tensor& h0_given, const Tensor& w_given, const Tensor& bias,
                                     int64_t number, bool keep) {
  const warpwatch::DeviceGuard guard(w_given.get_device_index());
  void* stream = warpwatch::current_stream(w_given);
  return forward(input, h0_given, w_given, bias, keep,
                 [&](const Shape& shape, auto call, const Tensor& w, const Tensor& h0, const Tensor& out) {
                   if (Version{number} == Version::cell) return step_by_step(shape, call, w, h0, out, stream);
                   if constexpr (std::is_same_v<decltype(call), gru::Forward<float>>) {
                     if (Version{number} == Version::tiles) {
                       const Tensor grouped = torch::stable::empty_like(w);
                       return warpwatch::check_launch(gru::tiled_scan_on(shape, call, grouped.mutable_data_ptr<float>(), stream));
                     }
                     const Tensor counters = counters_for(shape, w);
                     call.counters = static_cast<uint32_t*>(counters.mutable_data_ptr());
                     return warpwatch::check_launch(gru::scan_on(shape, call, stream));
                   }
                   STD_TORCH_CHECK(false, "the scans on chip and by tiles are for f32 only");
                 });
}

std::tuple<Tensor, Tensor, Tensor> scan_backward_cuda(const Tensor& gradient, const Tensor& h0, const Tensor& w_given, const Tensor& out,
                                                      const Tensor& saved, int64_t number) {
  const warpwatch::DeviceGuard guard(w_given.get_device_index());
  void* stream = warpwatch::current_stream(w_given);
  return backward(gradient, h0, w_given, out, saved, [&](const Shape& shape, auto call, const Tensor& w, const Tensor& d_hidden) {
    if (Version{number} == Version::cell) return step_by_step_back(shape, call, w, d_hidden, stream);
    if constexpr (std::is_same_v<decltype(call), gru::Backward<float>>) {
      if (Version{number} == Version::tiles) {
        const Tensor carry = empty(w, {shape.batch, shape.hidden});
        return warpwatch::check_launch(gru::tiled_scan_back_on(shape, call, carry.mutable_data_ptr<float>(), stream));
      }
      const Tensor counters = counters_for(shape, w);
      call.counters = static_cast<uint32_t*>(counters.mutable_data_ptr());
      return warpwatch::check_launch(gru::scan_back_on(shape, call, stream));
    }
    STD_TORCH_CHECK(false, "the scans on chip and by tiles are for f32 only");
  });
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def("gru_scan(Tensor gates, Tensor h0, Tensor w, Tensor bias, int version=3, bool keep=False) -> (Tensor, Tensor)");
  m.def(
      "gru_scan_backward(Tensor gradient, Tensor h0, Tensor w, Tensor out, Tensor saved, int version=3) -> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) {
  m.impl("gru_scan", TORCH_BOX(&scan_cpu));
  m.impl("gru_scan_backward", TORCH_BOX(&scan_backward_cpu));
}

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) {
  m.impl("gru_scan", TORCH_BOX(&scan_cuda));
  m.impl("gru_scan_backward", TORCH_BOX(&scan_backward_cuda));
}
#endif
