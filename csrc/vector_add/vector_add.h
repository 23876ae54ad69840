// The seam between the binding (g++, torch) and the kernels (nvcc, no torch).
#pragma once

#include <cstdint>

namespace vector_add {

// How the elements are spread over blocks and threads; the numbers are part of the torch operator's schema.
enum class Launch : int64_t { threads = 0, blocks = 1, one_block = 2, vectors = 3 };

// y = a + b over n elements on `stream`. Returns null, or why the launch was refused.
const char* launch_on(Launch shape, const float* a, const float* b, float* y, int64_t n, void* stream);
const char* launch_on(Launch shape, const double* a, const double* b, double* y, int64_t n, void* stream);
const char* launch_on(Launch shape, const int32_t* a, const int32_t* b, int32_t* y, int64_t n, void* stream);

}  // namespace vector_add
