// Forward on Hopper, after FlashAttention-3: scores of the next keys are computed ahead of the weighted sum of these, and exponentials
// are taken while tensor cores work for this warpgroup or for another.
#pragma once

#include "attention/warpgroups.cuh"

namespace attention {

template <class Element, int Dim, int Consumers>
struct WarpgroupForward {
  using T = Element;
  static constexpr int D = Dim, kConsumers = Consumers, kThreads = (1 + kConsumers) * kWarpgroup;
  static constexpr int kRows = kConsumers * 64, kKeys = 128, kStages = 2;
  using Work = attention::Work<kRows, kKeys, false>;
  using QueryRing = TileRing<1, kRows * D * 2>;
  using KeyRing = TileRing<kStages, kKeys * D * 2>;
  static constexpr int kKeyRing = QueryRing::kBytes, kValueRing = kKeyRing + KeyRing::kBytes, kOut = kValueRing + KeyRing::kBytes;
  static constexpr int kBarriers = kOut + kConsumers * 4 * D / 64 * kPart;
  static constexpr int kSharedBytes = kBarriers + (QueryRing::kBarriers + 2 * KeyRing::kBarriers) * 8 + kSwizzleTile;
  static constexpr int kProducerRegisters = kConsumers == 2 ? 24 : 32, kConsumerRegisters = kConsumers == 2 ? 240 : 160;
};

struct ForwardMaps {
  CUtensorMap q, k, v, out;
};

#if defined(WARPWATCH_HOPPER)
template <class P>
struct ForwardRings {
  typename P::QueryRing queries;
  typename P::KeyRing keys, values;

  __device__ ForwardRings(unsigned char* memory, uint64_t* barriers)
      : queries(memory, barriers), keys(memory + P::kKeyRing, barriers + P::QueryRing::kBarriers),
        values(memory + P::kValueRing, barriers + P::QueryRing::kBarriers + P::KeyRing::kBarriers) {}
};

// The copying threads: one for queries and keys, another for values, so that neither waits for the other's tiles.
template <class P>
__device__ void copy_forward(const Grid& grid, const ForwardMaps& maps, ForwardRings<P> rings, bool values) {
  typename P::KeyRing ring = values ? rings.values : rings.keys;
  const CUtensorMap& map = values ? maps.v : maps.k;
  for (int turn = 0;; ++turn) {
    const typename P::Work work(grid, turn);
    if (work.ended) return;
    if (!work.any) continue;
    if (!values)
      rings.queries.fill([&](unsigned char* tile, uint64_t* full) {
        load_rows<P::D, P::kRows>(maps.q, tile, full, grid, work.head, work.first);
      });
    for (int block = work.end - 1; block >= 0; --block)
      ring.fill([&](unsigned char* tile, uint64_t* full) {
        load_rows<P::D, P::kKeys>(map, tile, full, grid, work.head, block * P::kKeys);
      });
  }
}

// What a warpgroup knows of its 64 queries. A lane holds results of two of them, as multiply_shared describes.
template <class P>
struct Queries {
  float sums[P::D / 2], scores[P::kKeys / 2], highest[2], total[2], shrink[2];
  uint32_t weights[P::kKeys / 16][4];

  __device__ void reset() {
#pragma unroll
    for (int i = 0; i < P::D / 2; ++i) sums[i] = 0;
    highest[0] = highest[1] = -INFINITY;
    total[0] = total[1] = 0;
  }

  // Scores of hidden and missing keys become minus infinity; `query` and `key` are those of the first element.
  __device__ void hide(const Grid& grid, int query, int key) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int last = (grid.causal && query + half * 8 < grid.keys ? query + half * 8 : grid.keys - 1) - key;
#pragma unroll
      for (int j = 0; j < P::kKeys / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (j * 8 + e > last) scores[4 * j + 2 * half + e] = -INFINITY;
    }
  }

  // Scores become exponentials under the highest score so far; `shrink` is what makes earlier sums comparable.
  __device__ void soften(float scale) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = highest[half];
#pragma unroll
      for (int j = 0; j < P::kKeys / 8; ++j) top = fmaxf(top, fmaxf(scores[4 * j + 2 * half], scores[4 * j + 2 * half + 1]));
      top = highest_of_row(top);
      // A row that has seen nothing but minus infinity has no highest score to subtract.
      const float base = top == -INFINITY ? 0.0f : top * scale;
      shrink[half] = power_of_two(highest[half] * scale - base);
      highest[half] = top;
      float part = 0;
#pragma unroll
      for (int j = 0; j < P::kKeys / 8; ++j)
#pragma unroll
        for (int e = 4 * j + 2 * half; e < 4 * j + 2 * half + 2; ++e) {
          scores[e] = power_of_two(scores[e] * scale - base);
          part += scores[e];
        }
      total[half] = total[half] * shrink[half] + part;
    }
  }

  __device__ void shrink_sums() {
#pragma unroll
    for (int i = 0; i < P::D / 2; ++i) sums[i] *= shrink[i / 2 % 2];
  }
};

template <class P>
__device__ void attend(const Grid& grid, const ForwardMaps& maps, float scale_given, float* log_sum, ForwardRings<P> rings,
                       unsigned char* parts) {
  using T = typename P::T;
  const int group = warpwatch::multiplying_group(), lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const float scale = scale_given * kLog2E;
  const unsigned char* queries = rings.queries.tile() + group * 64 * kSwizzleBytes;
  parts += (group * 4 + warp) * P::D / 64 * kPart;
  Queries<P> mine;
  for (int turn = 0;; ++turn) {
    const typename P::Work work(grid, turn);
    if (work.ended) break;
    if (!work.any) continue;
    const int first = work.first + group * 64, row = first + warp * 16;
    const auto hide = [&](int block) {
      const int end = (block + 1) * P::kKeys;
      if (end > grid.keys || (grid.causal && end - 1 > first)) mine.hide(grid, row + lane / 4, block * P::kKeys + lane % 4 * 2);
    };
    mine.reset();
    rings.queries.await_full();
    rings.keys.await_full();
    start_scores<T, P::D, P::kRows, P::kKeys>(mine.scores, queries, rings.keys.tile());
    warpwatch::await_products<0>();
    warpwatch::pin(mine.scores);
    rings.keys.release();
    if (work.end == 1) rings.queries.release();
    hide(work.end - 1);
    mine.soften(scale);
    round_weights<T>(mine.weights, mine.scores);
    for (int block = work.end - 2; block >= 0; --block) {
      rings.keys.await_full();
      start_scores<T, P::D, P::kRows, P::kKeys>(mine.scores, queries, rings.keys.tile());
      rings.values.await_full();
      start_sums<T, P::D, P::kKeys>(mine.sums, mine.weights, rings.values.tile());
      warpwatch::await_products<1>();
      warpwatch::pin(mine.scores);
      rings.keys.release();
      if (block == 0) rings.queries.release();
      hide(block);
      mine.soften(scale);
      warpwatch::sync_after(mine.total[0] + mine.total[1]);
      warpwatch::await_products<0>();
      warpwatch::pin(mine.sums);
      rings.values.release();
      mine.shrink_sums();
      round_weights<T>(mine.weights, mine.scores);
    }
    rings.values.await_full();
    start_sums<T, P::D, P::kKeys>(mine.sums, mine.weights, rings.values.tile());
    warpwatch::await_products<0>();
    warpwatch::pin(mine.sums);
    rings.values.release();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      mine.total[half] = sum_of_row(mine.total[half]);
      const int query = row + half * 8 + lane / 4;
      if (lane % 4 == 0 && query < grid.queries)
        log_sum[int64_t{work.head} * grid.queries + query] = mine.highest[half] * scale_given + logf(mine.total[half]);
    }
    store_sums<T, P::D>(mine.sums, 1.0f / mine.total[0], 1.0f / mine.total[1], maps.out, parts, grid, work.head, row);
  }
  if (lane == 0) warpwatch::await_store_reads<0>();
}
#endif

template <class P>
__global__ __launch_bounds__(P::kThreads, 1) void warpgroups_forward(const __grid_constant__ ForwardMaps maps,
                                                                     const __grid_constant__ Grid grid, float scale, float* log_sum) {
#if defined(WARPWATCH_HOPPER)
  extern __shared__ __align__(16) unsigned char bytes[];
  unsigned char* memory = aligned_tiles(bytes);
  const ForwardRings<P> rings(memory, reinterpret_cast<uint64_t*>(memory + P::kBarriers));
  if (threadIdx.x == 0) {
    constexpr int warps = P::kConsumers * 4;
    rings.queries.init(warps), rings.keys.init(warps), rings.values.init(warps);
    warpwatch::publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    warpwatch::give_up_registers<P::kProducerRegisters>();
    if (threadIdx.x % 32 == 0 && threadIdx.x < 64) copy_forward<P>(grid, maps, rings, threadIdx.x != 0);
  } else {
    warpwatch::take_registers<P::kConsumerRegisters>();
    attend<P>(grid, maps, scale, log_sum, rings, memory + P::kOut);
  }
#endif
}

template <class P>
const char* launch_warpgroups(const Shape& shape, const Forward<typename P::T>& call, void* stream) {
  ForwardMaps maps;
  const bool mapped = make_rows_map(maps.q, call.q, shape, shape.queries, P::kRows) &&
                      make_rows_map(maps.k, call.k, shape, shape.keys, P::kKeys) &&
                      make_rows_map(maps.v, call.v, shape, shape.keys, P::kKeys) &&
                      make_rows_map(maps.out, call.out, shape, shape.queries, kStored);
  if (!mapped) return forward_on(shape, call, stream);
  const Grid grid = grid_of(shape, shape.queries, P::kRows);
  cudaFuncSetAttribute(warpgroups_forward<P>, cudaFuncAttributeMaxDynamicSharedMemorySize, P::kSharedBytes);
  warpgroups_forward<P>
      <<<blocks_of(grid), P::kThreads, P::kSharedBytes, warpwatch::as_stream(stream)>>>(maps, grid, shape.scale, call.log_sum);
  return warpwatch::launch_error();
}

// How long it takes in tiles of so many queries, in the time that one tile of one query takes.
inline int64_t time_of(const Shape& shape, int rows) {
  const Grid grid = grid_of(shape, shape.queries, rows);
  return warpwatch::ceil_div(int64_t{grid.heads} * grid.units, warpwatch::multiprocessors()) * rows;
}

// Left to the kernel for older tensor cores: other GPUs, other heads, and operands that the copy engine cannot take.
template <class T>
const char* warpgroups_forward_for(const Shape& shape, const Forward<T>& call, void* stream) {
  if (!has_warpgroups(shape)) return forward_on(shape, call, stream);
  if (shape.dim == 128) return launch_warpgroups<WarpgroupForward<T, 128, 2>>(shape, call, stream);
  // Three warpgroups overlap better than two, by a fifth; a tenth when keys are hidden. Their larger tiles may leave more
  // multiprocessors idle.
  const bool three = time_of(shape, 192) * 10 < time_of(shape, 128) * (shape.causal ? 11 : 12);
  return three ? launch_warpgroups<WarpgroupForward<T, 64, 3>>(shape, call, stream)
               : launch_warpgroups<WarpgroupForward<T, 64, 2>>(shape, call, stream);
}

}  // namespace attention
