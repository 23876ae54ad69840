// Binds the products with a sparse matrix to torch for CPU and CUDA.
#include "spmm/spmm.h"

#include "common/tensor.h"
#include "spmm/cpu.h"

namespace {

using spmm::Pattern;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// A's pattern as the kernels take it; its tensors must outlive it.
struct Csr {
  Tensor crow, col;
  Pattern pattern;
};

Csr csr(const Tensor& crow_given, const Tensor& col_given, int64_t columns) {
  for (const Tensor* index : {&crow_given, &col_given})
    STD_TORCH_CHECK(index->scalar_type() == ScalarType::Int && index->dim() == 1, "crow and col must be vectors of int32");
  STD_TORCH_CHECK(crow_given.numel() > 0, "crow must have one number more than A has rows");
  Csr a{warpwatch::contiguous(crow_given), warpwatch::contiguous(col_given), {}};
  a.pattern = {a.crow.numel() - 1, columns, a.crow.const_data_ptr<int32_t>(), a.col.const_data_ptr<int32_t>()};
  return a;
}

void check_dense(const Tensor& b, int64_t rows, const Tensor& col) {
  STD_TORCH_CHECK(b.dim() == 2, "dense operands must be matrices");
  STD_TORCH_CHECK(rows < 0 || b.size(0) == rows, "the dense operand must have as many rows as A has");
  STD_TORCH_CHECK(b.is_cuda() == col.is_cuda() && b.get_device_index() == col.get_device_index(), "operands must be on one device");
}

void check_values(const Tensor& values, const Tensor& b, const Tensor& col) {
  STD_TORCH_CHECK(values.dim() == 1 && values.numel() == col.numel(), "values must be a vector as long as col");
  STD_TORCH_CHECK(values.scalar_type() == b.scalar_type(), "values and the dense operand must have the same dtype");
}

void check_starts(const Tensor& starts, const Pattern& a) {
  STD_TORCH_CHECK(starts.scalar_type() == ScalarType::Int && starts.is_contiguous(), "starts must be what spmm_inspect made");
  STD_TORCH_CHECK(starts.numel() == a.rows * (spmm::tiles_of(a.columns) + 1), "starts belong to another matrix");
}

Tensor new_matrix(const Tensor& like, int64_t rows, int64_t columns) {
  const int64_t size[] = {rows, columns};
  return torch::stable::new_empty(like, {size, 2});
}

Tensor new_vector(const Tensor& like, int64_t length, std::optional<ScalarType> type = std::nullopt) {
  const int64_t size[] = {length};
  return torch::stable::new_empty(like, {size, 1}, type);
}

// Each operator's frame: checks operands, packs them, and calls run(T{}, pattern, ...) for float or double.
template <class Run>
Tensor product(const Tensor& crow, const Tensor& col, const Tensor& values_given, const Tensor& b_given, const Run& run) {
  check_dense(b_given, -1, col);
  check_values(values_given, b_given, col);
  const Tensor values = warpwatch::contiguous(values_given), b = warpwatch::contiguous(b_given);
  const Csr a = csr(crow, col, b.size(0));
  Tensor y = new_matrix(b, a.pattern.rows, b.size(1));
  warpwatch::dispatch<float, double>(b.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    run(a.pattern, values.const_data_ptr<T>(), b.const_data_ptr<T>(), y.mutable_data_ptr<T>(), b.size(1));
  });
  return y;
}

template <class Run>
Tensor transposed(const Tensor& crow, const Tensor& col, const Tensor& values_given, const Tensor& g_given, int64_t k,
                  const Run& run) {
  check_dense(g_given, crow.numel() - 1, col);
  check_values(values_given, g_given, col);
  const Tensor values = warpwatch::contiguous(values_given), g = warpwatch::contiguous(g_given);
  const Csr a = csr(crow, col, k);
  Tensor d = new_matrix(g, k, g.size(1));
  torch::stable::zero_(d);
  warpwatch::dispatch<float, double>(g.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    run(a.pattern, values.const_data_ptr<T>(), g.const_data_ptr<T>(), d.mutable_data_ptr<T>(), g.size(1));
  });
  return d;
}

template <class Run>
Tensor sampled(const Tensor& crow, const Tensor& col, const Tensor& g_given, const Tensor& b_given, const Run& run) {
  check_dense(g_given, crow.numel() - 1, col);
  check_dense(b_given, -1, col);
  STD_TORCH_CHECK(g_given.scalar_type() == b_given.scalar_type() && g_given.size(1) == b_given.size(1),
                  "both dense operands must have the same dtype and as many columns");
  const Tensor g = warpwatch::contiguous(g_given), b = warpwatch::contiguous(b_given);
  const Csr a = csr(crow, col, b.size(0));
  Tensor d = new_vector(b, a.col.numel());
  if (b.size(1) == 0) return torch::stable::zero_(d);
  warpwatch::dispatch<float, double>(b.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    run(a.pattern, g.const_data_ptr<T>(), b.const_data_ptr<T>(), d.mutable_data_ptr<T>(), b.size(1));
  });
  return d;
}

Tensor spmm_cpu(const Tensor& crow, const Tensor& col, const Tensor& values, const Tensor& b) {
  return product(crow, col, values, b, [](auto... operands) { spmm::cpu::rows(operands...); });
}

Tensor spmm_transposed_cpu(const Tensor& crow, const Tensor& col, const Tensor& values, const Tensor& g, int64_t k) {
  return transposed(crow, col, values, g, k, [](auto... operands) { spmm::cpu::scatter(operands...); });
}

Tensor spmm_sampled_cpu(const Tensor& crow, const Tensor& col, const Tensor& g, const Tensor& b) {
  return sampled(crow, col, g, b, [](auto... operands) { spmm::cpu::dots(operands...); });
}

Tensor spmm_inspect_cpu(const Tensor& crow, const Tensor& col, int64_t k) {
  const Csr a = csr(crow, col, k);
  Tensor starts = new_matrix(a.crow, a.pattern.rows, spmm::tiles_of(k) + 1);
  spmm::cpu::inspect(a.pattern, starts.mutable_data_ptr<int32_t>());
  return starts;
}

Tensor spmm_tiled_cpu(const Tensor& crow, const Tensor& col, const Tensor& starts, const Tensor& values, const Tensor& b) {
  return product(crow, col, values, b, [&](const Pattern& a, auto... operands) {
    check_starts(starts, a);
    spmm::cpu::tiled(a, starts.const_data_ptr<int32_t>(), operands...);
  });
}

Tensor spmm_tiled_sampled_cpu(const Tensor& crow, const Tensor& col, const Tensor& starts, const Tensor& g, const Tensor& b) {
  return sampled(crow, col, g, b, [&](const Pattern& a, auto... operands) {
    check_starts(starts, a);
    spmm::cpu::tiled_dots(a, starts.const_data_ptr<int32_t>(), operands...);
  });
}

#if !defined(WARPWATCH_NO_CUDA)
Tensor spmm_cuda(const Tensor& crow, const Tensor& col, const Tensor& values, const Tensor& b) {
  const warpwatch::DeviceGuard guard(b.get_device_index());
  void* stream = warpwatch::current_stream(b);
  return product(crow, col, values, b, [=](auto... operands) { warpwatch::check_launch(spmm::rows_on(operands..., stream)); });
}

Tensor spmm_transposed_cuda(const Tensor& crow, const Tensor& col, const Tensor& values, const Tensor& g, int64_t k) {
  const warpwatch::DeviceGuard guard(g.get_device_index());
  void* stream = warpwatch::current_stream(g);
  return transposed(crow, col, values, g, k,
                    [=](auto... operands) { warpwatch::check_launch(spmm::scatter_on(operands..., stream)); });
}

Tensor spmm_sampled_cuda(const Tensor& crow, const Tensor& col, const Tensor& g, const Tensor& b) {
  const warpwatch::DeviceGuard guard(b.get_device_index());
  void* stream = warpwatch::current_stream(b);
  return sampled(crow, col, g, b, [=](auto... operands) { warpwatch::check_launch(spmm::dots_on(operands..., stream)); });
}

Tensor spmm_inspect_cuda(const Tensor& crow, const Tensor& col, int64_t k) {
  const warpwatch::DeviceGuard guard(crow.get_device_index());
  const Csr a = csr(crow, col, k);
  Tensor starts = new_matrix(a.crow, a.pattern.rows, spmm::tiles_of(k) + 1);
  warpwatch::check_launch(spmm::inspect_on(a.pattern, starts.mutable_data_ptr<int32_t>(), warpwatch::current_stream(crow)));
  return starts;
}

Tensor spmm_tiled_cuda(const Tensor& crow, const Tensor& col, const Tensor& starts, const Tensor& values, const Tensor& b) {
  const warpwatch::DeviceGuard guard(b.get_device_index());
  void* stream = warpwatch::current_stream(b);
  return product(crow, col, values, b, [&](const Pattern& a, auto... operands) {
    check_starts(starts, a);
    warpwatch::check_launch(spmm::tiled_on(a, starts.const_data_ptr<int32_t>(), operands..., stream));
  });
}

Tensor spmm_tiled_sampled_cuda(const Tensor& crow, const Tensor& col, const Tensor& starts, const Tensor& g, const Tensor& b) {
  const warpwatch::DeviceGuard guard(b.get_device_index());
  void* stream = warpwatch::current_stream(b);
  return sampled(crow, col, g, b, [&](const Pattern& a, auto... operands) {
    check_starts(starts, a);
    warpwatch::check_launch(spmm::tiled_dots_on(a, starts.const_data_ptr<int32_t>(), operands..., stream));
  });
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def("spmm(Tensor crow, Tensor col, Tensor values, Tensor b) -> Tensor");
  m.def("spmm_transposed(Tensor crow, Tensor col, Tensor values, Tensor g, int k) -> Tensor");
  m.def("spmm_sampled(Tensor crow, Tensor col, Tensor g, Tensor b) -> Tensor");
  m.def("spmm_inspect(Tensor crow, Tensor col, int k) -> Tensor");
  m.def("spmm_tiled(Tensor crow, Tensor col, Tensor starts, Tensor values, Tensor b) -> Tensor");
  m.def("spmm_tiled_sampled(Tensor crow, Tensor col, Tensor starts, Tensor g, Tensor b) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) {
  m.impl("spmm", TORCH_BOX(&spmm_cpu));
  m.impl("spmm_transposed", TORCH_BOX(&spmm_transposed_cpu));
  m.impl("spmm_sampled", TORCH_BOX(&spmm_sampled_cpu));
  m.impl("spmm_inspect", TORCH_BOX(&spmm_inspect_cpu));
  m.impl("spmm_tiled", TORCH_BOX(&spmm_tiled_cpu));
  m.impl("spmm_tiled_sampled", TORCH_BOX(&spmm_tiled_sampled_cpu));
}

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) {
  m.impl("spmm", TORCH_BOX(&spmm_cuda));
  m.impl("spmm_transposed", TORCH_BOX(&spmm_transposed_cuda));
  m.impl("spmm_sampled", TORCH_BOX(&spmm_sampled_cuda));
  m.impl("spmm_inspect", TORCH_BOX(&spmm_inspect_cuda));
  m.impl("spmm_tiled", TORCH_BOX(&spmm_tiled_cuda));
  m.impl("spmm_tiled_sampled", TORCH_BOX(&spmm_tiled_sampled_cuda));
}
#endif
