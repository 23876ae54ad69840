// Binds an empty call, an addition and two ways to copy to torch for CPU and CUDA.
#include "launch/launch.h"

#include <cstring>

#include "common/tensor.h"

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

enum Way : int64_t { kOwn = 0, kMemcpy = 1 };  // Numbered as in kernels/launch.py.

constexpr int64_t kGrain = int64_t{1} << 18;  // Bytes below which a second thread costs more than it saves.
constexpr int64_t kAddGrain = 16384;

Tensor checked(const Tensor& x) {
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::Float, "x must be float32");
  return warpwatch::contiguous(x);
}

int64_t bytes_of(const Tensor& x) { return x.numel() * static_cast<int64_t>(sizeof(float)); }

void empty_cpu(const Tensor&) {}

Tensor add_cpu(const Tensor& x_given) {
  const Tensor x = checked(x_given);
  Tensor y = torch::stable::empty_like(x);
  const float* in = x.const_data_ptr<float>();
  float* out = y.mutable_data_ptr<float>();
  warpwatch::parallel_for(x.numel(), kAddGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = in[i] + 1.0f;
  });
  return y;
}

Tensor copy_cpu(const Tensor& x_given, int64_t way) {
  const Tensor x = checked(x_given);
  Tensor y = torch::stable::empty_like(x);
  const char* in = static_cast<const char*>(x.const_data_ptr());
  char* out = static_cast<char*>(y.mutable_data_ptr());
  const int64_t bytes = bytes_of(x);
  if (bytes == 0) return y;
  if (way == kMemcpy) {
    std::memcpy(out, in, bytes);
  } else {
    warpwatch::parallel_for(bytes, kGrain, [=](int64_t begin, int64_t end) { std::memcpy(out + begin, in + begin, end - begin); });
  }
  return y;
}

#if !defined(WARPWATCH_NO_CUDA)
void empty_cuda(const Tensor& x) {
  const warpwatch::DeviceGuard guard(x.get_device_index());
  warpwatch::check_launch(launch::empty_on(warpwatch::current_stream(x)));
}

Tensor add_cuda(const Tensor& x_given) {
  const warpwatch::DeviceGuard guard(x_given.get_device_index());
  const Tensor x = checked(x_given);
  Tensor y = torch::stable::empty_like(x);
  warpwatch::check_launch(
      launch::add_on(x.const_data_ptr<float>(), y.mutable_data_ptr<float>(), x.numel(), warpwatch::current_stream(x)));
  return y;
}

Tensor copy_cuda(const Tensor& x_given, int64_t way) {
  const warpwatch::DeviceGuard guard(x_given.get_device_index());
  const Tensor x = checked(x_given);
  Tensor y = torch::stable::empty_like(x);
  const auto copy = way == kMemcpy ? launch::memcpy_on : launch::copy_on;
  warpwatch::check_launch(copy(x.const_data_ptr(), y.mutable_data_ptr(), bytes_of(x), warpwatch::current_stream(x)));
  return y;
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def("launch_empty(Tensor x) -> ()");
  m.def("launch_add(Tensor x) -> Tensor");
  m.def("launch_copy(Tensor x, int way) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) {
  m.impl("launch_empty", TORCH_BOX(&empty_cpu));
  m.impl("launch_add", TORCH_BOX(&add_cpu));
  m.impl("launch_copy", TORCH_BOX(&copy_cpu));
}

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) {
  m.impl("launch_empty", TORCH_BOX(&empty_cuda));
  m.impl("launch_add", TORCH_BOX(&add_cuda));
  m.impl("launch_copy", TORCH_BOX(&copy_cuda));
}
#endif
