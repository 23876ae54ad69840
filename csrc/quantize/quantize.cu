// Codes and scales on a GPU. Blocks within a row of whole 16-byte vectors are read and written by neighbouring lanes; whole rows by a
// block of threads; all else, and transposed copies, by tiles in shared memory, so that x is read once.
#include "common/launch.cuh"
#include "common/wide.cuh"
#include "quantize/quantize.h"

namespace {

using quantize::Element;
using quantize::Results;
using quantize::Scale;
using quantize::Shape;
using warpwatch::ceil_div;
using warpwatch::Pack;
using warpwatch::widen;

constexpr int kWarp = 32, kTile = 128, kTileThreads = 256, kRowThreads = 256;
constexpr int kPad = 2;  // A column of a tile then lies in all banks of shared memory.

// Two codes, the first in the low byte (or low four bits), by the instruction of devices that have one.
template <Element E>
__device__ uint32_t encode_pair(float first, float second) {
#if __CUDA_ARCH__ >= 890
  if constexpr (E == Element::e4m3) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
    return pair;
  }
  if constexpr (E == Element::e5m2) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
    return pair;
  }
#endif
  constexpr int kBits = E == Element::e2m1 || E == Element::i4 ? 4 : 8;
  return quantize::encode<E>(first) | (uint32_t{quantize::encode<E>(second)} << kBits);
}

template <bool kE8m0>
__device__ void store_scale(void* scales, int64_t at, const Scale& scale) {
  if constexpr (kE8m0) {
    static_cast<uint8_t*>(scales)[at] = scale.code;
  } else {
    static_cast<float*>(scales)[at] = scale.value;
  }
}

// The largest over groups of Lanes neighbouring lanes, in each of them.
template <int Lanes>
__device__ uint32_t group_max(uint32_t value) {
#pragma unroll
  for (int apart = Lanes / 2; apart > 0; apart /= 2) value = max(value, __shfl_xor_sync(~0u, value, apart));
  return value;
}

// A lane takes 8 numbers; Width / 8 lanes share a scale. Columns are a multiple of Width. All lanes of a warp stay in the loop, since
// they exchange their maxima.
template <class T, Element E, bool kE8m0, int Width>
__global__ void __launch_bounds__(warpwatch::kStrideThreads) blocks_in_rows(const T* x, uint8_t* codes, void* scales, int64_t vectors) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x, rounds = ceil_div(vectors, stride);
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64_t round = 0; round < rounds; ++round, i += stride) {
    const bool inside = i < vectors;
    float value[8];
    uint32_t largest = 0;
    if (inside) {
      const Pack<T, 8> pack = reinterpret_cast<const Pack<T, 8>*>(x)[i];
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        value[e] = widen(pack.element[e]);
        largest = max(largest, quantize::magnitude(value[e]));
      }
    }
    largest = group_max<Width / 8>(largest);
    if (!inside) continue;
    const Scale scale = quantize::scale_of<E, kE8m0>(largest);
    if (i % (Width / 8) == 0) store_scale<kE8m0>(scales, i / (Width / 8), scale);
    if constexpr (quantize::is_packed(E)) {
      uint32_t word = 0;
#pragma unroll
      for (int e = 0; e < 8; e += 2) word |= encode_pair<E>(value[e] * scale.factor, value[e + 1] * scale.factor) << (4 * e);
      reinterpret_cast<uint32_t*>(codes)[i] = word;
    } else {
      uint32_t word[2] = {0, 0};
#pragma unroll
      for (int e = 0; e < 8; e += 2)
        word[e / 4] |= encode_pair<E>(value[e] * scale.factor, value[e + 1] * scale.factor) << (8 * (e % 4));
      reinterpret_cast<uint2*>(codes)[i] = make_uint2(word[0], word[1]);
    }
  }
}

// The largest over the block of threads, in each of them. `of_warp` has a place for each warp.
__device__ uint32_t block_max(uint32_t value, uint32_t* of_warp) {
  value = group_max<kWarp>(value);
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = 0;
  for (int warp = 0; warp < static_cast<int>(blockDim.x) / kWarp; ++warp) value = max(value, of_warp[warp]);
  __syncthreads();
  return value;
}

// A block of threads per row, which reads it twice; the second time from a cache.
template <class T, Element E>
__global__ void __launch_bounds__(kRowThreads) whole_rows(const T* x, uint8_t* codes, float* scales, int64_t rows, int64_t columns) {
  __shared__ uint32_t of_warp[kRowThreads / kWarp];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* from = x + row * columns;
    uint32_t largest = 0;
    for (int64_t c = threadIdx.x; c < columns; c += kRowThreads) largest = max(largest, quantize::magnitude(widen(from[c])));
    const Scale scale = quantize::scale_of<E, false>(block_max(largest, of_warp));
    if (threadIdx.x == 0) scales[row] = scale.value;
    uint8_t* to = codes + row * columns;
    for (int64_t c = threadIdx.x; c < columns; c += kRowThreads)
      to[c] = static_cast<uint8_t>(encode_pair<E>(widen(from[c]) * scale.factor, 0.0f) & 0xff);
  }
}

// The same for rows of whole vectors of 8.
template <class T, Element E>
__global__ void __launch_bounds__(kRowThreads) whole_rows_of_vectors(const T* x, uint8_t* codes, float* scales, int64_t rows,
                                                                     int64_t columns) {
  __shared__ uint32_t of_warp[kRowThreads / kWarp];
  const int64_t vectors = columns / 8;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const Pack<T, 8>* from = reinterpret_cast<const Pack<T, 8>*>(x + row * columns);
    uint32_t largest = 0;
    for (int64_t v = threadIdx.x; v < vectors; v += kRowThreads) {
      const Pack<T, 8> pack = from[v];
#pragma unroll
      for (int e = 0; e < 8; ++e) largest = max(largest, quantize::magnitude(widen(pack.element[e])));
    }
    const Scale scale = quantize::scale_of<E, false>(block_max(largest, of_warp));
    if (threadIdx.x == 0) scales[row] = scale.value;
    uint2* to = reinterpret_cast<uint2*>(codes + row * columns);
    for (int64_t v = threadIdx.x; v < vectors; v += kRowThreads) {
      const Pack<T, 8> pack = from[v];
      uint32_t word[2] = {0, 0};
#pragma unroll
      for (int e = 0; e < 8; e += 2)
        word[e / 4] |= encode_pair<E>(widen(pack.element[e]) * scale.factor, widen(pack.element[e + 1]) * scale.factor) << (8 * (e % 4));
      to[v] = make_uint2(word[0], word[1]);
    }
  }
}

// One line of a tile, a row or a column: the warp's lanes take its numbers in turn. `step` elements lie between two numbers of the
// line; numbers past `count` are zeros of the tile.
template <Element E, bool kE8m0, int Width, class T>
__device__ void quantize_line(const T* line, int step, int count, uint8_t* codes, void* scales, int64_t first_scale) {
  constexpr int kEach = kTile / kWarp;
  const int lane = threadIdx.x % kWarp;
  float value[kEach];
  uint32_t largest[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    value[i] = widen(line[(i * kWarp + lane) * step]);
    largest[i] = group_max<kWarp>(quantize::magnitude(value[i]));
  }
  if constexpr (Width == kTile) {
#pragma unroll
    for (int i = 1; i < kEach; ++i) largest[0] = max(largest[0], largest[i]);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const Scale scale = quantize::scale_of<E, kE8m0>(largest[Width == kTile ? 0 : i]);
    const int at = i * kWarp + lane;
    if (lane == 0 && at < count && (Width == kWarp || i == 0)) store_scale<kE8m0>(scales, first_scale + (Width == kTile ? 0 : i), scale);
    if (at < count) codes[at] = static_cast<uint8_t>(encode_pair<E>(value[i] * scale.factor, 0.0f) & 0xff);
  }
}

// A tile of 128 x 128 per block of threads: with a scale for each Width numbers of a row, and of a column in the transposed copy where
// there is one; or with one scale, which Width 0 stands for.
template <class T, Element E, bool kE8m0, int Width>
__global__ void __launch_bounds__(kTileThreads) tiles(Shape shape, const T* x, Results results) {
  constexpr int kPitch = kTile + (sizeof(T) == 2 ? kPad : 1);
  extern __shared__ __align__(16) unsigned char memory[];
  T* tile = reinterpret_cast<T*>(memory);
  __shared__ uint32_t of_warp[kTileThreads / kWarp];
  const int64_t top = int64_t{blockIdx.y} * kTile, left = int64_t{blockIdx.x} * kTile;
  const int rows = static_cast<int>(min(int64_t{kTile}, shape.rows - top));
  const int columns = static_cast<int>(min(int64_t{kTile}, shape.columns - left));
  uint32_t largest = 0;
  for (int i = threadIdx.x; i < kTile * kTile; i += kTileThreads) {
    const int r = i / kTile, c = i % kTile;
    const T value = r < rows && c < columns ? x[(top + r) * shape.columns + left + c] : T{};
    tile[r * kPitch + c] = value;
    if constexpr (Width == 0) largest = max(largest, quantize::magnitude(widen(value)));
  }
  if constexpr (Width == 0) {
    const Scale scale = quantize::scale_of<E, kE8m0>(block_max(largest, of_warp));
    if (threadIdx.x == 0) store_scale<kE8m0>(results.scales, int64_t{blockIdx.y} * gridDim.x + blockIdx.x, scale);
    for (int i = threadIdx.x; i < kTile * kTile; i += kTileThreads) {
      const int r = i / kTile, c = i % kTile;
      if (r < rows && c < columns)
        results.codes[(top + r) * shape.columns + left + c] =
            static_cast<uint8_t>(encode_pair<E>(widen(tile[r * kPitch + c]) * scale.factor, 0.0f) & 0xff);
    }
  } else {
    __syncthreads();
    constexpr int kWarps = kTileThreads / kWarp;
    const int warp = threadIdx.x / kWarp;
    const int64_t across = ceil_div(shape.columns, Width), down = ceil_div(shape.rows, Width);
    for (int r = warp; r < rows; r += kWarps)
      quantize_line<E, kE8m0, Width>(tile + r * kPitch, 1, columns, results.codes + (top + r) * shape.columns + left, results.scales,
                                     (top + r) * across + left / Width);
    if (results.codes_transposed == nullptr) return;
    for (int c = warp; c < columns; c += kWarps)
      quantize_line<E, kE8m0, Width>(tile + c, kPitch, rows, results.codes_transposed + (left + c) * shape.rows + top,
                                     results.scales_transposed, (left + c) * down + top / Width);
  }
}

constexpr int64_t kLargestGridY = 65535;

template <class T, Element E, bool kE8m0, int Width>
const char* launch_tiles(const Shape& shape, const T* x, const Results& results, void* stream) {
  constexpr int kBytes = kTile * (kTile + (sizeof(T) == 2 ? kPad : 1)) * sizeof(T);
  const int64_t down = ceil_div(shape.rows, kTile);
  if (down > kLargestGridY) return "quantize: more than 8388480 rows";
  if (const char* error = warpwatch::words_of(
          cudaFuncSetAttribute(tiles<T, E, kE8m0, Width>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes)))
    return error;
  const dim3 grid(ceil_div(shape.columns, kTile), down);
  tiles<T, E, kE8m0, Width><<<grid, kTileThreads, kBytes, warpwatch::as_stream(stream)>>>(shape, x, results);
  return warpwatch::launch_error();
}

// Whether 8 numbers can be read at once.
template <class T>
bool has_packs(const T* x) {
  return reinterpret_cast<uintptr_t>(x) % sizeof(Pack<T, 8>) == 0;
}

constexpr const char* kNoSuchBlocks = "quantize: no kernel for blocks of this height and width";

// Blocks of 1 x Width.
template <class T, Element E, bool kE8m0, int Width>
const char* launch_blocks(const Shape& shape, const T* x, const Results& results, void* stream) {
  if (shape.height != 1 || shape.width != Width) return kNoSuchBlocks;
  const bool whole = shape.columns % Width == 0 && has_packs(x);
  if (whole && results.codes_transposed == nullptr) {
    const int64_t vectors = shape.rows * shape.columns / 8;
    blocks_in_rows<T, E, kE8m0, Width>
        <<<warpwatch::stride_blocks(vectors), warpwatch::kStrideThreads, 0, warpwatch::as_stream(stream)>>>(x, results.codes,
                                                                                                           results.scales, vectors);
    return warpwatch::launch_error();
  }
  if constexpr (quantize::is_packed(E) || (Width != kWarp && Width != kTile)) {
    return "quantize: codes of four bits need whole blocks, and memory aligned to 8 numbers";
  } else {
    return launch_tiles<T, E, kE8m0, Width>(shape, x, results, stream);
  }
}

template <class T, Element E>
const char* launch_rows(const Shape& shape, const T* x, const Results& results, void* stream) {
  if (shape.height != 1 || shape.width != shape.columns) return kNoSuchBlocks;
  const int64_t blocks = std::min<int64_t>(shape.rows, int64_t{warpwatch::multiprocessors()} * 8);
  float* scales = static_cast<float*>(results.scales);
  if (shape.columns % 8 == 0 && has_packs(x))
    whole_rows_of_vectors<T, E>
        <<<blocks, kRowThreads, 0, warpwatch::as_stream(stream)>>>(x, results.codes, scales, shape.rows, shape.columns);
  else
    whole_rows<T, E><<<blocks, kRowThreads, 0, warpwatch::as_stream(stream)>>>(x, results.codes, scales, shape.rows, shape.columns);
  return warpwatch::launch_error();
}

template <class T, Element E>
const char* launch_floats(const Shape& shape, const T* x, const Results& results, void* stream) {
  if (shape.e8m0) return launch_blocks<T, E, true, 32>(shape, x, results, stream);
  if (shape.height == kTile && shape.width == kTile) return launch_tiles<T, E, false, 0>(shape, x, results, stream);
  if (shape.width == kTile) return launch_blocks<T, E, false, kTile>(shape, x, results, stream);
  return launch_rows<T, E>(shape, x, results, stream);
}

}  // namespace

template <class T>
const char* quantize::quantize_on(const Shape& shape, const T* x, const Results& results, void* stream) {
  switch (shape.element) {
    case Element::e4m3: return launch_floats<T, Element::e4m3>(shape, x, results, stream);
    case Element::e5m2: return launch_floats<T, Element::e5m2>(shape, x, results, stream);
    case Element::e2m1: return launch_blocks<T, Element::e2m1, true, 32>(shape, x, results, stream);
    case Element::i8: return launch_rows<T, Element::i8>(shape, x, results, stream);
    case Element::i4:
      if (shape.width == 32) return launch_blocks<T, Element::i4, false, 32>(shape, x, results, stream);
      if (shape.width == 64) return launch_blocks<T, Element::i4, false, 64>(shape, x, results, stream);
      return launch_blocks<T, Element::i4, false, 128>(shape, x, results, stream);
  }
  return "quantize: no such element";
}

template const char* quantize::quantize_on<float>(const Shape&, const float*, const Results&, void*);
template const char* quantize::quantize_on<warpwatch::Bf16>(const Shape&, const warpwatch::Bf16*, const Results&, void*);
template const char* quantize::quantize_on<warpwatch::F16>(const Shape&, const warpwatch::F16*, const Results&, void*);
