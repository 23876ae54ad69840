// Binds a layer's residual, norm and sums over its rows to torch for CUDA.
#include "bert_block/bert_block.h"

#include <tuple>
#include <vector>

#include "common/tensor.h"

namespace {

using torch::stable::Tensor;
using warpwatch::ScalarType;

#if !defined(WARPWATCH_NO_CUDA)
using bert_block::Shape;

Shape shape_of(const Tensor& x) {
  const bool half = x.scalar_type() == ScalarType::Half;
  STD_TORCH_CHECK(half || x.scalar_type() == ScalarType::BFloat16, "a layer's rows must be of 16-bit elements");
  STD_TORCH_CHECK(x.dim() == 2 && x.size(1) > 0 && x.size(1) % 8 == 0 && x.size(1) <= bert_block::kMostColumns,
                  "a layer must be a matrix with a multiple of 8 columns, at most ", bert_block::kMostColumns);
  return {half ? bert_block::Format::f16 : bert_block::Format::bf16, x.size(0), x.size(1)};
}

Tensor new_of(const Tensor& like, const std::vector<int64_t>& sizes, ScalarType type) {
  return torch::stable::new_empty(like, sizes, type);
}

Tensor new_partial(const Tensor& like, const Shape& shape) {
  return new_of(like, {bert_block::blocks_for(shape.rows), 3, shape.columns}, ScalarType::Float);
}

std::tuple<Tensor, Tensor> norm(const Tensor& x_given, const Tensor& y_given, const Tensor& gain_given, const Tensor& shift_given,
                                double epsilon) {
  const warpwatch::DeviceGuard guard(x_given.get_device_index());
  const Shape shape = shape_of(x_given);
  warpwatch::check_same_shape(x_given, y_given);
  warpwatch::check_like(gain_given, x_given, {shape.columns}, "gain");
  warpwatch::check_like(shift_given, x_given, {shape.columns}, "shift");
  const Tensor x = warpwatch::contiguous16(x_given), y = warpwatch::contiguous16(y_given);
  const Tensor gain = warpwatch::contiguous16(gain_given), shift = warpwatch::contiguous16(shift_given);
  Tensor out = torch::stable::empty_like(x), stats = new_of(x, {shape.rows, 2}, ScalarType::Float);
  warpwatch::check_launch(bert_block::norm_on(shape, x.const_data_ptr(), y.const_data_ptr(), gain.const_data_ptr(),
                                              shift.const_data_ptr(), out.mutable_data_ptr(), stats.mutable_data_ptr<float>(),
                                              static_cast<float>(epsilon), warpwatch::current_stream(x)));
  return {out, stats};
}

std::tuple<Tensor, Tensor> norm_backward(const Tensor& g_given, const Tensor& x_given, const Tensor& y_given, const Tensor& gain_given,
                                         const Tensor& stats) {
  const warpwatch::DeviceGuard guard(x_given.get_device_index());
  const Shape shape = shape_of(x_given);
  warpwatch::check_same_shape(g_given, x_given);
  warpwatch::check_same_shape(y_given, x_given);
  warpwatch::check_like(gain_given, x_given, {shape.columns}, "gain");
  STD_TORCH_CHECK(stats.scalar_type() == ScalarType::Float && stats.dim() == 2 && stats.size(0) == shape.rows && stats.size(1) == 2 &&
                      stats.is_contiguous() && stats.get_device_index() == x_given.get_device_index(),
                  "stats are not those of these rows");
  const Tensor g = warpwatch::contiguous16(g_given), x = warpwatch::contiguous16(x_given), y = warpwatch::contiguous16(y_given);
  const Tensor gain = warpwatch::contiguous16(gain_given);
  Tensor d = torch::stable::empty_like(x), sums = new_of(x, {3, shape.columns}, x.scalar_type()), partial = new_partial(x, shape);
  warpwatch::check_launch(bert_block::norm_backward_on(
      shape, g.const_data_ptr(), x.const_data_ptr(), y.const_data_ptr(), gain.const_data_ptr(), stats.const_data_ptr<float>(),
      d.mutable_data_ptr(), sums.mutable_data_ptr(), partial.mutable_data_ptr<float>(), warpwatch::current_stream(x)));
  return {d, sums};
}

Tensor column_sums(const Tensor& a_given, const Tensor& b_given, const Tensor& c_given) {
  const warpwatch::DeviceGuard guard(a_given.get_device_index());
  const Shape shape = shape_of(a_given);
  warpwatch::check_same_shape(a_given, b_given);
  warpwatch::check_same_shape(a_given, c_given);
  const Tensor a = warpwatch::contiguous16(a_given), b = warpwatch::contiguous16(b_given), c = warpwatch::contiguous16(c_given);
  Tensor sums = new_of(a, {3, shape.columns}, a.scalar_type()), partial = new_partial(a, shape);
  const void* const matrices[3] = {a.const_data_ptr(), b.const_data_ptr(), c.const_data_ptr()};
  warpwatch::check_launch(bert_block::column_sums_on(shape, matrices, sums.mutable_data_ptr(), partial.mutable_data_ptr<float>(),
                                                     warpwatch::current_stream(a)));
  return sums;
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def("bert_block_norm(Tensor x, Tensor y, Tensor gain, Tensor shift, float epsilon) -> (Tensor, Tensor)");
  m.def("bert_block_norm_backward(Tensor gradient, Tensor x, Tensor y, Tensor gain, Tensor stats) -> (Tensor, Tensor)");
  m.def("bert_block_column_sums(Tensor a, Tensor b, Tensor c) -> Tensor");
}

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) {
  m.impl("bert_block_norm", TORCH_BOX(&norm));
  m.impl("bert_block_norm_backward", TORCH_BOX(&norm_backward));
  m.impl("bert_block_column_sums", TORCH_BOX(&column_sums));
}
#endif
