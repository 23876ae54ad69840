// y = x W' for a few tokens, as in decoding: such a product takes as long as W takes to arrive, and compressed W is 9/16 of dense.
//
// A warp computes one output of all tokens. A lane reads 16 bytes of values at a time, their metadata, and the columns of x that
// they may belong to, and picks among these by the metadata: no lookups in memory.
#include <algorithm>

#include "common/launch.cuh"
#include "sparse24/sparse24.h"

using sparse24::Format;
using warpwatch::ceil_div;

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int64_t kMostBlocks = int64_t{1} << 30;

struct alignas(16) Words {
  uint32_t word[4];
};

struct F32 {
  using Stored = float;
  __device__ static float low(uint32_t word) { return __uint_as_float(word); }
  __device__ static Stored stored(float value) { return value; }
};

struct F16 {
  using Stored = uint16_t;
  __device__ static float wide(uint16_t bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
  __device__ static float low(uint32_t word) { return wide(static_cast<uint16_t>(word)); }
  __device__ static float high(uint32_t word) { return wide(static_cast<uint16_t>(word >> 16)); }
  __device__ static Stored stored(float value) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  }
};

struct Bf16 {
  using Stored = uint16_t;
  __device__ static float low(uint32_t word) { return __uint_as_float(word << 16); }
  __device__ static float high(uint32_t word) { return __uint_as_float(word & 0xffff0000u); }
  __device__ static Stored stored(float value) {
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  }
};

// The products of one group of four columns: `columns` of x, of which `positions` names two, times their values.
template <class Element>
__device__ inline float group(const uint32_t* columns, const uint32_t* values, unsigned positions) {
  if constexpr (sizeof(typename Element::Stored) == 4) {
    const unsigned first = positions & 3, second = positions >> 2 & 3;
    const uint32_t a = first == 0 ? columns[0] : first == 1 ? columns[1] : columns[2];
    const uint32_t b = second == 3 ? columns[3] : second == 2 ? columns[2] : columns[1];
    return Element::low(a) * Element::low(values[0]) + Element::low(b) * Element::low(values[1]);
  } else {
    // Two words hold the four columns; one byte permutation picks both that are wanted.
    const unsigned bytes = 0x1010u + (positions & 3) * 0x0022u + (positions >> 2 & 3) * 0x2200u;
    const uint32_t pair = __byte_perm(columns[0], columns[1], bytes);
    return Element::low(pair) * Element::low(values[0]) + Element::high(pair) * Element::high(values[0]);
  }
}

// Enough warps must fit a multiprocessor for the loads under way to fill its share of the memory's bandwidth.
template <class Element, int Tokens>
__global__ __launch_bounds__(kThreads, Tokens == 1 ? 4 : 3) void linear(const typename Element::Stored* x,
                                                                        const typename Element::Stored* values,
                                                                        const uint8_t* metadata, typename Element::Stored* y,
                                                                        int64_t tokens, int64_t rows, int64_t columns) {
  using Stored = typename Element::Stored;
  constexpr int kValues = 16 / sizeof(Stored), kColumns = 2 * kValues, kGroups = kColumns / 4, kWords = 4 / kGroups;
  const int lane = threadIdx.x % 32;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; row < rows; row += int64_t{gridDim.x} * kWarps) {
    const Words* w = reinterpret_cast<const Words*>(values + row * (columns / 2));
    const uint8_t* meta = metadata + row * (columns / 8);
    float sum[Tokens] = {};
#pragma unroll Tokens == 1 ? 4 : 1
    for (int64_t u = lane; u < columns / kColumns; u += 32) {
      const Words value = w[u];
      const unsigned positions = kColumns == 16 ? reinterpret_cast<const uint16_t*>(meta)[u] : meta[u];
#pragma unroll
      for (int t = 0; t < Tokens; ++t) {
        // Tokens that do not exist are computed as the last one and dropped.
        const int64_t token = t < tokens ? t : tokens - 1;
        const Words* from = reinterpret_cast<const Words*>(x + token * columns + u * kColumns);
        const Words low = from[0], high = from[1];
        const uint32_t column[8] = {low.word[0],  low.word[1],  low.word[2],  low.word[3],
                                    high.word[0], high.word[1], high.word[2], high.word[3]};
#pragma unroll
        for (int g = 0; g < kGroups; ++g)
          sum[t] += group<Element>(column + g * (8 / kGroups), value.word + g * kWords, positions >> 4 * g & 15);
      }
    }
#pragma unroll
    for (int t = 0; t < Tokens; ++t) {
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sum[t] += __shfl_xor_sync(~0u, sum[t], step);
      if (lane == 0 && t < tokens) y[t * rows + row] = Element::stored(sum[t]);
    }
  }
}

template <class Element>
void launch(const void* x, const void* values, const uint8_t* metadata, void* y, int64_t tokens, int64_t rows, int64_t columns,
            cudaStream_t stream) {
  using Stored = typename Element::Stored;
  const auto kernel = tokens == 1 ? linear<Element, 1> : linear<Element, static_cast<int>(sparse24::kMostTokens)>;
  kernel<<<std::min(ceil_div(rows, kWarps), kMostBlocks), kThreads, 0, stream>>>(
      static_cast<const Stored*>(x), static_cast<const Stored*>(values), metadata, static_cast<Stored*>(y), tokens, rows, columns);
}

}  // namespace

const char* sparse24::linear_on(Format format, const void* x, const void* values, const uint8_t* metadata, void* y, int64_t tokens,
                                int64_t rows, int64_t columns, void* stream) {
  if (tokens * rows == 0) return nullptr;
  const cudaStream_t on = warpwatch::as_stream(stream);
  if (format == Format::f32) launch<F32>(x, values, metadata, y, tokens, rows, columns, on);
  if (format == Format::f16) launch<F16>(x, values, metadata, y, tokens, rows, columns, on);
  if (format == Format::bf16) launch<Bf16>(x, values, metadata, y, tokens, rows, columns, on);
  return warpwatch::launch_error();
}
