// Binds the product of codes in e4m3 with scales to torch, for CUDA alone.
#include "scaled_matmul/scaled_matmul.h"

#include <algorithm>
#include <vector>

#include "common/tensor.h"

#if !defined(WARPWATCH_NO_CUDA)
namespace {

using scaled_matmul::kBlock;
using scaled_matmul::Product;
using torch::stable::Tensor;
using warpwatch::ScalarType;

void check_codes(const Tensor& codes, const Tensor& scale) {
  STD_TORCH_CHECK(codes.dim() == 2 && scale.dim() == 2, "codes and scales must be matrices");
  STD_TORCH_CHECK(codes.scalar_type() == ScalarType::Float8_e4m3fn, "codes must be float8_e4m3fn");
  STD_TORCH_CHECK(scale.scalar_type() == ScalarType::Float, "scales must be float32");
}

Tensor scaled_matmul_cuda(const Tensor& a_given, const Tensor& b_given, const Tensor& a_scales, const Tensor& b_scales) {
  const warpwatch::DeviceGuard guard(a_given.get_device_index());
  check_codes(a_given, a_scales);
  check_codes(b_given, b_scales);
  for (const Tensor& other : {b_given, a_scales, b_scales})
    STD_TORCH_CHECK(other.is_cuda() && other.get_device_index() == a_given.get_device_index(), "codes and scales must be on one device");
  const int64_t m = a_given.size(0), n = b_given.size(0), k = a_given.size(1);
  STD_TORCH_CHECK(b_given.size(1) == k, "both matrices must have the same number of columns");
  STD_TORCH_CHECK(k % 16 == 0 && n % 8 == 0, "k must be a multiple of 16, and n one of 8");
  STD_TORCH_CHECK(std::max({m, n, k, a_scales.numel()}) <= INT32_MAX / 2, "the matrices are too large");
  const auto is = [](const Tensor& scale, int64_t rows, int64_t columns) { return scale.size(0) == rows && scale.size(1) == columns; };
  const int64_t k_blocks = (k + kBlock - 1) / kBlock, n_blocks = (n + kBlock - 1) / kBlock;
  const bool by_row = (is(a_scales, 1, 1) || is(a_scales, m, 1)) && (is(b_scales, 1, 1) || is(b_scales, n, 1));
  STD_TORCH_CHECK(by_row || (is(a_scales, m, k_blocks) && is(b_scales, n_blocks, k_blocks)),
                  "scales must be those of tensors or rows, or of 1 x 128 codes of a and 128 x 128 of b");
  const Tensor a = warpwatch::contiguous16(a_given), b = warpwatch::contiguous16(b_given);
  const Tensor a_scale = warpwatch::contiguous(a_scales), b_scale = warpwatch::contiguous(b_scales);
  Tensor y = torch::stable::new_empty(a, std::vector<int64_t>{m, n}, ScalarType::BFloat16);
  if (y.numel() == 0) return y;
  if (k == 0) return torch::stable::fill_(y, 0);
  const auto step = [](const Tensor& scale) { return scale.size(0) == 1 ? 0 : static_cast<int>(scale.size(1)); };
  const Product call{static_cast<const uint8_t*>(a.const_data_ptr()), static_cast<const uint8_t*>(b.const_data_ptr()),
                     a_scale.const_data_ptr<float>(), b_scale.const_data_ptr<float>(), static_cast<warpwatch::Bf16*>(y.mutable_data_ptr()),
                     m, n, k, step(a_scale), step(b_scale), !by_row};
  warpwatch::check_launch(scaled_matmul::warpgroups_on(call, warpwatch::current_stream(a)));
  return y;
}

}  // namespace
#endif

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def("scaled_matmul(Tensor a, Tensor b, Tensor a_scale, Tensor b_scale) -> Tensor");
}

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) { m.impl("scaled_matmul", TORCH_BOX(&scaled_matmul_cuda)); }
#endif
