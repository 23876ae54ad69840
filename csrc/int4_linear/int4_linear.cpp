// Binds a linear layer with weights of four bits to torch for CPU and CUDA.
#include "int4_linear/int4_linear.h"

#include <vector>

#include "common/tensor.h"
#include "common/wide.h"
#include "int4_linear/cpu.h"

namespace {

using int4_linear::Shape;
using torch::stable::Tensor;
using warpwatch::ScalarType;

Shape shape_of(const Tensor& x, const Tensor& w, const Tensor& scale) {
  STD_TORCH_CHECK(x.dim() == 2 && w.dim() == 2 && scale.dim() == 2, "x, w and scale must be matrices");
  STD_TORCH_CHECK(w.scalar_type() == ScalarType::Byte, "w must be uint8, with two codes in a byte");
  STD_TORCH_CHECK(scale.scalar_type() == ScalarType::Float, "scale must be float32");
  STD_TORCH_CHECK(x.size(1) == 2 * w.size(1), "a row of w must have a byte for two columns of x");
  STD_TORCH_CHECK(scale.size(0) == w.size(0), "scale must have a row for each row of w");
  STD_TORCH_CHECK(w.get_device_index() == x.get_device_index() && scale.get_device_index() == x.get_device_index() &&
                      w.is_cuda() == x.is_cuda() && scale.is_cuda() == x.is_cuda(),
                  "x, w and scale must be on one device");
  const int64_t columns = x.size(1), groups = scale.size(1);
  if (groups == 1) return {x.size(0), columns, w.size(0), 1, 62};
  for (int shift = 5; shift <= 7; ++shift)
    if ((columns + (int64_t{1} << shift) - 1) >> shift == groups) return {x.size(0), columns, w.size(0), groups, shift};
  STD_TORCH_CHECK(columns == 0, groups, " scales do not divide ", columns, " columns into groups of 32, 64 or 128");
  return {x.size(0), 0, w.size(0), 0, 5};
}

// Kernels read 16 bytes of w, and 8 numbers of x, at once.
Tensor aligned(const Tensor& given) {
  const Tensor t = warpwatch::contiguous(given);
  return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 32 == 0 ? t : torch::stable::clone(t);
}

Tensor new_result(const Tensor& x, const Shape& shape) {
  const std::vector<int64_t> size{shape.rows, shape.out};
  return torch::stable::new_empty(x, size);
}

Tensor forward_cpu(const Tensor& x_given, const Tensor& w_given, const Tensor& scale_given) {
  const Shape shape = shape_of(x_given, w_given, scale_given);
  const Tensor x = warpwatch::contiguous(x_given), w = warpwatch::contiguous(w_given), scale = warpwatch::contiguous(scale_given);
  Tensor y = new_result(x, shape);
  warpwatch::dispatch<float, c10::BFloat16, c10::Half>(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    int4_linear::forward_on_cpu<T>(shape, x.const_data_ptr<T>(), w.const_data_ptr<uint8_t>(), scale.const_data_ptr<float>(),
                                   y.mutable_data_ptr<T>());
  });
  return y;
}

#if !defined(WARPWATCH_NO_CUDA)
Tensor forward_cuda(const Tensor& x_given, const Tensor& w_given, const Tensor& scale_given) {
  const warpwatch::DeviceGuard guard(x_given.get_device_index());
  const Shape shape = shape_of(x_given, w_given, scale_given);
  const Tensor x = aligned(x_given), w = aligned(w_given), scale = warpwatch::contiguous(scale_given);
  Tensor y = new_result(x, shape);
  if (y.numel() == 0) return y;
  warpwatch::dispatch<float, c10::BFloat16, c10::Half>(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    using K = warpwatch::KernelType<T>;
    warpwatch::check_launch(int4_linear::forward_on<K>(shape, reinterpret_cast<const K*>(x.const_data_ptr<T>()),
                                                       w.const_data_ptr<uint8_t>(), scale.const_data_ptr<float>(),
                                                       reinterpret_cast<K*>(y.mutable_data_ptr<T>()), warpwatch::current_stream(x)));
  });
  return y;
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) { m.def("int4_linear(Tensor x, Tensor w, Tensor scale) -> Tensor"); }

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) { m.impl("int4_linear", TORCH_BOX(&forward_cpu)); }

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) { m.impl("int4_linear", TORCH_BOX(&forward_cuda)); }
#endif
