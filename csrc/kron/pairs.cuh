// Products of float matrices on tensor cores by one warp, either in three terms that keep the accuracy of a float, or in one of tf32.
//
// Operands and sums come in the same pairs: with g = lane / 4 and t = lane % 4, a lane holds of an 8 x 8 block the elements (g, 2t) and
// (g, 2t + 1), of operands the second index being the one that is summed over. A sum is therefore an operand of the next product
// without leaving its registers. Tensor cores want the elements t and t + 4 there, but the order of a sum's terms is free.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "common/machine.cuh"

// Like all fused kernels of this operator these are built for Hopper only: every further architecture would cost as much compile time
// again.
#if __CUDA_ARCH__ == 900
#define KRON_PAIRS_HERE 1
#endif

namespace kron {

// How a float becomes numbers that tensor cores take.
enum class Arithmetic { three_terms, tf32 };

// Of M x N elements, a warp's sums: (m / 16, n / 8) and in each the pairs of rows g and g + 8.
template <int M, int N>
using PairSums = float[M / 16][N / 8][4];

// A matrix in shared memory with rows of Width floats. Rows are permuted by an exclusive-or such that neither the lanes that read pairs
// along rows nor those that read them down columns find two of their elements in one bank.
template <int Width>
struct Tile {
  float* base;

  static __device__ int turn(int row) { return (((row ^ row >> 2) & 1) | (row & 2)) * 8; }
  __device__ float* at(int row, int column) const { return base + row * Width + (column ^ turn(row)); }

  // Starts copying a Rows x Columns part of a matrix with rows of `stride` floats, by Threads threads of which this is `thread`.
  template <int Threads, int Rows, int Columns>
  __device__ __forceinline__ void copy(const float* from, int stride, int thread) const {
    constexpr int units = Columns / 4, hop = Threads / units;
    static_assert(Rows % hop == 0);
    const int line = thread / units, column = thread % units * 4;
    float* to = base + line * Width;
    from += line * stride + column;
    // As hop is a power of two and above `line`, turn(line + row) is turn(line) ^ turn(row), of which the second is a constant.
#pragma unroll
    for (int row = 0; row < Rows; row += hop)
      warpwatch::copy16(to + row * Width + (column ^ turn(line) ^ turn(row)), from + row * stride, true);
  }
};

// An operand whose rows are summed over: row `row` + i, column `k` + j.
template <int Width>
struct Across {
  const float* row;
  int turn, k;

  __device__ Across(const Tile<Width>& tile, int first, int k0, int lane)
      : row(tile.base + (first + lane / 4) * Width + lane % 4 * 2), turn(Tile<Width>::turn(lane / 4)), k(k0) {}

  __device__ float2 pair(int block, int step) const {
    return *reinterpret_cast<const float2*>(row + block * 8 * Width + ((k + step * 8) ^ turn));
  }
};

// An operand whose columns are summed over: row `k` + j, column `column` + i.
template <int Width>
struct Down {
  const float* line;
  int column, turn[2];

  __device__ Down(const Tile<Width>& tile, int k, int first, int lane)
      : line(tile.base + (k + lane % 4 * 2) * Width + lane / 4),
        column(first),
        turn{Tile<Width>::turn(lane % 4 * 2), Tile<Width>::turn(lane % 4 * 2 + 1)} {}

  __device__ float2 pair(int block, int step) const {
    const float* at = line + step * 8 * Width;
    return {at[(column + block * 8) ^ turn[0]], at[Width + ((column + block * 8) ^ turn[1])]};
  }
};

// The sums of a product before as an operand; their columns are summed over.
template <int M, int N>
struct Held {
  const PairSums<M, N>& sum;

  __device__ float2 pair(int block, int step) const {
    return {sum[block / 2][step][block % 2 * 2], sum[block / 2][step][block % 2 * 2 + 1]};
  }
};

// Rounded to the 10 bits of mantissa that tensor cores keep of a float, ties to even: one instruction, unlike rounding them away.
__device__ __forceinline__ uint32_t round_to_tf32(float value) {
  uint32_t bits = 0;
#if KRON_PAIRS_HERE
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
#endif
  return bits;
}

// What tensor cores take of `Count` floats.
template <Arithmetic How, int Count>
struct Parts {
  uint32_t high[Count], low[Count];

  __device__ void set(int i, float value) {
    high[i] = round_to_tf32(value);
    if (How == Arithmetic::three_terms) low[i] = __float_as_uint(value - __uint_as_float(high[i]));
  }
};

// sum[m, n] += sum over 8 * Steps elements k of a(m, k) * b(n, k). Tensor cores cut off what does not fit a sum, so those of 8 * Joined
// elements are added up outside, with proper rounding; and small products come first, as in a large sum they would lose their last bits.
// Of b, 8 * Group rows n are in registers at once.
template <Arithmetic How, int Steps, int Joined, int Group, int M, int N, class A, class B>
__device__ __forceinline__ void multiply(PairSums<M, N>& sum, const A& a, const B& b) {
  static_assert(Steps % Joined == 0 && N / 8 % Group == 0);
  constexpr int ms = M / 16, ns = N / 8, products = How == Arithmetic::three_terms ? 3 : 1;
#pragma unroll
  for (int begin = 0; begin < Steps; begin += Joined) {
    Parts<How, 4> x[Joined][ms];
#pragma unroll
    for (int step = 0; step < Joined; ++step)
#pragma unroll
      for (int i = 0; i < ms; ++i) {
        const float2 above = a.pair(2 * i, begin + step), below = a.pair(2 * i + 1, begin + step);
        x[step][i].set(0, above.x), x[step][i].set(1, below.x), x[step][i].set(2, above.y), x[step][i].set(3, below.y);
      }
#pragma unroll
    for (int first = 0; first < ns; first += Group) {
      Parts<How, 2> y[Joined][Group];
#pragma unroll
      for (int step = 0; step < Joined; ++step)
#pragma unroll
        for (int j = 0; j < Group; ++j) {
          const float2 pair = b.pair(first + j, begin + step);
          y[step][j].set(0, pair.x), y[step][j].set(1, pair.y);
        }
      PairSums<M, 8 * Group> part = {};
#pragma unroll
      for (int product = 3 - products; product < 3; ++product)
#pragma unroll
        for (int step = 0; step < Joined; ++step)
#pragma unroll
          for (int i = 0; i < ms; ++i)
#pragma unroll
            for (int j = 0; j < Group; ++j)
              warpwatch::tensor_step<float>(part[i][j], product == 0 ? x[step][i].low : x[step][i].high,
                                            product == 1 ? y[step][j].low : y[step][j].high);
#pragma unroll
      for (int i = 0; i < ms; ++i)
#pragma unroll
        for (int j = 0; j < Group; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) sum[i][first + j][e] += part[i][j][e];
    }
  }
}

// each(m, n, pair) for all pairs of a warp's sums.
template <int M, int N, class Each>
__device__ __forceinline__ void each_pair(const PairSums<M, N>& sum, int lane, const Each& each) {
#pragma unroll
  for (int i = 0; i < M / 16; ++i)
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        each(i * 16 + half * 8 + lane / 4, j * 8 + lane % 4 * 2, make_float2(sum[i][j][2 * half], sum[i][j][2 * half + 1]));
}

__device__ __forceinline__ void store(float* to, float2 pair) { *reinterpret_cast<float2*>(to) = pair; }

}  // namespace kron
