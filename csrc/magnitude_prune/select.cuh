// Finds the smallest kept magnitude digit by digit from histograms, and among its equals the last that is kept.
//
// The first histogram, of 15 bits, is counted in each block's shared memory: it is all there is to do for 16-bit numbers. The
// elements that begin with the digit so found are few in any ordinary tensor; the next 16 bits of those are counted in global
// memory. The block that finishes a histogram last looks for the digit in it, so nothing ever returns to the host.
#pragma once

#include "magnitude_prune/state.cuh"

namespace magnitude_prune {

constexpr int kHistogramThreads = 1024, kTieThreads = 512;
constexpr int kFirstBytes = (1 << kFirstBits) * static_cast<int>(sizeof(uint32_t));

// The last block of a histogram turns its largest digits first until `rank` elements are passed.
__device__ inline void find_digit(const uint32_t* histogram, int64_t bins, int shift, uint32_t rank, bool last_digit,
                                  State* state) {
  const auto count = [=](int64_t item) { return __ldcg(histogram + (bins - 1 - item)); };
  locate<kHistogramThreads>(bins, rank, count, [=](int64_t item, uint32_t left) {
    state->threshold |= static_cast<uint64_t>(bins - 1 - item) << shift;
    state->rank = left;
    state->equal = count(item);
    // Usually all elements that equal the threshold are kept, and their positions are not needed.
    state->last = last_digit && left == state->equal ? INT64_MAX : -1;
  });
}

template <class Key>
__global__ __launch_bounds__(kHistogramThreads) void first_histogram(const Key* w, int64_t n, Key infinity, uint32_t keep,
                                                                     int shift, uint32_t* histogram, State* state) {
  extern __shared__ uint32_t counts[];
  constexpr int kBins = 1 << kFirstBits;
  for (int i = threadIdx.x; i < kBins; i += kHistogramThreads) counts[i] = 0;
  __syncthreads();
  const int64_t thread = int64_t{blockIdx.x} * kHistogramThreads + threadIdx.x, threads = int64_t{gridDim.x} * kHistogramThreads;
  each_magnitude(w, 0, n, infinity, thread, threads,
                 [=](int64_t, Key key) { atomicAdd(counts + static_cast<uint32_t>(key >> shift), 1u); });
  __syncthreads();
  for (int i = threadIdx.x; i < kBins; i += kHistogramThreads)
    if (counts[i] != 0) atomicAdd(histogram + i, counts[i]);
  if (is_last_block(state->done)) find_digit(histogram, kBins, shift, keep, shift == 0, state);
}

template <class Key>
__global__ __launch_bounds__(kHistogramThreads) void next_histogram(const Key* w, int64_t n, Key infinity, int shift, int pass,
                                                                    uint32_t* histogram, State* state) {
  const int known = shift + kNextBits;
  const uint64_t begins = state->threshold >> known;
  const uint32_t rank = state->rank;
  const int64_t thread = int64_t{blockIdx.x} * kHistogramThreads + threadIdx.x, threads = int64_t{gridDim.x} * kHistogramThreads;
  each_magnitude(w, 0, n, infinity, thread, threads, [=](int64_t, Key key) {
    if (static_cast<uint64_t>(key) >> known != begins) return;
    const uint32_t digit = static_cast<uint32_t>(key >> shift) & ((1u << kNextBits) - 1);
    // Equal elements, of which a tensor may be full, are added by one lane for all.
    const uint32_t same = __match_any_sync(__activemask(), digit);
    if (threadIdx.x % 32 == __ffs(same) - 1) atomicAdd(histogram + digit, static_cast<uint32_t>(__popc(same)));
  });
  if (is_last_block(state->done + pass)) find_digit(histogram, int64_t{1} << kNextBits, shift, rank, shift == 0, state);
}

// Where only some of the elements that equal the threshold are kept: the index of the last of them. Each block counts those of a
// chunk; the last block finds the chunk and then the element.
template <class Key>
__global__ __launch_bounds__(kTieThreads) void find_last_tie(const Key* w, int64_t n, Key infinity, uint32_t* ties, State* state) {
  if (state->last != -1) return;
  const Key threshold = static_cast<Key>(state->threshold);
  const uint32_t rank = state->rank;
  const int64_t begin = blockIdx.x * kChunk, end = begin + kChunk < n ? begin + kChunk : n;
  uint32_t mine = 0;
  each_magnitude(w, begin, end, infinity, threadIdx.x, kTieThreads, [&](int64_t, Key key) { mine += key == threshold; });
  const uint32_t before = sum_before<kTieThreads>(mine);
  if (threadIdx.x == kTieThreads - 1) ties[blockIdx.x] = before + mine;
  if (!is_last_block(state->done + kMostPasses)) return;
  __shared__ int64_t chunk;
  __shared__ uint32_t left;
  const auto ties_of = [=](int64_t item) { return __ldcg(ties + item); };
  locate<kTieThreads>(gridDim.x, rank, ties_of, [](int64_t item, uint32_t rest) {
    chunk = item;
    left = rest;
  });
  __syncthreads();
  const int64_t first = chunk * kChunk, items = first + kChunk < n ? kChunk : n - first;
  const auto is_tie = [=](int64_t item) { return static_cast<uint32_t>(magnitude(w[first + item], infinity) == threshold); };
  locate<kTieThreads>(items, left, is_tie, [=](int64_t item, uint32_t) { state->last = first + item; });
}

// Leaves threshold and last in `state`, which lies at the front of `scratch`.
template <class Key>
void find_threshold(const Key* w, const Choice& choice, unsigned char* scratch, cudaStream_t stream) {
  State* state = reinterpret_cast<State*>(scratch);
  uint32_t* histogram = reinterpret_cast<uint32_t*>(scratch + kStateBytes);
  const Key infinity = static_cast<Key>(choice.infinity);
  cudaMemsetAsync(scratch, 0, zeroed_bytes(sizeof(Key)), stream);
  // A block of the first histogram takes most of a multiprocessor's shared memory.
  const int64_t needed = ceil_div(choice.n * static_cast<int64_t>(sizeof(Key)), kHistogramThreads * 32);
  const int64_t once = warpwatch::multiprocessors(), blocks = needed < once ? needed : once;
  cudaFuncSetAttribute(first_histogram<Key>, cudaFuncAttributeMaxDynamicSharedMemorySize, kFirstBytes);
  int shift = (passes_of(sizeof(Key)) - 1) * kNextBits;
  const uint32_t keep = static_cast<uint32_t>(choice.keep);
  first_histogram<<<blocks, kHistogramThreads, kFirstBytes, stream>>>(w, choice.n, infinity, keep, shift, histogram, state);
  histogram += bins_of(0);
  if constexpr (sizeof(Key) > 2) {
    for (int pass = 1; pass < passes_of(sizeof(Key)); ++pass, histogram += bins_of(pass)) {
      shift -= kNextBits;
      next_histogram<<<blocks, kHistogramThreads, 0, stream>>>(w, choice.n, infinity, shift, pass, histogram, state);
    }
  }
  find_last_tie<<<ceil_div(choice.n, kChunk), kTieThreads, 0, stream>>>(w, choice.n, infinity, histogram, state);
}

}  // namespace magnitude_prune
