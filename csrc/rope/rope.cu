// Turns pairs of elements by the angle of their position, queries and keys in one launch.
//
// A unit is V pairs of one row: two packs of V elements of x, and as many of cos and sin. In the half form the packs lie dim / 2 apart,
// interleaved they lie side by side and hold the pairs in turn.
#include <algorithm>
#include <iterator>

#include "common/launch.cuh"
#include "common/machine.cuh"
#include "common/wide.cuh"
#include "rope/rope.h"

namespace {

using rope::Call;
using rope::Shape;
using rope::Version;
using warpwatch::ceil_div;
using warpwatch::narrow;
using warpwatch::Pack;
using warpwatch::Wide;
using warpwatch::widen;

constexpr int kWarp = 32;
constexpr int kLargestBlock = 512;
constexpr int kBlock = 256;
constexpr int kAhead = 4;  // Heads that a thread loads before it stores the first: enough bytes under way to hide the memory's latency.

// First and second members of V pairs.
template <class T, int V>
struct Pairs {
  Wide<T> first[V], second[V];
};

template <class T, int V>
struct Packs {
  Pack<T, V> low, high;
};

// Where the packs of unit u of a row lie.
template <int V, bool kInterleaved>
__device__ int low_of(int u) {
  return kInterleaved ? 2 * V * u : V * u;
}

template <class T, int V, bool kInterleaved>
__device__ Packs<T, V> load(const T* row, int u, int half) {
  const T* low = row + low_of<V, kInterleaved>(u);
  return {*reinterpret_cast<const Pack<T, V>*>(low), *reinterpret_cast<const Pack<T, V>*>(low + (kInterleaved ? V : half))};
}

// Element e of the two packs taken as one list.
template <class T, int V>
__device__ T& element_of(Packs<T, V>& packs, int e) {
  return e < V ? packs.low.element[e] : packs.high.element[e - V];
}

template <class T, int V, bool kInterleaved>
__device__ Pairs<T, V> pairs_of(Packs<T, V> packs) {
  Pairs<T, V> pairs;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    pairs.first[i] = widen(element_of<T, V>(packs, kInterleaved ? 2 * i : i));
    pairs.second[i] = widen(element_of<T, V>(packs, kInterleaved ? 2 * i + 1 : i + V));
  }
  return pairs;
}

template <class T, int V, bool kInterleaved>
__device__ void store(T* row, int u, int half, const Pairs<T, V>& pairs) {
  Packs<T, V> packs;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    element_of<T, V>(packs, kInterleaved ? 2 * i : i) = narrow<T>(pairs.first[i]);
    element_of<T, V>(packs, kInterleaved ? 2 * i + 1 : i + V) = narrow<T>(pairs.second[i]);
  }
  T* low = row + low_of<V, kInterleaved>(u);
  *reinterpret_cast<Pack<T, V>*>(low) = packs.low;
  *reinterpret_cast<Pack<T, V>*>(low + (kInterleaved ? V : half)) = packs.high;
}

// The matrices of V pairs: (first, second) becomes (cos.first * first - sin.first * second, cos.second * second + sin.second * first).
template <class T, int V>
struct Turn {
  Pairs<T, V> cos, sin;

  __device__ Pairs<T, V> operator()(const Pairs<T, V>& x) const {
    Pairs<T, V> y;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      y.first[i] = cos.first[i] * x.first[i] - sin.first[i] * x.second[i];
      y.second[i] = cos.second[i] * x.second[i] + sin.second[i] * x.first[i];
    }
    return y;
  }
};

template <class T, int V, bool kInterleaved>
__device__ Turn<T, V> turn_of(const Shape& shape, const Call<T>& call, int64_t row, int u) {
  const int half = static_cast<int>(shape.dim / 2);
  Turn<T, V> turn{pairs_of<T, V, kInterleaved>(load<T, V, kInterleaved>(call.cos + row * shape.dim, u, half)),
                  pairs_of<T, V, kInterleaved>(load<T, V, kInterleaved>(call.sin + row * shape.dim, u, half))};
  if (shape.transposed) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const Wide<T> first = turn.sin.first[i];
      turn.sin.first[i] = -turn.sin.second[i];
      turn.sin.second[i] = -first;
    }
  }
  return turn;
}

// Row of the tables for position `place` of all batch * length; a wrong one stops the kernel, as torch's own indexing does.
template <class T>
__device__ int64_t table_row(const Shape& shape, const Call<T>& call, uint32_t place) {
  const int64_t row = call.positions ? call.positions[place] : place % static_cast<uint32_t>(shape.length);
  if (row < 0 || row >= shape.table) __trap();
  return row;
}

// First element of head `head` at a position, counted from the start of queries or keys.
__device__ inline int64_t row_start(const Shape& shape, uint32_t place, int64_t head, int64_t heads) {
  const int64_t batch = place / static_cast<uint32_t>(shape.length), position = place % static_cast<uint32_t>(shape.length);
  const int64_t row = shape.heads_first ? (batch * heads + head) * shape.length + position : int64_t{place} * heads + head;
  return row * shape.dim;
}

// One block per position, its threads over all units of all heads: each unit reads the tables anew, from the first-level cache.
template <class T, int V, bool kInterleaved>
__global__ void __launch_bounds__(kLargestBlock) rope_flat(Shape shape, Call<T> call) {
  const uint32_t place = blockIdx.x;
  const int half = static_cast<int>(shape.dim / 2), units = half / V;
  const int total = static_cast<int>(shape.heads[0] + shape.heads[1]) * units;
  const int64_t row = table_row(shape, call, place);
  for (int i = threadIdx.x; i < total; i += blockDim.x) {
    const int u = i % units, head = i / units;
    const bool keys = head >= shape.heads[0];
    const int64_t start = row_start(shape, place, keys ? head - shape.heads[0] : head, shape.heads[keys]);
    const auto x = load<T, V, kInterleaved>(call.in[keys] + start, u, half);
    const auto turn = turn_of<T, V, kInterleaved>(shape, call, row, u);
    store<T, V, kInterleaved>(call.out[keys] + start, u, half, turn(pairs_of<T, V, kInterleaved>(x)));
  }
}

// Threads (unit, head group, position): a thread keeps one unit of the tables in registers and turns that of every blockDim.y-th head.
template <class T, int V, bool kInterleaved>
__global__ void __launch_bounds__(kBlock, 2) rope_table(Shape shape, Call<T> call, uint32_t places) {
  const uint32_t place = blockIdx.x * blockDim.z + threadIdx.z;
  if (place >= places) return;
  const int half = static_cast<int>(shape.dim / 2), u = threadIdx.x;
  const auto turn = turn_of<T, V, kInterleaved>(shape, call, table_row(shape, call, place), u);
#pragma unroll 1
  for (int keys = 0; keys < 2; ++keys) {
    const int heads = static_cast<int>(shape.heads[keys]), step = blockDim.y;
    const int64_t start = row_start(shape, place, 0, heads);
    const int64_t stride = (shape.heads_first ? shape.length : 1) * shape.dim;
    for (int head = threadIdx.y; head < heads; head += kAhead * step) {
      Packs<T, V> x[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (head + i * step < heads) x[i] = load<T, V, kInterleaved>(call.in[keys] + start + (head + i * step) * stride, u, half);
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (head + i * step < heads) {
          const auto y = turn(pairs_of<T, V, kInterleaved>(x[i]));
          store<T, V, kInterleaved>(call.out[keys] + start + (head + i * step) * stride, u, half, y);
        }
    }
  }
}

// ---- The same on whole words: elements of 16 bits stay in pairs, as they are in memory, which takes half the registers ----

// A unit of a row, or of a table: the four words of its first pack and the four of its second.
using Words = uint32_t[8];

// Accesses that leave the caches to the tables, which are read again for other heads.
__device__ inline void read_words(Words& to, const uint4 low, const uint4 high) {
  to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
  to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

__device__ inline void write_words(const Words& from, void* low, void* high) {
  __stcs(static_cast<uint4*>(low), make_uint4(from[0], from[1], from[2], from[3]));
  __stcs(static_cast<uint4*>(high), make_uint4(from[4], from[5], from[6], from[7]));
}

template <class T>
__device__ float2 unpack(uint32_t word) {
  return {warpwatch::to_float(T{static_cast<uint16_t>(word)}), warpwatch::to_float(T{static_cast<uint16_t>(word >> 16)})};
}

__device__ inline void turn_pair(float& first, float& second, float cos_first, float cos_second, float sin_first, float sin_second,
                                 bool transposed) {
  const float up = transposed ? -sin_second : sin_first, down = transposed ? -sin_first : sin_second, before = first;
  first = cos_first * first - up * second;
  second = cos_second * second + down * before;
}

template <class T, bool kInterleaved>
__device__ void turn_words(Words& x, const Words& cos, const Words& sin, bool transposed) {
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int p = kInterleaved ? 2 * i : i, q = kInterleaved ? 2 * i + 1 : i + 4;
      float first = __uint_as_float(x[p]), second = __uint_as_float(x[q]);
      turn_pair(first, second, __uint_as_float(cos[p]), __uint_as_float(cos[q]), __uint_as_float(sin[p]), __uint_as_float(sin[q]),
                transposed);
      x[p] = __float_as_uint(first), x[q] = __float_as_uint(second);
    }
  } else if constexpr (kInterleaved) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float2 pair = unpack<T>(x[i]);
      const float2 c = unpack<T>(cos[i]), s = unpack<T>(sin[i]);
      turn_pair(pair.x, pair.y, c.x, c.y, s.x, s.y, transposed);
      x[i] = warpwatch::pack_pair<T>(pair.x, pair.y);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float2 first = unpack<T>(x[i]), second = unpack<T>(x[i + 4]);
      const float2 c = unpack<T>(cos[i]), d = unpack<T>(cos[i + 4]), s = unpack<T>(sin[i]), r = unpack<T>(sin[i + 4]);
      turn_pair(first.x, second.x, c.x, d.x, s.x, r.x, transposed);
      turn_pair(first.y, second.y, c.y, d.y, s.y, r.y, transposed);
      x[i] = warpwatch::pack_pair<T>(first.x, first.y), x[i + 4] = warpwatch::pack_pair<T>(second.x, second.y);
    }
  }
}

constexpr int kWordsBlock = 160, kWordsBlocksEach = 7;  // Threads of a block, and blocks that a multiprocessor can hold.
constexpr int kWordsHeads = 2;  // Heads of a thread, of which it loads all at once: queries first and keys behind them.

// Threads (unit, head group, position), and blocks along y for further head groups.
template <class T, bool kInterleaved>
__global__ void __launch_bounds__(kWordsBlock, kWordsBlocksEach)
    rope_words(const __grid_constant__ Shape shape, const __grid_constant__ Call<T> call, uint32_t places) {
  constexpr int V = 16 / sizeof(T);
  const uint32_t place = blockIdx.x * blockDim.z + threadIdx.z;
  if (place >= places) return;
  const int apart = kInterleaved ? V : static_cast<int>(shape.dim / 2), low = low_of<V, kInterleaved>(threadIdx.x);
  const int queries = static_cast<int>(shape.heads[0]), heads = queries + static_cast<int>(shape.heads[1]);
  const int step = static_cast<int>(blockDim.y * gridDim.y), first = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
  const auto offset = [&](int head, bool keys) {
    const int own = keys ? head - queries : head, all = keys ? heads - queries : queries;
    return (shape.heads_first ? row_start(shape, place, own, all) : (int64_t{place} * all + own) * shape.dim) + low;
  };
  Words x[kWordsHeads], cos, sin;
#pragma unroll
  for (int i = 0; i < kWordsHeads; ++i) {
    const int head = first + i * step;
    const bool keys = head >= queries;
    if (head >= heads) continue;
    const T* from = (keys ? call.in[1] : call.in[0]) + offset(head, keys);
    read_words(x[i], __ldcs(reinterpret_cast<const uint4*>(from)), __ldcs(reinterpret_cast<const uint4*>(from + apart)));
  }
  const int64_t table = table_row(shape, call, place) * shape.dim + low;
  const auto of_table = [&](const T* from) { return *reinterpret_cast<const uint4*>(from + table); };
  read_words(cos, of_table(call.cos), of_table(call.cos + apart));
  read_words(sin, of_table(call.sin), of_table(call.sin + apart));
#pragma unroll
  for (int i = 0; i < kWordsHeads; ++i) {
    const int head = first + i * step;
    const bool keys = head >= queries;
    if (head >= heads) continue;
    turn_words<T, kInterleaved>(x[i], cos, sin, shape.transposed);
    T* to = (keys ? call.out[1] : call.out[0]) + offset(head, keys);
    write_words(x[i], to, to + apart);
  }
}

template <class T, bool kInterleaved>
void launch_words(const Shape& shape, const Call<T>& call, cudaStream_t stream) {
  const auto places = static_cast<uint32_t>(shape.batch * shape.length);
  const auto units = static_cast<unsigned>(shape.dim / 2 / (16 / sizeof(T)));
  const int64_t groups = ceil_div(shape.heads[0] + shape.heads[1], kWordsHeads);
  const auto y = static_cast<unsigned>(std::max<int64_t>(1, std::min<int64_t>(groups, kWordsBlock / units)));
  const unsigned z = std::max(1u, std::min(64u, kWordsBlock / (units * y)));
  const dim3 blocks(static_cast<unsigned>(ceil_div(places, z)), static_cast<unsigned>(ceil_div(groups, y)));
  rope_words<T, kInterleaved><<<blocks, dim3(units, y, z), 0, stream>>>(shape, call, places);
}

template <class T, int V, bool kInterleaved>
void launch_flat(const Shape& shape, const Call<T>& call, cudaStream_t stream) {
  const int64_t units = (shape.heads[0] + shape.heads[1]) * (shape.dim / 2 / V);
  const int threads = static_cast<int>(std::min<int64_t>(kLargestBlock, ceil_div(units, kWarp) * kWarp));
  rope_flat<T, V, kInterleaved><<<static_cast<unsigned>(shape.batch * shape.length), threads, 0, stream>>>(shape, call);
}

template <class T, int V, bool kInterleaved>
void launch_table(const Shape& shape, const Call<T>& call, cudaStream_t stream) {
  const auto places = static_cast<uint32_t>(shape.batch * shape.length);
  const unsigned units = static_cast<unsigned>(shape.dim / 2 / V);
  // As few head groups as leave every thread kAhead heads, so that the tables are read seldom.
  const int64_t groups = ceil_div(std::max(shape.heads[0], shape.heads[1]), kAhead);
  const unsigned y = static_cast<unsigned>(std::max<int64_t>(1, std::min<int64_t>(groups, kBlock / units)));
  const unsigned z = std::max(1u, std::min(64u, kBlock / (units * y)));
  const auto blocks = static_cast<unsigned>(ceil_div(places, z));
  rope_table<T, V, kInterleaved><<<blocks, dim3(units, y, z), 0, stream>>>(shape, call, places);
}

// Whether every row can be moved in packs of 16 bytes.
template <class T>
bool in_packs(const Shape& shape, const Call<T>& call) {
  const void* pointers[] = {call.in[0], call.in[1], call.out[0], call.out[1], call.cos, call.sin};
  return shape.dim / 2 % (16 / sizeof(T)) == 0 && std::all_of(std::begin(pointers), std::end(pointers), warpwatch::aligned16);
}

template <class T, bool kInterleaved>
void launch(Version version, const Shape& shape, const Call<T>& call, cudaStream_t stream) {
  // Double precision is for checking, and kernels cost compile time.
  if constexpr (sizeof(T) < 8) {
    constexpr int V = 16 / sizeof(T);
    const bool packs = in_packs(shape, call);
    if (packs && version == Version::words && shape.dim / 2 / V <= kWordsBlock) return launch_words<T, kInterleaved>(shape, call, stream);
    if (packs && version == Version::table && shape.dim / 2 / V <= kBlock) return launch_table<T, V, kInterleaved>(shape, call, stream);
    if (packs) return launch_flat<T, V, kInterleaved>(shape, call, stream);
  }
  launch_flat<T, 1, kInterleaved>(shape, call, stream);
}

}  // namespace

template <class T>
const char* rope::apply_on(Version version, const Shape& shape, const Call<T>& call, void* stream) {
  if (shape.interleaved) {
    launch<T, true>(version, shape, call, warpwatch::as_stream(stream));
  } else {
    launch<T, false>(version, shape, call, warpwatch::as_stream(stream));
  }
  return warpwatch::launch_error();
}

template const char* rope::apply_on(Version, const Shape&, const Call<float>&, void*);
template const char* rope::apply_on(Version, const Shape&, const Call<double>&, void*);
template const char* rope::apply_on(Version, const Shape&, const Call<warpwatch::Bf16>&, void*);
template const char* rope::apply_on(Version, const Shape&, const Call<warpwatch::F16>&, void*);
