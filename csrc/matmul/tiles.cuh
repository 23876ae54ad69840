// What the tiled rungs share: which tile of which matrix a block computes, and how an operand's tile comes into shared memory.
#pragma once

#include "common/launch.cuh"
#include "common/machine.cuh"
#include "matmul/matmul.h"

namespace matmul {

using warpwatch::ceil_div;

template <class T>
constexpr int kVector = 16 / sizeof(T);  // Elements of one 16-byte access, the widest there is.

// Whether every run of kVector elements along an operand's contiguous axis begins at a multiple of 16 bytes.
template <class T>
__host__ __device__ inline bool in_vectors(const Operand<T>& p) {
  const int64_t along = p.k == 1 ? p.outer : p.k;
  return reinterpret_cast<uintptr_t>(p.data) % 16 == 0 && along % kVector<T> == 0 && p.batch % kVector<T> == 0;
}

// One block's tile. Blocks come in a line; neighbours in it share rows and columns, a group of 8 rows of tiles at a time, so that the
// tiles that are at work at once need few different operands, which then come from the L2 cache.
struct Tile {
  int64_t batch, m, n;  // m and n of the first element.

  template <class T>
  __device__ Tile(const Product<T>& call, int height, int width) {
    constexpr int64_t group = 8;
    const int64_t rows = ceil_div(call.m, height), columns = ceil_div(call.n, width);
    const int64_t within = blockIdx.x % (rows * columns), first = within / (group * columns) * group;
    const int64_t tall = rows - first < group ? rows - first : group;
    batch = blockIdx.x / (rows * columns);
    m = (first + within % (group * columns) % tall) * height;
    n = within % (group * columns) / tall * width;
  }
};

template <class T>
inline int64_t tiles_of(const Product<T>& call, int height, int width) {
  return call.batches * ceil_div(call.m, height) * ceil_div(call.n, width);
}

// An operand from a block's first outer index on: element (i, k) is at data[i * outer + k * along_k] while i < outers.
template <class T>
struct Strip {
  const T* data;
  int64_t outer, along_k, outers, ks;
  bool vectors;

  __device__ Strip(const Operand<T>& p, int64_t batch, int64_t first, int64_t count, int64_t depth)
      : data(p.data + batch * p.batch + first * p.outer), outer(p.outer), along_k(p.k), outers(count - first), ks(depth),
        vectors(in_vectors(p)) {}

  __device__ const T* at(int64_t i, int64_t k) const { return data + i * outer + k * along_k; }
  __device__ bool inside(int64_t i, int64_t k) const { return i < outers && k < ks; }
  __device__ T element(int64_t i, int64_t k) const { return inside(i, k) ? *at(i, k) : T{}; }
};

// What one of `Threads` threads moves of every tile of Width x Depth floats, to shared memory as [k][i] in rows of Width + 4: elements
// kAcross apart along i and 8 apart along k, or whole vectors where i is the contiguous axis and lies in them. Neighbouring threads take
// neighbours in memory, and write to different banks. Only sums of constants are added to a thread's own pointer, which keeps the
// addresses of all its elements out of registers.
template <int Width, int Depth, int Threads>
struct Share {
  static constexpr int kAcross = Threads / 8, kColumns = Width / kAcross, kPitch = Width + 4;
  static_assert(Depth % 8 == 0 && Width % kAcross == 0);
  const float* mine;
  int64_t outer, along_k, ks;
  int outers, i, row;
  bool in_fours;

  __device__ Share(const Strip<float>& strip, bool allow_vectors)
      : outer(strip.outer), along_k(strip.along_k), ks(strip.ks), outers(static_cast<int>(strip.outers < Width ? strip.outers : Width)) {
    const int thread = threadIdx.x;
    in_fours = allow_vectors && strip.along_k != 1 && strip.vectors && kAcross * 4 == Width;
    i = strip.along_k == 1 ? thread / 8 : thread % kAcross * (in_fours ? 4 : 1);
    row = strip.along_k == 1 ? thread % 8 : thread / kAcross;
    mine = strip.at(i, row);
  }

  // move(to, from, inside) for all of this thread's elements of the tile from `k` on.
  template <class Move>
  __device__ void each(int64_t k, float* tile, const Move& move) const {
    const int rows = static_cast<int>(ks - k < Depth ? ks - k : Depth);
    const float* from = mine + k * along_k;
    float* to = tile + row * kPitch + i;
#pragma unroll
    for (int down = 0; down < Depth; down += 8)
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        move(to + down * kPitch + c * kAcross, from + down * along_k + c * kAcross * outer,
             row + down < rows && i + c * kAcross < outers);
  }

  // move(to, from, floats) for vectors, of which `floats` exist.
  template <class Move>
  __device__ void each_vector(int64_t k, float* tile, const Move& move) const {
    const int rows = static_cast<int>(ks - k < Depth ? ks - k : Depth), left = outers - i;
    const float* from = mine + k * along_k;
#pragma unroll
    for (int down = 0; down < Depth; down += 8)
      move(tile + (row + down) * kPitch + i, from + down * along_k, row + down < rows ? left < 4 ? left < 0 ? 0 : left : 4 : 0);
  }

  // Starts copying the tile from `k` on.
  __device__ void start(int64_t k, float* tile) const {
    if (in_fours) {
      each_vector(k, tile, [](float* to, const float* from, int floats) { warpwatch::copy16_part(to, from, 4 * floats); });
    } else {
      each(k, tile, [](float* to, const float* from, bool inside) { warpwatch::copy4(to, from, inside); });
    }
  }

  // Copies it through registers.
  __device__ void copy(int64_t k, float* tile) const {
    each(k, tile, [](float* to, const float* from, bool inside) { *to = inside ? *from : 0.0f; });
  }
};

// The part of a block's 128 x 128 tile that one of 256 threads computes: 8 x 8 elements, as 2 x 2 squares of 4 x 4.
struct EightByEight {
  float sum[8][8] = {};
  int m, n, m_step, n_step;

  __device__ EightByEight(int first_m, int first_n, int step_m, int step_n) : m(first_m), n(first_n), m_step(step_m), n_step(step_n) {}

  __device__ int m_of(int i) const { return m + i / 4 * m_step + i % 4; }
  __device__ int n_of(int j) const { return n + j / 4 * n_step + j % 4; }

  // Adds the products of one k; `a` and `b` are rows of a tile [k][i].
  __device__ void add(const float* a, const float* b) {
    float x[8], y[8];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *reinterpret_cast<float4*>(x + 4 * half) = *reinterpret_cast<const float4*>(a + m + half * m_step);
      *reinterpret_cast<float4*>(y + 4 * half) = *reinterpret_cast<const float4*>(b + n + half * n_step);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      // To and fro: an instruction that shares an operand with the one before reads two registers instead of three.
      for (int j = 0; j < 8; ++j) sum[i][i % 2 ? 7 - j : j] += x[i] * y[i % 2 ? 7 - j : j];
  }

  __device__ void store(const Product<float>& call, const Tile& tile) const {
    float* c = call.c + tile.batch * call.m * call.n;
    const bool vectors = call.n % 4 == 0 && reinterpret_cast<uintptr_t>(call.c) % 16 == 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int64_t row = tile.m + m_of(i);
      if (row >= call.m) continue;
#pragma unroll
      for (int j = 0; j < 8; j += 4) {
        const int64_t column = tile.n + n_of(j);
        float* to = c + row * call.n + column;
        if (vectors && column < call.n) {
          *reinterpret_cast<float4*>(to) = make_float4(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]);
        } else {
#pragma unroll
          for (int l = 0; l < 4; ++l)
            if (column + l < call.n) to[l] = sum[i][j + l];
        }
      }
    }
  }
};

}  // namespace matmul
