// The long convolution and its gradients on a CPU: tiles of two vectors along time and six batch rows, whose sums stay in registers.
//
// Past the diagonal, where an input is later than an output, nothing is multiplied: zeros there would let NaN through. What is left of a
// tile around the diagonal is a small triangle, element by element.
#pragma once

#include <algorithm>
#include <vector>

#include "causal_conv/causal_conv.h"
#include "common/products.h"
#include "common/tensor.h"

namespace causal_conv {

using warpwatch::load_vector;
using warpwatch::Simd;
using warpwatch::store_vector;

constexpr int kTileRows = 6;

template <class T>
constexpr int kTile = 2 * Simd<T>::lanes;

// sum[r][l] = sum over i < count of scalars[r * stride + i] * vectors[l - i], l over the tile.
template <class T, int R>
void multiply(const T* scalars, int64_t stride, const T* vectors, int64_t count, T (&sum)[R][kTile<T>]) {
  using V = typename Simd<T>::type;
  constexpr int lanes = Simd<T>::lanes;
  V part[R][2] = {};
  for (int64_t i = 0; i < count; ++i) {
    const V v0 = load_vector(vectors - i), v1 = load_vector(vectors - i + lanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      part[r][0] += scalars[r * stride + i] * v0;
      part[r][1] += scalars[r * stride + i] * v1;
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < 2; ++v) store_vector(sum[r] + v * lanes, part[r][v]);
}

// One channel's filter: by distance, with room for a tile behind it, and as it came.
template <class T>
struct Filter {
  std::vector<T> by_distance;
  const T* w;
  int64_t length;

  Filter(const T* from, int64_t n) : by_distance(n + kTile<T>), w(from), length(n) { std::reverse_copy(from, from + n, by_distance.data()); }
};

// y[t0 .. t0 + kTile) of R batch rows.
template <class T, int R>
void convolve_tile(const Filter<T>& filter, const T* k, T* y, int64_t stride, int64_t t0, T eps) {
  const int64_t width = std::min<int64_t>(kTile<T>, filter.length - t0);
  T sum[R][kTile<T>];
  multiply<T, R>(k, stride, filter.by_distance.data() + t0, t0 + 1, sum);
  for (int r = 0; r < R; ++r) {
    for (int64_t u = 1; u < width; ++u)
      for (int64_t t = u; t < width; ++t) sum[r][t] += k[r * stride + t0 + u] * filter.by_distance[t - u];
    for (int64_t t = 0; t < width; ++t) y[r * stride + t0 + t] = eps + sum[r][t];
  }
}

// dk[u0 .. u0 + kTile) of R batch rows: every later gradient, weighed by its distance.
template <class T, int R>
void turned_tile(const Filter<T>& filter, const T* g, T* dk, int64_t stride, int64_t u0, T) {
  const int64_t width = std::min<int64_t>(kTile<T>, filter.length - u0), full = u0 + kTile<T> - 1;
  T sum[R][kTile<T>] = {};
  if (full < filter.length)
    multiply<T, R>(g + full, stride, filter.w + filter.length - 1 - full + u0, filter.length - full, sum);
  for (int r = 0; r < R; ++r) {
    for (int64_t t = 0; t < std::min<int64_t>(width, kTile<T> - 1); ++t)
      for (int64_t u = 0; u <= t; ++u) sum[r][u] += g[r * stride + u0 + t] * filter.by_distance[t - u];
    for (int64_t u = 0; u < width; ++u) dk[r * stride + u0 + u] = sum[r][u];
  }
}

// Runs tile(std::integral_constant<int, R>, first row, first output) over one channel.
template <class T, class Tile>
void over_tiles(const Shape& shape, const Tile& tile) {
  for (int64_t t0 = 0; t0 < shape.length; t0 += kTile<T>) {
    int64_t b = 0;
    for (; b + kTileRows <= shape.batch; b += kTileRows) tile(std::integral_constant<int, kTileRows>{}, b, t0);
    for (; b + 2 <= shape.batch; b += 2) tile(std::integral_constant<int, 2>{}, b, t0);
    for (; b < shape.batch; ++b) tile(std::integral_constant<int, 1>{}, b, t0);
  }
}

template <class T>
void convolve_channel(const Shape& shape, const T* k, const T* w, T eps, T* y, int64_t c) {
  const Filter<T> filter(w + c * shape.length, shape.length);
  const int64_t stride = shape.channels * shape.length;
  over_tiles<T>(shape, [&](auto rows, int64_t b, int64_t t0) {
    const int64_t start = b * stride + c * shape.length;
    convolve_tile<T, rows()>(filter, k + start, y + start, stride, t0, eps);
  });
}

template <class T>
void turned_channel(const Shape& shape, const T* g, const T* w, T* dk, int64_t c) {
  const Filter<T> filter(w + c * shape.length, shape.length);
  const int64_t stride = shape.channels * shape.length;
  over_tiles<T>(shape, [&](auto rows, int64_t b, int64_t u0) {
    const int64_t start = b * stride + c * shape.length;
    turned_tile<T, rows()>(filter, g + start, dk + start, stride, u0, T{0});
  });
}

// Adds k[u] * g[u + d] over all u to by_distance[d] for one row and kVectors vectors of distances from d0 on. A vector of g serves all of
// them: lane l of vector j is distance d0 + j * lanes + l, which g[t + l] is from k[t - d0 - j * lanes].
template <class T>
void correlate_block(const T* k, const T* g, T* by_distance, int64_t length, int64_t d0) {
  using V = typename Simd<T>::type;
  constexpr int64_t lanes = Simd<T>::lanes, kVectors = 8;
  V sum[kVectors] = {};
  // Where every vector has an input and every lane a gradient.
  const int64_t first = d0 + (kVectors - 1) * lanes, last = std::max(first, length - lanes + 1);
  for (int64_t t = first; t < last; ++t) {
    const V gradient = load_vector(g + t);
#pragma GCC unroll 8
    for (int64_t j = 0; j < kVectors; ++j) sum[j] += k[t - d0 - j * lanes] * gradient;
  }
  for (int64_t j = 0; j < kVectors; ++j)
    for (int64_t l = 0; l < lanes && d0 + j * lanes + l < length; ++l) {
      const int64_t d = d0 + j * lanes + l, done = first - d0 - j * lanes;  // Inputs before `done` and from `rest` on are still missing.
      const int64_t rest = std::max(done, last - d0 - j * lanes);
      T total = sum[j][l];
      for (int64_t u = 0; u < std::min(done, length - d); ++u) total += k[u] * g[u + d];
      for (int64_t u = rest; u < length - d; ++u) total += k[u] * g[u + d];
      by_distance[d] += total;
    }
}

template <class T>
void correlate_channel(const Shape& shape, const T* k, const T* g, T* dw, int64_t c) {
  constexpr int64_t kDistances = 8 * Simd<T>::lanes;
  const int64_t n = shape.length, stride = shape.channels * n;
  std::vector<T> by_distance(n);
  for (int64_t b = 0; b < shape.batch; ++b)
    for (int64_t d0 = 0; d0 < n; d0 += kDistances)
      correlate_block(k + b * stride + c * n, g + b * stride + c * n, by_distance.data(), n, d0);
  std::reverse_copy(by_distance.begin(), by_distance.end(), dw + c * n);
}

}  // namespace causal_conv
