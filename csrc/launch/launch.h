// The seam between the binding (g++, torch) and the kernels (nvcc, no torch). Functions return null, or why the launch was refused.
#pragma once

#include <cstdint>

namespace launch {

// A kernel that does nothing.
const char* empty_on(void* stream);

// y = x + 1 over n elements.
const char* add_on(const float* x, float* y, int64_t n, void* stream);

// y = x over n bytes, by a kernel or by the runtime's own copy.
const char* copy_on(const void* x, void* y, int64_t n, void* stream);
const char* memcpy_on(const void* x, void* y, int64_t n, void* stream);

}  // namespace launch
