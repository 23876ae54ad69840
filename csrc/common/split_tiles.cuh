// The kernel and the launcher of split_tiles.h.
//
// A float is the sum of two numbers that tensor cores take, so a product of floats is three of theirs; the fourth is too small to matter.
// Tensor cores cut off what does not fit a sum: sums of one tile's depth are therefore added up in registers, with proper rounding.
//
// Where there are fewer tiles than multiprocessors, the blocks of a cluster share the sum of one tile and add their parts through
// each other's shared memory, always in the same order.
#pragma once

#include <algorithm>
#include <climits>

#include "common/launch.cuh"
#include "common/machine.cuh"
#include "common/split_tiles.h"

namespace split_tiles {

using warpwatch::ceil_div;

constexpr int kDepth = 32;
// Where blocks share a tile: blocks of a multiprocessor, of a cluster, and steps of a block.
constexpr int kBlocksEach = 3, kMostBlocks = 8, kFewestSteps = 6;

// How an operand's tile lies in shared memory: as it does in global memory, [i][k] if `Rows`, else [k][i]. The rows' length puts what
// the lanes of a warp read together into different banks.
template <bool Rows, int Width, int Threads>
struct Staged {
  static constexpr int kLine = Rows ? kDepth : Width, kLines = Rows ? Width : kDepth;
  static constexpr int kPitch = Rows ? kLine + 4 : (kLine + 31) / 32 * 32 + 8, kSize = kLines * kPitch;

  // What one thread copies of every tile along k: the same part of each, so that a step moves its pointer and nothing else.
  struct Mover {
    const float *origin, *mine;
    int64_t stride, depth;  // Elements between two lines, and of the whole sum.
    int outers, line, along;
    bool vectors;

    __device__ void begin(const Operand& from, int64_t first, int64_t count, int64_t ks) {
      origin = from.data;
      stride = Rows ? from.outer : from.along_k;
      depth = ks;
      outers = static_cast<int>(min(count - first, int64_t{Width}));
      const float* corner = from.data + first * from.outer;
      vectors = reinterpret_cast<uintptr_t>(corner) % 16 == 0 && stride % 4 == 0;
      const int units = vectors ? kLine / 4 : kLine;
      line = static_cast<int>(threadIdx.x) / units;
      along = static_cast<int>(threadIdx.x) % units * (vectors ? 4 : 1);
      mine = corner + line * stride + along;
    }

    // Starts copying the tile from `k` on; elements outside become zero.
    template <int Units>
    __device__ void start_units(int64_t k, float* tile) const {
      constexpr int hop = Threads / Units, size = kLine / Units;
      static_assert(Threads % Units == 0);
      const int ks = static_cast<int>(min(depth - k, int64_t{kDepth}));
      const int lines = Rows ? outers : ks, left = (Rows ? ks : outers) - along;
      const float* at = mine + (Rows ? k : k * stride);
      float* to = tile + line * kPitch + along;
#pragma unroll
      for (int below = 0; below < kLines; below += hop) {
        if (kLines % hop != 0 && line + below >= kLines) break;
        const bool inside = line + below < lines && left > 0;
        if constexpr (size == 4) {
          warpwatch::copy16_part(to + below * kPitch, inside ? at : origin, inside ? min(left, 4) * 4 : 0);
        } else {
          warpwatch::copy4(to + below * kPitch, inside ? at : origin, inside);
        }
        at += hop * stride;
      }
    }

    __device__ void start(int64_t k, float* tile) const {
      if (vectors) {
        start_units<kLine / 4>(k, tile);
      } else {
        start_units<kLine>(k, tile);
      }
    }
  };

  // The 16 x 8 fragment of A at (i, k).
  static __device__ void fragment_a(uint32_t (&a)[4], const float* tile, int i, int k, int lane) {
    if constexpr (Rows) {
      warpwatch::load_matrices(a, tile + (i + lane % 16) * kPitch + k + lane / 16 * 4);
    } else {
      const float* at = tile + (k + lane % 4) * kPitch + i + lane / 4;
      a[0] = __float_as_uint(at[0]), a[1] = __float_as_uint(at[8]);
      a[2] = __float_as_uint(at[4 * kPitch]), a[3] = __float_as_uint(at[4 * kPitch + 8]);
    }
  }

  // The 8 x 8 fragments of B at (i + 8 j, k).
  template <int Count>
  static __device__ void fragments_b(uint32_t (&b)[Count][2], const float* tile, int i, int k, int lane) {
    if constexpr (Rows) {
#pragma unroll
      for (int j = 0; j + 1 < Count; j += 2) {
        uint32_t pair[4];
        warpwatch::load_matrices(pair, tile + (i + j * 8 + lane / 16 * 8 + lane % 8) * kPitch + k + lane / 8 % 2 * 4);
        b[j][0] = pair[0], b[j][1] = pair[1], b[j + 1][0] = pair[2], b[j + 1][1] = pair[3];
      }
      if constexpr (Count % 2 == 1) {
        const float* at = tile + (i + (Count - 1) * 8 + lane / 4) * kPitch + k + lane % 4;
        b[Count - 1][0] = __float_as_uint(at[0]), b[Count - 1][1] = __float_as_uint(at[4]);
      }
    } else {
      const float* at = tile + (k + lane % 4) * kPitch + i + lane / 4;
#pragma unroll
      for (int j = 0; j < Count; ++j) b[j][0] = __float_as_uint(at[8 * j]), b[j][1] = __float_as_uint(at[4 * kPitch + 8 * j]);
    }
  }
};

// Blocks of M x N elements, whose warps form a grid of WarpsM x WarpsN; the tiles of Stages steps are in shared memory or on their way.
template <int M, int N, int WarpsM, int WarpsN, int Stages, bool RowsA, bool RowsB>
struct Plan {
  static constexpr int kM = M, kN = N, kThreads = WarpsM * WarpsN * 32, kWarpsN = WarpsN, kStages = Stages;
  static constexpr int kWarpM = M / WarpsM, kWarpN = N / WarpsN, kTilesM = kWarpM / 16, kTilesN = kWarpN / 8;
  static_assert(kWarpM % 16 == 0 && kWarpN % 8 == 0);
  using A = Staged<RowsA, M, kThreads>;
  using B = Staged<RowsB, N, kThreads>;
  using Sums = float[kTilesM][kTilesN][4];
  static constexpr int kPitch = N + 4;  // Of sums in shared memory.
  static constexpr int kStage = A::kSize + B::kSize;
  static constexpr int kBytes = std::max(kStages * kStage, M * kPitch) * static_cast<int>(sizeof(float));
};

// sum += the products of one pair of tiles, for one warp's part. Fragments are read one step ahead; meanwhile() runs behind the first
// products, so that they do not wait for it.
template <class Plan, class Meanwhile>
__device__ inline void multiply(typename Plan::Sums& sum, const float* a_tile, const float* b_tile, int m, int n, int lane,
                                const Meanwhile& meanwhile) {
  constexpr int ms = Plan::kTilesM, ns = Plan::kTilesN;
  uint32_t a[2][ms][4], b[2][ns][2];
  const auto read = [&](int k) {
#pragma unroll
    for (int i = 0; i < ms; ++i) Plan::A::fragment_a(a[k / 8 % 2][i], a_tile, m + i * 16, k, lane);
    Plan::B::template fragments_b<ns>(b[k / 8 % 2], b_tile, n, k, lane);
  };
  read(0);
#pragma unroll
  for (int k = 0; k < kDepth; k += 8) {
    if (k + 8 < kDepth) read(k + 8);
    auto& x = a[k / 8 % 2];
    auto& y = b[k / 8 % 2];
    uint32_t x_low[ms][4], y_low[ns][2];
#pragma unroll
    for (int i = 0; i < ms; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) x_low[i][e] = warpwatch::low_part(x[i][e]);
#pragma unroll
    for (int j = 0; j < ns; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) y_low[j][e] = warpwatch::low_part(y[j][e]);
    // Small products first: added to a large sum they would lose their last bits.
#pragma unroll
    for (int product = 0; product < 3; ++product)
#pragma unroll
      for (int i = 0; i < ms; ++i)
#pragma unroll
        for (int j = 0; j < ns; ++j)
          warpwatch::tensor_step<float>(sum[i][j], product == 0 ? x_low[i] : x[i], product == 1 ? y_low[j] : y[j]);
    if (k == 0) meanwhile();
  }
}

__host__ __device__ inline int steps_of(const Product& product) {
  int steps = 0;
  for (int s = 0; s < product.count; ++s) steps += static_cast<int>(ceil_div(product.segments[s].depth, kDepth));
  return steps;
}

template <class Plan>
__host__ __device__ inline int64_t tiles_of(const Product& product) {
  return ceil_div(product.m, Plan::kM) * ceil_div(product.n, Plan::kN);
}

// One tile of one of the products; tiles of one column follow each other, so that they read its b together.
struct Place {
  const Product* product;
  int64_t m, n;

  template <class Plan>
  static __device__ Place of(const Products& call, int64_t tile) {
    int which = 0;
    for (; which + 1 < call.count && tile >= tiles_of<Plan>(call.product[which]); ++which) tile -= tiles_of<Plan>(call.product[which]);
    const int64_t rows = ceil_div(call.product[which].m, Plan::kM);
    return {&call.product[which], tile % rows * Plan::kM, tile / rows * Plan::kN};
  }
};

// Starts the copies of one step after the other, of one tile after the other, until `left` steps are done.
template <class Plan>
struct Loader {
  const Products& call;
  int64_t tile, tiles, hop, k = 0;
  int segment = 0, left;
  Place place;
  typename Plan::A::Mover a;
  typename Plan::B::Mover b;

  __device__ Loader(const Products& products, int64_t first, int64_t end, int64_t distance, int skipped, int steps)
      : call(products), tile(first), tiles(end), hop(distance), left(steps) {
    place = Place::of<Plan>(call, tile);
    for (; skipped > 0; --skipped) next();
    begin();
  }

  // Begins a segment, of the next tile if this one has no more.
  __device__ void begin() {
    while (segment >= place.product->count) {
      tile += hop;
      segment = 0;
      if (tile >= tiles) return;
      place = Place::of<Plan>(call, tile);
    }
    const Segment& from = place.product->segments[segment];
    a.begin(from.a, place.m, place.product->m, from.depth);
    b.begin(from.b, place.n, place.product->n, from.depth);
  }

  // Returns whether a new segment begins.
  __device__ bool next() {
    k += kDepth;
    if (k < place.product->segments[segment].depth) return false;
    k = 0;
    ++segment;
    return true;
  }

  __device__ void start(float* to) {
    if (tile < tiles && left > 0) {
      a.start(k, to);
      b.start(k, to + Plan::A::kSize);
      --left;
      if (next()) begin();
    }
    warpwatch::close_copies();
  }
};

// The sums of one tile, of which every block of a cluster has a part in its shared memory, and the rows that this block finishes.
template <class Plan>
struct SharedSums {
  float* memory;
  int blocks, first, rows;

  // The whole sum of `Count` neighbours, always added up in the same order.
  template <int Count>
  __device__ void at(int row, int column, float (&total)[Count]) const {
    float* place = memory + row * Plan::kPitch + column;
#pragma unroll
    for (int e = 0; e < Count; ++e) total[e] = 0;
    for (int block = 0; block < blocks; ++block) {
      const float* part = warpwatch::of_block(place, block);
#pragma unroll
      for (int e = 0; e < Count; ++e) total[e] += part[e];
    }
  }
};

// Calls each(row, column, first, second) for all neighbours in one warp's part, which begins at (m, n).
template <class Plan, class Index, class Each>
__device__ __forceinline__ void each_of_warp(Index m, Index n, int lane, const typename Plan::Sums& sum, const Each& each) {
#pragma unroll
  for (int i = 0; i < Plan::kTilesM; ++i)
#pragma unroll
    for (int j = 0; j < Plan::kTilesN; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        each(m + i * 16 + half * 8 + lane / 4, n + j * 8 + lane % 4 * 2, sum[i][j][2 * half], sum[i][j][2 * half + 1]);
}

// Ends a sum pair by pair. Own derives from it and has pair(product, row, column, first, second), for two neighbours of which both, or
// the second, may lie outside.
template <class Own>
struct PairByPair {
  // All of one warp's part, which begins at (m, n).
  template <class Plan>
  __device__ void part(const Product& product, int64_t m, int64_t n, int lane, const typename Plan::Sums& sum) const {
    each_of_warp<Plan>(m, n, lane, sum, [&](int64_t row, int64_t column, float first, float second) {
      static_cast<const Own&>(*this).pair(product, row, column, first, second);
    });
  }

  // All of a block's share of a tile.
  template <class Plan>
  __device__ void shared(const Place& place, const SharedSums<Plan>& sums) const {
    constexpr int pairs = Plan::kN / 2;
    for (int u = threadIdx.x; u < sums.rows * pairs; u += Plan::kThreads) {
      const int row = sums.first + u / pairs, column = u % pairs * 2;
      float total[2];
      sums.at(row, column, total);
      static_cast<const Own&>(*this).pair(*place.product, place.m + row, place.n + column, total[0], total[1]);
    }
  }
};

// What becomes of the sums: they are stored, with what is added to them. An operator's own may take its place, to go on from there; it
// has part() and shared(), too.
struct Storing : PairByPair<Storing> {
  __device__ void pair(const Product& product, int64_t row, int64_t column, float first, float second) const {
    if (row >= product.m || column >= product.n) return;
    const bool both = column + 1 < product.n;
    if (product.added != nullptr) {
      const float* added = product.added + row * product.added_stride + column;
      first += added[0];
      if (both) second += added[1];
    }
    float* to = product.c + row * product.c_stride + column;
    if (both && reinterpret_cast<uintptr_t>(to) % 8 == 0) {
      warpwatch::store_pair(to, first, second);
    } else {
      to[0] = first;
      if (both) to[1] = second;
    }
  }
};

// Puts a block's part of the sums into its shared memory; each block of the cluster finishes a share of the rows.
template <class Plan, class Finish>
__device__ void finish_shared(const Finish& finish, const Place& place, const typename Plan::Sums& sum, float* memory, int m, int n,
                              int lane, int blocks) {
  __syncthreads();  // The last tiles have been read.
  each_of_warp<Plan>(m, n, lane, sum, [&](int row, int column, float first, float second) {
    warpwatch::store_pair(memory + row * Plan::kPitch + column, first, second);
  });
  warpwatch::cluster_arrive();
  warpwatch::cluster_await();
  const int rows = Plan::kM / blocks;
  finish.template shared<Plan>(place, SharedSums<Plan>{memory, blocks, static_cast<int>(warpwatch::cluster_rank()) * rows, rows});
  // No block may end while another one reads its part.
  warpwatch::cluster_arrive();
  warpwatch::cluster_await();
}

// Blocks along x: `blocks` neighbours share a tile and no block has more than one; or, where blocks is 1, each takes every gridDim.x-th.
template <class Plan, class Finish>
__global__ void __launch_bounds__(Plan::kThreads)
    split_tiles_kernel(const __grid_constant__ Products call, const __grid_constant__ Finish finish, int64_t tiles, int blocks) {
  extern __shared__ __align__(16) float memory[];
  constexpr int kStages = Plan::kStages;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, share = static_cast<int>(blockIdx.x % blocks);
  const int m = warp / Plan::kWarpsN * Plan::kWarpM, n = warp % Plan::kWarpsN * Plan::kWarpN;
  const int64_t first = blockIdx.x / blocks, hop = blocks > 1 ? tiles : gridDim.x;
  const int all = steps_of(*Place::of<Plan>(call, first).product), skipped = all * share / blocks;
  const int shared_steps = all * (share + 1) / blocks - skipped;
  Loader<Plan> loader(call, first, tiles, hop, skipped, blocks > 1 ? shared_steps : INT_MAX);
#pragma unroll 1
  for (int stage = 0; stage + 1 < kStages; ++stage) loader.start(memory + stage * Plan::kStage);
  int slot = 0;
  for (int64_t tile = first; tile < tiles; tile += hop) {
    const Place place = Place::of<Plan>(call, tile);
    const int steps = blocks > 1 ? shared_steps : steps_of(*place.product);
    typename Plan::Sums sum = {};
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      warpwatch::await_copies<kStages - 2>();
      __syncthreads();
      float* next = memory + (slot == 0 ? kStages - 1 : slot - 1) * Plan::kStage;
      const float *a = memory + slot * Plan::kStage, *b = a + Plan::A::kSize;
      typename Plan::Sums part = {};
      multiply<Plan>(part, a, b, m, n, lane, [&] { loader.start(next); });
#pragma unroll
      for (int i = 0; i < Plan::kTilesM; ++i)
#pragma unroll
        for (int j = 0; j < Plan::kTilesN; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) sum[i][j][e] += part[i][j][e];
      slot = slot + 1 == kStages ? 0 : slot + 1;
    }
    if (blocks > 1) {
      warpwatch::await_copies<0>();
      finish_shared<Plan>(finish, place, sum, memory, m, n, lane, blocks);
      return;
    }
    finish.template part<Plan>(*place.product, place.m + m, place.n + n, lane, sum);
  }
  warpwatch::await_copies<0>();
}

template <class Plan>
int64_t tiles_of(const Products& call) {
  int64_t tiles = 0;
  for (int i = 0; i < call.count; ++i) tiles += tiles_of<Plan>(call.product[i]);
  return tiles;
}

// `blocks` share a tile's sum: 1, or on Hopper and later a power of two up to 8.
template <class Plan, class Finish = Storing>
const char* launch(const Products& call, int blocks, void* stream, const Finish& finish = {}) {
  const auto kernel = split_tiles_kernel<Plan, Finish>;
  const int64_t tiles = tiles_of<Plan>(call);
  if (const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Plan::kBytes);
      error != cudaSuccess)
    return warpwatch::words_of(error);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  cudaLaunchConfig_t config{};
  int resident = 0;
  if (const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, Plan::kThreads, Plan::kBytes);
      error != cudaSuccess)
    return warpwatch::words_of(error);
  const int64_t at_once = int64_t{resident} * warpwatch::multiprocessors();
  config.gridDim = dim3(static_cast<unsigned>(blocks > 1 ? tiles * blocks : std::min(tiles, at_once)));
  config.blockDim = dim3(Plan::kThreads);
  config.dynamicSmemBytes = Plan::kBytes;
  config.stream = warpwatch::as_stream(stream);
  config.attrs = &attribute;
  config.numAttrs = blocks > 1 ? 1 : 0;
  return warpwatch::words_of(cudaLaunchKernelEx(&config, kernel, call, finish, tiles, blocks));
}

// As many blocks to a tile as the multiprocessors have room for, if a few steps are left for each.
template <class Plan, class Finish = Storing>
const char* launch_shared(const Products& call, void* stream, const Finish& finish = {}) {
  const int64_t tiles = tiles_of<Plan>(call), room = kBlocksEach * int64_t{warpwatch::multiprocessors()};
  const bool has_clusters = warpwatch::compute_capability() >= 90;
  int64_t most = has_clusters ? kMostBlocks : 1;
  for (int i = 0; i < call.count; ++i) most = std::min(most, std::max<int64_t>(1, steps_of(call.product[i]) / kFewestSteps));
  int blocks = 1;
  while (2 * blocks <= most && 2 * blocks * tiles <= room) blocks *= 2;
  return launch<Plan>(call, blocks, stream, finish);
}

}  // namespace split_tiles
