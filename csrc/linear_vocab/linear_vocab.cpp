// Binds y = x · Wᵀ + b and its gradients to torch for CPU and CUDA.
#include "common/row_products_torch.h"

namespace {

using torch::stable::Tensor;

Tensor linear_vocab(const Tensor& x, const Tensor& w, const Tensor& b, int64_t version) {
  return row_products::forward_rows({x}, w, &b, row_products::Version{version});
}

std::tuple<Tensor, Tensor, Tensor> linear_vocab_backward(const Tensor& gradient, const Tensor& x, const Tensor& w, int64_t version) {
  return row_products::backward_rows(gradient, {x}, w, true, row_products::Version{version});
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def("linear_vocab(Tensor x, Tensor w, Tensor b, int version=3) -> Tensor");
  m.def("linear_vocab_backward(Tensor gradient, Tensor x, Tensor w, int version=3) -> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) {
  m.impl("linear_vocab", TORCH_BOX(&linear_vocab));
  m.impl("linear_vocab_backward", TORCH_BOX(&linear_vocab_backward));
}

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) {
  m.impl("linear_vocab", TORCH_BOX(&linear_vocab));
  m.impl("linear_vocab_backward", TORCH_BOX(&linear_vocab_backward));
}
#endif
