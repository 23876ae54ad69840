#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

using torch::stable::Tensor;

Tensor forward(const Tensor& given) {
    const Tensor x = given.is_contiguous() ? given : torch::stable::contiguous(given);
    Tensor y = torch::stable::empty_like(x);
    const float* in = static_cast<const float*>(x.data_ptr());
    float* out = static_cast<float*>(y.data_ptr());
    for (int64_t i = 0; i < x.numel(); ++i) out[i] = 2 * in[i];
    return y;
}

STABLE_TORCH_LIBRARY(native_scale, m) { m.def("forward(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(native_scale, CPU, m) { m.impl("forward", TORCH_BOX(&forward)); }
