// The seam between the binding (g++, torch) and the kernel (nvcc, no torch).
#pragma once

#include <cstdint>

namespace cublas_matmul {

// out[b, c, r] = in[b, r, c] for `bytes` (2, 4 or 8) per element. Returns null, or why the launch was refused.
const char* turn_on(int bytes, const void* in, void* out, int64_t batch, int64_t rows, int64_t columns, void* stream);

}  // namespace cublas_matmul
