// What the kernels of one call tell each other, and how a block counts.
#pragma once

#include "common/launch.cuh"
#include "magnitude_prune/magnitude_prune.h"

namespace magnitude_prune {

using warpwatch::ceil_div;
using warpwatch::Vector16;

constexpr int kFirstBits = 15, kNextBits = 16;
constexpr int kMostPasses = 4;
constexpr int64_t kChunk = 8192;  // Elements whose ties one block counts.

// Counts are of 32 bits: n is below 2^32.
struct State {
  uint64_t threshold;    // The bits of the smallest kept magnitude that are known so far.
  int64_t last;          // Of the elements that equal the threshold, those up to this index are kept.
  uint32_t rank, equal;  // The threshold is the rank-th of `equal` elements that begin with its known bits.
  uint32_t done[kMostPasses + 1];  // Blocks that have finished, of each histogram and of the tie count.
};

constexpr int64_t kStateBytes = 64;
static_assert(sizeof(State) <= kStateBytes);

inline int passes_of(int bytes) { return bytes == 2 ? 1 : bytes == 4 ? 2 : 4; }
inline int64_t bins_of(int pass) { return int64_t{1} << (pass == 0 ? kFirstBits : kNextBits); }
inline int64_t zeroed_bytes(int bytes) {
  return kStateBytes + (bins_of(0) + (passes_of(bytes) - 1) * bins_of(1)) * static_cast<int64_t>(sizeof(uint32_t));
}

template <class Key>
__device__ inline Key magnitude(Key bits, Key infinity) {
  const Key key = bits & static_cast<Key>(static_cast<Key>(~Key{0}) >> 1);
  return key > infinity ? static_cast<Key>(infinity + 1) : key;
}

// Calls body(index, magnitude) for every element of [begin, end), which `threads` threads share out, 64 bytes each at a time.
template <class Key, class Body>
__device__ void each_magnitude(const Key* w, int64_t begin, int64_t end, Key infinity, int64_t thread, int64_t threads,
                               const Body& body) {
  using Vector = Vector16<Key>;
  constexpr int kAhead = 4;
  const int64_t off = static_cast<int64_t>(reinterpret_cast<uintptr_t>(w + begin) % 16 / sizeof(Key));
  const int64_t head = off == 0 ? 0 : Vector::size - off, first = begin + head < end ? begin + head : end;
  for (int64_t i = begin + thread; i < first; i += threads) body(i, magnitude(w[i], infinity));
  const int64_t vectors = (end - first) / Vector::size;
  const Vector* from = reinterpret_cast<const Vector*>(w + first);
  for (int64_t v = thread; v < vectors; v += kAhead * threads) {
    Vector loaded[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a)
      if (v + a * threads < vectors) loaded[a] = from[v + a * threads];
#pragma unroll
    for (int a = 0; a < kAhead; ++a)
      if (v + a * threads < vectors)
#pragma unroll
        for (int e = 0; e < Vector::size; ++e)
          body(first + (v + a * threads) * Vector::size + e, magnitude(loaded[a].element[e], infinity));
  }
  for (int64_t i = first + vectors * Vector::size + thread; i < end; i += threads) body(i, magnitude(w[i], infinity));
}

// Sum of `value` over all threads of the block before this one.
template <int Threads>
__device__ uint32_t sum_before(uint32_t value) {
  __shared__ uint32_t of_warp[Threads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) of_warp[warp] = sum;
  __syncthreads();
  uint32_t before = sum - value;
  for (int w = 0; w < warp; ++w) before += of_warp[w];
  __syncthreads();
  return before;
}

// Finds the item in which the rank-th (from 1) of all counted things lies, and calls found(item, its rank in there) in one thread.
template <int Threads, class Count, class Found>
__device__ void locate(int64_t items, uint32_t rank, const Count& count, const Found& found) {
  const int64_t each = ceil_div(items, Threads), begin = threadIdx.x * each;
  const int64_t end = begin + each < items ? begin + each : items;
  uint32_t sum = 0;
  for (int64_t i = begin; i < end; ++i) sum += count(i);
  const uint32_t before = sum_before<Threads>(sum);
  if (rank <= before || rank - before > sum) return;
  uint32_t left = rank - before;
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t here = count(i);
    if (left <= here) return found(i, left);
    left -= here;
  }
}

// Whether this block is the last of the grid to get here; if so, it sees what all others wrote before.
__device__ inline bool is_last_block(uint32_t* done) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(done, 1u) == gridDim.x - 1;
  __syncthreads();
  __threadfence();
  return last;
}

}  // namespace magnitude_prune
