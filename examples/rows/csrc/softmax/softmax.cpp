#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cmath>

using torch::stable::Tensor;

// Pointers say nothing about strides, so a view is copied first.
Tensor packed(const Tensor& t) { return t.is_contiguous() ? t : torch::stable::contiguous(t); }

void forward_row(const float* x, float* y, int64_t n) {
    float largest = x[0];
    for (int64_t i = 1; i < n; ++i) largest = std::max(largest, x[i]);
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) {
        y[i] = std::exp(x[i] - largest);
        sum += y[i];
    }
    const float inverse = 1 / sum;
    for (int64_t i = 0; i < n; ++i) y[i] *= inverse;
}

void backward_row(const float* g, const float* y, float* dx, int64_t n) {
    float dot = 0;
    for (int64_t i = 0; i < n; ++i) dot += g[i] * y[i];
    for (int64_t i = 0; i < n; ++i) dx[i] = y[i] * (g[i] - dot);
}

Tensor forward(const Tensor& given) {
    const Tensor x = packed(given);
    Tensor y = torch::stable::empty_like(x);
    const float* in = static_cast<const float*>(x.data_ptr());
    float* out = static_cast<float*>(y.data_ptr());
    const int64_t rows = x.size(0), cols = x.size(1);
    for (int64_t row = 0; row < rows; ++row) forward_row(in + row * cols, out + row * cols, cols);
    return y;
}

Tensor backward(const Tensor& g_given, const Tensor& y_given) {
    const Tensor g = packed(g_given), y = packed(y_given);
    Tensor dx = torch::stable::empty_like(y);
    const float* gradient = static_cast<const float*>(g.data_ptr());
    const float* in = static_cast<const float*>(y.data_ptr());
    float* out = static_cast<float*>(dx.data_ptr());
    const int64_t rows = y.size(0), cols = y.size(1);
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t start = row * cols;
        backward_row(gradient + start, in + start, out + start, cols);
    }
    return dx;
}

STABLE_TORCH_LIBRARY(softmax, m) {
    m.def("forward(Tensor x) -> Tensor");
    m.def("backward(Tensor g, Tensor y) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(softmax, CPU, m) {
    m.impl("forward", TORCH_BOX(&forward));
    m.impl("backward", TORCH_BOX(&backward));
}
