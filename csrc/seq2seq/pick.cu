// Argmax of every row's logits, a block per row: the likeliest token becomes the next step's input without leaving the GPU.
#include "common/launch.cuh"
#include "seq2seq/seq2seq.h"

namespace {

using seq2seq::Call;

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;

// Whether (value, index) comes before (other, at): larger, or as large and earlier.
template <class T>
__device__ inline bool before(T value, int index, T other, int at) {
  return value > other || (value == other && index < at);
}

template <class T>
__device__ inline void best_of_warp(T& value, int& index) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const T other = __shfl_xor_sync(0xffffffffu, value, step);
    const int at = __shfl_xor_sync(0xffffffffu, index, step);
    if (before(other, at, value, index)) {
      value = other;
      index = at;
    }
  }
}

// Row `row` comes to `token`: all threads of the block fetch its embedding, which is the next step's input.
template <class T>
__device__ inline void come_to(const Call<T>& call, int64_t row, int64_t token) {
  for (int k = threadIdx.x; k < call.embedding; k += kThreads)
    call.e[row * call.embedding + k] = call.target_table[token * call.embedding + k];
  if (threadIdx.x == 0) call.current[row] = token;
}

template <class T>
__global__ void __launch_bounds__(kThreads) begin(const __grid_constant__ Call<T> call) {
  come_to(call, blockIdx.x, call.start);
}

template <class T>
__global__ void __launch_bounds__(kThreads) pick(const __grid_constant__ Call<T> call, int64_t step) {
  __shared__ T values[kWarps];
  __shared__ int indices[kWarps];
  __shared__ int64_t chosen;
  const int64_t row = blockIdx.x;
  const T* logits = call.logits + row * call.vocab;
  const int vocab = static_cast<int>(call.vocab), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // A thread without logits, or with NaN alone, returns token 0 with the smallest value of the type, so that the index is always valid.
  T value = -INFINITY;
  int index = 0;
  for (int v = threadIdx.x; v < vocab; v += kThreads) {
    const T logit = logits[v];
    if (before(logit, v, value, index)) {
      value = logit;
      index = v;
    }
  }
  best_of_warp(value, index);
  if (lane == 0) {
    values[warp] = value;
    indices[warp] = index;
  }
  __syncthreads();
  if (warp == 0) {
    value = lane < kWarps ? values[lane] : -INFINITY;
    index = lane < kWarps ? indices[lane] : 0;
    best_of_warp(value, index);
    if (lane == 0) {
      chosen = call.current[row] == call.end ? call.end : index;
      call.tokens[row * call.steps + step] = chosen;
    }
  }
  __syncthreads();
  come_to(call, row, chosen);
}

}  // namespace

const char* seq2seq::begin_on(const Call<float>& call, void* stream) {
  begin<<<call.batch, kThreads, 0, warpwatch::as_stream(stream)>>>(call);
  return warpwatch::launch_error();
}
const char* seq2seq::begin_on(const Call<double>& call, void* stream) {
  begin<<<call.batch, kThreads, 0, warpwatch::as_stream(stream)>>>(call);
  return warpwatch::launch_error();
}
const char* seq2seq::pick_on(const Call<float>& call, int64_t step, void* stream) {
  pick<<<call.batch, kThreads, 0, warpwatch::as_stream(stream)>>>(call, step);
  return warpwatch::launch_error();
}
const char* seq2seq::pick_on(const Call<double>& call, int64_t step, void* stream) {
  pick<<<call.batch, kThreads, 0, warpwatch::as_stream(stream)>>>(call, step);
  return warpwatch::launch_error();
}
