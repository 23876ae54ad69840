// Binds 2:4 pruning, compression and products with compressed weights to torch for CPU and CUDA.
#include "sparse24/sparse24.h"

#include <tuple>
#include <vector>

#include "common/tensor.h"
#include "sparse24/cpu.h"

namespace {

using sparse24::Compressed;
using sparse24::Format;
using torch::headeronly::BFloat16;
using torch::headeronly::Half;
using torch::stable::Tensor;
using warpwatch::ScalarType;

Format format_of(const Tensor& t) {
  switch (t.scalar_type()) {
    case ScalarType::Float: return Format::f32;
    case ScalarType::Half: return Format::f16;
    case ScalarType::BFloat16: return Format::bf16;
    default: STD_TORCH_CHECK(false, "sparse24 has no implementation for dtype ", torch::headeronly::toString(t.scalar_type()));
  }
}

void check_weight(const Tensor& w) {
  STD_TORCH_CHECK(w.dim() == 2 && w.size(1) % 4 == 0, "the weight must be a matrix with a multiple of 4 columns");
}

Tensor new_matrix(const Tensor& like, int64_t rows, int64_t columns) {
  const std::vector<int64_t> shape{rows, columns};
  return torch::stable::new_empty(like, shape);
}

std::tuple<Tensor, Tensor> new_compressed(const Tensor& w) {
  const std::vector<int64_t> shape{w.size(0), sparse24::bytes_of(w.size(1))};
  return {new_matrix(w, w.size(0), w.size(1) / 2), torch::stable::new_empty(w, shape, ScalarType::Byte)};
}

// A product's operands, checked; `inner` is the axis of W that the tokens' columns must fit.
void check_product(const Tensor& tokens, const Tensor& values, const Tensor& metadata, int64_t inner) {
  STD_TORCH_CHECK(tokens.dim() == 2 && tokens.size(1) == inner, "the tokens must be a matrix with ", inner, " columns");
  STD_TORCH_CHECK(tokens.scalar_type() == values.scalar_type(), "tokens and weight must have the same dtype");
  const bool fits = metadata.dim() == 2 && metadata.size(0) == values.size(0) && metadata.scalar_type() == ScalarType::Byte &&
                    metadata.size(1) == sparse24::bytes_of(2 * values.size(1));
  STD_TORCH_CHECK(fits, "values and metadata do not belong together");
  STD_TORCH_CHECK(tokens.get_device_index() == values.get_device_index(), "tokens and weight must be on one device");
}

// run(bits, infinity) with the weight's elements as whole numbers.
template <class Run>
void with_bits(const Tensor& w, const Run& run) {
  switch (format_of(w)) {
    case Format::f32: return run(static_cast<const uint32_t*>(w.const_data_ptr()), uint32_t{0x7f800000});
    case Format::f16: return run(static_cast<const uint16_t*>(w.const_data_ptr()), uint16_t{0x7c00});
    case Format::bf16: return run(static_cast<const uint16_t*>(w.const_data_ptr()), uint16_t{0x7f80});
  }
}

Tensor prune_cpu(const Tensor& w_given) {
  check_weight(w_given);
  const Tensor w = warpwatch::contiguous(w_given);
  Tensor pruned = torch::stable::empty_like(w);
  with_bits(w, [&](auto* bits, auto infinity) {
    sparse24::prune(bits, infinity, static_cast<decltype(infinity)*>(pruned.mutable_data_ptr()), w.numel());
  });
  return pruned;
}

std::tuple<Tensor, Tensor> compress_cpu(const Tensor& w_given) {
  check_weight(w_given);
  const Tensor w = warpwatch::contiguous(w_given);
  auto [values, metadata] = new_compressed(w);
  uint8_t* bytes = static_cast<uint8_t*>(metadata.mutable_data_ptr());
  void* to = values.mutable_data_ptr();
  with_bits(w, [&](auto* bits, auto infinity) {
    sparse24::compress(bits, infinity, static_cast<decltype(infinity)*>(to), bytes, w.size(0), w.size(1));
  });
  return {values, metadata};
}

template <class T>
Compressed<T> compressed(const Tensor& values, const Tensor& metadata) {
  return {static_cast<const T*>(values.const_data_ptr()), static_cast<const uint8_t*>(metadata.const_data_ptr()), values.size(0),
          2 * values.size(1)};
}

// One product with compressed W; product(W, pointer to the tokens, pointer to the result) in the tokens' own type.
template <class Product>
Tensor product_cpu(const Tensor& given, const Tensor& values_given, const Tensor& metadata_given, int64_t inner, int64_t outer,
                   const Product& product) {
  check_product(given, values_given, metadata_given, inner);
  const Tensor tokens = warpwatch::contiguous(given), values = warpwatch::contiguous(values_given);
  const Tensor metadata = warpwatch::contiguous(metadata_given);
  Tensor result = new_matrix(tokens, tokens.size(0), outer);
  warpwatch::dispatch<float, Half, BFloat16>(tokens.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    T* to = static_cast<T*>(result.mutable_data_ptr());
    product(compressed<T>(values, metadata), static_cast<const T*>(tokens.const_data_ptr()), to);
  });
  return result;
}

Tensor linear_cpu(const Tensor& x, const Tensor& values, const Tensor& metadata) {
  return product_cpu(x, values, metadata, 2 * values.size(1), values.size(0),
                     [&](const auto& w, auto* from, auto* to) { sparse24::linear(w, from, to, x.size(0)); });
}

Tensor linear_transposed_cpu(const Tensor& x, const Tensor& values, const Tensor& metadata) {
  check_product(x, values, metadata, 2 * values.size(1));
  const Tensor tokens = warpwatch::contiguous(x), own_values = warpwatch::contiguous(values), own_metadata = warpwatch::contiguous(metadata);
  Tensor result = new_matrix(tokens, values.size(0), tokens.size(0));
  warpwatch::dispatch<float, Half, BFloat16>(tokens.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    sparse24::linear_transposed(compressed<T>(own_values, own_metadata), static_cast<const T*>(tokens.const_data_ptr()),
                                static_cast<T*>(result.mutable_data_ptr()), tokens.size(0));
  });
  return result;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> compress_both_cpu(const Tensor& w_given) {
  check_weight(w_given);
  STD_TORCH_CHECK(w_given.size(0) % 4 == 0, "a weight that is compressed both ways must have a multiple of 4 rows");
  const Tensor w = warpwatch::contiguous(w_given);
  const int64_t rows = w.size(0), columns = w.size(1);
  const std::vector<int64_t> across{columns, sparse24::bytes_of(rows)};
  auto [values, metadata] = new_compressed(w);
  Tensor values_t = new_matrix(w, columns, rows / 2), metadata_t = torch::stable::new_empty(w, across, ScalarType::Byte);
  const auto bytes = [](Tensor& tensor) { return static_cast<uint8_t*>(tensor.mutable_data_ptr()); };
  uint8_t *first = bytes(metadata), *second = bytes(metadata_t);
  void *to = values.mutable_data_ptr(), *to_t = values_t.mutable_data_ptr();
  warpwatch::dispatch<float, Half, BFloat16>(w.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    sparse24::compress_both(static_cast<const T*>(w.const_data_ptr()),
                            sparse24::Both<T>{static_cast<T*>(to), static_cast<T*>(to_t), first, second}, rows, columns);
  });
  return {values, metadata, values_t, metadata_t};
}

Tensor linear_backward_cpu(const Tensor& g, const Tensor& values, const Tensor& metadata) {
  return product_cpu(g, values, metadata, values.size(0), 2 * values.size(1),
                     [&](const auto& w, auto* from, auto* to) { sparse24::linear_backward(w, from, to, g.size(0)); });
}

std::tuple<Tensor, Tensor, Tensor> train_cpu(const Tensor& x, const Tensor& w) {
  const auto [values, metadata] = compress_cpu(w);
  return {linear_cpu(x, values, metadata), values, metadata};
}

#if !defined(WARPWATCH_NO_CUDA)
Tensor prune_cuda(const Tensor& w_given) {
  const warpwatch::DeviceGuard guard(w_given.get_device_index());
  check_weight(w_given);
  const Tensor w = warpwatch::contiguous(w_given);
  Tensor pruned = torch::stable::empty_like(w);
  warpwatch::check_launch(sparse24::prune_on(format_of(w), w.const_data_ptr(), pruned.mutable_data_ptr(), w.size(0), w.size(1),
                                             warpwatch::current_stream(w)));
  return pruned;
}

std::tuple<Tensor, Tensor> compress_cuda(const Tensor& w_given) {
  const warpwatch::DeviceGuard guard(w_given.get_device_index());
  check_weight(w_given);
  const Tensor w = warpwatch::contiguous(w_given);
  auto [values, metadata] = new_compressed(w);
  warpwatch::check_launch(sparse24::compress_on(format_of(w), w.const_data_ptr(), values.mutable_data_ptr(),
                                                static_cast<uint8_t*>(metadata.mutable_data_ptr()), w.size(0), w.size(1),
                                                warpwatch::current_stream(w)));
  return {values, metadata};
}

Tensor linear_cuda(const Tensor& x_given, const Tensor& values_given, const Tensor& metadata_given) {
  const warpwatch::DeviceGuard guard(x_given.get_device_index());
  const int64_t columns = 2 * values_given.size(1), rows = values_given.size(0);
  check_product(x_given, values_given, metadata_given, columns);
  STD_TORCH_CHECK(x_given.size(0) <= sparse24::kMostTokens && columns % 16 == 0, "on CUDA sparse24_linear takes at most ",
                  sparse24::kMostTokens, " tokens and a multiple of 16 columns");
  const Tensor x = warpwatch::contiguous16(x_given), values = warpwatch::contiguous16(values_given);
  const Tensor metadata = warpwatch::contiguous16(metadata_given);
  Tensor y = new_matrix(x, x.size(0), rows);
  const uint8_t* bytes = static_cast<const uint8_t*>(metadata.const_data_ptr());
  warpwatch::check_launch(sparse24::linear_on(format_of(x), x.const_data_ptr(), values.const_data_ptr(), bytes,
                                              y.mutable_data_ptr(), x.size(0), rows, columns, warpwatch::current_stream(x)));
  return y;
}

// `values`: (blocks, steps, values of a step), `positions`: (blocks, steps, bytes of a step).
Tensor tensor_linear_cuda(const Tensor& x_given, const Tensor& values, const Tensor& positions, int64_t rows) {
  using namespace sparse24;
  const warpwatch::DeviceGuard guard(x_given.get_device_index());
  STD_TORCH_CHECK(x_given.dim() == 2 && values.dim() == 3 && positions.dim() == 3, "the tokens must be a matrix, and W in blocks");
  STD_TORCH_CHECK(x_given.scalar_type() == values.scalar_type() && format_of(values) != Format::f32,
                  "tokens and weight must have the same dtype, of 16 bits");
  const int64_t blocks = values.size(0), steps = values.size(1), columns = x_given.size(1);
  const bool fits = rows > (blocks - 1) * kBlockRows && rows <= blocks * kBlockRows && columns <= steps * kStepColumns;
  STD_TORCH_CHECK(fits && rows % 8 == 0 && columns % 8 == 0, "the weight does not fit ", rows, " rows and ", columns,
                  " columns, multiples of 8");
  const bool ordered = steps % kStepMultiple == 0 && values.size(2) == kBlockRows * kStepColumns / 2 && positions.size(0) == blocks &&
                       positions.size(1) == steps && positions.size(2) == kBlockRows * kStepColumns / 8 &&
                       positions.scalar_type() == ScalarType::Byte;
  STD_TORCH_CHECK(ordered, "values and positions are not those of blocks of W");
  STD_TORCH_CHECK(values.get_device_index() == x_given.get_device_index(), "tokens and weight must be on one device");
  const Tensor x = warpwatch::contiguous16(x_given), own_values = warpwatch::contiguous16(values);
  const Tensor own_positions = warpwatch::contiguous16(positions);
  Tensor y = new_matrix(x, x.size(0), rows);
  const Ordered w{own_values.const_data_ptr(), own_positions.const_data_ptr(), rows, steps};
  warpwatch::check_launch(tensor_linear_on(format_of(x), w, x.const_data_ptr(), y.mutable_data_ptr(), x.size(0), columns,
                                           warpwatch::current_stream(x)));
  return y;
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def("sparse24_prune(Tensor w) -> Tensor");
  m.def("sparse24_compress(Tensor w) -> (Tensor, Tensor)");
  m.def("sparse24_linear(Tensor x, Tensor values, Tensor metadata) -> Tensor");
  m.def("sparse24_linear_backward(Tensor gradient, Tensor values, Tensor metadata) -> Tensor");
  m.def("sparse24_linear_transposed(Tensor x, Tensor values, Tensor metadata) -> Tensor");
  m.def("sparse24_compress_both(Tensor w) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def("sparse24_tensor_linear(Tensor x, Tensor values, Tensor positions, int rows) -> Tensor");
  m.def("sparse24_train(Tensor x, Tensor w) -> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) {
  m.impl("sparse24_prune", TORCH_BOX(&prune_cpu));
  m.impl("sparse24_compress", TORCH_BOX(&compress_cpu));
  m.impl("sparse24_linear", TORCH_BOX(&linear_cpu));
  m.impl("sparse24_linear_backward", TORCH_BOX(&linear_backward_cpu));
  m.impl("sparse24_linear_transposed", TORCH_BOX(&linear_transposed_cpu));
  m.impl("sparse24_compress_both", TORCH_BOX(&compress_both_cpu));
  m.impl("sparse24_train", TORCH_BOX(&train_cpu));
}

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) {
  m.impl("sparse24_prune", TORCH_BOX(&prune_cuda));
  m.impl("sparse24_compress", TORCH_BOX(&compress_cuda));
  m.impl("sparse24_linear", TORCH_BOX(&linear_cuda));
  m.impl("sparse24_tensor_linear", TORCH_BOX(&tensor_linear_cuda));
}
#endif
