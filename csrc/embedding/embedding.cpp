// Binds the look-up of rows, and the two ways to its gradient, to torch for CPU and CUDA.
#include "embedding/embedding.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "common/wide.h"

namespace {

using embedding::Shape;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kGrain = 16384;  // Elements below which a second thread costs more than it saves.
constexpr int64_t kSlice = 64;     // Columns whose sums one thread keeps: whole cache lines, so that threads do not write into the same.

template <class Run>
void with_type(const Tensor& tensor, const Run& run) {
  warpwatch::dispatch<float, double, c10::BFloat16, c10::Half>(tensor.scalar_type(), run);
}

template <class Run>
void with_indices(const Tensor& indices, const Run& run) {
  warpwatch::dispatch<int32_t, int64_t>(indices.scalar_type(), [&](auto zero) { run(indices.const_data_ptr<decltype(zero)>()); });
}

Shape shape_of(const Tensor& indices, int64_t rows, int64_t width, int64_t padding) {
  STD_TORCH_CHECK(rows < (int64_t{1} << 31) && indices.numel() < (int64_t{1} << 31), "embedding counts rows and indices in 31 bits");
  return {rows, width, indices.numel(), padding};
}

void check_place(const Tensor& a, const Tensor& b) {
  STD_TORCH_CHECK(a.is_cuda() == b.is_cuda() && a.get_device_index() == b.get_device_index(), "both operands must be on one device");
}

// A tensor like `like` with the shape of `indices` and a last dimension of `width`.
Tensor empty_rows(const Tensor& like, const Tensor& indices, int64_t width) {
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < indices.dim(); ++i) sizes.push_back(indices.size(i));
  sizes.push_back(width);
  return torch::stable::new_empty(like, sizes);
}

Tensor gather(const Tensor& weight_given, const Tensor& indices_given, const auto& run) {
  STD_TORCH_CHECK(weight_given.dim() == 2, "weight must have two dimensions");
  check_place(weight_given, indices_given);
  const Tensor weight = warpwatch::contiguous(weight_given), indices = warpwatch::contiguous(indices_given);
  const Shape shape = shape_of(indices, weight.size(0), weight.size(1), -1);
  Tensor out = empty_rows(weight, indices, shape.width);
  if (out.numel() > 0) run(shape, weight, indices, out);
  return out;
}

struct Gradient {
  Tensor rows, indices;
  Shape shape;
};

Gradient gradient_of(const Tensor& gradient_given, const Tensor& indices_given, int64_t rows, int64_t padding) {
  check_place(gradient_given, indices_given);
  const int64_t width = gradient_given.size(gradient_given.dim() - 1);
  STD_TORCH_CHECK(gradient_given.numel() == indices_given.numel() * width, "there must be one row of gradients per index");
  return {warpwatch::contiguous(gradient_given), warpwatch::contiguous(indices_given), shape_of(indices_given, rows, width, padding)};
}

int element_bytes(const Tensor& tensor) {
  int bytes = 0;
  with_type(tensor, [&](auto zero) { bytes = sizeof(zero); });
  return bytes;
}

template <class I>
void check_range(const Shape& shape, const I* indices) {
  for (int64_t i = 0; i < shape.count; ++i) STD_TORCH_CHECK(indices[i] >= 0 && indices[i] < shape.rows, "an index lies outside the table");
}

Tensor embedding_cpu(const Tensor& weight_given, const Tensor& indices_given, int64_t, int64_t) {
  return gather(weight_given, indices_given, [](const Shape& shape, const Tensor& weight, const Tensor& indices, Tensor& out) {
    const int64_t bytes = shape.width * element_bytes(weight);
    const char* from = static_cast<const char*>(weight.const_data_ptr());
    char* to = static_cast<char*>(out.mutable_data_ptr());
    with_indices(indices, [&](const auto* index) {
      check_range(shape, index);
      warpwatch::parallel_for(shape.count, std::max<int64_t>(1, kGrain / shape.width), [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) std::memcpy(to + i * bytes, from + index[i] * bytes, bytes);
      });
    });
  });
}

// The places of each index, one index after the other: those of v are order[starts[v]] up to order[starts[v + 1]].
struct Buckets {
  std::vector<int32_t> starts, order;

  explicit Buckets(const Shape& shape) : starts(shape.rows + 2), order(shape.count) {}

  template <class I>
  void fill(const Shape& shape, const I* indices) {
    check_range(shape, indices);
    for (int64_t i = 0; i < shape.count; ++i) ++starts[indices[i] + 2];
    for (int64_t v = 2; v < shape.rows + 2; ++v) starts[v] += starts[v - 1];
    // starts[v + 1] moves from where v begins to where it ends, which is where v + 1 begins.
    for (int64_t i = 0; i < shape.count; ++i) order[starts[indices[i] + 1]++] = static_cast<int32_t>(i);
  }
};

// Columns [column, column + columns) of row v of the result: sums where there are any, else zeros.
template <class T>
void sum_row(const Shape& shape, const Buckets& buckets, const T* gradient, T* out, int64_t v, int64_t column, int64_t columns) {
  using W = warpwatch::WideType<T>;
  T* to = out + v * shape.width + column;
  const int64_t begin = buckets.starts[v], end = v == shape.padding ? begin : buckets.starts[v + 1];
  if (end == begin) {
    std::memset(static_cast<void*>(to), 0, columns * sizeof(T));
  } else if (end - begin == 1) {
    std::memcpy(to, gradient + buckets.order[begin] * shape.width + column, columns * sizeof(T));
  } else {
    W sum[kSlice] = {}, wide[kSlice];
    for (int64_t j = begin; j < end; ++j) {
      warpwatch::widen_row(gradient + buckets.order[j] * shape.width + column, wide, columns);
      for (int64_t c = 0; c < columns; ++c) sum[c] += wide[c];
    }
    warpwatch::narrow_row(sum, to, columns);
  }
}

// Threads share the rows, or, where one row takes most of the sums, its columns. Neither changes the order of a sum.
template <class T>
void sum_rows(const Shape& shape, const Buckets& buckets, const T* gradient, T* out) {
  const int64_t slices = (shape.width + kSlice - 1) / kSlice;
  const auto part = [&](int64_t first_row, int64_t last_row, int64_t first, int64_t last) {
    for (int64_t v = first_row; v < last_row; ++v)
      for (int64_t s = first; s < last; ++s)
        sum_row(shape, buckets, gradient, out, v, s * kSlice, std::min(kSlice, shape.width - s * kSlice));
  };
  int64_t longest = 0;
  for (int64_t v = 0; v < shape.rows; ++v) longest = std::max<int64_t>(longest, buckets.starts[v + 1] - buckets.starts[v]);
  if (4 * longest > shape.count && shape.count > shape.rows / 4) {
    warpwatch::parallel_for(slices, 1, [&](int64_t begin, int64_t end) { part(0, shape.rows, begin, end); });
  } else {
    warpwatch::parallel_for(shape.rows, std::max<int64_t>(1, kGrain / shape.width),
                            [&](int64_t begin, int64_t end) { part(begin, end, 0, slices); });
  }
}

Tensor backward_cpu(const Tensor& gradient_given, const Tensor& indices_given, int64_t rows, int64_t padding) {
  const auto [gradient, indices, shape] = gradient_of(gradient_given, indices_given, rows, padding);
  Tensor out = torch::stable::new_empty(gradient, {rows, shape.width});
  if (out.numel() == 0) return out;
  Buckets buckets(shape);
  with_indices(indices, [&, &shape = shape](const auto* index) { buckets.fill(shape, index); });
  with_type(gradient, [&, &gradient = gradient, &shape = shape](auto zero) {
    using T = decltype(zero);
    sum_rows(shape, buckets, gradient.template const_data_ptr<T>(), out.template mutable_data_ptr<T>());
  });
  return out;
}

#if !defined(WARPWATCH_NO_CUDA)
embedding::Indices indices_of(const Tensor& indices) {
  const bool wide = indices.scalar_type() == ScalarType::Long;
  STD_TORCH_CHECK(wide || indices.scalar_type() == ScalarType::Int, "indices must be int32 or int64");
  return {indices.const_data_ptr(), wide};
}

Tensor embedding_cuda(const Tensor& weight_given, const Tensor& indices_given, int64_t, int64_t) {
  const warpwatch::DeviceGuard guard(weight_given.get_device_index());
  return gather(weight_given, indices_given, [](const Shape& shape, const Tensor& weight, const Tensor& indices, Tensor& out) {
    warpwatch::check_launch(embedding::gather_on(shape, element_bytes(weight), weight.const_data_ptr(), indices_of(indices), out.mutable_data_ptr(),
                                                 warpwatch::current_stream(weight)));
  });
}

Tensor backward_cuda(const Tensor& gradient_given, const Tensor& indices_given, int64_t rows, int64_t padding) {
  const warpwatch::DeviceGuard guard(gradient_given.get_device_index());
  const auto [gradient, indices, shape] = gradient_of(gradient_given, indices_given, rows, padding);
  const bool narrow = element_bytes(gradient) == 2;
  // Sums in 16 bits would round away most of the additions to a frequent index.
  Tensor sum = narrow ? torch::stable::new_zeros(gradient, {rows, shape.width}, ScalarType::Float)
                      : torch::stable::new_zeros(gradient, {rows, shape.width});
  if (sum.numel() == 0 || gradient.numel() == 0) return narrow ? torch::stable::new_zeros(gradient, {rows, shape.width}) : sum;
  Tensor out = narrow ? torch::stable::new_empty(gradient, {rows, shape.width}) : sum;
  void* stream = warpwatch::current_stream(gradient);
  with_type(gradient, [&, &gradient = gradient, &indices = indices, &shape = shape](auto zero) {
    using T = decltype(zero);
    using K = warpwatch::KernelType<T>;
    using W = warpwatch::WideType<T>;
    const auto* from = reinterpret_cast<const K*>(gradient.template const_data_ptr<T>());
    W* to = sum.template mutable_data_ptr<W>();
    warpwatch::check_launch(embedding::scatter_on(shape, from, indices_of(indices), to, stream));
    if constexpr (sizeof(T) == 2)
      warpwatch::check_launch(embedding::round_on(to, reinterpret_cast<K*>(out.template mutable_data_ptr<T>()), out.numel(), stream));
  });
  return out;
}

Tensor sorted_backward_cuda(const Tensor& gradient_given, const Tensor& sorted_given, const Tensor& order_given, int64_t rows,
                            int64_t padding) {
  const warpwatch::DeviceGuard guard(gradient_given.get_device_index());
  const auto [gradient, sorted, shape] = gradient_of(gradient_given, sorted_given, rows, padding);
  const Tensor order = warpwatch::contiguous(order_given);
  check_place(gradient, order);
  STD_TORCH_CHECK(order.numel() == shape.count, "there must be one place per index");
  Tensor out = torch::stable::new_empty(gradient, {rows, shape.width});
  if (out.numel() == 0) return out;
  Tensor starts = torch::stable::new_empty(sorted, {rows + 1});
  with_type(gradient, [&, &gradient = gradient, &sorted = sorted, &shape = shape](auto zero) {
    using T = decltype(zero);
    using K = warpwatch::KernelType<T>;
    using W = warpwatch::WideType<T>;
    Tensor partial = torch::stable::new_empty(gradient, {shape.count / embedding::kChunk, shape.width}, warpwatch::scalar_type_of<W>);
    warpwatch::check_launch(embedding::sum_sorted_on(shape, reinterpret_cast<const K*>(gradient.template const_data_ptr<T>()),
                                                     sorted.template const_data_ptr<int32_t>(), order.const_data_ptr<int64_t>(),
                                                     starts.mutable_data_ptr<int32_t>(), partial.template mutable_data_ptr<W>(),
                                                     reinterpret_cast<K*>(out.template mutable_data_ptr<T>()),
                                                     warpwatch::current_stream(gradient)));
  });
  return out;
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def("embedding(Tensor weight, Tensor indices, int padding=-1, int version=3) -> Tensor");
  m.def("embedding_backward(Tensor gradient, Tensor indices, int rows, int padding=-1) -> Tensor");
  m.def("embedding_sorted_backward(Tensor gradient, Tensor sorted, Tensor order, int rows, int padding=-1) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) {
  m.impl("embedding", TORCH_BOX(&embedding_cpu));
  m.impl("embedding_backward", TORCH_BOX(&backward_cpu));
}

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) {
  m.impl("embedding", TORCH_BOX(&embedding_cuda));
  m.impl("embedding_backward", TORCH_BOX(&backward_cuda));
  m.impl("embedding_sorted_backward", TORCH_BOX(&sorted_backward_cuda));
}
#endif
