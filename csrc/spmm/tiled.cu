// Blocks of 64 rows of A at once, tile by tile of 64 of its columns. The rows of b that a tile needs are staged in shared memory
// and used by every row of the block, where a warp per row fetches them from the L2 each time.
#include <algorithm>

#include "common/machine.cuh"
#include "spmm/device.cuh"

namespace {

using spmm::kAllLanes;
using spmm::kGroup;
using spmm::kTile;
using spmm::kWarp;
using spmm::kWide;
using spmm::Pattern;
using spmm::Vector;
using warpwatch::ceil_div;

constexpr int kBlockRows = 64;
constexpr int kTileRows = static_cast<int>(kTile);

// ---- Where each row's entries of each tile begin ----

constexpr int kInspectThreads = 256;

__global__ void spmm_inspect(Pattern a, int32_t* starts, int64_t tiles) {
  const int64_t i = int64_t{blockIdx.x} * kInspectThreads + threadIdx.x;
  const int64_t row = i / (tiles + 1), column = i % (tiles + 1) * kTile;
  if (row >= a.rows) return;
  int low = a.crow[row], high = a.crow[row + 1];
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (a.col[middle] < column)
      low = middle + 1;
    else
      high = middle;
  }
  starts[i] = low;
}

// ---- y = A b ----

constexpr int kWarps = 16;
constexpr int kRowsEach = kBlockRows / kWarps;

// An entry of A with its column counted from the tile's first.
template <class T>
struct alignas(2 * sizeof(T)) Entry {
  int column;
  T value;
};

// dense: two tiles, one in use while the next one arrives. entries: up to 32 of each row, which its warp alone writes and reads.
template <class T, int V>
struct TiledShared {
  Vector<T, V> dense[2][kTileRows][kWarp];
  Entry<T> entries[kBlockRows][kWarp];
};

template <class T, int V>
__device__ inline void copy_vector(Vector<T, V>* to, const T* from) {
  if constexpr (V > 1) {
    warpwatch::copy16(to, from, true);
  } else if constexpr (sizeof(T) == 4) {
    warpwatch::copy4(to, from, true);
  } else {
    to->element[0] = *from;
  }
}

// Starts copying rows [first, first + 64) of b, columns [j, j + 32 V). What lies beside b is left as it is, and never used.
template <class T, int V>
__device__ void stage(Vector<T, V> (*to)[kWarp], const T* b, int64_t first, int64_t rows, int64_t j, int64_t n) {
  const int lane = threadIdx.x % kWarp;
  for (int r = threadIdx.x / kWarp; r < kTileRows; r += kWarps)
    if (first + r < rows && j + lane * V < n) copy_vector(&to[r][lane], b + (first + r) * n + j + lane * V);
  warpwatch::close_copies();
}

// A row's entries in the tile at hand, of which lane l holds entry begin + l.
template <class T>
struct Batch {
  int begin, end, column;
  T value;
};

template <class T>
__device__ inline void fetch(Batch<T>& batch, const Pattern& a, const T* values) {
  const int mine = batch.begin + static_cast<int>(threadIdx.x) % kWarp;
  if (mine < batch.end) {
    batch.column = a.col[mine];
    batch.value = values[mine];
  }
}

// The next tile's entries begin where this tile's end.
template <class T>
__device__ inline void advance(Batch<T>& batch, int64_t row, const Pattern& a, const int32_t* starts, int64_t tiles, int64_t tile,
                               const T* values) {
  if (row >= a.rows) return;
  batch.begin = batch.end;
  batch.end = starts[row * (tiles + 1) + tile + 1];
  fetch(batch, a, values);
}

template <class T>
__device__ inline void share(Entry<T>* entries, const Batch<T>& batch, int first_column) {
  entries[threadIdx.x % kWarp] = {batch.column - first_column, batch.value};
}

// sum += the first `count` of the shared entries' multiples of rows of the tile.
template <class T, int V>
__device__ inline void multiply(Vector<T, V>& sum, const Entry<T>* entries, int count, const Vector<T, V> (*dense)[kWarp]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    const Entry<T> entry = entries[i];
    multiply_add(sum, entry.value, dense[entry.column][lane]);
  }
}

template <class T, int V>
__global__ void __launch_bounds__(kWarps* kWarp, 2)
    spmm_tiled(Pattern a, const int32_t* starts, const T* values, const T* b, T* y, int64_t n, int64_t tiles) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<TiledShared<T, V>*>(memory);
  const int lane = threadIdx.x % kWarp, first_row = threadIdx.x / kWarp * kRowsEach;
  const int64_t row = int64_t{blockIdx.x} * kBlockRows + first_row;
  const int64_t j = int64_t{blockIdx.y} * kWarp * V;
  Vector<T, V> sum[kRowsEach] = {};
  Batch<T> next[kRowsEach] = {};
  stage(shared.dense[0], b, 0, a.columns, j, n);
#pragma unroll
  for (int i = 0; i < kRowsEach; ++i) {
    if (row + i < a.rows) next[i].end = starts[(row + i) * (tiles + 1)];
    advance(next[i], row + i, a, starts, tiles, 0, values);
  }
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int first_column = static_cast<int>(tile * kTile);
    const bool last = tile + 1 == tiles;
    if (!last) stage(shared.dense[(tile + 1) % 2], b, (tile + 1) * kTile, a.columns, j, n);
    int begin[kRowsEach], end[kRowsEach];
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      share(shared.entries[first_row + i], next[i], first_column);
      begin[i] = next[i].begin;
      end[i] = next[i].end;
      // The next tile's entries are on their way while this one is worked on.
      if (!last) advance(next[i], row + i, a, starts, tiles, tile + 1, values);
    }
    last ? warpwatch::await_copies<0>() : warpwatch::await_copies<1>();
    __syncthreads();
    const Vector<T, V>(*dense)[kWarp] = shared.dense[tile % 2];
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      Entry<T>* entries = shared.entries[first_row + i];
      multiply(sum[i], entries, min(kWarp, end[i] - begin[i]), dense);
      // A tile's row may have up to 64 entries.
      if (end[i] - begin[i] > kWarp) {
        Batch<T> rest = {begin[i] + kWarp, end[i], 0, T{0}};
        fetch(rest, a, values);
        __syncwarp();
        share(entries, rest, first_column);
        __syncwarp();
        multiply(sum[i], entries, rest.end - rest.begin, dense);
      }
    }
    __syncthreads();
  }
  if (j + lane * V >= n) return;
#pragma unroll
  for (int i = 0; i < kRowsEach; ++i)
    if (row + i < a.rows) *reinterpret_cast<Vector<T, V>*>(y + (row + i) * n + j + lane * V) = sum[i];
}

template <class T, int V>
const char* tiled_as(const Pattern& a, const int32_t* starts, const T* values, const T* b, T* y, int64_t n, cudaStream_t stream) {
  const int64_t columns = ceil_div(n, kWarp * V);
  if (columns > 65535) return "the dense operand has more columns than a grid has blocks";
  constexpr int bytes = sizeof(TiledShared<T, V>);
  const auto kernel = spmm_tiled<T, V>;
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return warpwatch::words_of(error);
  const dim3 grid(ceil_div(a.rows, kBlockRows), columns);
  kernel<<<grid, kWarps * kWarp, bytes, stream>>>(a, starts, values, b, y, n, spmm::tiles_of(a.columns));
  return warpwatch::launch_error();
}

template <class T>
const char* tiled(const Pattern& a, const int32_t* starts, const T* values, const T* b, T* y, int64_t n, cudaStream_t stream) {
  if (a.rows == 0 || n == 0) return nullptr;
  if (a.columns == 0) {
    const cudaError_t error = cudaMemsetAsync(y, 0, a.rows * n * sizeof(T), stream);
    return warpwatch::words_of(error);
  }
  return spmm::takes_vectors(n, b, y) ? tiled_as<T, kWide<T>>(a, starts, values, b, y, n, stream)
                                      : tiled_as<T, 1>(a, starts, values, b, y, n, stream);
}

// ---- d[p] = g[row of p] . b[col[p]] ----

constexpr int kDotWarps = 8;
constexpr int kParts = 4;  // Vectors that a lane holds of a row of g.

// One block per tile of 64 rows and 64 columns of A. It loops over the dense columns in chunks of 32 V; after the first chunk it
// adds to what it wrote before, which no other thread touches.
template <class T, int V>
__global__ void __launch_bounds__(kDotWarps* kWarp)
    spmm_tiled_dots(Pattern a, const int32_t* starts, const T* g, const T* b, T* d, int64_t n, int64_t tiles) {
  __shared__ Vector<T, V> dense[kTileRows][kWarp];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, group = lane / kGroup, member = lane % kGroup;
  const int64_t tile = blockIdx.x % tiles, first_row = blockIdx.x / tiles * kBlockRows;
  const int first_column = static_cast<int>(tile * kTile);
  for (int64_t chunk = 0; chunk < n; chunk += kWarp * V) {
    __syncthreads();
    for (int r = warp; r < kTileRows; r += kDotWarps) {
      const int64_t from = (first_column + r) * n + chunk + lane * V;
      Vector<T, V> v = {};
      if (first_column + r < a.columns && chunk + lane * V < n) v = spmm::load<T, V>(b + from);
      dense[r][lane] = v;
    }
    __syncthreads();
    for (int r = warp; r < kBlockRows; r += kDotWarps) {
      const int64_t row = first_row + r;
      if (row >= a.rows) break;
      const int end = starts[row * (tiles + 1) + tile + 1];
      int p = starts[row * (tiles + 1) + tile];
      if (p >= end) continue;
      Vector<T, V> mine[kParts] = {};
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        const int64_t j = chunk + (i * kGroup + member) * V;
        if (j < n) mine[i] = spmm::load<T, V>(g + row * n + j);
      }
      for (p += group; p - group < end; p += kWarp / kGroup) {
        T sum = 0;
        if (p < end) {
          const Vector<T, V>* theirs = dense[a.col[p] - first_column];
#pragma unroll
          for (int i = 0; i < kParts; ++i) {
            const Vector<T, V> v = theirs[i * kGroup + member];
#pragma unroll
            for (int e = 0; e < V; ++e) sum += mine[i].element[e] * v.element[e];
          }
        }
        sum = spmm::group_sum(sum);
        if (p < end && member == 0) d[p] = chunk == 0 ? sum : d[p] + sum;
      }
    }
  }
}

template <class T>
const char* tiled_dots(const Pattern& a, const int32_t* starts, const T* g, const T* b, T* d, int64_t n, cudaStream_t stream) {
  const int64_t tiles = spmm::tiles_of(a.columns);
  const int64_t blocks = ceil_div(a.rows, kBlockRows) * tiles;
  if (blocks == 0) return nullptr;
  if (blocks > INT32_MAX) return "A has more tiles than a grid has blocks";
  if (spmm::takes_vectors(n, g, b))
    spmm_tiled_dots<T, kWide<T>><<<blocks, kDotWarps * kWarp, 0, stream>>>(a, starts, g, b, d, n, tiles);
  else
    spmm_tiled_dots<T, 1><<<blocks, kDotWarps * kWarp, 0, stream>>>(a, starts, g, b, d, n, tiles);
  return warpwatch::launch_error();
}

}  // namespace

const char* spmm::inspect_on(const Pattern& a, int32_t* starts, void* stream) {
  const int64_t tiles = tiles_of(a.columns);
  const int64_t blocks = ceil_div(a.rows * (tiles + 1), kInspectThreads);
  if (blocks == 0) return nullptr;
  if (blocks > INT32_MAX) return "A has more tiles than a grid has threads";
  spmm_inspect<<<blocks, kInspectThreads, 0, warpwatch::as_stream(stream)>>>(a, starts, tiles);
  return warpwatch::launch_error();
}

const char* spmm::tiled_on(const Pattern& a, const int32_t* starts, const float* values, const float* b, float* y, int64_t n,
                           void* stream) {
  return tiled(a, starts, values, b, y, n, warpwatch::as_stream(stream));
}

const char* spmm::tiled_on(const Pattern& a, const int32_t* starts, const double* values, const double* b, double* y, int64_t n,
                           void* stream) {
  return tiled(a, starts, values, b, y, n, warpwatch::as_stream(stream));
}

const char* spmm::tiled_dots_on(const Pattern& a, const int32_t* starts, const float* g, const float* b, float* d, int64_t n,
                                void* stream) {
  return tiled_dots(a, starts, g, b, d, n, warpwatch::as_stream(stream));
}

const char* spmm::tiled_dots_on(const Pattern& a, const int32_t* starts, const double* g, const double* b, double* d, int64_t n,
                                void* stream) {
  return tiled_dots(a, starts, g, b, d, n, warpwatch::as_stream(stream));
}
