// Sets elements that are not kept to zero, by a threshold found in select.cuh or by a mask.
#include <algorithm>

#include "magnitude_prune/select.cuh"

using magnitude_prune::Choice;
using magnitude_prune::State;
using warpwatch::ceil_div;
using warpwatch::Vector16;

namespace {

constexpr int kThreads = warpwatch::kStrideThreads;

template <int Size>
struct alignas(Size) Flags {
  bool element[Size];
};

template <class Key>
struct Threshold {
  Key threshold, infinity;
  int64_t last;

  __device__ bool keeps(int64_t i, Key bits) const {
    const Key key = magnitude_prune::magnitude(bits, infinity);
    return key > threshold || (key == threshold && i <= last);
  }
};

// Vectors of 16 bytes, then the rest of n one by one; `Vectors` means that all three are aligned to 16 bytes.
template <class Key, bool Vectors>
__global__ __launch_bounds__(kThreads) void prune(const Key* w, int64_t n, Key infinity, bool none, const State* state, Key* out,
                                                  bool* mask) {
  using Vector = Vector16<Key>;
  Threshold<Key> chosen{static_cast<Key>(~Key{0}), infinity, -1};
  if (!none) chosen = {static_cast<Key>(state->threshold), infinity, state->last};
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x, threads = int64_t{gridDim.x} * kThreads;
  const int64_t vectors = Vectors ? n / Vector::size : 0;
  for (int64_t v = thread; v < vectors; v += threads) {
    Vector values = reinterpret_cast<const Vector*>(w)[v];
    Flags<Vector::size> kept;
#pragma unroll
    for (int e = 0; e < Vector::size; ++e) {
      kept.element[e] = chosen.keeps(v * Vector::size + e, values.element[e]);
      if (!kept.element[e]) values.element[e] = 0;
    }
    reinterpret_cast<Vector*>(out)[v] = values;
    reinterpret_cast<Flags<Vector::size>*>(mask)[v] = kept;
  }
  for (int64_t i = vectors * Vector::size + thread; i < n; i += threads) {
    const Key bits = w[i];
    const bool kept = chosen.keeps(i, bits);
    mask[i] = kept;
    out[i] = kept ? bits : Key{0};
  }
}

template <class Key, bool Vectors>
__global__ __launch_bounds__(kThreads) void select(const Key* g, const bool* mask, int64_t n, Key* out) {
  using Vector = Vector16<Key>;
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x, threads = int64_t{gridDim.x} * kThreads;
  const int64_t vectors = Vectors ? n / Vector::size : 0;
  for (int64_t v = thread; v < vectors; v += threads) {
    Vector values = reinterpret_cast<const Vector*>(g)[v];
    const Flags<Vector::size> kept = reinterpret_cast<const Flags<Vector::size>*>(mask)[v];
#pragma unroll
    for (int e = 0; e < Vector::size; ++e)
      if (!kept.element[e]) values.element[e] = 0;
    reinterpret_cast<Vector*>(out)[v] = values;
  }
  for (int64_t i = vectors * Vector::size + thread; i < n; i += threads) out[i] = mask[i] ? g[i] : Key{0};
}

int64_t blocks_for(int64_t bytes) { return std::max<int64_t>(1, warpwatch::stride_blocks(ceil_div(bytes, 16))); }

bool all_aligned(const void* a, const void* b, const void* c) {
  return warpwatch::aligned16(a) && warpwatch::aligned16(b) && warpwatch::aligned16(c);
}

template <class Key>
void prune_keys(const Choice& choice, const void* w, void* out, bool* mask, void* scratch, cudaStream_t stream) {
  const Key* from = static_cast<const Key*>(w);
  const bool none = choice.keep == 0;
  if (!none) magnitude_prune::find_threshold(from, choice, static_cast<unsigned char*>(scratch), stream);
  const auto kernel = all_aligned(w, out, mask) ? prune<Key, true> : prune<Key, false>;
  kernel<<<blocks_for(choice.n * static_cast<int64_t>(sizeof(Key))), kThreads, 0, stream>>>(
      from, choice.n, static_cast<Key>(choice.infinity), none, static_cast<const State*>(scratch), static_cast<Key*>(out), mask);
}

// A thread for every 16 bytes: there is nothing to keep between them, and a stream of short blocks leaves no gaps.
template <class Key>
void select_keys(int64_t n, const void* g, const bool* mask, void* out, cudaStream_t stream) {
  const auto kernel = all_aligned(g, mask, out) ? select<Key, true> : select<Key, false>;
  const int64_t blocks = std::min<int64_t>(ceil_div(n * static_cast<int64_t>(sizeof(Key)), 16 * kThreads), INT32_MAX);
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(static_cast<const Key*>(g), mask, n, static_cast<Key*>(out));
}

}  // namespace

int64_t magnitude_prune::scratch_bytes(const Choice& choice) {
  return zeroed_bytes(choice.bytes) + ceil_div(choice.n, kChunk) * static_cast<int64_t>(sizeof(uint32_t));
}

const char* magnitude_prune::prune_on(const Choice& choice, const void* w, void* out, bool* mask, void* scratch, void* stream) {
  if (choice.n == 0) return nullptr;
  if (choice.n > UINT32_MAX) return "magnitude_prune takes fewer than 2^32 elements";
  const cudaStream_t on = warpwatch::as_stream(stream);
  if (choice.bytes == 2) prune_keys<uint16_t>(choice, w, out, mask, scratch, on);
  if (choice.bytes == 4) prune_keys<uint32_t>(choice, w, out, mask, scratch, on);
  if (choice.bytes == 8) prune_keys<uint64_t>(choice, w, out, mask, scratch, on);
  return warpwatch::launch_error();
}

const char* magnitude_prune::select_on(int bytes, int64_t n, const void* g, const bool* mask, void* out, void* stream) {
  if (n == 0) return nullptr;
  const cudaStream_t on = warpwatch::as_stream(stream);
  if (bytes == 2) select_keys<uint16_t>(n, g, mask, out, on);
  if (bytes == 4) select_keys<uint32_t>(n, g, mask, out, on);
  if (bytes == 8) select_keys<uint64_t>(n, g, mask, out, on);
  return warpwatch::launch_error();
}
