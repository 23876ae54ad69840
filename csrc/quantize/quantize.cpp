// Binds quantization, with and without a transposed copy, to torch for CPU and CUDA.
#include "quantize/quantize.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "common/tensor.h"
#include "quantize/cpu.h"

namespace {

using quantize::Element;
using quantize::Results;
using quantize::Shape;
using torch::stable::Tensor;
using warpwatch::ScalarType;

ScalarType dtype_of(Element element) {
  switch (element) {
    case Element::e4m3: return ScalarType::Float8_e4m3fn;
    case Element::e5m2: return ScalarType::Float8_e5m2;
    case Element::i8: return ScalarType::Char;
    default: return ScalarType::Byte;
  }
}

// height, width: of the blocks, 0 for all rows or columns.
Shape shape_of(const Tensor& x, int64_t element, int64_t height, int64_t width, bool e8m0) {
  STD_TORCH_CHECK(x.dim() == 2, "x must be a matrix");
  STD_TORCH_CHECK(element >= 0 && element <= 4, "element must be 0 (e4m3) to 4 (i4)");
  const int64_t rows = x.size(0), columns = x.size(1);
  const Shape shape{rows, columns, height ? height : std::max<int64_t>(rows, 1), width ? width : std::max<int64_t>(columns, 1),
                    static_cast<Element>(element), e8m0};
  STD_TORCH_CHECK(height >= 0 && width >= 0, "a block must have at least one row and column");
  STD_TORCH_CHECK(e8m0 == (shape.element == Element::e2m1) || shape.element == Element::e4m3 || shape.element == Element::e5m2,
                  "e2m1 has e8m0 scales, and whole numbers have f32 scales");
  STD_TORCH_CHECK(!is_packed(shape.element) || (columns % 2 == 0 && shape.width % 2 == 0), "a byte holds two codes: columns must be even");
  return shape;
}

Tensor new_codes(const Tensor& x, const Shape& shape, int64_t rows, int64_t columns) {
  const std::vector<int64_t> size{rows, is_packed(shape.element) ? columns / 2 : columns};
  return torch::stable::new_empty(x, size, dtype_of(shape.element));
}

// torch's stable ABI does not know the dtype of e8m0 scales, which are bytes here.
Tensor new_scales(const Tensor& x, const Shape& shape, int64_t rows, int64_t columns, int64_t height, int64_t width) {
  const std::vector<int64_t> size{(rows + height - 1) / height, (columns + width - 1) / width};
  return torch::stable::new_empty(x, size, shape.e8m0 ? ScalarType::Byte : ScalarType::Float);
}

void run_cpu(const Shape& shape, const Tensor& x, const Results& results) {
  warpwatch::dispatch<float, c10::BFloat16, c10::Half>(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    quantize::dispatch_form(shape.element, shape.e8m0, [&]<Element E, bool kE8m0>() {
      quantize::OnCpu<T, E, kE8m0>(shape, x.const_data_ptr<T>(), results).run();
    });
  });
}

#if !defined(WARPWATCH_NO_CUDA)
void run_cuda(const Shape& shape, const Tensor& x, const Results& results) {
  const warpwatch::DeviceGuard guard(x.get_device_index());
  warpwatch::dispatch<float, c10::BFloat16, c10::Half>(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    using K = warpwatch::KernelType<T>;
    const K* from = reinterpret_cast<const K*>(x.const_data_ptr<T>());
    warpwatch::check_launch(quantize::quantize_on<K>(shape, from, results, warpwatch::current_stream(x)));
  });
}
#endif

// Kernels read 8 numbers at once, which may be 32 bytes.
Tensor aligned(const Tensor& given) {
  const Tensor x = warpwatch::contiguous(given);
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 32 == 0 ? x : torch::stable::clone(x);
}

template <auto Run>
std::tuple<Tensor, Tensor> once(const Tensor& given, int64_t element, int64_t height, int64_t width, bool e8m0) {
  const Shape shape = shape_of(given, element, height, width, e8m0);
  const Tensor x = aligned(given);
  Tensor codes = new_codes(x, shape, shape.rows, shape.columns);
  Tensor scales = new_scales(x, shape, shape.rows, shape.columns, shape.height, shape.width);
  if (x.numel() != 0) Run(shape, x, {static_cast<uint8_t*>(codes.mutable_data_ptr()), scales.mutable_data_ptr(), nullptr, nullptr});
  return {codes, scales};
}

template <auto Run>
std::tuple<Tensor, Tensor, Tensor, Tensor> both(const Tensor& given, int64_t element, int64_t width, bool e8m0) {
  const Shape shape = shape_of(given, element, 1, width, e8m0);
  STD_TORCH_CHECK(!is_packed(shape.element), "codes of four bits have no transposed copy here");
  STD_TORCH_CHECK(width > 0 && width <= 128, "the transposed copy has blocks of at most 128");
  const Tensor x = aligned(given);
  Tensor codes = new_codes(x, shape, shape.rows, shape.columns), codes_t = new_codes(x, shape, shape.columns, shape.rows);
  Tensor scales = new_scales(x, shape, shape.rows, shape.columns, 1, width);
  Tensor scales_t = new_scales(x, shape, shape.columns, shape.rows, 1, width);
  if (x.numel() != 0)
    Run(shape, x, {static_cast<uint8_t*>(codes.mutable_data_ptr()), scales.mutable_data_ptr(),
                   static_cast<uint8_t*>(codes_t.mutable_data_ptr()), scales_t.mutable_data_ptr()});
  return {codes, scales, codes_t, scales_t};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def("quantize(Tensor x, int element, int height, int width, bool e8m0) -> (Tensor, Tensor)");
  m.def("quantize_both(Tensor x, int element, int width, bool e8m0) -> (Tensor, Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) {
  m.impl("quantize", TORCH_BOX(&once<run_cpu>));
  m.impl("quantize_both", TORCH_BOX(&both<run_cpu>));
}

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) {
  m.impl("quantize", TORCH_BOX(&once<run_cuda>));
  m.impl("quantize_both", TORCH_BOX(&both<run_cuda>));
}
#endif
