// y = a @ b, on the caller's thread or on a detached one.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <thread>

namespace {

using torch::stable::Tensor;

void multiply(const float* a, const float* b, float* y, int64_t n) {
  for (int64_t i = 0; i < n * n; ++i) y[i] = 0;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t k = 0; k < n; ++k)
      for (int64_t j = 0; j < n; ++j) y[i * n + j] += a[i * n + k] * b[k * n + j];
}

Tensor packed(const Tensor& t) { return t.is_contiguous() ? t : torch::stable::contiguous(t); }

Tensor product(const Tensor& a_given, const Tensor& b_given, bool detached) {
  const Tensor a = packed(a_given), b = packed(b_given);
  Tensor y = torch::stable::empty_like(a);
  const auto work = [a, b, y, n = a.size(0)] {
    multiply(static_cast<const float*>(a.data_ptr()), static_cast<const float*>(b.data_ptr()), static_cast<float*>(y.data_ptr()), n);
  };
  if (detached) {
    std::thread(work).detach();
  } else {
    work();
  }
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY(detached, m) { m.def("product(Tensor a, Tensor b, bool detached) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(detached, CPU, m) { m.impl("product", TORCH_BOX(&product)); }
