// The seam between the binding (g++, torch) and the kernels (nvcc, no torch).
#pragma once

#include <cstdint>

namespace int4_linear {

// y (rows x out) = x (rows x columns) times the transpose of W (out x columns), which has `groups` scales in each row, one for each
// 1 << shift columns.
struct Shape {
  int64_t rows, columns, out, groups;
  int shift;
};

// Two codes in a byte of w, that of the even column in the low bits. Returns null, or why a launch was refused.
template <class T>
const char* forward_on(const Shape& shape, const T* x, const uint8_t* w, const float* scale, T* y, void* stream);

}  // namespace int4_linear
