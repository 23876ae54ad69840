// A causal convolution of width three over tiles, right or with one of several faults.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace {

using torch::stable::Tensor;

enum Fault : int64_t { kRight, kShortHalo, kUnwritten, kPastEnd, kNoStrides, kSmallScratch, kReadsPastEnd };

constexpr int64_t kTile = 64;
constexpr int64_t kHalo = 2;

Tensor packed(const Tensor& t) { return t.is_contiguous() ? t : torch::stable::contiguous(t); }

Tensor run(const Tensor& x_given, const Tensor& w_given, int64_t fault) {
  const Tensor x = fault == kNoStrides ? x_given : packed(x_given), w = packed(w_given);
  Tensor y = torch::stable::new_empty(x, {x.numel()});
  const float* in = x.const_data_ptr<float>();
  const float* weight = w.const_data_ptr<float>();
  float* out = y.mutable_data_ptr<float>();
  const int64_t n = x.numel();
  const int64_t scratch_size = kTile + kHalo - (fault == kSmallScratch ? 1 : 0);
  for (int64_t first = 0; first < n; first += kTile) {
    const std::unique_ptr<float[]> scratch(new float[scratch_size]);
    float* tile = scratch.get();
    const int64_t count = std::min(kTile, n - first);
    if (fault == kUnwritten && count < kTile) break;
    for (int64_t i = -kHalo; i < count; ++i) {
      const bool lost = first + i < 0 || (fault == kShortHalo && i == -kHalo);
      tile[i + kHalo] = lost ? 0.0f : in[first + i];
    }
    for (int64_t i = 0; i < count; ++i) out[first + i] = weight[0] * tile[i] + weight[1] * tile[i + 1] + weight[2] * tile[i + 2];
  }
  if (fault == kPastEnd) out[n] = 0.0f;
  if (fault == kReadsPastEnd && n > 0) out[n - 1] += 0.0f * in[n];
  return y;
}

Tensor in_place(const Tensor& x, const Tensor& w, int64_t fault) {
  Tensor y = run(x, w, fault);
  if (x.numel() > 0) x.mutable_data_ptr<float>()[0] = 0.0f;
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY(mutant_stencil, m) {
  m.def("run(Tensor x, Tensor w, int fault) -> Tensor");
  m.def("misdescribed(Tensor x, Tensor w, int fault) -> Tensor");
  m.def("in_place(Tensor x, Tensor w, int fault) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(mutant_stencil, CPU, m) {
  m.impl("run", TORCH_BOX(&run));
  m.impl("misdescribed", TORCH_BOX(&run));
  m.impl("in_place", TORCH_BOX(&in_place));
}
