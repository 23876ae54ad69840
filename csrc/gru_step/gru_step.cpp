// Binds a decoder's step, a GRU cell and the products of the vocabulary, and its gradients to torch for CPU and CUDA.
#include "common/decoder_step_cpu.h"
#include "common/row_products_torch.h"
#include "gru_step/gru_step.h"

namespace {

using row_products::mutable_pointer;
using row_products::pointer;
using row_products::Version;
using torch::stable::Tensor;

void check(const Tensor& tensor, const Tensor& like, int64_t rows, int64_t columns, const char* what) {
  STD_TORCH_CHECK(tensor.dim() == 2 && tensor.size(0) == rows && tensor.size(1) == columns, what, " has the wrong shape");
  STD_TORCH_CHECK(tensor.scalar_type() == like.scalar_type(), what, " has another dtype");
  STD_TORCH_CHECK(tensor.is_cuda() == like.is_cuda() && tensor.get_device_index() == like.get_device_index(), what,
                  " is on another device");
}

// The operands, each as kernels read it, and the results.
struct Step {
  Tensor e, h, w_e, w_h, bias, gates, w_fc, logits, next, saved, y;

  template <class T>
  decoder_step::Cells<T> cells(bool keep) const {
    return {h.size(0), e.size(1), h.size(1), pointer<T>(e), e.stride(0), nullptr, 0, pointer<T>(h), pointer<T>(w_e), w_e.stride(0),
            pointer<T>(w_h), pointer<T>(gates), gates.size(1), pointer<T>(bias), mutable_pointer<T>(next),
            keep ? mutable_pointer<T>(saved) : nullptr};
  }

  template <class T>
  row_products::Forward<T> vocabulary() const {
    return {row_products::as_parts<T>({e, next}), h.size(0), pointer<T>(w_fc), w_fc.stride(0), pointer<T>(logits), logits.size(1),
            mutable_pointer<T>(y), y.size(1)};
  }
};

#if !defined(WARPWATCH_NO_CUDA)
// Products of both sides by tiles in one launch, the cell element by element, then the logits by tiles.
void by_tiles(const Step& step, bool keep, void* stream) {
  const int64_t batch = step.h.size(0), hidden = step.h.size(1), gates = 3 * hidden;
  const Tensor input = row_products::empty_matrix(step.h, batch, gates), recurrent = row_products::empty_matrix(step.h, batch, gates);
  const row_products::Forward<float> products[] = {
      {row_products::as_parts<float>({step.e}), batch, pointer<float>(step.w_e), step.w_e.stride(0), pointer<float>(step.gates), gates,
       mutable_pointer<float>(input), gates},
      {row_products::as_parts<float>({step.h}), batch, pointer<float>(step.w_h), hidden, pointer<float>(step.bias), 0,
       mutable_pointer<float>(recurrent), gates}};
  warpwatch::check_launch(row_products::forward_tiles_on(products, 2, stream));
  const gru_step::Cell<float> cell{batch, hidden, pointer<float>(input), pointer<float>(recurrent), pointer<float>(step.h),
                                   mutable_pointer<float>(step.next), keep ? mutable_pointer<float>(step.saved) : nullptr};
  warpwatch::check_launch(gru_step::compute_on(cell, batch * hidden, stream));
  const row_products::Forward<float> vocabulary = step.vocabulary<float>();
  warpwatch::check_launch(row_products::forward_tiles_on(&vocabulary, 1, stream));
}
#endif

// Computes every element of `call` where `like` lies.
template <class Call>
void compute_all(const Tensor& like, const Call& call, int64_t elements) {
#if !defined(WARPWATCH_NO_CUDA)
  if (like.is_cuda()) return warpwatch::check_launch(gru_step::compute_on(call, elements, warpwatch::current_stream(like)));
#endif
  constexpr int64_t kGrain = 4096;
  warpwatch::parallel_for(elements, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) gru_step::compute(call, i);
  });
}

std::tuple<Tensor, Tensor, Tensor> step(const Tensor& e, const Tensor& h, const Tensor& w_e, const Tensor& w_h, const Tensor& bias,
                                            const Tensor& gates, const Tensor& w_fc, const Tensor& logits, bool keep,
                                            int64_t version) {
  STD_TORCH_CHECK(e.dim() == 2 && h.dim() == 2 && w_fc.dim() == 2, "e, h and w_fc must be matrices");
  const int64_t batch = h.size(0), hidden = h.size(1), inputs = e.size(1), vocab = w_fc.size(0);
  check(e, h, batch, inputs, "e");
  check(w_e, h, 3 * hidden, inputs, "w_e");
  check(w_h, h, 3 * hidden, hidden, "w_h");
  check(gates, h, batch, 3 * hidden, "gates");
  check(w_fc, h, vocab, inputs + hidden, "w_fc");
  check(logits, h, batch, vocab, "logits");
  STD_TORCH_CHECK(bias.dim() == 1 && bias.size(0) == 3 * hidden && bias.scalar_type() == h.scalar_type(), "bias must be (3 hidden)");
  Tensor next = row_products::empty_matrix(h, batch, hidden), y = row_products::empty_matrix(h, batch, vocab);
  Tensor saved = row_products::empty_matrix(h, keep ? batch : 0, 4 * hidden);
  const Step step{row_products::with_whole_rows(e), warpwatch::contiguous(h), row_products::with_whole_rows(w_e),
                  warpwatch::contiguous(w_h), warpwatch::contiguous(bias), warpwatch::contiguous(gates),
                  row_products::with_whole_rows(w_fc), warpwatch::contiguous(logits), next, saved, y};
  if (batch == 0 || hidden == 0) return {y, next, saved};
#if !defined(WARPWATCH_NO_CUDA)
  if (h.is_cuda() && Version{version} == Version::tiles) {
    const warpwatch::DeviceGuard guard(h.get_device_index());
    row_products::dispatch_tiles(h.scalar_type(), [&](float) { by_tiles(step, keep, warpwatch::current_stream(h)); });
    return {y, next, saved};
  }
#endif
  warpwatch::dispatch<float, double>(h.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
#if !defined(WARPWATCH_NO_CUDA)
    if (h.is_cuda()) {
      const warpwatch::DeviceGuard guard(h.get_device_index());
      void* stream = warpwatch::current_stream(h);
      warpwatch::check_launch(decoder_step::cells_on(step.cells<T>(keep), stream));
      return warpwatch::check_launch(row_products::forward_on(step.vocabulary<T>(), stream));
    }
#endif
    decoder_step::cells_cpu(step.cells<T>(keep));
    row_products::forward_cpu(step.vocabulary<T>());
  });
  return {y, next, saved};
}

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// Gradients of e, h, c, w_ih, w_hh, b_ih, b_hh, w_fc and b_fc. Weights keep their columns for the context: nothing is split or joined.
Gradients step_backward(const Tensor& d_logits, const Tensor& d_after_given, const Tensor& e, const Tensor& h_given, const Tensor& c,
                            const Tensor& after, const Tensor& saved_given, const Tensor& w_ih, const Tensor& w_hh, const Tensor& w_fc,
                            int64_t number) {
  STD_TORCH_CHECK(e.dim() == 2 && h_given.dim() == 2 && w_fc.dim() == 2, "e, h and w_fc must be matrices");
  const Version version{number};
  const int64_t batch = h_given.size(0), hidden = h_given.size(1), inputs = e.size(1), vocab = w_fc.size(0);
  check(d_logits, h_given, batch, vocab, "the gradient of the logits");
  check(d_after_given, h_given, batch, hidden, "the gradient of h'");
  check(e, h_given, batch, inputs, "e");
  check(c, h_given, batch, hidden, "c");
  check(after, h_given, batch, hidden, "h'");
  check(saved_given, h_given, batch, 4 * hidden, "saved");
  check(w_ih, h_given, 3 * hidden, inputs + hidden, "w_ih");
  check(w_hh, h_given, 3 * hidden, hidden, "w_hh");
  check(w_fc, h_given, vocab, inputs + 2 * hidden, "w_fc");
  const Tensor d_after = warpwatch::contiguous(d_after_given), h = warpwatch::contiguous(h_given);
  const Tensor saved = warpwatch::contiguous(saved_given);
  const auto matrix = [&](int64_t columns) { return row_products::empty_matrix(h, batch, columns); };
  const Tensor d_input = matrix(3 * hidden), d_recurrent = matrix(3 * hidden), carry = matrix(hidden);
  const Tensor de = matrix(inputs), dc = matrix(hidden);
#if !defined(WARPWATCH_NO_CUDA)
  std::optional<warpwatch::DeviceGuard> guard;
  if (h.is_cuda()) guard.emplace(h.get_device_index());
#endif
  const auto [through, dw_fc, db_fc] = row_products::backward_rows<false>(d_logits, {e, after, c}, w_fc, true, version);
  warpwatch::dispatch<float, double>(h.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    if (batch * hidden > 0)
      compute_all(h,
                  gru_step::CellGradient<T>{batch, hidden, pointer<T>(d_after), pointer<T>(through) + inputs, inputs + 2 * hidden,
                                            pointer<T>(saved), pointer<T>(h), mutable_pointer<T>(d_input), mutable_pointer<T>(d_recurrent),
                                            mutable_pointer<T>(carry)},
                  batch * hidden);
  });
  const auto [dx, dw_ih, db_ih] = row_products::backward_rows<false>(d_input, {e, c}, w_ih, true, version);
  const auto [dh, dw_hh, db_hh] = row_products::backward_rows<false>(d_recurrent, {h}, w_hh, true, version);
  warpwatch::dispatch<float, double>(h.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    if (batch * hidden > 0)
      compute_all(h,
                  gru_step::Sums<T>{batch, inputs, hidden, pointer<T>(through), pointer<T>(dx), pointer<T>(carry), mutable_pointer<T>(de),
                                    mutable_pointer<T>(dc), mutable_pointer<T>(dh)},
                  batch * (inputs + hidden));
  });
  return {de, dh, dc, dw_ih, dw_hh, db_ih, db_hh, dw_fc, db_fc};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def(
      "gru_step(Tensor e, Tensor h, Tensor w_e, Tensor w_h, Tensor bias, Tensor gates, Tensor w_fc, Tensor logits, bool keep=False, "
      "int version=3) -> (Tensor, Tensor, Tensor)");
  m.def(
      "gru_step_backward(Tensor d_logits, Tensor d_after, Tensor e, Tensor h, Tensor c, Tensor after, Tensor saved, Tensor w_ih, "
      "Tensor w_hh, Tensor w_fc, int version=3) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) {
  m.impl("gru_step", TORCH_BOX(&step));
  m.impl("gru_step_backward", TORCH_BOX(&step_backward));
}

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) {
  m.impl("gru_step", TORCH_BOX(&step));
  m.impl("gru_step_backward", TORCH_BOX(&step_backward));
}
#endif
