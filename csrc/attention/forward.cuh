// Forward: a block holds a tile of queries, keys and values pass by. Neither scores nor probabilities leave the registers: each
// query's exponentials are taken under its highest score so far, and what was summed up before is scaled down when that rises.
#pragma once

#include "attention/tiles.cuh"

namespace attention {

// Scores become exponentials; sums and totals of the rows follow their highest score. `scale` is that of scores, in powers of two.
template <class P>
__device__ void soften(float (&scores)[P::kHigh][P::kKeys / 8][4], float (&sums)[P::kHigh][P::D / 8][4], float (&highest)[P::kHigh][2],
                       float (&total)[P::kHigh][2], float scale) {
#pragma unroll
  for (int i = 0; i < P::kHigh; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = highest[i][half];
#pragma unroll
      for (int j = 0; j < P::kKeys / 8; ++j) top = fmaxf(top, fmaxf(scores[i][j][2 * half], scores[i][j][2 * half + 1]));
      top = highest_of_row(top);
      // A row that has seen nothing but minus infinity has no highest score to subtract.
      const float base = top == -INFINITY ? 0.0f : top * scale, shrink = exp2f(highest[i][half] * scale - base);
      highest[i][half] = top;
      float part = 0;
#pragma unroll
      for (int j = 0; j < P::kKeys / 8; ++j)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          scores[i][j][e] = exp2f(scores[i][j][e] * scale - base);
          part += scores[i][j][e];
        }
      total[i][half] = total[i][half] * shrink + part;
#pragma unroll
      for (int n = 0; n < P::D / 8; ++n) {
        sums[i][n][2 * half] *= shrink;
        sums[i][n][2 * half + 1] *= shrink;
      }
    }
}

template <class P>
__global__ __launch_bounds__(kThreads, 2) void forward(const __grid_constant__ Shape shape,
                                                       const __grid_constant__ Forward<typename P::T> call) {
  using T = typename P::T;
  extern __shared__ __align__(16) unsigned char bytes[];
  T *queries = reinterpret_cast<T*>(bytes), *keys = queries + P::kRows * P::kPitch, *values = keys + P::kKeys * P::kPitch;
  const int64_t tiles = warpwatch::ceil_div(shape.queries, P::kRows), head = blockIdx.x / tiles;
  // The last tiles see most keys when later ones are hidden: they go first.
  const int64_t tile = shape.causal ? tiles - 1 - blockIdx.x % tiles : blockIdx.x % tiles, first = tile * P::kRows;
  const Head<T> q(call.q, shape, head, shape.queries), k(call.k, shape, head, shape.keys), v(call.v, shape, head, shape.keys);
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 * P::kHigh;
  const int64_t reach = shape.causal && first + P::kRows < shape.keys ? first + P::kRows : shape.keys;
  float sums[P::kHigh][P::D / 8][4] = {}, highest[P::kHigh][2], total[P::kHigh][2] = {};
#pragma unroll
  for (int i = 0; i < P::kHigh; ++i) highest[i][0] = highest[i][1] = -INFINITY;
  const float scale = shape.scale * kLog2E;

  start_rows<P, P::kRows>(q, first, queries);
  start_rows<P, P::kKeys>(k, 0, keys);
  warpwatch::close_copies();
  warpwatch::await_copies<0>();
  __syncthreads();
  for (int64_t j = 0; j < reach; j += P::kKeys) {
    // Values are on their way while scores are computed, the next keys while values are summed up.
    start_rows<P, P::kKeys>(v, j, values);
    warpwatch::close_copies();
    float scores[P::kHigh][P::kKeys / 8][4];
    multiply_rows<P>(scores, queries + row * P::kPitch, keys, lane);
    warpwatch::await_copies<0>();
    __syncthreads();
    if (j + P::kKeys < reach) start_rows<P, P::kKeys>(k, j + P::kKeys, keys);
    warpwatch::close_copies();
    const int64_t query = first + row + lane / 4, key = j + lane % 4 * 2;
    if (j + P::kKeys > shape.keys || (shape.causal && j + P::kKeys > first + row))
      hide(scores, [&](int down, int along) { return key + along < shape.keys && (!shape.causal || key + along <= query + down); });
    soften<P>(scores, sums, highest, total, scale);
    add_weighted<P>(sums, scores, values, lane);
    warpwatch::await_copies<0>();
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < P::kHigh; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      total[i][half] = sum_of_row(total[i][half]);
      const int64_t query = first + row + i * 16 + half * 8 + lane / 4;
      if (lane % 4 == 0 && query < shape.queries)
        call.log_sum[head * shape.queries + query] = highest[i][half] * shape.scale + logf(total[i][half]);
    }
  store_rows<P>(sums, [&](int i, int half) { return 1.0f / total[i][half]; }, call.out, shape, head, first + row, shape.queries, lane);
}

template <class P>
const char* launch_forward(const Shape& shape, const Forward<typename P::T>& call, void* stream) {
  cudaFuncSetAttribute(forward<P>, cudaFuncAttributeMaxDynamicSharedMemorySize, P::kForwardBytes);
  const int64_t blocks = shape.heads() * warpwatch::ceil_div(shape.queries, P::kRows);
  forward<P><<<blocks, kThreads, P::kForwardBytes, warpwatch::as_stream(stream)>>>(shape, call);
  return warpwatch::launch_error();
}

template <class T>
const char* forward_for(const Shape& shape, const Forward<T>& call, void* stream) {
  return shape.dim <= 64 ? launch_forward<Plan<T, 64>>(shape, call, stream) : launch_forward<Plan<T, 128>>(shape, call, stream);
}

}  // namespace attention
