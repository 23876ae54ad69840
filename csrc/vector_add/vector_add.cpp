// Binds y = a + b to torch for CPU and CUDA.
#include "vector_add/vector_add.h"

#include "common/tensor.h"

namespace {

using torch::stable::Tensor;

constexpr int64_t kGrain = 16384;  // Below this many elements a second thread costs more than it saves.

Tensor vector_add_cpu(const Tensor& a_given, const Tensor& b_given, int64_t) {
  warpwatch::check_same_shape(a_given, b_given);
  const Tensor a = warpwatch::contiguous(a_given), b = warpwatch::contiguous(b_given);
  Tensor y = torch::stable::empty_like(a);
  warpwatch::dispatch<float, double, int32_t>(a.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T* u = a.const_data_ptr<T>();
    const T* v = b.const_data_ptr<T>();
    T* out = y.mutable_data_ptr<T>();
    warpwatch::parallel_for(a.numel(), kGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = u[i] + v[i];
    });
  });
  return y;
}

#if !defined(WARPWATCH_NO_CUDA)
Tensor vector_add_cuda(const Tensor& a_given, const Tensor& b_given, int64_t launch) {
  warpwatch::check_same_shape(a_given, b_given);
  const warpwatch::DeviceGuard guard(a_given.get_device_index());
  const Tensor a = warpwatch::contiguous(a_given), b = warpwatch::contiguous(b_given);
  Tensor y = torch::stable::empty_like(a);
  warpwatch::dispatch<float, double, int32_t>(a.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    warpwatch::check_launch(vector_add::launch_on(static_cast<vector_add::Launch>(launch), a.const_data_ptr<T>(),
                                                  b.const_data_ptr<T>(), y.mutable_data_ptr<T>(), a.numel(),
                                                  warpwatch::current_stream(a)));
  });
  return y;
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) { m.def("vector_add(Tensor a, Tensor b, int launch=0) -> Tensor"); }

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) { m.impl("vector_add", TORCH_BOX(&vector_add_cpu)); }

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) { m.impl("vector_add", TORCH_BOX(&vector_add_cuda)); }
#endif
