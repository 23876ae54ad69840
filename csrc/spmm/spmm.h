// The seam between the bindings (g++, torch) and the kernels (nvcc, no torch).
//
// A is sparse, m x k with nnz entries in CSR: those of row r lie at crow[r] <= p < crow[r + 1], with values[p] in ascending columns
// col[p].
// Dense matrices are row-major and packed. Functions return null, or why the launch was refused.
#pragma once

#include <cstdint>

namespace spmm {

// Columns of A that belong to one tile, so many rows of B lie in shared memory (or in a CPU's first cache) together.
constexpr int64_t kTile = 64;

struct Pattern {
  int64_t rows, columns;
  const int32_t* crow;
  const int32_t* col;
};

inline int64_t tiles_of(int64_t columns) { return (columns + kTile - 1) / kTile; }

// y (m x n) = A b: a warp per row of A.
const char* rows_on(const Pattern& a, const float* values, const float* b, float* y, int64_t n, void* stream);
const char* rows_on(const Pattern& a, const double* values, const double* b, double* y, int64_t n, void* stream);

// d (k x n), which must be zero, += A' g: a warp per row of A, sums by atomics.
const char* scatter_on(const Pattern& a, const float* values, const float* g, float* d, int64_t n, void* stream);
const char* scatter_on(const Pattern& a, const double* values, const double* g, double* d, int64_t n, void* stream);

// d[p] = g[row of p] . b[col[p]]: eight lanes per entry of A.
const char* dots_on(const Pattern& a, const float* g, const float* b, float* d, int64_t n, void* stream);
const char* dots_on(const Pattern& a, const double* g, const double* b, double* d, int64_t n, void* stream);

// starts (m x tiles + 1): the first entry of row r that lies in tile t or a later one.
const char* inspect_on(const Pattern& a, int32_t* starts, void* stream);

// The same as rows_on, with tiles of b staged in shared memory for 64 rows of A at once.
const char* tiled_on(const Pattern& a, const int32_t* starts, const float* values, const float* b, float* y, int64_t n,
                     void* stream);
const char* tiled_on(const Pattern& a, const int32_t* starts, const double* values, const double* b, double* y, int64_t n,
                     void* stream);

// The same as dots_on, a block per tile of 64 rows and 64 columns of A.
const char* tiled_dots_on(const Pattern& a, const int32_t* starts, const float* g, const float* b, float* d, int64_t n,
                          void* stream);
const char* tiled_dots_on(const Pattern& a, const int32_t* starts, const double* g, const double* b, double* d, int64_t n,
                          void* stream);

}  // namespace spmm
