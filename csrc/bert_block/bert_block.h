// The seam between the binding (g++, torch) and the kernels (nvcc, no torch).
#pragma once

#include <cstdint>

namespace bert_block {

constexpr int64_t kMostColumns = 1024;  // And a multiple of 8.

enum class Format : int { f16, bf16 };

// Rows of a layer, all contiguous and on 16 bytes.
struct Shape {
  Format format;
  int64_t rows, columns;
};

// out = norm(x + y) * gain + shift; `stats` gets the mean and the reciprocal deviation of every row. Each returns null, or why the
// launch was refused.
const char* norm_on(const Shape& shape, const void* x, const void* y, const void* gain, const void* shift, void* out, float* stats,
                    float epsilon, void* stream);

// Blocks that add up columns, for that many rows of `partial`.
int64_t blocks_for(int64_t rows);

// d = the gradient of x + y. sums, (3, columns): over all rows, of g * norm(x + y), of g and of d, which are the gradients of gain,
// shift and a bias inside y. partial: (blocks_for, 3, columns).
const char* norm_backward_on(const Shape& shape, const void* g, const void* x, const void* y, const void* gain, const float* stats,
                             void* d, void* sums, float* partial, void* stream);

// sums, (3, columns): of three matrices over their rows.
const char* column_sums_on(const Shape& shape, const void* const (&matrices)[3], void* sums, float* partial, void* stream);

}  // namespace bert_block
