// Binds the product of a concatenation, y = cat(parts) · Wᵀ, and its gradients to torch for CPU and CUDA.
#include "common/row_products_torch.h"

namespace {

using torch::stable::Tensor;

Tensor concat_linear(std::vector<Tensor> parts, const Tensor& w, int64_t version) {
  return row_products::forward_rows(parts, w, nullptr, row_products::Version{version});
}

// The gradients of all parts side by side, and that of w.
std::tuple<Tensor, Tensor> concat_linear_backward(const Tensor& gradient, std::vector<Tensor> parts, const Tensor& w, int64_t version) {
  const auto [dx, dw, db] = row_products::backward_rows(gradient, parts, w, false, row_products::Version{version});
  return {dx, dw};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def("concat_linear(Tensor[] parts, Tensor w, int version) -> Tensor");
  m.def("concat_linear_backward(Tensor gradient, Tensor[] parts, Tensor w, int version=3) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) {
  m.impl("concat_linear", TORCH_BOX(&concat_linear));
  m.impl("concat_linear_backward", TORCH_BOX(&concat_linear_backward));
}

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) {
  m.impl("concat_linear", TORCH_BOX(&concat_linear));
  m.impl("concat_linear_backward", TORCH_BOX(&concat_linear_backward));
}
#endif
