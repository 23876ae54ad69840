// What kernels on Hopper are made of: tiles that one warpgroup copies into rings, the products that the others make of them with wgmma,
// and the work of a block.
//
// A block owns a tile of rows, 64 for each multiplying warpgroup, while blocks of other rows pass by. It goes on from tile to tile, so
// that the next tiles are on their way while one is finished. Rows are cut into parts of 64 elements, each in a tile of its own.
#pragma once

#include "attention/attention.h"
#include "attention/tiles.cuh"
#include "common/hopper.cuh"

namespace attention {

using warpwatch::kSwizzleBytes;
using warpwatch::kSwizzleTile;
using warpwatch::kWarpgroup;

constexpr int kStored = 16, kPart = kStored * kSwizzleBytes;  // Results leave by way of shared memory, 16 x 64 of a warp at a time.

// What the kernels divide the work by, in numbers that are cheap to divide by.
struct Grid {
  int heads, heads_each, tiles, units;  // Over the batch and of one of it; tiles of own rows and units of work of a head.
  int queries, keys, numbered;
  bool causal;
};

// A tile of queries that a block owns, or of keys if `OwnsKeys`, and the blocks of the others that pass by. When keys are hidden, the
// last queries see most of them: a heavy tile and its light counterpart are one unit, so that all take the same time.
template <int Own, int Passing, bool OwnsKeys>
struct Work {
  int head, first, begin, end;  // First row of the tile; blocks that pass by.
  bool any, ended;

  __device__ Work(const Grid& grid, int turn) {
    const int unit = blockIdx.x + (grid.causal ? turn / 2 : turn) * gridDim.x, i = unit % grid.units, other = grid.tiles - 1 - i;
    const bool second = turn % 2 != 0;
    head = unit / grid.units;
    ended = head >= grid.heads;
    any = !grid.causal || !second || i != other;
    // Of keys the first tile is the heavy one, of queries the last.
    first = (grid.causal && second == OwnsKeys ? other : i) * Own;
    if constexpr (OwnsKeys) {
      begin = grid.causal ? first / Passing : 0;
      end = (grid.queries + Passing - 1) / Passing;
    } else {
      begin = 0;
      end = ((grid.causal && first + Own < grid.keys ? first + Own : grid.keys) + Passing - 1) / Passing;
    }
  }
};

// A ring of tiles, each with Extra bytes to elsewhere.
template <int Stages, int Bytes, int Extra = 0>
struct TileRing : warpwatch::Ring<Stages, Bytes> {
  using Base = warpwatch::Ring<Stages, Bytes>;
  using Base::advance, Base::empty, Base::full, Base::slot;
  static constexpr int kBytes = Stages * Bytes, kBarriers = 2 * Stages;

  __device__ TileRing(unsigned char* memory, uint64_t* barriers) : Base(memory, barriers) {}

  __device__ void init(int warps) const { Base::init(Extra > 0 ? 32 * warps : warps); }
  // Starts copying a tile with copy(tile, barrier), once its place is free.
  template <class Copy>
  __device__ void fill(const Copy& copy) {
    Base::await_empty();
    warpwatch::arrive_expecting(full + slot, Bytes + Extra);
    copy(Base::tile(), full + slot);
    advance();
  }
  // Says that this warp has read the tile. What came with it each lane reads by itself, and says so by itself.
  __device__ void release() {
    if constexpr (Extra > 0) {
      warpwatch::arrive(empty + slot);
    } else {
      __syncwarp();
      if (threadIdx.x % 32 == 0) warpwatch::arrive(empty + slot);
    }
    advance();
  }
};

#if defined(WARPWATCH_HOPPER)
// Starts copying `Count` rows of D elements from `first` on.
template <int D, int Count>
__device__ void load_rows(const CUtensorMap& map, unsigned char* tile, uint64_t* barrier, const Grid& grid, int head, int first) {
  const int batch = head / grid.heads_each, within = head % grid.heads_each;
  for (int part = 0; part < D / 64; ++part)
    warpwatch::load_tile(map, tile + part * Count * kSwizzleBytes, barrier, part * 64, first, within, batch);
}

__device__ inline float power_of_two(float exponent) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
  return power;
}

// Starts scores = the 64 rows at `own`, of a tile of Own, times the rows of the tile `passing`.
template <class T, int D, int Own, int Passing>
__device__ void start_scores(float (&scores)[Passing / 2], const unsigned char* own, const unsigned char* passing) {
  const uint64_t a = warpwatch::operand_of(own), b = warpwatch::operand_of(passing);
  warpwatch::pin(scores);
  warpwatch::open_products();
#pragma unroll
  for (int part = 0; part < D / 64; ++part)
#pragma unroll
    for (int k = 0; k < 4; ++k)
      warpwatch::multiply_shared<T, Passing, false, false>(scores, a + (part * Own * kSwizzleBytes + k * 32) / 16,
                                                           b + (part * Passing * kSwizzleBytes + k * 32) / 16, part + k > 0);
  warpwatch::close_products();
  warpwatch::pin(scores);
}

// Starts sums += weights times the rows of the tile `passing`.
template <class T, int D, int Passing>
__device__ void start_sums(float (&sums)[D / 2], const uint32_t (&weights)[Passing / 16][4], const unsigned char* passing) {
  const uint64_t b = warpwatch::operand_of(passing, kSwizzleTile, Passing * kSwizzleBytes);
  warpwatch::pin(sums);
  warpwatch::open_products();
#pragma unroll
  for (int k = 0; k < Passing / 16; ++k) warpwatch::multiply_registers<T, D>(sums, weights[k], b + k * 2 * kSwizzleTile / 16);
  warpwatch::close_products();
  warpwatch::pin(sums);
}

// Rounds results, which lie as multiply_shared leaves them, to what multiply_registers takes.
template <class T, int Wide>
__device__ void round_weights(uint32_t (&weights)[Wide / 8][4], const float (&scores)[Wide]) {
#pragma unroll
  for (int k = 0; k < Wide / 8; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[k][i] = warpwatch::pack_pair<T>(scores[8 * k + 2 * i], scores[8 * k + 2 * i + 1]);
}

// Stores 16 rows of a warp, `first` and on, times a factor for each half of them, by way of `parts` in shared memory.
template <class T, int D>
__device__ void store_sums(const float (&sums)[D / 2], float factor, float factor_below, const CUtensorMap& map, unsigned char* parts,
                           const Grid& grid, int head, int first) {
  const int lane = threadIdx.x % 32, batch = head / grid.heads_each, within = head % grid.heads_each;
  if (lane == 0) warpwatch::await_store_reads<0>();
  __syncwarp();
#pragma unroll
  for (int j = 0; j < D / 16; ++j) {
    uint32_t packed[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float by = i % 2 ? factor_below : factor;
      packed[i] = warpwatch::pack_pair<T>(sums[8 * j + 2 * i] * by, sums[8 * j + 2 * i + 1] * by);
    }
    warpwatch::store_matrices(parts + j / 4 * kPart + warpwatch::swizzled(lane % 16, j % 4 * 2 + lane / 16), packed);
  }
  warpwatch::publish_shared();
  __syncwarp();
  if (lane == 0) {
    for (int part = 0; part < D / 64; ++part) warpwatch::store_tile(map, parts + part * kPart, part * 64, first, within, batch);
    warpwatch::close_stores();
  }
}
#endif

__device__ inline unsigned char* aligned_tiles(unsigned char* bytes) {
  return bytes + (kSwizzleTile - warpwatch::shared_address(bytes) % kSwizzleTile) % kSwizzleTile;
}

// The map of the rows of all heads, for tiles of `tile` rows.
template <class T>
bool make_rows_map(CUtensorMap& map, const Rows<T>& rows, const Shape& shape, int64_t count, uint32_t tile) {
  return warpwatch::make_tensor_map(
      map, rows.data, {{shape.dim, 1, 64}, {count, rows.row, tile}, {shape.heads_each, rows.head, 1}, {shape.batch, rows.batch, 1}});
}

// For tiles of `rows` of the `owned` rows of a head.
inline Grid grid_of(const Shape& shape, int64_t owned, int rows) {
  const int tiles = static_cast<int>(warpwatch::ceil_div(owned, rows)), units = shape.causal ? (tiles + 1) / 2 : tiles;
  return {static_cast<int>(shape.heads()), static_cast<int>(shape.heads_each), tiles, units, static_cast<int>(shape.queries),
          static_cast<int>(shape.keys), static_cast<int>(shape.numbered()), shape.causal};
}

inline int blocks_of(const Grid& grid) {
  return static_cast<int>(std::min(int64_t{grid.heads} * grid.units, int64_t{warpwatch::multiprocessors()}));
}

// Whether these kernels take the call, but for what the copy engine may refuse.
inline bool has_warpgroups(const Shape& shape) {
  const int64_t rows = std::max(shape.queries, shape.keys);
  return warpwatch::is_hopper() && (shape.dim == 64 || shape.dim == 128) && rows < INT32_MAX / 2 &&
         shape.heads() < INT32_MAX / (2 * warpwatch::ceil_div(rows, 64));
}

}  // namespace attention
