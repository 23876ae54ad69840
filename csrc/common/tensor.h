// What every binding needs: operands checked, pointers taken, the current CUDA stream, a parallel loop on the CPU.
//
// Bindings see torch through its stable ABI alone: one binding compiles in seconds and its library loads into any later torch.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <initializer_list>

#if !defined(WARPWATCH_NO_CUDA)
#include <torch/csrc/stable/accelerator.h>

// A CPU build of torch has no such symbol; declared weak, the library still loads there.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);
#endif

namespace warpwatch {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Kernels take raw pointers, so a view that is not contiguous is copied first; a contiguous tensor comes back as it is.
inline Tensor contiguous(const Tensor& tensor) { return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor); }

// For kernels that read 16 bytes at a time wherever a tensor begins.
inline Tensor contiguous16(const Tensor& given) {
  const Tensor tensor = warpwatch::contiguous(given);
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0 ? tensor : torch::stable::clone(tensor);
}

inline void check_same_shape(const Tensor& a, const Tensor& b) {
  STD_TORCH_CHECK(a.scalar_type() == b.scalar_type(), "both operands must have the same dtype");
  STD_TORCH_CHECK(a.is_cuda() == b.is_cuda() && a.get_device_index() == b.get_device_index(), "both operands must be on one device");
  STD_TORCH_CHECK(a.dim() == b.dim(), "both operands must have the same shape");
  for (int64_t i = 0; i < a.dim(); ++i) STD_TORCH_CHECK(a.size(i) == b.size(i), "both operands must have the same shape");
}

// A tensor of `sizes`, of the dtype and on the device of `like`.
inline void check_like(const Tensor& tensor, const Tensor& like, std::initializer_list<int64_t> sizes, const char* what) {
  bool same = tensor.dim() == static_cast<int64_t>(sizes.size());
  for (size_t i = 0; same && i < sizes.size(); ++i) same = tensor.size(static_cast<int64_t>(i)) == sizes.begin()[i];
  STD_TORCH_CHECK(same, what, " has the wrong shape");
  STD_TORCH_CHECK(tensor.scalar_type() == like.scalar_type() && tensor.is_cuda() == like.is_cuda() &&
                      tensor.get_device_index() == like.get_device_index(),
                  what, " has another dtype or device");
}

// Calls run(T{}) with the C++ type of `type`, which must be one of Ts.
template <class T>
inline constexpr ScalarType scalar_type_of = torch::headeronly::CppTypeToScalarType<T>::value;

template <class... Ts, class Run>
void dispatch(ScalarType type, const Run& run) {
  const bool found = ((type == scalar_type_of<Ts> ? (run(Ts{}), true) : false) || ...);
  STD_TORCH_CHECK(found, "this kernel has no implementation for dtype ", torch::headeronly::toString(type));
}

// Runs body(begin, end) over parts of [0, count) on torch's own threads; parts are at least `grain` long.
template <class Body>
void parallel_for(int64_t count, int64_t grain, const Body& body) {
  torch::stable::parallel_for(0, count, grain, body);
}

#if !defined(WARPWATCH_NO_CUDA)
// The stream that torch would launch on now, for the device that `tensor` lives on.
inline void* current_stream(const Tensor& tensor) {
  STD_TORCH_CHECK(aoti_torch_get_current_cuda_stream != nullptr, "this torch was built without CUDA");
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream));
  return stream;
}

// Launchers return null or the CUDA runtime's own words (see launch.cuh).
inline void check_launch(const char* error) { STD_TORCH_CHECK(error == nullptr, "kernel launch failed: ", error); }

using DeviceGuard = torch::stable::accelerator::DeviceGuard;
#endif

}  // namespace warpwatch
