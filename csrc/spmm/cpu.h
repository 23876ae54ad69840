// The products with a sparse matrix on the CPU, over vectors along the columns of the dense one.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/products.h"
#include "common/tensor.h"
#include "spmm/spmm.h"

namespace spmm::cpu {

constexpr int64_t kRowGrain = 16;  // Rows of A that one thread takes at least.
constexpr int64_t kAhead = 6;      // Entries between asking for a row of b and using it.
constexpr int64_t kLine = 64;      // Bytes of a cache line.
constexpr int64_t kSlice = 16;     // A thread takes whole cache lines of float.
constexpr int kSums = 4;           // Vectors of sums of a dot product, so that additions need not wait for each other.
constexpr int64_t kBlockRows = 64;

// y[0 .. Vectors of elements) += the entries' multiples of rows of b. The sums stay in registers; rows come from far away in no
// order that a processor could foresee, so it is told some entries ahead.
template <class T, int Vectors>
inline void columns(const T* values, const int32_t* col, int64_t first, int64_t last, const T* b, int64_t n, T* y) {
  using warpwatch::load_vector;
  constexpr int64_t lanes = warpwatch::Simd<T>::lanes;
  typename warpwatch::Simd<T>::type sums[Vectors];
#pragma GCC unroll 8
  for (int v = 0; v < Vectors; ++v) sums[v] = load_vector(y + v * lanes);
  for (int64_t p = first; p < last; ++p) {
    const T* ahead = b + col[std::min(p + kAhead, last - 1)] * n;
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; v += 2) __builtin_prefetch(ahead + v * lanes);
    const T* from = b + col[p] * n;
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sums[v] += values[p] * load_vector(from + v * lanes);
  }
#pragma GCC unroll 8
  for (int v = 0; v < Vectors; ++v) warpwatch::store_vector(y + v * lanes, sums[v]);
}

// One row: y[0 .. n) += its entries' multiples of rows of b, by eight vectors, then by one, then by elements.
template <class T>
inline void row(const T* values, const int32_t* col, int64_t first, int64_t last, const T* b, int64_t n, T* y) {
  constexpr int64_t lanes = warpwatch::Simd<T>::lanes;
  int64_t j = 0;
  for (; j + 8 * lanes <= n; j += 8 * lanes) columns<T, 8>(values, col, first, last, b + j, n, y + j);
  for (; j + lanes <= n; j += lanes) columns<T, 1>(values, col, first, last, b + j, n, y + j);
  for (; j < n; ++j)
    for (int64_t p = first; p < last; ++p) y[j] += values[p] * b[col[p] * n + j];
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
  using warpwatch::load_vector;
  constexpr int64_t lanes = warpwatch::Simd<T>::lanes;
  typename warpwatch::Simd<T>::type sums[kSums] = {};
  int64_t j = 0;
  for (; j + kSums * lanes <= n; j += kSums * lanes)
#pragma GCC unroll 8
    for (int v = 0; v < kSums; ++v) sums[v] += load_vector(a + j + v * lanes) * load_vector(b + j + v * lanes);
  T total = warpwatch::sum_of<T>(sums[0] + sums[1] + sums[2] + sums[3]);
  for (; j < n; ++j) total += a[j] * b[j];
  return total;
}

// d[p] = g_row . b[col[p]] for the entries of one row.
template <class T>
inline void row_dots(const int32_t* col, int64_t first, int64_t last, const T* g_row, const T* b, T* d, int64_t n) {
  for (int64_t p = first; p < last; ++p) {
    const T* ahead = b + col[std::min(p + kAhead, last - 1)] * n;
    for (int64_t j = 0; j < n; j += kLine / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(ahead + j);
    d[p] = dot(g_row, b + col[p] * n, n);
  }
}

// d[p] = g[row of p] . b[col[p]].
template <class T>
void dots(const Pattern& a, const T* g, const T* b, T* d, int64_t n) {
  warpwatch::parallel_for(a.rows, kRowGrain, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) row_dots(a.col, a.crow[r], a.crow[r + 1], g + r * n, b, d, n);
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
      by_tiles(a, starts, first, last, [=](int64_t r, int64_t p, int64_t q) { row_dots(a.col, p, q, g + r * n, b, d, n); });
    }
  });
}

}  // namespace spmm::cpu
