// What every .cu needs. No torch header may be included from here: they cost ten times the kernel's own compile time.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace warpwatch {

// Null when the launches since the last call were accepted, else the runtime's description of what it refused.
inline const char* launch_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

inline cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }

__host__ __device__ constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Four elements of 4 bytes, or two of 8: what one thread moves in a single 16-byte access.
template <class T>
struct alignas(16) Vector16 {
  static constexpr int size = 16 / sizeof(T);
  T element[size];
};

inline bool aligned16(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

}  // namespace warpwatch
