// Binds the product to torch for CPU and CUDA. Gradients are products of the same kind on transposed views, so that they need no
// operator of their own: see kernels/matmul.py.
#include "matmul/matmul.h"

#include <vector>

#include "common/gemm.h"
#include "common/tensor.h"
#include "common/wide.h"

namespace {

using matmul::Operand;
using matmul::Product;
using matmul::Version;
using torch::stable::Tensor;

void check(const Tensor& a, const Tensor& b) {
  const int64_t d = a.dim();
  STD_TORCH_CHECK((d == 2 || d == 3) && b.dim() == d, "matmul takes two matrices, or two batches of them");
  STD_TORCH_CHECK(a.scalar_type() == b.scalar_type(), "both operands must have the same dtype");
  STD_TORCH_CHECK(a.is_cuda() == b.is_cuda() && a.get_device_index() == b.get_device_index(), "both operands must be on one device");
  STD_TORCH_CHECK(d == 2 || a.size(0) == b.size(0), "both batches must be of one size");
  STD_TORCH_CHECK(a.size(d - 1) == b.size(d - 2), "the columns of a must be as many as the rows of b");
}

// Whether elements along one of the last two axes are neighbours, as the kernels want it; an axis of length 1 is whatever suits.
bool has_unit_stride(const Tensor& t) {
  const int64_t d = t.dim();
  for (int64_t axis = d - 2; axis < d; ++axis)
    if (t.stride(axis) == 1 || t.size(axis) == 1) return true;
  return false;
}

Tensor strided(const Tensor& t) { return has_unit_stride(t) ? t : torch::stable::contiguous(t); }

template <class T>
Operand<T> operand(const Tensor& t, int64_t outer_axis, int64_t k_axis) {
  Operand<T> p{static_cast<const T*>(t.const_data_ptr()), t.dim() == 3 ? t.stride(0) : 0, t.stride(outer_axis), t.stride(k_axis)};
  if (t.size(k_axis) == 1) p.k = 1;
  else if (p.k != 1 && t.size(outer_axis) == 1) p.outer = 1;
  return p;
}

// run(zero, call) with the operands in the kernels' own type for them, and a zero of torch's type.
template <class Run>
Tensor product(const Tensor& a_given, const Tensor& b_given, const Run& run) {
  check(a_given, b_given);
  // Kernels on tensor cores come without the case of both operands transposed, for which there is hardly ever a use.
  const bool both = a_given.stride(a_given.dim() - 1) != 1 && b_given.stride(b_given.dim() - 1) != 1;
  const Tensor a = both ? warpwatch::contiguous(a_given) : strided(a_given), b = strided(b_given);
  const int64_t d = a.dim(), batches = d == 3 ? a.size(0) : 1, m = a.size(d - 2), k = a.size(d - 1), n = b.size(d - 1);
  std::vector<int64_t> sizes{m, n};
  if (d == 3) sizes.insert(sizes.begin(), batches);
  Tensor c = torch::stable::new_empty(a, sizes);
  if (c.numel() == 0) return c;
  if (k == 0) return torch::stable::fill_(c, 0);
  warpwatch::dispatch<float, double, c10::BFloat16>(a.scalar_type(), [&](auto zero) {
    using T = warpwatch::KernelType<decltype(zero)>;
    run(zero, Product<T>{operand<T>(a, d - 2, d - 1), operand<T>(b, d - 1, d - 2), static_cast<T*>(c.mutable_data_ptr()), batches, m, n, k});
  });
  return c;
}

Tensor matmul_cpu(const Tensor& a, const Tensor& b, int64_t) {
  return product(a, b, [](auto zero, const auto& call) {
    using T = decltype(zero);
    namespace gemm = warpwatch::gemm;
    const auto &left = call.a, &right = call.b;
    gemm::multiply<T>({call.batches, call.m, call.n, call.k, false},
                      {reinterpret_cast<const T*>(left.data), left.outer, left.k, left.batch},
                      {reinterpret_cast<const T*>(right.data), right.k, right.outer, right.batch}, reinterpret_cast<T*>(call.c));
  });
}

#if !defined(WARPWATCH_NO_CUDA)
const char* on_cuda(Version version, const Product<float>& call, void* stream) {
  switch (version) {
    case Version::shared_tile: return matmul::shared_tile_on(call, stream);
    case Version::column_of_registers:
    case Version::tile_of_registers:
    case Version::vectors: return matmul::registers_on(version, call, stream);
    case Version::double_buffer: return matmul::double_buffer_on(call, stream);
    case Version::warp_tiles: return matmul::warp_tiles_on(call, stream);
    case Version::tensor_cores:
    case Version::warpgroups: return matmul::tensor_cores_on(call, stream);
    case Version::split_tensor_cores: return matmul::split_tensor_cores_on(call, stream);
    case Version::split_tiles: return matmul::split_tiles_on(call, stream);
    default: return matmul::one_each_on(version, call, stream);
  }
}

const char* on_cuda(Version version, const Product<double>& call, void* stream) { return matmul::one_each_on(version, call, stream); }
const char* on_cuda(Version version, const Product<matmul::Bf16>& call, void* stream) {
  return version == Version::warpgroups ? matmul::warpgroups_on(call, stream) : matmul::tensor_cores_on(call, stream);
}

Tensor matmul_cuda(const Tensor& a, const Tensor& b, int64_t version) {
  const warpwatch::DeviceGuard guard(a.get_device_index());
  return product(a, b, [&](auto, const auto& call) {
    warpwatch::check_launch(on_cuda(Version{version}, call, warpwatch::current_stream(a)));
  });
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) { m.def("matmul(Tensor a, Tensor b, int version=3) -> Tensor"); }

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) { m.impl("matmul", TORCH_BOX(&matmul_cpu)); }

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) { m.impl("matmul", TORCH_BOX(&matmul_cuda)); }
#endif
