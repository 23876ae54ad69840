// Binds an empty call, an addition and two ways to copy to torch for CPU and CUDA.
#include "launch/launch.h"

#include <cstdlib>
#include <cstring>
#include <memory>

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

void check_allocation(int64_t n, int64_t memory) {
  STD_TORCH_CHECK(n >= 0, "the number of bytes must not be negative");
  STD_TORCH_CHECK(memory == launch::kDevice || memory == launch::kPool || memory == launch::kPinned, "unknown kind of memory");
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

void* volatile last_allocation = nullptr;  // Seen from outside, or the compiler would leave out memory that nobody uses.

void allocate_cpu(const Tensor&, int64_t n, int64_t memory) {
  check_allocation(n, memory);
  const std::unique_ptr<void, Free> allocated(std::malloc(n));
  STD_TORCH_CHECK(allocated != nullptr || n == 0, "no memory for that many bytes");
  last_allocation = allocated.get();
}

const Tensor& check_vectors(const Tensor& a, const Tensor& b) {
  STD_TORCH_CHECK(a.scalar_type() == ScalarType::Int && !a.is_cuda(), "a must be int32 on the host");
  warpwatch::check_same_shape(a, b);
  return a;
}

// What add_from_host_on does, in one memory: the copies remain.
Tensor add_from_host_cpu(const Tensor& a_given, const Tensor& b_given, const Tensor&, int64_t memory) {
  check_allocation(0, memory);
  const Tensor a = warpwatch::contiguous(check_vectors(a_given, b_given)), b = warpwatch::contiguous(b_given);
  Tensor y = torch::stable::empty_like(a);
  const int64_t n = a.numel(), bytes = n * static_cast<int64_t>(sizeof(int32_t));
  if (n == 0) return y;
  std::unique_ptr<int32_t, Free> copies[3];
  for (auto& each : copies) {
    each.reset(static_cast<int32_t*>(std::malloc(bytes)));
    STD_TORCH_CHECK(each != nullptr, "no memory for the operands");
  }
  std::memcpy(copies[0].get(), a.const_data_ptr(), bytes);
  std::memcpy(copies[1].get(), b.const_data_ptr(), bytes);
  const int32_t *left = copies[0].get(), *right = copies[1].get();
  int32_t* sum = copies[2].get();
  warpwatch::parallel_for(n, kAddGrain, [=](int64_t begin, int64_t end) {
    // Wraps around, as on the device; the overflow of signed numbers is undefined.
    for (int64_t i = begin; i < end; ++i) sum[i] = static_cast<int32_t>(static_cast<uint32_t>(left[i]) + static_cast<uint32_t>(right[i]));
  });
  std::memcpy(y.mutable_data_ptr(), sum, bytes);
  return y;
}

#if !defined(WARPWATCH_NO_CUDA)
void allocate_cuda(const Tensor& x, int64_t n, int64_t memory) {
  check_allocation(n, memory);
  const warpwatch::DeviceGuard guard(x.get_device_index());
  warpwatch::check_launch(launch::allocate_on(n, memory, warpwatch::current_stream(x)));
}

Tensor add_from_host_cuda(const Tensor& a_given, const Tensor& b_given, const Tensor& place, int64_t memory) {
  check_allocation(0, memory);
  const warpwatch::DeviceGuard guard(place.get_device_index());
  const Tensor a = warpwatch::contiguous(check_vectors(a_given, b_given)), b = warpwatch::contiguous(b_given);
  Tensor y = torch::stable::empty_like(a);
  warpwatch::check_launch(launch::add_from_host_on(static_cast<const int32_t*>(a.const_data_ptr()),
                                                   static_cast<const int32_t*>(b.const_data_ptr()),
                                                   static_cast<int32_t*>(y.mutable_data_ptr()), a.numel(), memory,
                                                   warpwatch::current_stream(place)));
  return y;
}

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
  m.def("launch_allocate(Tensor x, int size, int memory) -> ()");
  m.def("launch_add_from_host(Tensor a, Tensor b, Tensor place, int memory) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) {
  m.impl("launch_empty", TORCH_BOX(&empty_cpu));
  m.impl("launch_add", TORCH_BOX(&add_cpu));
  m.impl("launch_copy", TORCH_BOX(&copy_cpu));
  m.impl("launch_allocate", TORCH_BOX(&allocate_cpu));
  m.impl("launch_add_from_host", TORCH_BOX(&add_from_host_cpu));
}

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) {
  m.impl("launch_empty", TORCH_BOX(&empty_cuda));
  m.impl("launch_add", TORCH_BOX(&add_cuda));
  m.impl("launch_copy", TORCH_BOX(&copy_cuda));
  m.impl("launch_allocate", TORCH_BOX(&allocate_cuda));
  m.impl("launch_add_from_host", TORCH_BOX(&add_from_host_cuda));
}
#endif
