// Binds a decoder's step, a GRU cell and the products of the vocabulary, to torch for CPU and CUDA.
#include "common/decoder_step_cpu.h"
#include "common/row_products_torch.h"

namespace {

using row_products::mutable_pointer;
using row_products::pointer;
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

std::tuple<Tensor, Tensor, Tensor> gru_step(const Tensor& e, const Tensor& h, const Tensor& w_e, const Tensor& w_h, const Tensor& bias,
                                            const Tensor& gates, const Tensor& w_fc, const Tensor& logits, bool keep) {
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

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def(
      "gru_step(Tensor e, Tensor h, Tensor w_e, Tensor w_h, Tensor bias, Tensor gates, Tensor w_fc, Tensor logits, bool keep=False) -> "
      "(Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) { m.impl("gru_step", TORCH_BOX(&gru_step)); }

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) { m.impl("gru_step", TORCH_BOX(&gru_step)); }
#endif
