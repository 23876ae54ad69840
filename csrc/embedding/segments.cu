// Sums of the gradients of equal indices, once the indices are sorted: the same bits every time, and each row of the result is written
// once, with a sum or with zeros.
//
// An index that occurs thousands of times would keep one warp busy while all others wait. So whole chunks of one index are summed first, by
// as many warps as there are chunks, and the warp of the row adds up those sums and what lies before and behind them.
#include <algorithm>

#include "common/launch.cuh"
#include "common/wide.cuh"
#include "embedding/embedding.h"

namespace {

using embedding::kChunk;
using embedding::Shape;
using warpwatch::Bf16;
using warpwatch::ceil_div;
using warpwatch::F16;
using warpwatch::narrow;
using warpwatch::Pack;
using warpwatch::Wide;
using warpwatch::widen;

constexpr int kWarp = 32;
constexpr int kWarps = 8;
constexpr int kChunkAhead = 8;   // Rows of gradients that a lane loads before it adds the first, in a chunk
constexpr int kAhead = 4;        // and in a row, where more blocks at once matter more;
constexpr int kSumsAhead = 2;    // sums of chunks are wider.
constexpr int kRowsPerWarp = 4;  // Rows of the result that a warp writes, most of which hold zeros.
constexpr int64_t kLargestGridY = 65535;

// starts[v] = how many of the sorted indices are less than v.
__global__ void find_starts(Shape shape, const int32_t* sorted, int32_t* starts) {
  const int64_t v = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (v > shape.rows) return;
  int64_t low = 0, high = shape.count;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (sorted[middle] < v) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  starts[v] = static_cast<int32_t>(low);
}

// sum += row_of(i)[pack p] for i in [begin, end), added in this order.
template <int V, class T, int Ahead, class RowOf>
__device__ void add_rows(Wide<T> (&sum)[V], int64_t begin, int64_t end, int64_t p, const RowOf& row_of) {
#pragma unroll 1
  for (int64_t first = begin; first < end; first += Ahead) {
    Pack<T, V> packs[Ahead];
#pragma unroll
    for (int i = 0; i < Ahead; ++i)
      if (first + i < end) packs[i] = reinterpret_cast<const Pack<T, V>*>(row_of(first + i))[p];
#pragma unroll
    for (int i = 0; i < Ahead; ++i)
      if (first + i < end)
#pragma unroll
        for (int e = 0; e < V; ++e) sum[e] += widen(packs[i].element[e]);
  }
}

// partial[c] = the sum of chunk c of the sorted indices, where all of it is one index; other chunks are left alone.
template <int V, class T>
__global__ void __launch_bounds__(kWarp* kWarps) sum_chunks(Shape shape, const T* gradient, const int32_t* sorted, const int64_t* order,
                                                            Wide<T>* partial) {
  const int64_t chunk = int64_t{blockIdx.x} * kWarps + threadIdx.y, begin = chunk * kChunk, end = begin + kChunk;
  if (end > shape.count || sorted[begin] != sorted[end - 1]) return;
  const int64_t packs = shape.width / V;
  for (int64_t p = int64_t{blockIdx.y} * kWarp + threadIdx.x; p < packs; p += int64_t{gridDim.y} * kWarp) {
    Wide<T> sum[V] = {};
    add_rows<V, T, kChunkAhead>(sum, begin, end, p, [&](int64_t j) { return gradient + order[j] * shape.width; });
#pragma unroll
    for (int e = 0; e < V; ++e) partial[chunk * shape.width + p * V + e] = sum[e];
  }
}

// Pack p of the sum over sorted places [begin, end), which hold one index.
template <int V, class T>
__device__ Pack<T, V> sum_row(const Shape& shape, const T* gradient, const int64_t* order, const Wide<T>* partial, int64_t begin,
                              int64_t end, int64_t p) {
  const auto row_of = [&](int64_t j) { return gradient + order[j] * shape.width; };
  const int64_t first_chunk = ceil_div(begin, kChunk), last_chunk = end / kChunk;
  const bool chunks = first_chunk < last_chunk;
  Wide<T> sum[V] = {};
  add_rows<V, T, kAhead>(sum, begin, chunks ? first_chunk * kChunk : end, p, row_of);
  if (chunks) {
    add_rows<V, Wide<T>, kSumsAhead>(sum, first_chunk, last_chunk, p, [&](int64_t chunk) { return partial + chunk * shape.width; });
    add_rows<V, T, kAhead>(sum, last_chunk * kChunk, end, p, row_of);
  }
  Pack<T, V> pack;
#pragma unroll
  for (int e = 0; e < V; ++e) pack.element[e] = narrow<T>(sum[e]);
  return pack;
}

template <int V, class T>
__global__ void __launch_bounds__(kWarp* kWarps, 3) sum_rows(Shape shape, const T* gradient, const int64_t* order, const int32_t* starts,
                                                          const Wide<T>* partial, T* out) {
  const int64_t first = (int64_t{blockIdx.x} * kWarps + threadIdx.y) * kRowsPerWarp, packs = shape.width / V;
  // Loads all bounds at once, lane i that of row i: one after the other, each load would wait for the last.
  const int64_t mine = first + min(static_cast<int>(threadIdx.x), kRowsPerWarp);
  const int32_t bound = starts[mine < shape.rows ? mine : shape.rows];
#pragma unroll 1
  for (int i = 0; i < kRowsPerWarp; ++i) {
    const int64_t v = first + i;
    if (v >= shape.rows) return;
    const int32_t begin = __shfl_sync(~0u, bound, i), next = __shfl_sync(~0u, bound, i + 1);
    const int32_t end = v == shape.padding ? begin : next;
    auto* to = reinterpret_cast<Pack<T, V>*>(out + v * shape.width);
    for (int64_t p = int64_t{blockIdx.y} * kWarp + threadIdx.x; p < packs; p += int64_t{gridDim.y} * kWarp)
      to[p] = sum_row<V, T>(shape, gradient, order, partial, begin, end, p);
  }
}

template <int V, class T>
void launch(const Shape& shape, const T* gradient, const int32_t* sorted, const int64_t* order, int32_t* starts, Wide<T>* partial, T* out,
            cudaStream_t stream) {
  const dim3 block(kWarp, kWarps);
  const auto parts = static_cast<unsigned>(std::min(ceil_div(shape.width / V, kWarp), kLargestGridY));
  find_starts<<<static_cast<unsigned>(ceil_div(shape.rows + 1, 256)), 256, 0, stream>>>(shape, sorted, starts);
  const int64_t chunks = shape.count / kChunk;
  if (chunks > 0) {
    const auto blocks = static_cast<unsigned>(ceil_div(chunks, kWarps));
    sum_chunks<V, T><<<dim3(blocks, parts), block, 0, stream>>>(shape, gradient, sorted, order, partial);
  }
  const auto blocks = static_cast<unsigned>(ceil_div(shape.rows, kWarps * kRowsPerWarp));
  sum_rows<V, T><<<dim3(blocks, parts), block, 0, stream>>>(shape, gradient, order, starts, partial, out);
}

}  // namespace

template <class T, class W>
const char* embedding::sum_sorted_on(const Shape& shape, const T* gradient, const int32_t* sorted, const int64_t* order, int32_t* starts,
                                     W* partial, T* out, void* stream) {
  // Double precision is for checking, and kernels cost compile time.
  constexpr int V = sizeof(T) == 8 ? 1 : 16 / sizeof(T);
  const bool packs = shape.width % V == 0 && warpwatch::aligned16(gradient) && warpwatch::aligned16(out) && warpwatch::aligned16(partial);
  if (packs) {
    launch<V, T>(shape, gradient, sorted, order, starts, partial, out, warpwatch::as_stream(stream));
  } else {
    launch<1, T>(shape, gradient, sorted, order, starts, partial, out, warpwatch::as_stream(stream));
  }
  return warpwatch::launch_error();
}

template const char* embedding::sum_sorted_on(const Shape&, const float*, const int32_t*, const int64_t*, int32_t*, float*, float*, void*);
template const char* embedding::sum_sorted_on(const Shape&, const double*, const int32_t*, const int64_t*, int32_t*, double*, double*,
                                              void*);
template const char* embedding::sum_sorted_on(const Shape&, const Bf16*, const int32_t*, const int64_t*, int32_t*, float*, Bf16*, void*);
template const char* embedding::sum_sorted_on(const Shape&, const F16*, const int32_t*, const int64_t*, int32_t*, float*, F16*, void*);
