// Backward: probabilities are computed anew from the logarithms of their sums. One kernel owns queries while keys pass by and sums up
// dQ; another owns keys while queries pass by and sums up dK and dV. Each result is summed by one block in one order: the same bits
// every time, for two more products than a single kernel with atomic additions would need.
//
// Both are the same code. `Keys` says that a block's own rows are keys and values; else they are queries and incoming gradients. In
// either case scores are own first times passing first, and gradients of probabilities own second times passing second.
#pragma once

#include "attention/tiles.cuh"

namespace attention {

// delta[i] = gradient[i] times out[i], what the normalisation takes from all gradients of query i's scores. One warp per query.
template <class T>
__global__ __launch_bounds__(kThreads) void deltas(const __grid_constant__ Shape shape, const __grid_constant__ Backward<T> call) {
  const int64_t query = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (query >= shape.batch * shape.heads_each * shape.queries) return;
  const int64_t head = query / shape.queries, row = query % shape.queries;
  const T* g = first_row(call.gradient, shape, head) + row * call.gradient.row;
  const T* out = first_row(call.out, shape, head) + row * call.out.row;
  float sum = 0;
  for (int d = threadIdx.x % 32; d < shape.dim; d += 32) sum += warpwatch::to_float(g[d]) * warpwatch::to_float(out[d]);
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
  if (threadIdx.x % 32 == 0) call.scratch[query] = sum;
}


// Scores and gradients of probabilities become probabilities and gradients of scores, but for the factor `scale`. `of` gives log_sum
// (in powers of two) and delta for a row's half and a column.
template <int Wide, class Of>
__device__ void differentiate(float (&scores)[1][Wide][4], float (&gradients)[1][Wide][4], float scale, const Of& of) {
#pragma unroll
  for (int j = 0; j < Wide; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float2 numbers = of(e / 2, j * 8 + e % 2);
      scores[0][j][e] = exp2f(scores[0][j][e] * scale - numbers.x * kLog2E);
      gradients[0][j][e] = scores[0][j][e] * (gradients[0][j][e] - numbers.y);
    }
}

template <class P, bool Keys>
__global__ __launch_bounds__(kThreads) void backward(const __grid_constant__ Shape shape,
                                                     const __grid_constant__ Backward<typename P::T> call) {
  using T = typename P::T;
  extern __shared__ __align__(16) unsigned char bytes[];
  T *own_first = reinterpret_cast<T*>(bytes), *own_second = own_first + P::kOwn * P::kPitch;
  T* ring = own_second + P::kOwn * P::kPitch;
  float* numbers = reinterpret_cast<float*>(ring + P::kStages * P::kStage);
  const int64_t owned = Keys ? shape.keys : shape.queries, passing = Keys ? shape.queries : shape.keys;
  const int64_t tiles = warpwatch::ceil_div(owned, P::kOwn), head = blockIdx.x / tiles;
  const int64_t first = (shape.causal && !Keys ? tiles - 1 - blockIdx.x % tiles : blockIdx.x % tiles) * P::kOwn;
  const Head<T> q(call.q, shape, head, shape.queries), g(call.gradient, shape, head, shape.queries);
  const Head<T> k(call.k, shape, head, shape.keys), v(call.v, shape, head, shape.keys);
  const float *log_sum = call.log_sum + head * shape.queries, *delta = call.scratch + head * shape.queries;
  // Hidden tiles are left out: keys after a block's last query, queries before its first key.
  const int64_t begin = shape.causal && Keys ? first / P::kPassing * P::kPassing : 0;
  const int64_t end = shape.causal && !Keys && first + P::kOwn < passing ? first + P::kOwn : passing;
  const auto load = [&](int64_t at, int slot) {
    if (at < end) {
      start_rows<P, P::kPassing>(Keys ? q : k, at, ring + slot * P::kStage);
      start_rows<P, P::kPassing>(Keys ? g : v, at, ring + slot * P::kStage + P::kPassing * P::kPitch);
      if (Keys && threadIdx.x < P::kPassing) {
        const bool inside = at + threadIdx.x < passing;
        float* to = numbers + slot * 2 * P::kPassing + threadIdx.x;
        warpwatch::copy4(to, log_sum + at + threadIdx.x, inside);
        warpwatch::copy4(to + P::kPassing, delta + at + threadIdx.x, inside);
      }
    }
    warpwatch::close_copies();
  };

  start_rows<P, P::kOwn>(Keys ? k : q, first, own_first);
  start_rows<P, P::kOwn>(Keys ? v : g, first, own_second);
  load(begin, 0);
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16;
  const int64_t mine = first + row + lane / 4;
  float own_log_sum[2] = {}, own_delta[2] = {};
  if (!Keys) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (mine + half * 8 < shape.queries) own_log_sum[half] = log_sum[mine + half * 8], own_delta[half] = delta[mine + half * 8];
  }
  float first_sums[1][P::D / 8][4] = {}, second_sums[1][P::D / 8][4] = {};
  const float scale = shape.scale * kLog2E;
  int slot = 0;
  for (int64_t at = begin; at < end; at += P::kPassing, slot = 1 - slot) {
    warpwatch::await_copies<0>();
    __syncthreads();
    load(at + P::kPassing, 1 - slot);
    const T *one = ring + slot * P::kStage, *other = one + P::kPassing * P::kPitch;
    float scores[1][P::kPassing / 8][4], gradients[1][P::kPassing / 8][4];
    multiply_rows<P>(scores, own_first + row * P::kPitch, one, lane);
    multiply_rows<P>(gradients, own_second + row * P::kPitch, other, lane);
    const int64_t theirs = at + lane % 4 * 2;
    const bool whole = at + P::kPassing <= passing;
    if (!whole || (shape.causal && (Keys ? at < first + row + 15 : at + P::kPassing - 1 > first + row)))
      hide(scores, [&](int down, int along) {
        const int64_t query = Keys ? theirs + along : mine + down, key = Keys ? mine + down : theirs + along;
        return theirs + along < passing && (!shape.causal || key <= query);
      });
    const float* column = numbers + slot * 2 * P::kPassing + lane % 4 * 2;
    differentiate(scores, gradients, scale, [&](int half, int along) {
      return Keys ? make_float2(column[along], column[along + P::kPassing]) : make_float2(own_log_sum[half], own_delta[half]);
    });
    add_weighted<P>(first_sums, gradients, one, lane);
    if (Keys) add_weighted<P>(second_sums, scores, other, lane);
  }
  warpwatch::await_copies<0>();
  store_rows<P>(first_sums, [&](int, int) { return shape.scale; }, Keys ? call.dk : call.dq, shape, head, first + row, owned, lane);
  if (Keys) store_rows<P>(second_sums, [](int, int) { return 1.0f; }, call.dv, shape, head, first + row, owned, lane);
}

template <class P>
const char* launch_backward(const Shape& shape, const Backward<typename P::T>& call, void* stream) {
  using T = typename P::T;
  const cudaStream_t on = warpwatch::as_stream(stream);
  cudaFuncSetAttribute(backward<P, false>, cudaFuncAttributeMaxDynamicSharedMemorySize, P::kBackwardBytes);
  cudaFuncSetAttribute(backward<P, true>, cudaFuncAttributeMaxDynamicSharedMemorySize, P::kBackwardBytes);
  if (shape.queries > 0) {
    deltas<T><<<warpwatch::ceil_div(shape.heads() * shape.queries, kWarps), kThreads, 0, on>>>(shape, call);
    const int64_t blocks = shape.heads() * warpwatch::ceil_div(shape.queries, P::kOwn);
    backward<P, false><<<blocks, kThreads, P::kBackwardBytes, on>>>(shape, call);
  }
  backward<P, true><<<shape.heads() * warpwatch::ceil_div(shape.keys, P::kOwn), kThreads, P::kBackwardBytes, on>>>(shape, call);
  return warpwatch::launch_error();
}

template <class T>
const char* backward_for(const Shape& shape, const Backward<T>& call, void* stream) {
  return shape.dim <= 64 ? launch_backward<Plan<T, 64>>(shape, call, stream) : launch_backward<Plan<T, 128>>(shape, call, stream);
}

}  // namespace attention
