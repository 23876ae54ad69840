// Binds attention and its gradients to torch for CPU and CUDA.
#include "attention/attention.h"

#include <tuple>
#include <vector>

#include "attention/cpu.h"
#include "common/tensor.h"
#include "common/wide.h"

namespace {

using attention::Shape;
using attention::Version;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using warpwatch::KernelType;

Shape shape_of(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, double scale) {
  STD_TORCH_CHECK(q.dim() == 4 && k.dim() == 4, "attention takes tensors (batch, heads, rows, dim)");
  warpwatch::check_same_shape(k, v);
  STD_TORCH_CHECK(q.scalar_type() == k.scalar_type() && q.is_cuda() == k.is_cuda() && q.get_device_index() == k.get_device_index(),
                  "queries and keys must have the same dtype and device");
  for (int axis : {0, 1, 3}) STD_TORCH_CHECK(q.size(axis) == k.size(axis), "queries and keys must agree in batch, heads and dim");
  STD_TORCH_CHECK(scale > 0, "the scale of scores must be positive");
  STD_TORCH_CHECK(k.size(2) > 0 && k.size(3) > 0, "attention needs at least one key");
  return {q.size(0), q.size(1), q.size(2), k.size(2), q.size(3), causal, static_cast<float>(scale)};
}

// Kernels take any strides but within a row.
Tensor in_rows(const Tensor& t) { return t.stride(3) == 1 || t.size(3) == 1 ? t : torch::stable::contiguous(t); }

template <class T>
attention::Rows<const T> rows_of(const Tensor& t) {
  return {static_cast<const T*>(t.const_data_ptr()), t.stride(0), t.stride(1), t.stride(2)};
}

template <class T>
attention::Rows<T> new_rows_of(const Tensor& t) {
  return {static_cast<T*>(t.mutable_data_ptr()), t.stride(0), t.stride(1), t.stride(2)};
}

// With the heads of a row beside each other if they are in `t`, as models have them: to bring them together later takes a copy.
Tensor new_like(const Tensor& t) {
  const bool by_row = t.stride(1) < t.stride(2);
  const std::vector<int64_t> sizes{t.size(0), t.size(by_row ? 2 : 1), t.size(by_row ? 1 : 2), t.size(3)};
  const Tensor made = torch::stable::new_empty(t, sizes);
  return by_row ? torch::stable::transpose(made, 1, 2) : made;
}

// One number per query: float, or double beside doubles.
Tensor new_log_sum(const Tensor& q) {
  const auto type = q.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
  return torch::stable::new_empty(q, std::vector<int64_t>{q.size(0), q.size(1), q.size(2)}, type);
}

template <class Run>
void dispatch(const Tensor& q, const Run& run) {
  warpwatch::dispatch<float, double, c10::BFloat16, c10::Half>(q.scalar_type(), run);
}

// The rows of one of all heads.
template <class T>
warpwatch::Rows<T> head_of(const attention::Rows<T>& rows, const Shape& shape, int64_t head) {
  return {rows.data + head / shape.heads_each * rows.batch + head % shape.heads_each * rows.head, rows.row};
}

std::tuple<Tensor, Tensor> attention_cpu(const Tensor& q_given, const Tensor& k_given, const Tensor& v_given, bool causal, double scale,
                                         int64_t) {
  const Shape shape = shape_of(q_given, k_given, v_given, causal, scale);
  const Tensor q = in_rows(q_given), k = in_rows(k_given), v = in_rows(v_given);
  Tensor out = new_like(q_given), log_sum = new_log_sum(q);
  if (shape.heads() * shape.queries == 0) return {out, log_sum};
  // Parts of a head go to several threads only where there are fewer heads than threads: each part packs its keys anew.
  const int64_t threads = torch::stable::get_num_threads(), blocks = (shape.queries + attention::kQueries - 1) / attention::kQueries;
  const int64_t parts = std::min(blocks, (threads + shape.heads() - 1) / shape.heads());
  dispatch(q, [&](auto zero) {
    using T = decltype(zero);
    using W = warpwatch::WideType<T>;
    warpwatch::parallel_for(shape.heads() * parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t head = task / parts, part = task % parts;
        const auto of = [&](const auto& all) { return head_of(all, shape, head); };
        const attention::HeadForward<T> one{of(rows_of<T>(q)), of(rows_of<T>(k)), of(rows_of<T>(v)), shape.queries, shape.keys, shape.dim,
                                            causal, static_cast<W>(scale), of(new_rows_of<T>(out)),
                                            static_cast<W*>(log_sum.mutable_data_ptr()) + head * shape.queries};
        const int64_t first = blocks * part / parts * attention::kQueries, last = blocks * (part + 1) / parts * attention::kQueries;
        one.run(first, std::min(last, shape.queries));
      }
    });
  });
  return {out, log_sum};
}

std::tuple<Tensor, Tensor, Tensor> attention_backward_cpu(const Tensor& g_given, const Tensor& q_given, const Tensor& k_given,
                                                          const Tensor& v_given, const Tensor& out_given, const Tensor& sum_given,
                                                          bool causal, double scale, int64_t) {
  const Shape shape = shape_of(q_given, k_given, v_given, causal, scale);
  warpwatch::check_same_shape(g_given, q_given);
  warpwatch::check_same_shape(out_given, q_given);
  const Tensor g = in_rows(g_given), q = in_rows(q_given), k = in_rows(k_given), v = in_rows(v_given), out = in_rows(out_given);
  const Tensor log_sum = warpwatch::contiguous(sum_given);
  Tensor dq = new_like(q_given), dk = new_like(k_given), dv = new_like(v_given);
  dispatch(q, [&](auto zero) {
    using T = decltype(zero);
    using W = warpwatch::WideType<T>;
    warpwatch::parallel_for(shape.heads(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t head = begin; head < end; ++head) {
        const auto of = [&](const auto& all) { return head_of(all, shape, head); };
        const attention::HeadBackward<T> one{of(rows_of<T>(g)), of(rows_of<T>(q)), of(rows_of<T>(k)), of(rows_of<T>(v)),
                                             of(rows_of<T>(out)), shape.queries, shape.keys, shape.dim, causal, static_cast<W>(scale),
                                             static_cast<const W*>(log_sum.const_data_ptr()) + head * shape.queries,
                                             of(new_rows_of<T>(dq)), of(new_rows_of<T>(dk)), of(new_rows_of<T>(dv))};
        one.run();
      }
    });
  });
  return {dq, dk, dv};
}

#if !defined(WARPWATCH_NO_CUDA)
// Calls run with a zero of the kernels' own type; doubles and large heads have no kernel.
template <class Run>
void dispatch_kernels(const Shape& shape, const Tensor& q, const Run& run) {
  STD_TORCH_CHECK(shape.dim <= attention::kLargestDim, "the CUDA kernels take heads of at most ", attention::kLargestDim);
  warpwatch::dispatch<float, c10::BFloat16, c10::Half>(q.scalar_type(), [&](auto zero) { run(KernelType<decltype(zero)>{}); });
}

// The rung on Hopper's tensor cores is for 16-bit numbers.
template <class T>
const char* forward_by(Version version, const Shape& shape, const attention::Forward<T>& call, void* stream) {
  if constexpr (sizeof(T) == 2)
    if (version == Version::warpgroups) return attention::warpgroups_forward_on(shape, call, stream);
  return attention::forward_on(shape, call, stream);
}

template <class T>
const char* backward_by(Version version, const Shape& shape, const attention::Backward<T>& call, void* stream) {
  if constexpr (sizeof(T) == 2)
    if (version == Version::warpgroups) return attention::warpgroups_backward_on(shape, call, stream);
  return attention::backward_on(shape, call, stream);
}

std::tuple<Tensor, Tensor> attention_cuda(const Tensor& q_given, const Tensor& k_given, const Tensor& v_given, bool causal, double scale,
                                          int64_t version) {
  const warpwatch::DeviceGuard guard(q_given.get_device_index());
  const Shape shape = shape_of(q_given, k_given, v_given, causal, scale);
  const Tensor q = in_rows(q_given), k = in_rows(k_given), v = in_rows(v_given);
  Tensor out = new_like(q_given), log_sum = new_log_sum(q);
  if (shape.heads() * shape.queries == 0) return {out, log_sum};
  dispatch_kernels(shape, q, [&](auto zero) {
    using T = decltype(zero);
    const attention::Forward<T> call{rows_of<T>(q), rows_of<T>(k), rows_of<T>(v), new_rows_of<T>(out),
                                     static_cast<float*>(log_sum.mutable_data_ptr())};
    warpwatch::check_launch(forward_by(Version{version}, shape, call, warpwatch::current_stream(q)));
  });
  return {out, log_sum};
}

std::tuple<Tensor, Tensor, Tensor> attention_backward_cuda(const Tensor& g_given, const Tensor& q_given, const Tensor& k_given,
                                                           const Tensor& v_given, const Tensor& out_given, const Tensor& sum_given,
                                                           bool causal, double scale, int64_t version) {
  const warpwatch::DeviceGuard guard(q_given.get_device_index());
  const Shape shape = shape_of(q_given, k_given, v_given, causal, scale);
  warpwatch::check_same_shape(g_given, q_given);
  warpwatch::check_same_shape(out_given, q_given);
  const Tensor g = in_rows(g_given), q = in_rows(q_given), k = in_rows(k_given), v = in_rows(v_given), out = in_rows(out_given);
  const Tensor log_sum = warpwatch::contiguous(sum_given);
  Tensor dq = new_like(q_given), dk = new_like(k_given), dv = new_like(v_given);
  const int64_t numbers = shape.heads() * (Version{version} == Version::warpgroups ? 2 * shape.numbered() : shape.queries);
  Tensor scratch = torch::stable::new_empty(q, std::vector<int64_t>{numbers}, ScalarType::Float);
  if (shape.heads() == 0) return {dq, dk, dv};
  dispatch_kernels(shape, q, [&](auto zero) {
    using T = decltype(zero);
    const attention::Backward<T> call{rows_of<T>(g), rows_of<T>(q), rows_of<T>(k), rows_of<T>(v), rows_of<T>(out),
                                      static_cast<const float*>(log_sum.const_data_ptr()), static_cast<float*>(scratch.mutable_data_ptr()),
                                      new_rows_of<T>(dq), new_rows_of<T>(dk), new_rows_of<T>(dv)};
    warpwatch::check_launch(backward_by(Version{version}, shape, call, warpwatch::current_stream(q)));
  });
  return {dq, dk, dv};
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def("attention(Tensor q, Tensor k, Tensor v, bool causal, float scale, int version=3) -> (Tensor, Tensor)");
  m.def(
      "attention_backward(Tensor gradient, Tensor q, Tensor k, Tensor v, Tensor out, Tensor log_sum, bool causal, float scale, "
      "int version=3) -> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) {
  m.impl("attention", TORCH_BOX(&attention_cpu));
  m.impl("attention_backward", TORCH_BOX(&attention_backward_cpu));
}

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) {
  m.impl("attention", TORCH_BOX(&attention_cuda));
  m.impl("attention_backward", TORCH_BOX(&attention_backward_cuda));
}
#endif
