// Binds attention over a cache in pages to torch for CPU and CUDA.
#include "kv_attention/kv_attention.h"

#include <cmath>
#include <optional>
#include <type_traits>

#include "common/tensor.h"
#include "common/wide.h"
#include "kv_attention/cpu.h"

namespace {

using kv_attention::Cache;
using kv_attention::E4m3;
using kv_attention::Shape;
using torch::stable::Tensor;
using warpwatch::ScalarType;
using Scale = std::optional<Tensor>;

bool is_coded(const Tensor& cache) { return cache.scalar_type() == ScalarType::Float8_e4m3fn; }

void check_beside(const Tensor& tensor, const Tensor& q, const char* name) {
  STD_TORCH_CHECK(tensor.is_cuda() == q.is_cuda() && tensor.get_device_index() == q.get_device_index(), name,
                  " must be on the device of q");
}

void check_scale(const Scale& scale, const Tensor& q, const char* name) {
  STD_TORCH_CHECK(scale.has_value() && scale->numel() == 1 && scale->scalar_type() == ScalarType::Float, name,
                  " must be one float32 number where the cache is float8_e4m3fn");
  check_beside(*scale, q, name);
}

Shape shape_of(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& table, const Tensor& lengths, const Scale& k_scale,
               const Scale& v_scale) {
  STD_TORCH_CHECK(q.dim() == 3 && k.dim() == 4, "q must be (batch, heads, dim), and the cache (pages, page, kv_heads, dim)");
  warpwatch::check_same_shape(k, v);
  STD_TORCH_CHECK(k.size(3) == q.size(2), "a head of the cache must be as long as those of q");
  STD_TORCH_CHECK(k.size(2) > 0 && q.size(1) % k.size(2) == 0, "heads of q must be a multiple of those of the cache");
  STD_TORCH_CHECK(table.dim() == 2 && table.size(0) == q.size(0) && table.scalar_type() == ScalarType::Int,
                  "table must be int32 with a row for each sequence");
  STD_TORCH_CHECK(lengths.dim() == 1 && lengths.size(0) == q.size(0) && lengths.scalar_type() == ScalarType::Int,
                  "lengths must be int32, one for each sequence");
  check_beside(k, q, "the cache"), check_beside(table, q, "table"), check_beside(lengths, q, "lengths");
  if (is_coded(k)) {
    check_scale(k_scale, q, "k_scale"), check_scale(v_scale, q, "v_scale");
  } else {
    STD_TORCH_CHECK(k.scalar_type() == q.scalar_type(), "the cache must have the dtype of q, or float8_e4m3fn");
    STD_TORCH_CHECK(!k_scale.has_value() && !v_scale.has_value(), "a cache in the dtype of q has no scales");
  }
  const float factor = static_cast<float>(1 / std::sqrt(static_cast<double>(q.size(2))));
  return {q.size(0), q.size(1), k.size(2), q.size(2), k.size(1), table.size(1), factor};
}

const float* pointer_of(const Scale& scale) { return scale.has_value() ? scale->const_data_ptr<float>() : nullptr; }

// Calls run with q's pointer, the cache, and y's pointer, in the types of kernels where those are others.
template <template <class> class Type, class Run>
Tensor forward(const Tensor& q_given, const Tensor& k, const Tensor& v, const Tensor& table_given, const Tensor& lengths_given,
               const Scale& k_scale, const Scale& v_scale, const Run& run) {
  const Tensor q = warpwatch::contiguous(q_given), keys = warpwatch::contiguous16(k), values = warpwatch::contiguous16(v);
  const Tensor table = warpwatch::contiguous(table_given), lengths = warpwatch::contiguous(lengths_given);
  Tensor y = torch::stable::empty_like(q);
  if (y.numel() == 0) return y;
  warpwatch::dispatch<float, c10::BFloat16>(q.scalar_type(), [&](auto zero) {
    using T = Type<decltype(zero)>;
    const auto call = [&](auto element) {
      using C = decltype(element);
      const Cache<C> cache{static_cast<const C*>(keys.const_data_ptr()), static_cast<const C*>(values.const_data_ptr()),
                           table.const_data_ptr<int32_t>(), lengths.const_data_ptr<int32_t>(), pointer_of(k_scale), pointer_of(v_scale)};
      run(static_cast<const T*>(q.const_data_ptr()), cache, static_cast<T*>(y.mutable_data_ptr()));
    };
    if (is_coded(keys)) {
      call(E4m3{});
    } else {
      call(T{});
    }
  });
  return y;
}

template <class T>
using Itself = T;

Tensor forward_cpu(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& table, const Tensor& lengths, Scale k_scale,
                   Scale v_scale) {
  const Shape shape = shape_of(q, k, v, table, lengths, k_scale, v_scale);
  return forward<Itself>(q, k, v, table, lengths, k_scale, v_scale,
                         [&](const auto* q, const auto& cache, auto* y) { kv_attention::forward_on_cpu(shape, q, cache, y); });
}

#if !defined(WARPWATCH_NO_CUDA)
Tensor forward_cuda(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& table, const Tensor& lengths, Scale k_scale,
                    Scale v_scale) {
  const warpwatch::DeviceGuard guard(q.get_device_index());
  const Shape shape = shape_of(q, k, v, table, lengths, k_scale, v_scale);
  const kv_attention::Split split = kv_attention::split_of(shape);
  Tensor parts = torch::stable::new_empty(q, {shape.batch * shape.heads * split.count * (shape.dim + 1)}, ScalarType::Float);
  void* stream = warpwatch::current_stream(q);
  return forward<warpwatch::KernelType>(
      q, k, v, table, lengths, k_scale, v_scale, [&](const auto* q, const auto& cache, auto* y) {
        warpwatch::check_launch(kv_attention::forward_on(shape, split, q, cache, parts.mutable_data_ptr<float>(), y, stream));
      });
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def(
      "kv_attention(Tensor q, Tensor k, Tensor v, Tensor table, Tensor lengths, Tensor? k_scale=None, Tensor? v_scale=None) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) { m.impl("kv_attention", TORCH_BOX(&forward_cpu)); }

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) { m.impl("kv_attention", TORCH_BOX(&forward_cuda)); }
#endif
