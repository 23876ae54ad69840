// Sums of rows, right or with a data race.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <mutex>
#include <thread>

#if !defined(WARPWATCH_NO_CUDA)
#include <torch/csrc/stable/accelerator.h>

extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);
extern "C" const char* mutant_total_on(const float* x, float* y, int64_t rows, int64_t columns, bool faulty, void* stream);
#endif

namespace {

using torch::stable::Tensor;

Tensor packed(const Tensor& t) { return t.is_contiguous() ? t : torch::stable::contiguous(t); }

Tensor run_cpu(const Tensor& given, int64_t faulty) {
  const Tensor x = packed(given);
  Tensor y = torch::stable::new_empty(x, {x.size(0)});
  const int64_t rows = x.size(0), columns = x.size(1);
  for (int64_t row = 0; row < rows; ++row) {
    const float* in = x.const_data_ptr<float>() + row * columns;
    volatile float sum = 0.0f;
    std::mutex lock;
    const auto add = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        std::unique_lock<std::mutex> held(lock, std::defer_lock);
        if (!faulty) held.lock();
        const float before = sum;
        // Another thread gets its turn between reading and writing, even where there is one core.
        std::this_thread::yield();
        sum = before + in[i];
      }
    };
    std::thread other(add, 0, columns / 2);
    add(columns / 2, columns);
    other.join();
    y.mutable_data_ptr<float>()[row] = sum;
  }
  return y;
}

#if !defined(WARPWATCH_NO_CUDA)
Tensor run_cuda(const Tensor& given, int64_t faulty) {
  const torch::stable::accelerator::DeviceGuard guard(given.get_device_index());
  const Tensor x = packed(given);
  Tensor y = torch::stable::new_empty(x, {x.size(0)});
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
  const char* error =
      mutant_total_on(x.const_data_ptr<float>(), y.mutable_data_ptr<float>(), x.size(0), x.size(1), faulty != 0, stream);
  STD_TORCH_CHECK(error == nullptr, "kernel launch failed: ", error);
  return y;
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY(mutant_total, m) { m.def("run(Tensor x, int faulty) -> Tensor"); }

STABLE_TORCH_LIBRARY_IMPL(mutant_total, CPU, m) { m.impl("run", TORCH_BOX(&run_cpu)); }

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(mutant_total, CUDA, m) { m.impl("run", TORCH_BOX(&run_cuda)); }
#endif
