// The seam between the binding (g++, torch) and the kernels (nvcc, no torch).
#pragma once

#include <cstdint>

namespace embedding {

// `count` rows, of `width` elements each, of a table that has `rows` of them. Row `padding` gets no gradient; -1 where every row does.
struct Shape {
  int64_t rows, width, count, padding;
};

// Whole numbers of 64 bits or of 32.
struct Indices {
  const void* data;
  bool wide;
};

// All launchers return null, or why a launch was refused. An index outside the table stops the kernel.

// out[i] = weight[indices[i]], for elements of any type that takes `element_bytes` bytes.
const char* gather_on(const Shape& shape, int element_bytes, const void* weight, Indices indices, void* out, void* stream);

// sum[indices[i]] += gradient[i] in whatever order threads come; `sum` begins with zeros. T: float, double, Bf16, F16, summed as float
// or double.
template <class T, class W>
const char* scatter_on(const Shape& shape, const T* gradient, Indices indices, W* sum, void* stream);

// to[i] = from[i], rounded. T: Bf16, F16.
template <class T>
const char* round_on(const float* from, T* to, int64_t count, void* stream);

// Rows that the sum over sorted indices takes at once where one index fills as many.
constexpr int64_t kChunk = 32;

// out[v] = the sum of gradient[order[j]] over all j with sorted[j] == v, in the order of j; every row of out is written. `starts` has room
// for rows + 1 numbers and `partial` for count / kChunk rows.
template <class T, class W>
const char* sum_sorted_on(const Shape& shape, const T* gradient, const int32_t* sorted, const int64_t* order, int32_t* starts, W* partial,
                          T* out, void* stream);

}  // namespace embedding
