// A block takes one part of a sequence for four heads of q that read one head of the cache, so that the cache is read once. A lane reads
// 16 bytes of a token's keys and of its values; 16 lanes hold a token of 128 numbers in BF16, 8 in FP8, and each such group has an
// online softmax of its own. Groups, then warps, and in a second kernel the parts of a sequence are joined. Scores are in powers of two.
#include <algorithm>

#include "common/launch.cuh"
#include "common/wide.cuh"
#include "kv_attention/kv_attention.h"

namespace {

using kv_attention::Cache;
using kv_attention::E4m3;
using kv_attention::Shape;
using kv_attention::Split;
using warpwatch::Bf16;
using warpwatch::ceil_div;

constexpr int kWarp = 32, kWarps = 4, kThreads = kWarps * kWarp, kHeads = 4, kUnroll = 4, kJoinThreads = 128;
constexpr int64_t kFewestTokens = 64, kMostTokens = 2048, kBlocksEach = 6, kLargestGridYZ = 65535;
constexpr float kLog2E = 1.4426950408889634f;

// The numbers of 16 bytes.
__device__ void unpack(float (&to)[4], const uint4& from, float) {
  to[0] = __uint_as_float(from.x), to[1] = __uint_as_float(from.y), to[2] = __uint_as_float(from.z), to[3] = __uint_as_float(from.w);
}

__device__ void unpack(float (&to)[8], const uint4& from, Bf16) {
  const uint32_t words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) to[2 * i] = __uint_as_float(words[i] << 16), to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
}

__device__ void unpack(float (&to)[16], const uint4& from, E4m3) {
  const uint32_t words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t pair = (words[i / 2] >> (16 * (i % 2))) & 0xffffu;
#if __CUDA_ARCH__ >= 890
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(pair)));
    to[2 * i] = warpwatch::to_float(warpwatch::F16{static_cast<uint16_t>(halves)});
    to[2 * i + 1] = warpwatch::to_float(warpwatch::F16{static_cast<uint16_t>(halves >> 16)});
#else
    // The bits of exponent and fraction stand where those of a float do, whose bias is larger by 120.
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const uint32_t code = (pair >> (8 * side)) & 0xffu;
      const float size = __uint_as_float((code & 0x7fu) << 20) * 0x1p120f;
      const float number = (code & 0x7fu) == 0x7fu ? __uint_as_float(0x7fffffffu) : size;
      to[2 * i + side] = code & 0x80u ? -number : number;
    }
#endif
  }
}

// What scores are taken off: 0 while there are none, since -inf less itself is NaN.
__device__ float base_of(float highest) { return highest == -INFINITY ? 0.0f : highest; }

// The softmax of some tokens of one head: the largest score, the sum of the weights, and of the weighted values.
template <int Size>
struct Running {
  float highest = -INFINITY, total = 0, sum[Size] = {};

  // With that of the lane whose number differs in the bit `apart`, which calls it as well.
  __device__ void join_across(int apart) {
    const float other = __shfl_xor_sync(~0u, highest, apart), top = fmaxf(highest, other), base = base_of(top);
    const float mine = exp2f(highest - base), theirs = exp2f(other - base);
    total = total * mine + __shfl_xor_sync(~0u, total, apart) * theirs;
#pragma unroll
    for (int i = 0; i < Size; ++i) sum[i] = sum[i] * mine + __shfl_xor_sync(~0u, sum[i], apart) * theirs;
    highest = top;
  }
};

template <class T, class C, int Dim>
__global__ void __launch_bounds__(kThreads, sizeof(C) == 1 ? 2 : 3)
    parts_of_sequences(Shape shape, Split split, int shift, const T* q, Cache<C> cache, float* parts, float* log_sums) {
  constexpr int kSize = 16 / sizeof(C), kLanes = Dim / kSize, kAbreast = kWarp / kLanes, kStep = kWarps * kAbreast;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, place = lane % kLanes, slot = warp * kAbreast + lane / kLanes;
  const int64_t kv_head = blockIdx.y % shape.kv_heads, first = blockIdx.y / shape.kv_heads * kHeads, b = blockIdx.z;
  const int64_t group = shape.heads / shape.kv_heads, begin = blockIdx.x * split.tokens;
  const int64_t length = min(int64_t{cache.lengths[b]}, shape.pages * shape.page), end = min(length, begin + split.tokens);
  if (begin >= end) return;

  const float factor = shape.factor * kLog2E * (cache.k_scale ? *cache.k_scale : 1.0f);
  float query[kHeads][kSize];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    // Heads past the last repeat it and are not stored.
    const T* row = q + (b * shape.heads + kv_head * group + min(first + h, group - 1)) * Dim + place * kSize;
#pragma unroll
    for (int i = 0; i < kSize; ++i) query[h][i] = warpwatch::widen(row[i]) * factor;
  }

  Running<kSize> running[kHeads];
  const int32_t* table = cache.table + b * shape.pages;
  for (int64_t t0 = begin + slot; t0 - slot < end; t0 += kUnroll * kStep) {
    uint4 keys[kUnroll], values[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t t = t0 + u * kStep;
      keys[u] = values[u] = make_uint4(0, 0, 0, 0);
      if (t < end) {
        const int64_t token = (int64_t{table[t >> shift]} << shift) + (t & (shape.page - 1));
        const int64_t at = (token * shape.kv_heads + kv_head) * Dim + place * kSize;
        keys[u] = __ldg(reinterpret_cast<const uint4*>(cache.k + at));
        values[u] = __ldg(reinterpret_cast<const uint4*>(cache.v + at));
      }
    }
    float score[kUnroll][kHeads];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      float key[kSize];
      unpack(key, keys[u], C{});
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        float dot = 0;
#pragma unroll
        for (int i = 0; i < kSize; ++i) dot += query[h][i] * key[i];
#pragma unroll
        for (int apart = kLanes / 2; apart > 0; apart /= 2) dot += __shfl_xor_sync(~0u, dot, apart);
        score[u][h] = t0 + u * kStep < end ? dot : -INFINITY;
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float top = running[h].highest;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) top = fmaxf(top, score[u][h]);
      const float base = base_of(top), shrink = exp2f(running[h].highest - base);
      running[h].highest = top;
      running[h].total *= shrink;
#pragma unroll
      for (int i = 0; i < kSize; ++i) running[h].sum[i] *= shrink;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) running[h].total += score[u][h] = exp2f(score[u][h] - base);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      float value[kSize];
      unpack(value, values[u], C{});
#pragma unroll
      for (int h = 0; h < kHeads; ++h)
#pragma unroll
        for (int i = 0; i < kSize; ++i) running[h].sum[i] += score[u][h] * value[i];
    }
  }

  __shared__ float sums[kWarps][kHeads][Dim], highest[kWarps][kHeads], totals[kWarps][kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int apart = kLanes; apart < kWarp; apart *= 2) running[h].join_across(apart);
    if (lane < kLanes) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) sums[warp][h][place * kSize + i] = running[h].sum[i];
      if (lane == 0) highest[warp][h] = running[h].highest, totals[warp][h] = running[h].total;
    }
  }
  __syncthreads();
  const float v_scale = cache.v_scale ? *cache.v_scale : 1.0f;
  for (int at = threadIdx.x; at < kHeads * Dim; at += kThreads) {
    const int h = at / Dim, column = at % Dim;
    if (first + h >= group) break;
    float top = -INFINITY, total = 0, sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, highest[w][h]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float weight = exp2f(highest[w][h] - base_of(top));
      total += totals[w][h] * weight;
      sum += sums[w][h][column] * weight;
    }
    const int64_t row = (b * shape.heads + kv_head * group + first + h) * split.count + blockIdx.x;
    // Where all scores are -inf, the part has the weight 0.
    parts[row * Dim + column] = total == 0 ? 0.0f : sum / total * v_scale;
    if (column == 0) log_sums[row] = top + log2f(total);
  }
}

// A block joins the parts of one head, of which the first kernel has computed those that begin within the sequence.
template <class T>
__global__ void __launch_bounds__(kJoinThreads)
    join(Shape shape, Split split, const int32_t* lengths, const float* parts, const float* log_sums, T* y) {
  const int64_t row = blockIdx.x, length = min(int64_t{lengths[row / shape.heads]}, shape.pages * shape.page);
  const int count = static_cast<int>((max(length, int64_t{0}) + split.tokens - 1) / split.tokens);
  log_sums += row * split.count;
  parts += row * split.count * shape.dim;
  float top = -INFINITY;
  for (int s = 0; s < count; ++s) top = fmaxf(top, log_sums[s]);
  for (int column = threadIdx.x; column < shape.dim; column += kJoinThreads) {
    float total = 0, sum = 0;
#pragma unroll 4
    for (int s = 0; s < count; ++s) {
      const float weight = exp2f(log_sums[s] - base_of(top));
      total += weight;
      sum += parts[s * shape.dim + column] * weight;
    }
    y[row * shape.dim + column] = warpwatch::narrow<T>(count > 0 ? sum / total : 0.0f);
  }
}

template <class T, class C, int Dim>
void launch(const Shape& shape, const Split& split, int shift, const dim3& grid, const T* q, const Cache<C>& cache, float* parts,
            float* log_sums, cudaStream_t stream) {
  parts_of_sequences<T, C, Dim><<<grid, kThreads, 0, stream>>>(shape, split, shift, q, cache, parts, log_sums);
}

}  // namespace

Split kv_attention::split_of(const Shape& shape) {
  const int64_t longest = shape.page * shape.pages, blocks = warpwatch::multiprocessors() * kBlocksEach;
  const int64_t rows = shape.batch * shape.kv_heads * ceil_div(shape.heads / std::max<int64_t>(shape.kv_heads, 1), kHeads);
  const int64_t even = ceil_div(ceil_div(rows * longest, blocks), kFewestTokens) * kFewestTokens;
  const int64_t tokens = std::clamp(even, kFewestTokens, kMostTokens);
  return {std::max<int64_t>(ceil_div(longest, tokens), 1), tokens};
}

template <class T, class C>
const char* kv_attention::forward_on(const Shape& shape, const Split& split, const T* q, const Cache<C>& cache, float* parts, T* y,
                                     void* stream) {
  if (shape.dim != 64 && shape.dim != 128) return "kv_attention: heads must have 64 or 128 numbers";
  if (shape.page & (shape.page - 1)) return "kv_attention: pages must have a power of two of tokens";
  const int64_t down = shape.kv_heads * ceil_div(shape.heads / shape.kv_heads, kHeads);
  if (down > kLargestGridYZ || shape.batch > kLargestGridYZ) return "kv_attention: too many heads or sequences";
  const int shift = __builtin_ctzll(shape.page);
  float* log_sums = parts + shape.batch * shape.heads * split.count * shape.dim;
  const dim3 grid(split.count, down, shape.batch);
  (shape.dim == 64 ? launch<T, C, 64> : launch<T, C, 128>)(shape, split, shift, grid, q, cache, parts, log_sums,
                                                           warpwatch::as_stream(stream));
  if (const char* error = warpwatch::launch_error()) return error;
  join<T><<<shape.batch * shape.heads, kJoinThreads, 0, warpwatch::as_stream(stream)>>>(shape, split, cache.lengths, parts, log_sums, y);
  return warpwatch::launch_error();
}

#define WARPWATCH_KV_ATTENTION(T, C)                                                                                              \
  template const char* kv_attention::forward_on<T, C>(const Shape&, const Split&, const T*, const Cache<C>&, float*, T*, void*);
WARPWATCH_KV_ATTENTION(float, float)
WARPWATCH_KV_ATTENTION(float, E4m3)
WARPWATCH_KV_ATTENTION(Bf16, Bf16)
WARPWATCH_KV_ATTENTION(Bf16, E4m3)
#undef WARPWATCH_KV_ATTENTION
