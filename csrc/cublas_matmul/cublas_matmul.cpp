// Binds C = op(A) op(B) and both its gradients to torch: on the CPU by gemm.h, on CUDA by cuBLAS.
//
// Either operand may be one matrix, which then stands for every matrix of the other's batch; its gradient is a sum over that batch.
#include "cublas_matmul/cublas_matmul.h"

#include <tuple>
#include <vector>

#include "common/gemm.h"
#include "common/tensor.h"

#if !defined(WARPWATCH_NO_CUDA)
#include "common/cublas.h"
#endif

namespace {

using torch::headeronly::BFloat16;
using torch::headeronly::Half;
using torch::stable::Tensor;
using warpwatch::ScalarType;
using warpwatch::gemm::Matrix;
using warpwatch::gemm::Size;

// An operand as it is multiplied: `transposed` says which way round.
struct Given {
  Tensor tensor;
  bool transposed;

  int64_t last(int64_t i) const { return tensor.dim() - (transposed ? 3 - i : i); }
  int64_t rows() const { return tensor.size(last(2)); }
  int64_t columns() const { return tensor.size(last(1)); }
  int64_t row_stride() const { return tensor.stride(last(2)); }
  int64_t column_stride() const { return tensor.stride(last(1)); }
  bool batched() const { return tensor.dim() > 2; }
};

// How far apart the matrices of a batch lie, -1 where no single number says so; 0 for one matrix, which stands for every one.
int64_t batch_stride(const Tensor& t) {
  int64_t stride = 0, next = -1;
  for (int64_t i = t.dim() - 3; i >= 0; --i) {
    if (t.size(i) == 1) continue;
    if (next < 0) {
      stride = t.stride(i);
    } else if (t.stride(i) != next) {
      return -1;
    }
    next = t.stride(i) * t.size(i);
  }
  return stride;
}

int64_t batch_of(const Tensor& t) {
  int64_t batch = 1;
  for (int64_t i = 0; i + 2 < t.dim(); ++i) batch *= t.size(i);
  return batch;
}

Size size_of(const Given& a, const Given& b, bool sum) {
  STD_TORCH_CHECK(a.tensor.dim() >= 2 && b.tensor.dim() >= 2, "both operands must have at least two dimensions");
  STD_TORCH_CHECK(a.tensor.scalar_type() == b.tensor.scalar_type(), "both operands must have the same dtype");
  STD_TORCH_CHECK(a.tensor.get_device_index() == b.tensor.get_device_index(), "both operands must be on one device");
  STD_TORCH_CHECK(a.columns() == b.rows(), "op(A) has ", a.columns(), " columns, but op(B) ", b.rows(), " rows");
  if (a.batched() && b.batched()) {
    STD_TORCH_CHECK(a.tensor.dim() == b.tensor.dim(), "operands with a batch must have the same number of dimensions");
    for (int64_t i = 0; i + 2 < a.tensor.dim(); ++i)
      STD_TORCH_CHECK(a.tensor.size(i) == b.tensor.size(i), "both operands must have the same batch, or one be a matrix");
  }
  return {a.batched() ? batch_of(a.tensor) : batch_of(b.tensor), a.rows(), b.columns(), a.columns(), sum};
}

Tensor new_result(const Given& a, const Given& b, const Size& size) {
  const Tensor& batched = a.batched() ? a.tensor : b.tensor;
  std::vector<int64_t> shape;
  for (int64_t i = 0; !size.sum && i + 2 < batched.dim(); ++i) shape.push_back(batched.size(i));
  shape.insert(shape.end(), {size.m, size.n});
  return torch::stable::new_empty(a.tensor, shape);
}

struct OnCpu {
  static Tensor multiply(Given a, Given b, bool sum) {
    const Size size = size_of(a, b, sum);
    Tensor c = new_result(a, b, size);
    warpwatch::dispatch<float, double, Half, BFloat16>(c.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      warpwatch::gemm::multiply<T>(size, matrix<T>(a), matrix<T>(b), static_cast<T*>(c.mutable_data_ptr()));
    });
    return c;
  }

  template <class T>
  static Matrix<T> matrix(Given& given) {
    if (batch_stride(given.tensor) < 0) given.tensor = torch::stable::contiguous(given.tensor);
    const T* data = static_cast<const T*>(given.tensor.const_data_ptr());
    return {data, given.row_stride(), given.column_stride(), batch_stride(given.tensor)};
  }
};

// The gradients are two products, each written so that no result needs a transpose; a matrix that stood for a whole batch gets
// the sum over it.
template <class Multiply>
std::tuple<Tensor, Tensor> gradients(const Tensor& g, const Tensor& a, const Tensor& b, bool trans_a, bool trans_b,
                                     const Multiply& multiply) {
  const bool sum_a = a.dim() < g.dim(), sum_b = b.dim() < g.dim();
  Tensor da = trans_a ? multiply(Given{b, trans_b}, Given{g, true}, sum_a) : multiply(Given{g, false}, Given{b, !trans_b}, sum_a);
  Tensor db = trans_b ? multiply(Given{g, true}, Given{a, trans_a}, sum_b) : multiply(Given{a, !trans_a}, Given{g, false}, sum_b);
  return {da, db};
}

Tensor matmul_cpu(const Tensor& a, const Tensor& b, bool trans_a, bool trans_b, bool) {
  return OnCpu::multiply({a, trans_a}, {b, trans_b}, false);
}

std::tuple<Tensor, Tensor> matmul_backward_cpu(const Tensor& g, const Tensor& a, const Tensor& b, bool trans_a, bool trans_b,
                                               bool) {
  return gradients(g, a, b, trans_a, trans_b, OnCpu::multiply);
}

#if !defined(WARPWATCH_NO_CUDA)
namespace cublas = warpwatch::cublas;

class OnCuda {
 public:
  OnCuda(const Tensor& like, bool tf32)
      : stream_(warpwatch::current_stream(like)),
        workspace_(cublas::new_workspace(like)),
        handle_(cublas::handle_for(like, workspace_, stream_)),
        tf32_(tf32) {}

  Tensor multiply(Given a, Given b, bool sum) const {
    Size size = size_of(a, b, sum);
    Tensor c = new_result(a, b, size);
    if (c.numel() == 0) return c;
    if (size.k == 0 || size.batch == 0) return torch::stable::zero_(c);
    if (size.sum) chain(size, a, b);
    make_plain(a);
    make_plain(b);
    // One matrix B for all rows of a batch: the batch is nothing but more rows.
    if (!size.sum && size.batch > 1 && !b.batched() && !a.transposed && batch_stride(a.tensor) == size.m * a.row_stride()) {
      size.m *= size.batch;
      size.batch = 1;
    }
    void* out = c.mutable_data_ptr();
    cublas::multiply(handle_, {size.batch, size.m, size.n, size.k, operand(a), operand(b), out, type(c), compute(c)});
    return c;
  }

 private:
  // A sum over the batch is one long sum: A's matrices side by side times B's on top of each other. That takes both stored with
  // the summed axis first, (batch * k, m) and (batch * k, n).
  void chain(Size& size, Given& a, Given& b) const {
    a = {chained(a.transposed ? a.tensor : turned(a.tensor)), true};
    b = {chained(b.transposed ? turned(b.tensor) : b.tensor), false};
    size.k *= size.batch;
    size.batch = 1;
    size.sum = false;
  }

  static Tensor chained(const Tensor& t) {
    const std::vector<int64_t> shape{t.numel() / t.size(t.dim() - 1), t.size(t.dim() - 1)};
    return torch::stable::view(warpwatch::contiguous(t), shape);
  }

  // A copy with the last two axes swapped in memory.
  Tensor turned(const Tensor& given) const {
    const Tensor t = warpwatch::contiguous(given);
    const int64_t rows = t.size(t.dim() - 2), columns = t.size(t.dim() - 1);
    std::vector<int64_t> shape;
    for (int64_t i = 0; i + 2 < t.dim(); ++i) shape.push_back(t.size(i));
    shape.insert(shape.end(), {columns, rows});
    Tensor out = torch::stable::new_empty(t, shape);
    warpwatch::check_launch(cublas_matmul::turn_on(static_cast<int>(t.element_size()), t.const_data_ptr(), out.mutable_data_ptr(),
                                                   batch_of(t), rows, columns, stream_));
    return out;
  }

  // cuBLAS requires one axis of a matrix without gaps. Other views are copied; transposed ones are not.
  static void make_plain(Given& given) {
    if (batch_stride(given.tensor) >= 0 && (along_rows(given) || along_columns(given))) return;
    given.tensor = torch::stable::contiguous(given.tensor);
  }

  static bool along_rows(const Given& g) {
    return unit(g.column_stride(), g.columns()) && apart(g.row_stride(), g.rows(), g.columns());
  }
  static bool along_columns(const Given& g) {
    return unit(g.row_stride(), g.rows()) && apart(g.column_stride(), g.columns(), g.rows());
  }
  static bool unit(int64_t stride, int64_t extent) { return stride == 1 || extent == 1; }
  static bool apart(int64_t stride, int64_t extent, int64_t length) { return stride >= length || extent == 1; }

  static cublas::Operand operand(const Given& g) {
    const bool rows = along_rows(g);
    const int64_t length = rows ? g.columns() : g.rows(), stride = rows ? g.row_stride() : g.column_stride();
    const int64_t extent = rows ? g.rows() : g.columns();
    return {g.tensor.const_data_ptr(), !rows, extent == 1 ? length : stride, batch_stride(g.tensor)};
  }

  static cublas::Type type(const Tensor& t) {
    switch (t.scalar_type()) {
      case ScalarType::Float: return cublas::kFloat;
      case ScalarType::Double: return cublas::kDouble;
      case ScalarType::Half: return cublas::kHalf;
      case ScalarType::BFloat16: return cublas::kBFloat16;
      default: STD_TORCH_CHECK(false, "cublas_matmul has no implementation for this dtype");
    }
  }

  cublas::Compute compute(const Tensor& t) const {
    if (t.scalar_type() == ScalarType::Double) return cublas::kIn64;
    return tf32_ && t.scalar_type() == ScalarType::Float ? cublas::kInTf32 : cublas::kIn32;
  }

  void* stream_;
  Tensor workspace_;
  cublas::Handle handle_;
  bool tf32_;
};

Tensor matmul_cuda(const Tensor& a, const Tensor& b, bool trans_a, bool trans_b, bool tf32) {
  const warpwatch::DeviceGuard guard(a.get_device_index());
  return OnCuda(a, tf32).multiply({a, trans_a}, {b, trans_b}, false);
}

std::tuple<Tensor, Tensor> matmul_backward_cuda(const Tensor& g, const Tensor& a, const Tensor& b, bool trans_a, bool trans_b,
                                                bool tf32) {
  const warpwatch::DeviceGuard guard(a.get_device_index());
  const OnCuda cuda(a, tf32);
  return gradients(g, a, b, trans_a, trans_b, [&](Given x, Given y, bool sum) { return cuda.multiply(x, y, sum); });
}

int64_t count_handles() { return cublas::pool().size(); }

void close_handles() { cublas::pool().close(); }
#else
int64_t count_handles() { return 0; }

void close_handles() {}
#endif

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def("cublas_matmul(Tensor a, Tensor b, bool trans_a, bool trans_b, bool tf32=False) -> Tensor");
  m.def(
      "cublas_matmul_backward(Tensor gradient, Tensor a, Tensor b, bool trans_a, bool trans_b, bool tf32=False) "
      "-> (Tensor, Tensor)");
  m.def("cublas_matmul_handles() -> int");
  m.def("cublas_matmul_close() -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) {
  m.impl("cublas_matmul", TORCH_BOX(&matmul_cpu));
  m.impl("cublas_matmul_backward", TORCH_BOX(&matmul_backward_cpu));
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CompositeExplicitAutograd, m) {
  m.impl("cublas_matmul_handles", TORCH_BOX(&count_handles));
  m.impl("cublas_matmul_close", TORCH_BOX(&close_handles));
}

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) {
  m.impl("cublas_matmul", TORCH_BOX(&matmul_cuda));
  m.impl("cublas_matmul_backward", TORCH_BOX(&matmul_backward_cuda));
}
#endif
