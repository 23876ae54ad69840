// Binds y = a * a and its gradient to torch for CPU and CUDA.
#include "square/square.h"

#include "common/tensor.h"

namespace {

using torch::stable::Tensor;

constexpr int64_t kGrain = 16384;  // Below this many elements a second thread costs more than it saves.

Tensor square_cpu(const Tensor& a_given, int64_t) {
  const Tensor a = warpwatch::contiguous(a_given);
  Tensor y = torch::stable::empty_like(a);
  warpwatch::dispatch<float, double>(a.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T* in = a.const_data_ptr<T>();
    T* out = y.mutable_data_ptr<T>();
    warpwatch::parallel_for(a.numel(), kGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = in[i] * in[i];
    });
  });
  return y;
}

Tensor square_backward_cpu(const Tensor& g_given, const Tensor& a_given, int64_t) {
  warpwatch::check_same_shape(g_given, a_given);
  const Tensor g = warpwatch::contiguous(g_given), a = warpwatch::contiguous(a_given);
  Tensor d = torch::stable::empty_like(a);
  warpwatch::dispatch<float, double>(a.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T* incoming = g.const_data_ptr<T>();
    const T* in = a.const_data_ptr<T>();
    T* out = d.mutable_data_ptr<T>();
    warpwatch::parallel_for(a.numel(), kGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = T{2} * incoming[i] * in[i];
    });
  });
  return d;
}

#if !defined(WARPWATCH_NO_CUDA)
// The last dimension is the matrix's columns, all others together are its rows.
int64_t columns_of(const Tensor& a) { return a.dim() == 0 ? 1 : a.size(a.dim() - 1); }
int64_t rows_of(const Tensor& a) { return a.numel() == 0 ? 0 : a.numel() / columns_of(a); }

Tensor square_cuda(const Tensor& a_given, int64_t launch) {
  const warpwatch::DeviceGuard guard(a_given.get_device_index());
  const Tensor a = warpwatch::contiguous(a_given);
  Tensor y = torch::stable::empty_like(a);
  warpwatch::dispatch<float, double>(a.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    warpwatch::check_launch(square::forward_on(static_cast<square::Launch>(launch), a.const_data_ptr<T>(), y.mutable_data_ptr<T>(),
                                               rows_of(a), columns_of(a), warpwatch::current_stream(a)));
  });
  return y;
}

Tensor square_backward_cuda(const Tensor& g_given, const Tensor& a_given, int64_t launch) {
  warpwatch::check_same_shape(g_given, a_given);
  const warpwatch::DeviceGuard guard(a_given.get_device_index());
  const Tensor g = warpwatch::contiguous(g_given), a = warpwatch::contiguous(a_given);
  Tensor d = torch::stable::empty_like(a);
  warpwatch::dispatch<float, double>(a.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    warpwatch::check_launch(square::backward_on(static_cast<square::Launch>(launch), g.const_data_ptr<T>(), a.const_data_ptr<T>(),
                                                d.mutable_data_ptr<T>(), rows_of(a), columns_of(a),
                                                warpwatch::current_stream(a)));
  });
  return d;
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def("square(Tensor a, int launch=0) -> Tensor");
  m.def("square_backward(Tensor gradient, Tensor a, int launch=0) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) {
  m.impl("square", TORCH_BOX(&square_cpu));
  m.impl("square_backward", TORCH_BOX(&square_backward_cpu));
}

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) {
  m.impl("square", TORCH_BOX(&square_cuda));
  m.impl("square_backward", TORCH_BOX(&square_backward_cuda));
}
#endif
