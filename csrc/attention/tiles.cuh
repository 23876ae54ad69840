// What forward and backward are made of: tiles of rows in shared memory, and the two products that a warp makes of them on tensor
// cores. Floats are multiplied as sums of two tf32 numbers, which keeps their precision; 16-bit numbers are multiplied directly.
//
// A head's rows are padded with zeros to 64 or 128 elements, and by 16 bytes more in shared memory, which puts whatever the lanes of a
// warp read together into different banks.
#pragma once

#include "attention/attention.h"
#include "common/launch.cuh"
#include "common/machine.cuh"

namespace attention {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr float kLog2E = 1.4426950408889634f;

template <class Element, int Dim>
struct Plan {
  using T = Element;
  static constexpr int V = 16 / sizeof(T), D = Dim, kPitch = D + V;
  static constexpr bool kSplit = sizeof(T) == 4;
  // Rows of 16 per warp, forward: two make twice the use of every key that is read, where registers allow.
  static constexpr int kHigh = kSplit ? 1 : 2;
  static constexpr int kRows = kWarps * 16 * kHigh, kKeys = 64;
  static constexpr int kForwardBytes = (kRows + 2 * kKeys) * kPitch * static_cast<int>(sizeof(T));
  // Backward: rows that a block owns and rows that pass by, of two operands each, the latter twice.
  static constexpr int kOwn = kWarps * 16, kPassing = kSplit ? 32 : 64, kStages = 2;
  static constexpr int kStage = 2 * kPassing * kPitch;
  static constexpr int kBackwardBytes =
      (2 * kOwn * kPitch + kStages * kStage) * static_cast<int>(sizeof(T)) + kStages * 2 * kPassing * static_cast<int>(sizeof(float));
};

// The first row of one head.
template <class T>
__device__ T* first_row(const Rows<T>& all, const Shape& shape, int64_t head) {
  return all.data + head / shape.heads_each * all.batch + head % shape.heads_each * all.head;
}

// One head's rows in global memory.
template <class T>
struct Head {
  const T* data;
  int64_t row, rows;
  int dim;
  bool vectors;  // All rows begin at multiples of 16 bytes and are whole vectors.

  __device__ Head(const Rows<const T>& all, const Shape& shape, int64_t head, int64_t count)
      : data(first_row(all, shape, head)), row(all.row), rows(count), dim(static_cast<int>(shape.dim)) {
    constexpr int V = 16 / sizeof(T);
    vectors = reinterpret_cast<uintptr_t>(data) % 16 == 0 && row % V == 0 && dim % V == 0;
  }
};

// Starts copying the rows [first, first + Count) to shared memory; what does not exist is zero.
template <class P, int Count>
__device__ void start_rows(const Head<typename P::T>& head, int64_t first, typename P::T* tile) {
  using T = typename P::T;
  const int left = static_cast<int>(head.rows - first < Count ? head.rows - first : Count);
  const T* from = head.data + first * head.row;
  if (head.vectors) {
    constexpr int units = P::D / P::V;
#pragma unroll 4
    for (int u = threadIdx.x; u < Count * units; u += kThreads) {
      const int row = u / units, along = u % units * P::V;
      warpwatch::copy16(tile + row * P::kPitch + along, from + row * head.row + along, row < left && along < head.dim);
    }
    return;
  }
#pragma unroll 1
  for (int e = threadIdx.x; e < Count * P::D; e += kThreads) {
    const int row = e / P::D, along = e % P::D;
    const bool inside = row < left && along < head.dim;
    T* to = tile + row * P::kPitch + along;
    if constexpr (sizeof(T) == 4) {
      warpwatch::copy4(to, from + row * head.row + along, inside);
    } else {
      // An asynchronous copy is of 4 bytes at least.
      *to = inside ? from[row * head.row + along] : T{};
    }
  }
}

// sum += a * b; the low halves are those of floats.
template <class T>
__device__ void step(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&a_low)[4], const uint32_t (&b)[2],
                     const uint32_t (&b_low)[2]) {
  if constexpr (sizeof(T) == 4) {
    // Small products first: added to a large sum they would lose their last bits.
    warpwatch::tensor_step<T>(sum, a_low, b);
    warpwatch::tensor_step<T>(sum, a, b_low);
  }
  warpwatch::tensor_step<T>(sum, a, b);
}

template <class P, int N>
__device__ void split_all(uint32_t (&high)[N], uint32_t (&low)[N]) {
#pragma unroll
  for (int e = 0; e < N; ++e) {
    if constexpr (P::kSplit) {
      warpwatch::split(high[e], low[e]);
    } else {
      low[e] = 0;
    }
  }
}

// scores[i][j] = the 16 rows i of `own` times the 8 rows j of `passing`. A lane holds (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1) of
// each 16 x 8, with g = lane / 4 and t = lane % 4.
template <class P, int High, int Wide>
__device__ void multiply_rows(float (&scores)[High][Wide][4], const typename P::T* own, const typename P::T* passing, int lane) {
  using T = typename P::T;
#pragma unroll
  for (int i = 0; i < High; ++i)
#pragma unroll
    for (int j = 0; j < Wide; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[i][j][e] = 0;
#pragma unroll 2
  for (int k = 0; k < P::D; k += 2 * P::V) {
    uint32_t a[High][4], a_low[High][4];
#pragma unroll
    for (int i = 0; i < High; ++i) {
      warpwatch::load_matrices(a[i], own + (i * 16 + lane % 16) * P::kPitch + k + lane / 16 * P::V);
      split_all<P>(a[i], a_low[i]);
    }
#pragma unroll
    for (int j = 0; j < Wide; j += 2) {
      uint32_t b[4], b_low[4];
      warpwatch::load_matrices(b, passing + (j * 8 + lane / 16 * 8 + lane % 8) * P::kPitch + k + lane / 8 % 2 * P::V);
      split_all<P>(b, b_low);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t pair[2] = {b[2 * half], b[2 * half + 1]}, low[2] = {b_low[2 * half], b_low[2 * half + 1]};
#pragma unroll
        for (int i = 0; i < High; ++i) step<T>(scores[i][j + half], a[i], a_low[i], pair, low);
      }
    }
  }
}

// sums[i][n] += weights of the 16 rows i times `passing`, whose 8 * Wide rows they weigh, in columns n * 8 and on. The lanes hold the
// weights as multiply_rows leaves scores, which is how tensor cores take 16-bit operands. Of floats, step j multiplies the columns
// 2t and 2t + 1 where the instruction says t and t + 4: the order of a sum is free, as long as both operands have the same.
template <class P, int High, int Wide>
__device__ void add_weighted(float (&sums)[High][P::D / 8][4], const float (&weights)[High][Wide][4], const typename P::T* passing,
                             int lane) {
  using T = typename P::T;
  if constexpr (P::kSplit) {
    constexpr int columns = 4;
#pragma unroll
    for (int n = 0; n < P::D / 8; n += columns) {
      // Tensor cores cut off what does not fit a sum: short ones, added up with proper rounding, keep the precision of a float.
      float part[High][columns][4] = {};
#pragma unroll
      for (int j = 0; j < Wide; ++j) {
        uint32_t a[High][4], a_low[High][4];
#pragma unroll
        for (int i = 0; i < High; ++i) {
#pragma unroll
          for (int e = 0; e < 4; ++e) a[i][e] = __float_as_uint(weights[i][j][e % 2 * 2 + e / 2]);
          split_all<P>(a[i], a_low[i]);
        }
        const T* at = passing + (j * 8 + lane % 4 * 2) * P::kPitch + n * 8 + lane / 4;
#pragma unroll
        for (int c = 0; c < columns; ++c) {
          uint32_t b[2] = {__float_as_uint(at[c * 8]), __float_as_uint(at[P::kPitch + c * 8])}, b_low[2];
          split_all<P>(b, b_low);
#pragma unroll
          for (int i = 0; i < High; ++i) step<T>(part[i][c], a[i], a_low[i], b, b_low);
        }
      }
#pragma unroll
      for (int i = 0; i < High; ++i)
#pragma unroll
        for (int c = 0; c < columns; ++c)
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[i][n + c][e] += part[i][c][e];
    }
  } else {
#pragma unroll
    for (int j = 0; j < Wide; j += 2) {
      uint32_t a[High][4];
#pragma unroll
      for (int i = 0; i < High; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          a[i][e] = warpwatch::pack_pair<T>(weights[i][j + e / 2][e % 2 * 2], weights[i][j + e / 2][e % 2 * 2 + 1]);
#pragma unroll
      for (int n = 0; n < P::D / 8; n += 2) {
        uint32_t b[4];
        warpwatch::load_transposed(b, passing + (j * 8 + lane / 8 % 2 * 8 + lane % 8) * P::kPitch + n * 8 + lane / 16 * 8);
        const uint32_t left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
#pragma unroll
        for (int i = 0; i < High; ++i) {
          warpwatch::tensor_step<T>(sums[i][n], a[i], left);
          warpwatch::tensor_step<T>(sums[i][n + 1], a[i], right);
        }
      }
    }
  }
}

// Scores of hidden or missing pairs become minus infinity; row and column are those of the lane's first element.
template <int High, int Wide, class Seen>
__device__ void hide(float (&scores)[High][Wide][4], const Seen& seen) {
#pragma unroll
  for (int i = 0; i < High; ++i)
#pragma unroll
    for (int j = 0; j < Wide; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (!seen(i * 16 + e / 2 * 8, j * 8 + e % 2)) scores[i][j][e] = -INFINITY;
}

// Writes a warp's sums, times `factor(i, half)`, to a head's rows from `first` on, of which there are `count`.
template <class P, int High, class Factor>
__device__ void store_rows(const float (&sums)[High][P::D / 8][4], const Factor& factor, const Rows<typename P::T>& all,
                           const Shape& shape, int64_t head, int64_t first, int64_t count, int lane) {
  using T = typename P::T;
  T* to = first_row(all, shape, head);
  const int dim = static_cast<int>(shape.dim);
#pragma unroll
  for (int i = 0; i < High; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = first + i * 16 + half * 8 + lane / 4;
      if (row >= count) continue;
      const float by = factor(i, half);
#pragma unroll
      for (int n = 0; n < P::D / 8; ++n) {
        const int column = n * 8 + lane % 4 * 2;
        T* at = to + row * all.row + column;
        const float left = sums[i][n][2 * half] * by, right = sums[i][n][2 * half + 1] * by;
        if (dim % 2 == 0) {
          if (column < dim) warpwatch::store_pair(at, left, right);
        } else {
          if (column < dim) at[0] = warpwatch::from_float<T>(left);
          if (column + 1 < dim) at[1] = warpwatch::from_float<T>(right);
        }
      }
    }
}

// Sum over the four lanes that share a row.
__device__ inline float sum_of_row(float part) {
  part += __shfl_xor_sync(~0u, part, 1);
  return part + __shfl_xor_sync(~0u, part, 2);
}

__device__ inline float highest_of_row(float part) {
  part = fmaxf(part, __shfl_xor_sync(~0u, part, 1));
  return fmaxf(part, __shfl_xor_sync(~0u, part, 2));
}

}  // namespace attention
