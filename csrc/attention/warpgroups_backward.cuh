// Backward on Hopper, as backward.cuh does it: one kernel owns queries and sums up dQ, another owns keys and sums up dK and dV, so that
// each result is summed by one block in one order. While one warpgroup takes exponentials, tensor cores work for the other.
#pragma once

#include "attention/warpgroups.cuh"

namespace attention {

// The kernel that owns queries, with keys passing by; the other one if `OwnsKeys`.
template <class Element, int Dim, bool OwnsKeys>
struct WarpgroupBackward {
  using T = Element;
  static constexpr bool kOwnsKeys = OwnsKeys;
  static constexpr int D = Dim, kConsumers = 2, kThreads = (1 + kConsumers) * kWarpgroup;
  static constexpr int kOwn = kConsumers * 64, kPassing = OwnsKeys ? kPassingQueries : 128, kStages = OwnsKeys ? 3 : 2;
  using Work = attention::Work<kOwn, kPassing, OwnsKeys>;
  static constexpr int kProducerRegisters = D == 64 ? 40 : 24, kConsumerRegisters = D == 64 ? 232 : 240;
  // Queries and their gradients, or keys and values: the two lie beside each other, or pass by in a ring each.
  static constexpr int kOwnBytes = kOwn * D * 2, kPassingBytes = kPassing * D * 2;
  // With queries that pass by come their logarithms, and their deltas with their gradients.
  static constexpr int kNumbersBytes = OwnsKeys ? kPassing * 4 : 0;
  using OwnRing = TileRing<1, 2 * kOwnBytes>;
  using PassingRing = TileRing<kStages, kPassingBytes, kNumbersBytes>;
  static constexpr int kFirst = OwnRing::kBytes, kSecond = kFirst + PassingRing::kBytes, kOut = kSecond + PassingRing::kBytes;
  static constexpr int kNumbers = kOut + kConsumers * 4 * D / 64 * kPart, kBarriers = kNumbers + 2 * kStages * kNumbersBytes;
  static constexpr int kSharedBytes = kBarriers + (OwnRing::kBarriers + 2 * PassingRing::kBarriers) * 8 + kSwizzleTile;
};

struct BackwardMaps {
  CUtensorMap own[2], passing[2], results[2];  // Queries before gradients, keys before values; dQ alone, or dK before dV.
};

#if defined(WARPWATCH_HOPPER)
template <class P>
struct BackwardRings {
  typename P::OwnRing own;
  typename P::PassingRing first, second;
  unsigned char* numbers;

  __device__ BackwardRings(unsigned char* memory)
      : own(memory, reinterpret_cast<uint64_t*>(memory + P::kBarriers)), first(memory + P::kFirst, own.full + P::OwnRing::kBarriers),
        second(memory + P::kSecond, first.full + P::PassingRing::kBarriers), numbers(memory + P::kNumbers) {}
  // Those that came with a tile of the first ring, or of the second.
  __device__ float* numbers_of(bool second, int slot) const {
    return reinterpret_cast<float*>(numbers + (second * P::kStages + slot) * P::kNumbersBytes);
  }
};

// The copying threads: one for a block's own rows and what they are multiplied with first, another for what comes second.
template <class P>
__device__ void copy_backward(const Grid& grid, const BackwardMaps& maps, const float* scratch, BackwardRings<P> rings, bool second) {
  typename P::PassingRing ring = second ? rings.second : rings.first;
  const CUtensorMap& map = maps.passing[second];
  for (int turn = 0;; ++turn) {
    const typename P::Work work(grid, turn);
    if (work.ended) return;
    if (!work.any) continue;
    if (!second)
      rings.own.fill([&](unsigned char* tile, uint64_t* full) {
        for (int i = 0; i < 2; ++i) load_rows<P::D, P::kOwn>(maps.own[i], tile + i * P::kOwnBytes, full, grid, work.head, work.first);
      });
    for (int block = work.begin; block < work.end; ++block)
      ring.fill([&](unsigned char* tile, uint64_t* full) {
        load_rows<P::D, P::kPassing>(map, tile, full, grid, work.head, block * P::kPassing);
        if constexpr (P::kOwnsKeys)
          warpwatch::load_bytes(scratch + (int64_t{work.head} * 2 + second) * grid.numbered + block * P::kPassing,
                                rings.numbers_of(second, ring.slot), full, P::kNumbersBytes);
      });
  }
}

// gradient times out for one query, of which four lanes have a part each: what normalisation takes from the gradients of its scores.
template <class T, int D>
__device__ float delta_of(const Backward<T>& call, const Grid& grid, int head, int query) {
  const int lane = threadIdx.x % 4;
  float sum = 0;
  if (query < grid.queries) {
    const int batch = head / grid.heads_each, within = head % grid.heads_each;
    const auto row = [&](const Rows<const T>& rows) { return rows.data + batch * rows.batch + within * rows.head + query * rows.row; };
    const T *gradient = row(call.gradient), *out = row(call.out);
#pragma unroll
    for (int i = lane * 8; i < D; i += 32) {
      const auto a = *reinterpret_cast<const warpwatch::Vector16<T>*>(gradient + i);
      const auto b = *reinterpret_cast<const warpwatch::Vector16<T>*>(out + i);
#pragma unroll
      for (int e = 0; e < 8; ++e) sum += warpwatch::to_float(a.element[e]) * warpwatch::to_float(b.element[e]);
    }
  }
  return sum_of_row(sum);
}

template <class P>
__device__ void sum_query_gradients(const Grid& grid, const BackwardMaps& maps, const Backward<typename P::T>& call, float scale_given,
                                    BackwardRings<P> rings, unsigned char* parts) {
  using T = typename P::T;
  const int group = warpwatch::multiplying_group(), lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const float scale = scale_given * kLog2E;
  const unsigned char *queries = rings.own.tile() + group * 64 * kSwizzleBytes, *gradients = queries + P::kOwnBytes;
  parts += (group * 4 + warp) * P::D / 64 * kPart;
  float sums[P::D / 2], scores[P::kPassing / 2], slopes[P::kPassing / 2];
  uint32_t weights[P::kPassing / 16][4];
  for (int turn = 0;; ++turn) {
    const typename P::Work work(grid, turn);
    if (work.ended) break;
    if (!work.any) continue;
    const int first = work.first + group * 64, row = first + warp * 16;
    float log_sum[2], delta[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = row + half * 8 + lane / 4;
      delta[half] = delta_of<T, P::D>(call, grid, work.head, query);
      log_sum[half] = query < grid.queries ? call.log_sum[int64_t{work.head} * grid.queries + query] * kLog2E : 0.0f;
      // Of what lies beyond the last query, zeros are copied, and all that comes of them is zero.
      if (lane % 4 == 0 && query < grid.numbered) {
        float* to = call.scratch + int64_t{work.head} * 2 * grid.numbered + query;
        to[0] = log_sum[half], to[grid.numbered] = delta[half];
      }
    }
#pragma unroll
    for (int i = 0; i < P::D / 2; ++i) sums[i] = 0;
    rings.own.await_full();
    for (int block = work.begin; block < work.end; ++block) {
      rings.first.await_full();
      start_scores<T, P::D, P::kOwn, P::kPassing>(scores, queries, rings.first.tile());
      rings.second.await_full();
      start_scores<T, P::D, P::kOwn, P::kPassing>(slopes, gradients, rings.second.tile());
      warpwatch::await_products<1>();
      warpwatch::pin(scores);
      const int end = (block + 1) * P::kPassing;
      const bool hides = end > grid.keys || (grid.causal && end - 1 > first);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = row + half * 8 + lane / 4;
        // The last column that this query sees.
        const int seen = grid.causal && query < grid.keys ? query : grid.keys - 1;
        const int last = hides ? seen - block * P::kPassing - lane % 4 * 2 : P::kPassing;
#pragma unroll
        for (int j = 0; j < P::kPassing / 8; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& score = scores[4 * j + 2 * half + e];
            score = j * 8 + e > last ? 0.0f : power_of_two(score * scale - log_sum[half]);
          }
      }
      warpwatch::await_products<0>();
      warpwatch::pin(slopes);
      rings.second.release();
#pragma unroll
      for (int i = 0; i < P::kPassing / 2; ++i) slopes[i] = scores[i] * (slopes[i] - delta[i / 2 % 2]);
      round_weights<T>(weights, slopes);
      start_sums<T, P::D, P::kPassing>(sums, weights, rings.first.tile());
      warpwatch::await_products<0>();
      warpwatch::pin(sums);
      rings.first.release();
    }
    rings.own.release();
    store_sums<T, P::D>(sums, scale_given, scale_given, maps.results[0], parts, grid, work.head, row);
  }
  if (lane == 0) warpwatch::await_store_reads<0>();
}

template <class P>
__device__ void sum_key_gradients(const Grid& grid, const BackwardMaps& maps, float scale_given, BackwardRings<P> rings,
                                  unsigned char* parts) {
  using T = typename P::T;
  const int group = warpwatch::multiplying_group(), lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const float scale = scale_given * kLog2E;
  const unsigned char *keys = rings.own.tile() + group * 64 * kSwizzleBytes, *values = keys + P::kOwnBytes;
  parts += (group * 4 + warp) * P::D / 64 * kPart;
  float key_sums[P::D / 2], value_sums[P::D / 2], scores[P::kPassing / 2], slopes[P::kPassing / 2];
  uint32_t weights[P::kPassing / 16][4], slope_weights[P::kPassing / 16][4];
  for (int turn = 0;; ++turn) {
    const typename P::Work work(grid, turn);
    if (work.ended) break;
    if (!work.any) continue;
    const int first = work.first + group * 64, row = first + warp * 16;
#pragma unroll
    for (int i = 0; i < P::D / 2; ++i) key_sums[i] = value_sums[i] = 0;
    rings.own.await_full();
    for (int block = work.begin; block < work.end; ++block) {
      rings.first.await_full();
      start_scores<T, P::D, P::kOwn, P::kPassing>(scores, keys, rings.first.tile());
      rings.second.await_full();
      start_scores<T, P::D, P::kOwn, P::kPassing>(slopes, values, rings.second.tile());
      warpwatch::await_products<1>();
      warpwatch::pin(scores);
      // Both rings turn alike, so the slot of one is that of the other.
      const float *log_sums = rings.numbers_of(false, rings.first.slot) + lane % 4 * 2;
      const float *deltas = rings.numbers_of(true, rings.first.slot) + lane % 4 * 2;
      // The first column that each of the lane's two keys is seen from.
      const bool hides = grid.causal && block * P::kPassing < first + 63;
      const int from = hides ? row + lane / 4 - block * P::kPassing - lane % 4 * 2 : -P::kPassing;
#pragma unroll
      for (int j = 0; j < P::kPassing / 8; ++j) {
        const float2 log_sum = *reinterpret_cast<const float2*>(log_sums + j * 8);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& score = scores[4 * j + e];
          score = j * 8 + e % 2 < from + e / 2 * 8 ? 0.0f : power_of_two(score * scale - (e % 2 ? log_sum.y : log_sum.x));
        }
      }
      round_weights<T>(weights, scores);
      start_sums<T, P::D, P::kPassing>(value_sums, weights, rings.second.tile());
      warpwatch::await_products<1>();
      warpwatch::pin(slopes);
#pragma unroll
      for (int j = 0; j < P::kPassing / 8; ++j) {
        const float2 delta = *reinterpret_cast<const float2*>(deltas + j * 8);
#pragma unroll
        for (int e = 0; e < 4; ++e) slopes[4 * j + e] = scores[4 * j + e] * (slopes[4 * j + e] - (e % 2 ? delta.y : delta.x));
      }
      round_weights<T>(slope_weights, slopes);
      start_sums<T, P::D, P::kPassing>(key_sums, slope_weights, rings.first.tile());
      warpwatch::await_products<0>();
      warpwatch::pin(key_sums), warpwatch::pin(value_sums);
      rings.first.release(), rings.second.release();
    }
    rings.own.release();
    store_sums<T, P::D>(key_sums, scale_given, scale_given, maps.results[0], parts, grid, work.head, row);
    store_sums<T, P::D>(value_sums, 1.0f, 1.0f, maps.results[1], parts, grid, work.head, row);
  }
  if (lane == 0) warpwatch::await_store_reads<0>();
}
#endif

template <class P>
__global__ __launch_bounds__(P::kThreads, 1) void warpgroups_backward(const __grid_constant__ BackwardMaps maps,
                                                                      const __grid_constant__ Grid grid, float scale,
                                                                      const __grid_constant__ Backward<typename P::T> call) {
#if defined(WARPWATCH_HOPPER)
  extern __shared__ __align__(16) unsigned char bytes[];
  unsigned char* memory = aligned_tiles(bytes);
  const BackwardRings<P> rings(memory);
  if (threadIdx.x == 0) {
    constexpr int warps = P::kConsumers * 4;
    rings.own.init(warps), rings.first.init(warps), rings.second.init(warps);
    warpwatch::publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    warpwatch::give_up_registers<P::kProducerRegisters>();
    if (threadIdx.x % 32 == 0 && threadIdx.x < 64) copy_backward<P>(grid, maps, call.scratch, rings, threadIdx.x != 0);
  } else {
    warpwatch::take_registers<P::kConsumerRegisters>();
    if constexpr (P::kOwnsKeys) {
      sum_key_gradients<P>(grid, maps, scale, rings, memory + P::kOut);
    } else {
      sum_query_gradients<P>(grid, maps, call, scale, rings, memory + P::kOut);
    }
  }
#endif
}

template <class P>
const char* launch_warpgroups(const BackwardMaps& maps, const Shape& shape, const Backward<typename P::T>& call, void* stream) {
  const Grid grid = grid_of(shape, P::kOwnsKeys ? shape.keys : shape.queries, P::kOwn);
  cudaFuncSetAttribute(warpgroups_backward<P>, cudaFuncAttributeMaxDynamicSharedMemorySize, P::kSharedBytes);
  warpgroups_backward<P><<<blocks_of(grid), P::kThreads, P::kSharedBytes, warpwatch::as_stream(stream)>>>(maps, grid, shape.scale, call);
  return warpwatch::launch_error();
}

template <class T, int D>
const char* warpgroups_backward_of(const Shape& shape, const Backward<T>& call, void* stream) {
  using ForQueries = WarpgroupBackward<T, D, false>;
  using ForKeys = WarpgroupBackward<T, D, true>;
  BackwardMaps queries, keys;
  // The map of `out` is not used: it tells whether rows can be read 16 bytes at a time.
  const auto map = [&](CUtensorMap& to, const auto& rows, int64_t count, int tile) {
    return make_rows_map(to, rows, shape, count, tile);
  };
  CUtensorMap out;
  const bool mapped = map(out, call.out, shape.queries, 64) && map(queries.own[0], call.q, shape.queries, ForQueries::kOwn) &&
                      map(queries.own[1], call.gradient, shape.queries, ForQueries::kOwn) &&
                      map(queries.passing[0], call.k, shape.keys, ForQueries::kPassing) &&
                      map(queries.passing[1], call.v, shape.keys, ForQueries::kPassing) &&
                      map(queries.results[0], call.dq, shape.queries, kStored) &&
                      map(keys.own[0], call.k, shape.keys, ForKeys::kOwn) && map(keys.own[1], call.v, shape.keys, ForKeys::kOwn) &&
                      map(keys.passing[0], call.q, shape.queries, ForKeys::kPassing) &&
                      map(keys.passing[1], call.gradient, shape.queries, ForKeys::kPassing) &&
                      map(keys.results[0], call.dk, shape.keys, kStored) &&
                      map(keys.results[1], call.dv, shape.keys, kStored);
  if (!mapped) return backward_on(shape, call, stream);
  queries.results[1] = queries.results[0];
  const char* error = launch_warpgroups<ForQueries>(queries, shape, call, stream);
  return error != nullptr ? error : launch_warpgroups<ForKeys>(keys, shape, call, stream);
}

// Left to the kernels for older tensor cores: other GPUs, other heads, and operands that the copy engine cannot take.
template <class T>
const char* warpgroups_backward_for(const Shape& shape, const Backward<T>& call, void* stream) {
  if (!has_warpgroups(shape) || shape.queries == 0) return backward_on(shape, call, stream);
  return shape.dim == 64 ? warpgroups_backward_of<T, 64>(shape, call, stream) : warpgroups_backward_of<T, 128>(shape, call, stream);
}

}  // namespace attention
