// The rung on tensor cores: 8 warps compute 64 x 64 or 64 x 32 elements each, from tiles that arrive through a ring of three.
//
// Tiles lie in shared memory as they do in global memory, so that every layout is copied in whole vectors; fragments are gathered from
// either. Rows of a tile are 16 bytes longer than they need to be (8 floats, where fragments are read float by float), which puts
// whatever the lanes of a warp read together into different banks.
#pragma once

#include "matmul/tiles.cuh"

namespace matmul {

constexpr int kWarps = 8, kWarpsAlongN = 4, kTensorStages = 3;

// How an operand's tile lies in shared memory: `Rows` means [i][k], else [k][i].
template <class T, bool Rows, int Width>
struct Staged {
  static constexpr int V = kVector<T>, kDepth = 128 / sizeof(T);
  static constexpr int kLine = Rows ? kDepth : Width, kLines = Rows ? Width : kDepth;
  static constexpr int kPitch = kLine + (Rows ? V : 8), kSize = kLines * kPitch;

  // Starts copying the tile from `k` on.
  static __device__ void start(const Strip<T>& strip, int64_t k, T* tile) {
    if (strip.vectors) {
      constexpr int units = kLine / V;
#pragma unroll
      for (int step = 0; step < units * kLines / (kWarps * 32); ++step) {
        const int u = step * (kWarps * 32) + static_cast<int>(threadIdx.x), along = u % units * V, line = u / units;
        const int i = Rows ? line : along;
        const int64_t row = k + (Rows ? along : line);
        const int64_t left = strip.inside(i, row) ? (Rows ? strip.ks - row : strip.outers - i) : 0;
        const int bytes = (left < V ? static_cast<int>(left) : V) * static_cast<int>(sizeof(T));
        warpwatch::copy16_part(tile + line * kPitch + along, strip.at(i, row), bytes);
      }
      return;
    }
#pragma unroll 1
    for (int e = threadIdx.x; e < kLine * kLines; e += kWarps * 32) {
      const int along = e % kLine, line = e / kLine, i = Rows ? line : along;
      const int64_t row = k + (Rows ? along : line);
      T* to = tile + line * kPitch + along;
      if constexpr (sizeof(T) == 4) {
        warpwatch::copy4(to, strip.at(i, row), strip.inside(i, row));
      } else {
        // An asynchronous copy is of 4 bytes at least.
        *to = strip.element(i, row);
      }
    }
  }

  // The 16 x (2 * V) fragment of A at (i, k).
  static __device__ void fragment_a(uint32_t (&a)[4], const T* tile, int i, int k, int lane) {
    if constexpr (Rows) {
      warpwatch::load_matrices(a, tile + (i + lane % 16) * kPitch + k + lane / 16 * V);
    } else if constexpr (sizeof(T) == 2) {
      warpwatch::load_transposed(a, tile + (k + lane / 16 * 8 + lane % 8) * kPitch + i + lane / 8 % 2 * 8);
    } else {
      const float* at = tile + (k + lane % 4) * kPitch + i + lane / 4;
      a[0] = __float_as_uint(at[0]), a[1] = __float_as_uint(at[8]);
      a[2] = __float_as_uint(at[4 * kPitch]), a[3] = __float_as_uint(at[4 * kPitch + 8]);
    }
  }

  // The (2 * V) x 8 fragments of B at (i, k) and (i + 8, k), one after the other.
  static __device__ void fragments_b(uint32_t (&b)[4], const T* tile, int i, int k, int lane) {
    if constexpr (Rows) {
      warpwatch::load_matrices(b, tile + (i + lane / 16 * 8 + lane % 8) * kPitch + k + lane / 8 % 2 * V);
    } else if constexpr (sizeof(T) == 2) {
      warpwatch::load_transposed(b, tile + (k + lane / 8 % 2 * 8 + lane % 8) * kPitch + i + lane / 16 * 8);
    } else {
      const float* at = tile + (k + lane % 4) * kPitch + i + lane / 4;
      b[0] = __float_as_uint(at[0]), b[1] = __float_as_uint(at[4 * kPitch]);
      b[2] = __float_as_uint(at[8]), b[3] = __float_as_uint(at[4 * kPitch + 8]);
    }
  }
};

// `Split` multiplies each number as a sum of two: three products instead of one, the fourth being too small to matter.
template <class Element, bool RowsA, bool RowsB, bool Split>
struct TensorPlan {
  using T = Element;
  static constexpr bool kSplit = Split;
  static constexpr int kWarpM = 64, kWarpN = Split ? 32 : 64;
  static constexpr int kM = kWarps / kWarpsAlongN * kWarpM, kN = kWarpsAlongN * kWarpN;
  using A = Staged<T, RowsA, kM>;
  using B = Staged<T, RowsB, kN>;
  static constexpr int kStage = A::kSize + B::kSize, kSharedBytes = kTensorStages * kStage * static_cast<int>(sizeof(T));
};

template <class Plan>
using Sums = float[Plan::kWarpM / 16][Plan::kWarpN / 8][4];

// sum += the products of one pair of tiles, for one warp's part.
template <class Plan>
__device__ void multiply_tiles(Sums<Plan>& sum, const typename Plan::T* a_tile, const typename Plan::T* b_tile, int m, int n, int lane) {
  using T = typename Plan::T;
  constexpr int ms = Plan::kWarpM / 16, ns = Plan::kWarpN / 8;
#pragma unroll 2
  for (int k = 0; k < Plan::A::kDepth; k += 2 * kVector<T>) {
    uint32_t a[ms][4], b[ns / 2][4];
#pragma unroll
    for (int i = 0; i < ms; ++i) Plan::A::fragment_a(a[i], a_tile, m + i * 16, k, lane);
#pragma unroll
    for (int j = 0; j < ns / 2; ++j) Plan::B::fragments_b(b[j], b_tile, n + j * 16, k, lane);
    if constexpr (!Plan::kSplit) {
#pragma unroll
      for (int i = 0; i < ms; ++i)
#pragma unroll
        for (int j = 0; j < ns; ++j) {
          const uint32_t pair[2] = {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]};
          warpwatch::tensor_step<T>(sum[i][j], a[i], pair);
        }
    } else {
      uint32_t a_low[ms][4], b_low[ns / 2][4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int i = 0; i < ms; ++i) warpwatch::split(a[i][e], a_low[i][e]);
#pragma unroll
        for (int j = 0; j < ns / 2; ++j) warpwatch::split(b[j][e], b_low[j][e]);
      }
#pragma unroll
      for (int product = 0; product < 3; ++product)
#pragma unroll
        for (int i = 0; i < ms; ++i)
#pragma unroll
          for (int j = 0; j < ns; ++j) {
            // Small products first: added to a large sum they would lose their last bits.
            const auto& right = product == 1 ? b_low[j / 2] : b[j / 2];
            const uint32_t pair[2] = {right[j % 2 * 2], right[j % 2 * 2 + 1]};
            warpwatch::tensor_step<T>(sum[i][j], product == 0 ? a_low[i] : a[i], pair);
          }
    }
  }
}

// A lane has two neighbours in a row of the result, which go there together where all pairs are whole and aligned.
template <class Plan>
__device__ void store(const Product<typename Plan::T>& call, const Sums<Plan>& sum, int64_t batch, int64_t m, int64_t n, int lane) {
  using T = typename Plan::T;
  T* first = call.c + (batch * call.m + m) * call.n + n;
  const int rows = static_cast<int>(call.m - m < Plan::kWarpM ? call.m - m : Plan::kWarpM);
  const int columns = static_cast<int>(call.n - n < Plan::kWarpN ? call.n - n : Plan::kWarpN);
  const bool pairs = call.n % 2 == 0 && reinterpret_cast<uintptr_t>(call.c) % (2 * sizeof(T)) == 0;
#pragma unroll
  for (int i = 0; i < Plan::kWarpM / 8; ++i) {
    const int row = i * 8 + lane / 4;
    if (row >= rows) continue;
    T* to = first + row * call.n;
#pragma unroll
    for (int j = 0; j < Plan::kWarpN / 8; ++j) {
      const int column = j * 8 + lane % 4 * 2;
      const float left = sum[i / 2][j][i % 2 * 2], right = sum[i / 2][j][i % 2 * 2 + 1];
      if (pairs) {
        if (column < columns) warpwatch::store_pair(to + column, left, right);
      } else {
        if (column < columns) to[column] = warpwatch::from_float<T>(left);
        if (column + 1 < columns) to[column + 1] = warpwatch::from_float<T>(right);
      }
    }
  }
}

template <class Plan>
__global__ __launch_bounds__(kWarps * 32, 1) void tensor_cores(const __grid_constant__ Product<typename Plan::T> call) {
  using T = typename Plan::T;
  extern __shared__ __align__(16) unsigned char bytes[];
  T* memory = reinterpret_cast<T*>(bytes);
  const Tile tile(call, Plan::kM, Plan::kN);
  const Strip<T> from_a(call.a, tile.batch, tile.m, call.m, call.k), from_b(call.b, tile.batch, tile.n, call.n, call.k);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int m = warp / kWarpsAlongN * Plan::kWarpM, n = warp % kWarpsAlongN * Plan::kWarpN;
  const int64_t steps = ceil_div(call.k, Plan::A::kDepth);
  const auto load = [&](int64_t step, int slot) {
    if (step < steps) {
      Plan::A::start(from_a, step * Plan::A::kDepth, memory + slot * Plan::kStage);
      Plan::B::start(from_b, step * Plan::A::kDepth, memory + slot * Plan::kStage + Plan::A::kSize);
    }
    warpwatch::close_copies();
  };
  Sums<Plan> sum = {};
#pragma unroll 1
  for (int stage = 0; stage + 1 < kTensorStages; ++stage) load(stage, stage);
  int slot = 0;
  for (int64_t step = 0; step < steps; ++step) {
    warpwatch::await_copies<kTensorStages - 2>();
    __syncthreads();
    load(step + kTensorStages - 1, slot == 0 ? kTensorStages - 1 : slot - 1);
    const T *a = memory + slot * Plan::kStage, *b = a + Plan::A::kSize;
    if constexpr (Plan::kSplit) {
      // Tensor cores cut off what does not fit a sum, so that the error of a long one grows with its length. Short sums, added up
      // with proper rounding, keep the precision of a float.
      Sums<Plan> part = {};
      multiply_tiles<Plan>(part, a, b, m, n, lane);
#pragma unroll
      for (int e = 0; e < Plan::kWarpM * Plan::kWarpN / 32; ++e) (&sum[0][0][0])[e] += (&part[0][0][0])[e];
    } else {
      multiply_tiles<Plan>(sum, a, b, m, n, lane);
    }
    slot = slot + 1 == kTensorStages ? 0 : slot + 1;
  }
  warpwatch::await_copies<0>();
  store<Plan>(call, sum, tile.batch, tile.m + m, tile.n + n, lane);
}

template <class Plan>
const char* launch(const Product<typename Plan::T>& call, void* stream) {
  cudaFuncSetAttribute(tensor_cores<Plan>, cudaFuncAttributeMaxDynamicSharedMemorySize, Plan::kSharedBytes);
  tensor_cores<Plan><<<tiles_of(call, Plan::kM, Plan::kN), kWarps * 32, Plan::kSharedBytes, warpwatch::as_stream(stream)>>>(call);
  return warpwatch::launch_error();
}

// The kernel for the operands' layouts. Both transposed is a case that no gradient needs: the binding copies one of them.
template <class T, bool Split>
const char* on_tensor_cores(const Product<T>& call, void* stream) {
  const bool rows_a = call.a.k == 1, rows_b = call.b.k == 1;
  if (rows_a && rows_b) return launch<TensorPlan<T, true, true, Split>>(call, stream);
  if (rows_a) return launch<TensorPlan<T, true, false, Split>>(call, stream);
  return launch<TensorPlan<T, false, false, Split>>(call, stream);
}

}  // namespace matmul
