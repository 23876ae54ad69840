// Products of matrices on the CPU, over the vectors of one core: what lies row by row is multiplied as it lies, nothing is packed first.
//
// Callers split the work over threads. Vectors have 32 bytes; a tile's sums and its operands fit the 16 registers of AVX2.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace warpwatch {

template <class T>
struct Simd {
  static constexpr int lanes = 32 / sizeof(T);
  typedef T type __attribute__((vector_size(32), aligned(sizeof(T)), may_alias));
};

template <class T>
inline typename Simd<T>::type load_vector(const T* from) {
  return *reinterpret_cast<const typename Simd<T>::type*>(from);
}

template <class T>
inline void store_vector(T* to, typename Simd<T>::type value) {
  *reinterpret_cast<typename Simd<T>::type*>(to) = value;
}

template <class T>
inline T sum_of(typename Simd<T>::type value) {
  T total = 0;
  for (int i = 0; i < Simd<T>::lanes; ++i) total += value[i];
  return total;
}

// A matrix by its first element and the distance between rows; elements of a row lie side by side.
template <class T>
struct Rows {
  T* data;
  int64_t stride;

  T* row(int64_t index) const { return data + index * stride; }
};

// sum[i][j] = row i of a times row j of b, over `depth` elements that lie side by side in both.
template <class T, int M, int N>
inline void dot_tile(Rows<const T> a, Rows<const T> b, int64_t depth, T (&sum)[M][N]) {
  using V = typename Simd<T>::type;
  constexpr int64_t lanes = Simd<T>::lanes;
  V part[M][N] = {};
  int64_t k = 0;
  for (; k + lanes <= depth; k += lanes) {
    V right[N];
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) right[j] = load_vector(b.row(j) + k);
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) {
      const V left = load_vector(a.row(i) + k);
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) part[i][j] += left * right[j];
    }
  }
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < N; ++j) {
      sum[i][j] = sum_of<T>(part[i][j]);
      for (int64_t rest = k; rest < depth; ++rest) sum[i][j] += a.row(i)[rest] * b.row(j)[rest];
    }
}

// One tile of M rows of a against the rows [from, to) of b, N of them at a time and the rest one by one.
template <class T, int M, int N, class Store>
inline void dot_strip(Rows<const T> a, int64_t first, Rows<const T> b, int64_t from, int64_t to, int64_t depth, const Store& store) {
  const auto tile = [&](auto width, int64_t j) {
    T sum[M][width()];
    dot_tile<T, M, width()>({a.row(first), a.stride}, {b.row(j), b.stride}, depth, sum);
    for (int m = 0; m < M; ++m)
      for (int n = 0; n < width(); ++n) store(first + m, j + n, sum[m][n]);
  };
  int64_t j = from;
  for (; j + N <= to; j += N) tile(std::integral_constant<int, N>{}, j);
  for (; j < to; ++j) tile(std::integral_constant<int, 1>{}, j);
}

// store(i, j, row i of a times row j of b) for the first `rows` rows of a and rows [from, to) of b, a times b transposed.
template <class T, class Store>
void dot_rows(Rows<const T> a, int64_t rows, Rows<const T> b, int64_t from, int64_t to, int64_t depth, const Store& store) {
  constexpr int64_t kBlock = 48;  // Rows of b that stay in the second-level cache while every row of a passes.
  for (int64_t j = from; j < to; j += kBlock) {
    const int64_t end = std::min(to, j + kBlock);
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4) dot_strip<T, 4, 3>(a, i, b, j, end, depth, store);
    for (; i < rows; ++i) dot_strip<T, 1, 6>(a, i, b, j, end, depth, store);
  }
}

// The scalars of a product of scalars and rows: element (i, k) is data[i * row_step + k * k_step].
template <class T>
struct Scalars {
  const T* data;
  int64_t row_step, k_step;
};

// out[i][0 .. width) (+)= sum over k < depth of scalar(i, k) * rows[k][0 .. width), for M rows of out; width at most two vectors.
template <class T, int M>
inline void axpy_tile(Scalars<T> scalars, Rows<const T> rows, int64_t depth, Rows<T> out, int64_t width, bool add) {
  using V = typename Simd<T>::type;
  constexpr int lanes = Simd<T>::lanes;
  if (width == 2 * lanes) {
    V sum[M][2] = {};
    if (add)
      for (int i = 0; i < M; ++i)
        for (int v = 0; v < 2; ++v) sum[i][v] = load_vector(out.row(i) + v * lanes);
    for (int64_t k = 0; k < depth; ++k) {
      const V v0 = load_vector(rows.row(k)), v1 = load_vector(rows.row(k) + lanes);
      const T* scalar = scalars.data + k * scalars.k_step;
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) {
        sum[i][0] += scalar[i * scalars.row_step] * v0;
        sum[i][1] += scalar[i * scalars.row_step] * v1;
      }
    }
    for (int i = 0; i < M; ++i)
      for (int v = 0; v < 2; ++v) store_vector(out.row(i) + v * lanes, sum[i][v]);
    return;
  }
  for (int i = 0; i < M; ++i)
    for (int64_t c = 0; c < width; ++c) {
      T sum = add ? out.row(i)[c] : T{0};
      for (int64_t k = 0; k < depth; ++k) sum += scalars.data[i * scalars.row_step + k * scalars.k_step] * rows.row(k)[c];
      out.row(i)[c] = sum;
    }
}

// out[i][0 .. width) (+)= sum over k < depth of scalar(i, k) * rows[k][0 .. width), for `count` rows of out.
template <class T>
void axpy_rows(Scalars<T> scalars, int64_t count, Rows<const T> rows, int64_t depth, Rows<T> out, int64_t width, bool add) {
  constexpr int kM = 6;
  const int64_t block = 2 * Simd<T>::lanes;
  for (int64_t c = 0; c < width; c += block) {
    const int64_t part = std::min(block, width - c);
    const auto tile = [&](auto m, int64_t i) {
      axpy_tile<T, m()>({scalars.data + i * scalars.row_step, scalars.row_step, scalars.k_step}, {rows.data + c, rows.stride}, depth,
                        {out.row(i) + c, out.stride}, part, add);
    };
    int64_t i = 0;
    for (; i + kM <= count; i += kM) tile(std::integral_constant<int, kM>{}, i);
    for (; i < count; ++i) tile(std::integral_constant<int, 1>{}, i);
  }
}

// The same as axpy_rows with add, for few rows of out: `rows` is read once from front to back, as memory likes it best.
template <class T>
void axpy_stream(Scalars<T> scalars, int64_t count, Rows<const T> rows, int64_t depth, Rows<T> out, int64_t width) {
  int64_t k = 0;
  for (; k + 4 <= depth; k += 4)
    for (int64_t i = 0; i < count; ++i) {
      const T* s = scalars.data + i * scalars.row_step + k * scalars.k_step;
      const T s0 = s[0], s1 = s[scalars.k_step], s2 = s[2 * scalars.k_step], s3 = s[3 * scalars.k_step];
      const T *r0 = rows.row(k), *r1 = rows.row(k + 1), *r2 = rows.row(k + 2), *r3 = rows.row(k + 3);
      T* __restrict__ to = out.row(i);
      for (int64_t c = 0; c < width; ++c) to[c] += s0 * r0[c] + s1 * r1[c] + (s2 * r2[c] + s3 * r3[c]);
    }
  for (; k < depth; ++k)
    for (int64_t i = 0; i < count; ++i) {
      const T s = scalars.data[i * scalars.row_step + k * scalars.k_step];
      const T* from = rows.row(k);
      T* __restrict__ to = out.row(i);
      for (int64_t c = 0; c < width; ++c) to[c] += s * from[c];
    }
}

// out (+)= scalars times rows, in blocks of depth that stay in cache.
template <class T>
void product(Scalars<T> scalars, int64_t count, Rows<const T> rows, int64_t depth, Rows<T> out, int64_t width, bool add) {
  constexpr int64_t kFew = 4, kDepth = 64;
  if (!add)
    for (int64_t i = 0; i < count; ++i) std::memset(out.row(i), 0, width * sizeof(T));
  if (count <= kFew) return axpy_stream(scalars, count, rows, depth, out, width);
  for (int64_t k = 0; k < depth; k += kDepth)
    axpy_rows<T>({scalars.data + k * scalars.k_step, scalars.row_step, scalars.k_step}, count, {rows.row(k), rows.stride},
                 std::min(kDepth, depth - k), out, width, true);
}

}  // namespace warpwatch
