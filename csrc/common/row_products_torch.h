// Shared by the bindings of row_products: checks of operands, the CPU implementation, launches on a GPU.
#pragma once

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "common/products.h"
#include "common/row_products.h"
#include "common/tensor.h"

namespace row_products {

using torch::stable::Tensor;
using warpwatch::ScalarType;

// A matrix whose rows are whole: views of columns are used without a copy, other views are copied.
inline Tensor with_whole_rows(const Tensor& matrix) {
  STD_TORCH_CHECK(matrix.dim() == 2, "every part of x must be a matrix");
  const bool whole = matrix.size(1) <= 1 || matrix.stride(1) == 1;
  return whole && matrix.stride(0) >= matrix.size(1) ? matrix : warpwatch::contiguous(matrix);
}

inline std::vector<Tensor> checked_parts(const std::vector<Tensor>& given, const Tensor& w) {
  STD_TORCH_CHECK(!given.empty() && given.size() <= kMostParts, "x comes in 1 to ", kMostParts, " parts");
  STD_TORCH_CHECK(w.dim() == 2, "w must be (outputs, depth)");
  std::vector<Tensor> parts;
  int64_t depth = 0;
  for (const Tensor& part : given) {
    parts.push_back(with_whole_rows(part));
    STD_TORCH_CHECK(part.scalar_type() == w.scalar_type(), "x and w must have the same dtype");
    STD_TORCH_CHECK(part.is_cuda() == w.is_cuda() && part.get_device_index() == w.get_device_index(), "x must be where w is");
    STD_TORCH_CHECK(part.size(0) == given[0].size(0), "all parts of x must have the same number of rows");
    depth += part.size(1);
  }
  STD_TORCH_CHECK(depth == w.size(1), "the parts of x must be as wide together as w");
  return parts;
}

template <class T>
const T* pointer(const Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}

template <class T>
T* mutable_pointer(const Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

template <class T>
Parts<T> as_parts(const std::vector<Tensor>& tensors) {
  Parts<T> parts{};
  for (const Tensor& tensor : tensors) {
    parts.data[parts.count] = pointer<T>(tensor);
    parts.stride[parts.count] = tensor.stride(0);
    parts.width[parts.count++] = tensor.size(1);
  }
  return parts;
}

inline Tensor empty_matrix(const Tensor& like, int64_t rows, int64_t columns) {
  const std::vector<int64_t> sizes{rows, columns};
  return torch::stable::new_empty(like, sizes);
}

// run(call) with the operands of a forward call in type T, whose numbers lie in tensors that `keep` holds.
template <class T>
Forward<T> forward_call(const std::vector<Tensor>& parts, const Tensor& w, const Tensor* bias, const Tensor& y) {
  return {as_parts<T>(parts), y.size(0),     pointer<T>(w), w.stride(0), bias ? pointer<T>(*bias) : nullptr, 0,
          mutable_pointer<T>(y), y.size(1)};
}

template <class T>
void forward_cpu(const Forward<T>& call) {
  constexpr int64_t kGrain = 32768;  // Multiply-adds below which a second thread costs more than it saves.
  int64_t depth = 0;
  for (int p = 0; p < call.x.count; ++p) depth += call.x.width[p];
  const int64_t rows = kGrain / std::max<int64_t>(1, depth * call.batch) + 1;
  warpwatch::parallel_for(call.outputs, rows, [&](int64_t begin, int64_t end) {
    const T* w = call.w;
    for (int p = 0; p < call.x.count; ++p) {
      warpwatch::dot_rows<T>({call.x.data[p], call.x.stride[p]}, call.batch, {w, call.w_stride}, begin, end, call.x.width[p],
                             [&](int64_t b, int64_t v, T sum) {
                               T& y = call.y[b * call.outputs + v];
                               if (p > 0) sum += y;
                               else if (call.bias) sum += call.bias[b * call.bias_stride + v];
                               y = sum;
                             });
      w += call.x.width[p];
    }
  });
}

template <class T>
void backward_cpu(const Backward<T>& call) {
  constexpr int64_t kBlock = 16, kGrain = 65536;
  const int64_t blocks = (call.depth + kBlock - 1) / kBlock, work = std::max<int64_t>(1, call.batch * call.outputs);
  // Threads share dx by columns, so that no two of them add to one element.
  warpwatch::parallel_for(blocks, kGrain / (work * kBlock) + 1, [&](int64_t begin, int64_t end) {
    const int64_t from = begin * kBlock, to = std::min(call.depth, end * kBlock);
    warpwatch::product<T>({call.gradient, call.outputs, 1}, call.batch, {call.w + from, call.depth}, call.outputs,
                          {call.x_gradient + from, call.depth}, to - from, false);
  });
  // With few rows, writing dw is all the work, and memory likes whole rows best.
  const int64_t together = call.batch <= kMostGradientRows ? 1 : call.outputs;
  warpwatch::parallel_for(call.outputs, kGrain / std::max<int64_t>(1, call.batch * call.depth) + 1, [&](int64_t begin, int64_t end) {
    int64_t column = 0;
    for (int p = 0; p < call.x.count; ++p) {
      for (int64_t v = begin; v < end; v += together)
        warpwatch::axpy_rows<T>({call.gradient + v, 1, call.outputs}, std::min(together, end - v), {call.x.data[p], call.x.stride[p]},
                                call.batch, {call.w_gradient + v * call.depth + column, call.depth}, call.x.width[p], false);
      column += call.x.width[p];
    }
    for (int64_t v = begin; call.b_gradient && v < end; ++v) {
      T sum = 0;
      for (int64_t b = 0; b < call.batch; ++b) sum += call.gradient[b * call.outputs + v];
      call.b_gradient[v] = sum;
    }
  });
}

#if !defined(WARPWATCH_NO_CUDA)
// dispatch over the types that the kernels know, bfloat16 as their own plain bits unless an operator has no kernels for it.
template <bool WithBf16, class Run>
void dispatch_cuda(ScalarType type, const Run& run) {
  if constexpr (WithBf16)
    if (type == ScalarType::BFloat16) return run(warpwatch::Bf16{});
  warpwatch::dispatch<float, double>(type, run);
}

template <class Run>
void dispatch_tiles(ScalarType type, const Run& run) {
  STD_TORCH_CHECK(type == ScalarType::Float, "products by tiles are of float numbers");
  run(float{});
}
#endif

inline Tensor forward_rows(const std::vector<Tensor>& given, const Tensor& w_given, const Tensor* bias_given, Version version) {
  const std::vector<Tensor> parts = checked_parts(given, w_given);
  const Tensor w = with_whole_rows(w_given);
  std::optional<Tensor> bias;
  if (bias_given) {
    STD_TORCH_CHECK(bias_given->dim() == 1 && bias_given->size(0) == w.size(0), "bias must have an element per row of w");
    STD_TORCH_CHECK(bias_given->scalar_type() == w.scalar_type() && bias_given->is_cuda() == w.is_cuda(), "bias must be like w");
    bias = warpwatch::contiguous(*bias_given);
  }
  const Tensor* added = bias ? &*bias : nullptr;
  Tensor y = empty_matrix(w, parts[0].size(0), w.size(0));
  if (y.numel() == 0) return y;
#if !defined(WARPWATCH_NO_CUDA)
  if (w.is_cuda()) {
    const warpwatch::DeviceGuard guard(w.get_device_index());
    void* stream = warpwatch::current_stream(w);
    if (version == Version::tiles) {
      dispatch_tiles(w.scalar_type(), [&](float) {
        const Forward<float> call = forward_call<float>(parts, w, added, y);
        warpwatch::check_launch(forward_tiles_on(&call, 1, stream));
      });
      return y;
    }
    dispatch_cuda<true>(w.scalar_type(), [&](auto zero) {
      warpwatch::check_launch(forward_on(forward_call<decltype(zero)>(parts, w, added, y), stream));
    });
    return y;
  }
#endif
  warpwatch::dispatch<float, double>(w.scalar_type(),
                                     [&](auto zero) { forward_cpu(forward_call<decltype(zero)>(parts, w, added, y)); });
  return y;
}

// Gradients of the parts side by side, of w, and of the bias, which is empty unless `with_bias`.
template <bool WithBf16 = true>
std::tuple<Tensor, Tensor, Tensor> backward_rows(const Tensor& gradient_given, const std::vector<Tensor>& given, const Tensor& w_given,
                                                 bool with_bias, Version version) {
  const std::vector<Tensor> parts = checked_parts(given, w_given);
  const Tensor w = warpwatch::contiguous(w_given), gradient = warpwatch::contiguous(gradient_given);
  const int64_t batch = parts[0].size(0), outputs = w.size(0), depth = w.size(1);
  STD_TORCH_CHECK(gradient.dim() == 2 && gradient.size(0) == batch && gradient.size(1) == outputs, "the gradient must be like y");
  STD_TORCH_CHECK(gradient.scalar_type() == w.scalar_type() && gradient.is_cuda() == w.is_cuda(), "the gradient must be like w");
  Tensor dx = empty_matrix(w, batch, depth), dw = torch::stable::empty_like(w);
  const std::vector<int64_t> bias_size{with_bias ? outputs : 0};
  Tensor db = torch::stable::new_empty(w, bias_size);
  if (batch == 0 || outputs == 0 || depth == 0)
    return {torch::stable::fill_(dx, 0), torch::stable::fill_(dw, 0), torch::stable::fill_(db, 0)};
  const auto call = [&](auto zero, void* scratch) {
    using T = decltype(zero);
    return Backward<T>{as_parts<T>(parts),     batch,         pointer<T>(gradient), pointer<T>(w), outputs, depth, mutable_pointer<T>(dx),
                       mutable_pointer<T>(dw), with_bias ? mutable_pointer<T>(db) : nullptr, scratch};
  };
#if !defined(WARPWATCH_NO_CUDA)
  if (w.is_cuda()) {
    const warpwatch::DeviceGuard guard(w.get_device_index());
    if (version == Version::tiles) {
      dispatch_tiles(w.scalar_type(), [&](float zero) {
        const std::vector<int64_t> bytes{tiles_scratch_bytes(call(zero, nullptr))};
        const Tensor scratch = torch::stable::new_empty(w, bytes, ScalarType::Byte);
        warpwatch::check_launch(backward_tiles_on(call(zero, scratch.mutable_data_ptr()), warpwatch::current_stream(w)));
      });
      return {dx, dw, db};
    }
    dispatch_cuda<WithBf16>(w.scalar_type(), [&](auto zero) {
      const std::vector<int64_t> bytes{scratch_bytes(call(zero, nullptr))};
      const Tensor scratch = torch::stable::new_empty(w, bytes, ScalarType::Byte);
      warpwatch::check_launch(backward_on(call(zero, scratch.mutable_data_ptr()), warpwatch::current_stream(w)));
    });
    return {dx, dw, db};
  }
#endif
  warpwatch::dispatch<float, double>(w.scalar_type(), [&](auto zero) { backward_cpu(call(zero, nullptr)); });
  return {dx, dw, db};
}

}  // namespace row_products
