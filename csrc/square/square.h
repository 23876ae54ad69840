// The seam between the binding (g++, torch) and the kernels (nvcc, no torch).
#pragma once

#include <cstdint>

namespace square {

// How the elements are spread over blocks and threads; the numbers are part of the torch operators' schema.
enum class Launch : int64_t { tiles = 0, vectors = 1 };

// y = a * a over a matrix of rows x columns on `stream`. Returns null, or why the launch was refused.
const char* forward_on(Launch shape, const float* a, float* y, int64_t rows, int64_t columns, void* stream);
const char* forward_on(Launch shape, const double* a, double* y, int64_t rows, int64_t columns, void* stream);

// d = 2 * g * a, the gradient of the above for the incoming gradient g.
const char* backward_on(Launch shape, const float* g, const float* a, float* d, int64_t rows, int64_t columns, void* stream);
const char* backward_on(Launch shape, const double* g, const double* a, double* d, int64_t rows, int64_t columns, void* stream);

}  // namespace square
