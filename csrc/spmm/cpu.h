// The products with a sparse matrix on the CPU: loops over fixed numbers of columns, which the compiler turns into vectors.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/tensor.h"
#include "spmm/spmm.h"

namespace spmm::cpu {

constexpr int64_t kRowGrain = 16;  // Rows of A that one thread takes at least.
constexpr int64_t kColumns = 64;   // Columns of y whose sums stay in registers: 256 bytes of float.
constexpr int64_t kSlice = 16;     // A thread takes whole cache lines of float.
constexpr int64_t kSums = 32;      // Independent sums of a dot product, so that additions need not wait for each other.
constexpr int64_t kBlockRows = 64;

// sums[0 .. width) += values[p] * b[col[p]][0 .. width) over the entries first <= p < last.
template <class T, class Width>
inline void accumulate(const T* values, const int32_t* col, int64_t first, int64_t last, const T* b, int64_t n, T* sums,
                       Width width) {
  for (int64_t p = first; p < last; ++p) {
    const T value = values[p];
    const T* from = b + col[p] * n;
    for (int64_t j = 0; j < width; ++j) sums[j] += value * from[j];
  }
}

// One row: y[0 .. n) += its entries' multiples of rows of b, `kColumns` columns at a time.
template <class T>
inline void row(const T* values, const int32_t* col, int64_t first, int64_t last, const T* b, int64_t n, T* y) {
  int64_t j = 0;
  for (; j + kColumns <= n; j += kColumns) {
    T sums[kColumns];
    std::copy(y + j, y + j + kColumns, sums);
    accumulate(values, col, first, last, b + j, n, sums, std::integral_constant<int64_t, kColumns>{});
    std::copy(sums, sums + kColumns, y + j);
  }
  if (j < n) accumulate(values, col, first, last, b + j, n, y + j, n - j);
}

// y = A b.
template <class T>
void rows(const Pattern& a, const T* values, const T* b, T* y, int64_t n) {
  warpwatch::parallel_for(a.rows, kRowGrain, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      std::fill(y + r * n, y + (r + 1) * n, T{0});
      row(values, a.col, a.crow[r], a.crow[r + 1], b, n, y + r * n);
    }
  });
}

// d = A' g. Each thread owns some columns of d, so that no two write to one place.
template <class T>
void scatter(const Pattern& a, const T* values, const T* g, T* d, int64_t n) {
  const int64_t slices = (n + kSlice - 1) / kSlice;
  warpwatch::parallel_for(slices, 1, [=](int64_t begin, int64_t end) {
    const int64_t first = begin * kSlice, width = std::min(end * kSlice, n) - first;
    for (int64_t r = 0; r < a.rows; ++r) {
      const T* from = g + r * n + first;
      for (int64_t p = a.crow[r]; p < a.crow[r + 1]; ++p) {
        const T value = values[p];
        T* to = d + a.col[p] * n + first;
        for (int64_t j = 0; j < width; ++j) to[j] += value * from[j];
      }
    }
  });
}

template <class T>
inline T dot(const T* a, const T* b, int64_t n) {
  T sums[kSums] = {};
  int64_t j = 0;
  for (; j + kSums <= n; j += kSums)
    for (int64_t i = 0; i < kSums; ++i) sums[i] += a[j + i] * b[j + i];
  for (int64_t width = kSums / 2; width > 0; width /= 2)
    for (int64_t i = 0; i < width; ++i) sums[i] += sums[i + width];
  for (; j < n; ++j) sums[0] += a[j] * b[j];
  return sums[0];
}

// d[p] = g[row of p] . b[col[p]].
template <class T>
void dots(const Pattern& a, const T* g, const T* b, T* d, int64_t n) {
  warpwatch::parallel_for(a.rows, kRowGrain, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t p = a.crow[r]; p < a.crow[r + 1]; ++p) d[p] = dot(g + r * n, b + a.col[p] * n, n);
  });
}

inline void inspect(const Pattern& a, int32_t* starts) {
  const int64_t tiles = tiles_of(a.columns);
  warpwatch::parallel_for(a.rows, kRowGrain, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      int32_t p = a.crow[r];
      for (int64_t t = 0; t <= tiles; ++t) {
        while (p < a.crow[r + 1] && a.col[p] < t * kTile) ++p;
        starts[r * (tiles + 1) + t] = p;
      }
    }
  });
}

// Calls run(row, first entry, last entry) for each row of a block, tile by tile: rows of b that a tile needs stay in the cache.
template <class Run>
void by_tiles(const Pattern& a, const int32_t* starts, int64_t begin, int64_t end, const Run& run) {
  const int64_t tiles = tiles_of(a.columns);
  for (int64_t t = 0; t < tiles; ++t)
    for (int64_t r = begin; r < end; ++r) {
      const int32_t* range = starts + r * (tiles + 1) + t;
      if (range[0] < range[1]) run(r, range[0], range[1]);
    }
}

// The same as rows, tile by tile.
template <class T>
void tiled(const Pattern& a, const int32_t* starts, const T* values, const T* b, T* y, int64_t n) {
  const int64_t blocks = (a.rows + kBlockRows - 1) / kBlockRows;
  warpwatch::parallel_for(blocks, 1, [=](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kBlockRows, last = std::min(first + kBlockRows, a.rows);
      std::fill(y + first * n, y + last * n, T{0});
      by_tiles(a, starts, first, last, [=](int64_t r, int64_t p, int64_t q) { row(values, a.col, p, q, b, n, y + r * n); });
    }
  });
}

// The same as dots, tile by tile.
template <class T>
void tiled_dots(const Pattern& a, const int32_t* starts, const T* g, const T* b, T* d, int64_t n) {
  const int64_t blocks = (a.rows + kBlockRows - 1) / kBlockRows;
  warpwatch::parallel_for(blocks, 1, [=](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kBlockRows, last = std::min(first + kBlockRows, a.rows);
      by_tiles(a, starts, first, last, [=](int64_t r, int64_t p, int64_t q) {
        for (; p < q; ++p) d[p] = dot(g + r * n, b + a.col[p] * n, n);
      });
    }
  });
}

}  // namespace spmm::cpu
