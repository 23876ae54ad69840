// C = A B on the CPU for matrices of any strides, in batches, or summed over the batch.
//
// Operands are copied into panels that lie in the order in which the innermost loop reads them. That copy takes any strides, so no
// view and no transposed matrix is ever made contiguous first, and it widens 16-bit numbers to float. (products.h packs nothing: it
// suits operands that lie row by row already.)
#pragma once

#include <immintrin.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/line_vector.h"
#include "common/tensor.h"

namespace warpwatch::gemm {

// Element (i, j) of matrix b is data[b * batch + i * row + j * column].
template <class T>
struct Matrix {
  const T* data;
  int64_t row, column, batch;
};

// `sum`: one result, the sum over the batch, instead of one for each.
struct Size {
  int64_t batch, m, n, k;
  bool sum;
};

template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
inline Sum<T> widen(T value) {
#if defined(__F16C__)
  if constexpr (std::is_same_v<T, torch::headeronly::Half>) return _cvtsh_ss(value.x);
#endif
  return static_cast<Sum<T>>(value);
}

template <class T>
inline T narrow(Sum<T> value) {
#if defined(__F16C__)
  if constexpr (std::is_same_v<T, torch::headeronly::Half>)
    return T(static_cast<unsigned short>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT)), T::from_bits());
#endif
  return static_cast<T>(value);
}

template <class S>
struct Vector {
  static constexpr int lanes = 32 / sizeof(S);
  typedef S type __attribute__((vector_size(32), aligned(sizeof(S)), may_alias));
};

// A register tile is 6 rows of 2 vectors: 12 sums and 3 operands fit 16 registers. A block of C and its panels fit 512 KiB.
constexpr int kTileRows = 6, kTileVectors = 2;
constexpr int64_t kBlockRows = 96, kBlockDepth = 256;
template <class S>
constexpr int kTileColumns = kTileVectors * Vector<S>::lanes;
template <class S>
constexpr int64_t kBlockColumns = 768 / sizeof(S);

constexpr int64_t padded(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// Copies lines [0, lines) of length `depth` into strips of Width lines: to[strip][step along depth][line]; missing lines are zero.
template <int Width, class T>
inline void pack(const T* from, int64_t line_step, int64_t depth_step, int64_t lines, int64_t depth, Sum<T>* to) {
  for (int64_t first = 0; first < lines; first += Width, to += Width * depth) {
    const T* strip = from + first * line_step;
    if (lines - first < Width) {
      std::fill(to, to + Width * depth, Sum<T>{0});
      for (int64_t line = 0; line < lines - first; ++line)
        for (int64_t d = 0; d < depth; ++d) to[d * Width + line] = widen(strip[line * line_step + d * depth_step]);
    } else if (line_step == 1) {
      for (int64_t d = 0; d < depth; ++d)
        for (int line = 0; line < Width; ++line) to[d * Width + line] = widen(strip[d * depth_step + line]);
    } else {
      for (int line = 0; line < Width; ++line)
        for (int64_t d = 0; d < depth; ++d) to[d * Width + line] = widen(strip[line * line_step + d * depth_step]);
    }
  }
}

// Adds the product of one strip of A and one of B to a tile of the block of C.
template <class S>
inline void add_tile(const S* a, const S* b, int64_t depth, S* c, int64_t stride) {
  using V = typename Vector<S>::type;
  constexpr int kLanes = Vector<S>::lanes;
  V sum[kTileRows][kTileVectors] = {};
  for (int64_t d = 0; d < depth; ++d, a += kTileRows, b += kTileColumns<S>) {
    const V b0 = *reinterpret_cast<const V*>(b), b1 = *reinterpret_cast<const V*>(b + kLanes);
#pragma GCC unroll 6
    for (int row = 0; row < kTileRows; ++row) {
      sum[row][0] += a[row] * b0;
      sum[row][1] += a[row] * b1;
    }
  }
#pragma GCC unroll 6
  for (int row = 0; row < kTileRows; ++row)
    for (int v = 0; v < kTileVectors; ++v) *reinterpret_cast<V*>(c + row * stride + v * kLanes) += sum[row][v];
}

// What one thread works in.
template <class S>
struct Buffers {
  LineVector<S> a = LineVector<S>(kBlockRows * kBlockDepth);
  LineVector<S> b = LineVector<S>(kBlockColumns<S> * kBlockDepth);
  LineVector<S> c = LineVector<S>(kBlockRows * kBlockColumns<S>);
};

// The block of C, with rows of kBlockColumns, gains the product of A's rows from `row` on and B's columns from `column` on.
template <class T>
void add_block(const Matrix<T>& a, const Matrix<T>& b, int64_t rows, int64_t columns, int64_t depth, Buffers<Sum<T>>& buffers) {
  using S = Sum<T>;
  for (int64_t k = 0; k < depth; k += kBlockDepth) {
    const int64_t steps = std::min(kBlockDepth, depth - k);
    pack<kTileRows>(a.data + k * a.column, a.row, a.column, rows, steps, buffers.a.data());
    pack<kTileColumns<S>>(b.data + k * b.row, b.column, b.row, columns, steps, buffers.b.data());
    for (int64_t j = 0; j < columns; j += kTileColumns<S>)
      for (int64_t i = 0; i < rows; i += kTileRows)
        add_tile(buffers.a.data() + i * steps, buffers.b.data() + j * steps, steps, buffers.c.data() + i * kBlockColumns<S> + j,
                 kBlockColumns<S>);
  }
}

// One block of one result, from its first row and column on.
template <class T>
void one_block(const Size& size, const Matrix<T>& a, const Matrix<T>& b, T* c, int64_t which, int64_t row, int64_t column) {
  using S = Sum<T>;
  static thread_local Buffers<S> buffers;
  const int64_t rows = std::min(kBlockRows, size.m - row), columns = std::min(kBlockColumns<S>, size.n - column);
  std::fill_n(buffers.c.begin(), padded(rows, kTileRows) * kBlockColumns<S>, S{0});
  const int64_t first = size.sum ? 0 : which, last = size.sum ? size.batch : which + 1;
  for (int64_t p = first; p < last; ++p) {
    const Matrix<T> from_a{a.data + p * a.batch + row * a.row, a.row, a.column, 0};
    const Matrix<T> from_b{b.data + p * b.batch + column * b.column, b.row, b.column, 0};
    add_block(from_a, from_b, rows, columns, size.k, buffers);
  }
  T* out = c + (which * size.m + row) * size.n + column;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) out[i * size.n + j] = narrow<T>(buffers.c[i * kBlockColumns<S> + j]);
}

// C, contiguous, is (batch, m, n), or (m, n) for the sum. One thread sums a block: its bits do not depend on their number.
template <class T>
void multiply(const Size& size, const Matrix<T>& a, const Matrix<T>& b, T* c) {
  if (size.m == 0 || size.n == 0) return;
  constexpr int64_t wide = kBlockColumns<Sum<T>>;
  const int64_t down = (size.m + kBlockRows - 1) / kBlockRows, across = (size.n + wide - 1) / wide;
  const int64_t results = size.sum ? 1 : size.batch, terms = size.sum ? size.batch : 1;
  const int64_t work = std::min(size.m, kBlockRows) * std::min(size.n, wide) * std::max<int64_t>(terms * size.k, 1);
  // Below 100,000 multiplications a second thread costs more than it saves.
  parallel_for(results * down * across, std::max<int64_t>(1, 100'000 / work), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task)
      one_block(size, a, b, c, task / (down * across), task / across % down * kBlockRows, task % across * wide);
  });
}

}  // namespace warpwatch::gemm
