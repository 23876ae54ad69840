#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cmath>

using torch::stable::Tensor;

// Pointers say nothing about strides, so a view is copied first.
Tensor packed(const Tensor& t) { return t.is_contiguous() ? t : torch::stable::contiguous(t); }

Tensor forward(const Tensor& given) {
    const Tensor x = packed(given);
    Tensor y = torch::stable::empty_like(x);
    const float* in = static_cast<const float*>(x.data_ptr());
    float* out = static_cast<float*>(y.data_ptr());
    for (int64_t i = 0; i < x.numel(); ++i) out[i] = in[i] / (1 + std::fabs(in[i]));
    return y;
}

Tensor backward(const Tensor& g_given, const Tensor& x_given) {
    const Tensor g = packed(g_given), x = packed(x_given);
    Tensor dx = torch::stable::empty_like(x);
    const float* gradient = static_cast<const float*>(g.data_ptr());
    const float* in = static_cast<const float*>(x.data_ptr());
    float* out = static_cast<float*>(dx.data_ptr());
    for (int64_t i = 0; i < x.numel(); ++i) {
        float d = 1 + std::fabs(in[i]);
        out[i] = gradient[i] / (d * d);
    }
    return dx;
}

STABLE_TORCH_LIBRARY(softsign, m) {
    m.def("forward(Tensor x) -> Tensor");
    m.def("backward(Tensor g, Tensor x) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(softsign, CPU, m) {
    m.impl("forward", TORCH_BOX(&forward));
    m.impl("backward", TORCH_BOX(&backward));
}
