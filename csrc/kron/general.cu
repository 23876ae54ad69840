// All three products of a stage have one form, D[q, p] = sum over k of Q[k, q] * P[p, k], in which P is contiguous along k, Q along q
// and D along p. What differs is where an element lies, which three small structs say.
#include "kron/general.cuh"

#include <algorithm>

#include "common/launch.cuh"

namespace {

using kron::Stage;
using warpwatch::ceil_div;

constexpr int kTile = 64;       // Elements of D along p and q that one block computes: 4 x 4 for each of 256 threads.
constexpr int kDepth = 32;      // Steps along k between two barriers.
constexpr int kSide = 16;
constexpr int kThreads = kSide * kSide;
constexpr int kEach = kTile / kSide;
constexpr int kLoads = kTile * kDepth / kThreads;
constexpr int kMostParts = 256;
constexpr int kRowsOfPart = 64;  // A part shorter than this costs more in the final sum than it gains in parallelism.

// Where (row m, column c) of a state lies that is read as (batch, f, rows): c is the slow axis.
__device__ int64_t turned(const Stage& s, uint32_t m, uint32_t c) {
  return int64_t{m / s.rows} * s.rows * s.factor + int64_t{c} * s.rows + m % s.rows;
}

template <class T>
struct ForwardProduct {  // p = row, q = o, k = i
  Stage s;
  const T *in, *w;
  T* out;
  __device__ uint32_t p_count() const { return s.batch * s.rows; }
  __device__ uint32_t q_count() const { return s.factor; }
  __device__ uint32_t k_begin() const { return 0; }
  __device__ uint32_t k_end() const { return s.factor; }
  __device__ T p_at(uint32_t p, uint32_t k) const { return in[int64_t{p} * s.factor + k]; }
  __device__ T q_at(uint32_t k, uint32_t q) const { return w[k * s.factor + q]; }
  __device__ void put(uint32_t q, uint32_t p, T value) const { out[turned(s, p, q)] = value; }
};

template <class T>
struct BackwardProduct {  // p = i, q = row, k = o
  Stage s;
  const T *gradient, *w;
  T* out;
  __device__ uint32_t p_count() const { return s.factor; }
  __device__ uint32_t q_count() const { return s.batch * s.rows; }
  __device__ uint32_t k_begin() const { return 0; }
  __device__ uint32_t k_end() const { return s.factor; }
  __device__ T p_at(uint32_t p, uint32_t k) const { return w[p * s.factor + k]; }
  __device__ T q_at(uint32_t k, uint32_t q) const { return gradient[turned(s, q, k)]; }
  __device__ void put(uint32_t q, uint32_t p, T value) const { out[int64_t{q} * s.factor + p] = value; }
};

template <class T>
struct WeightProduct {  // p = o, q = i, k = row, split into parts over blockIdx.z
  Stage s;
  const T *gradient, *in;
  T* partial;
  uint32_t rows_of_part;
  __device__ uint32_t p_count() const { return s.factor; }
  __device__ uint32_t q_count() const { return s.factor; }
  __device__ uint32_t k_begin() const { return blockIdx.z * rows_of_part; }
  __device__ uint32_t k_end() const { return min(k_begin() + rows_of_part, s.batch * s.rows); }
  __device__ T p_at(uint32_t p, uint32_t k) const { return gradient[turned(s, k, p)]; }
  __device__ T q_at(uint32_t k, uint32_t q) const { return in[int64_t{k} * s.factor + q]; }
  __device__ void put(uint32_t q, uint32_t p, T value) const {
    partial[(int64_t{blockIdx.z} * s.factor + q) * s.factor + p] = value;
  }
};

template <class T, class Product>
__global__ __launch_bounds__(kThreads) void multiply(const Product product) {
  __shared__ T p_tile[kDepth][kTile + 1];
  __shared__ T q_tile[kDepth][kTile + 1];
  const uint32_t p0 = blockIdx.x * kTile, q0 = blockIdx.y * kTile;
  const int column = threadIdx.x % kSide, row = threadIdx.x / kSide;
  const uint32_t p_count = product.p_count(), q_count = product.q_count(), k_end = product.k_end();
  // The next tiles are on their way in registers while these are multiplied.
  T p_next[kLoads], q_next[kLoads];
  const auto load = [&](uint32_t k0) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int e = threadIdx.x + i * kThreads;
      const uint32_t p = p0 + e / kDepth, pk = k0 + e % kDepth, q = q0 + e % kTile, qk = k0 + e / kTile;
      p_next[i] = p < p_count && pk < k_end ? product.p_at(p, pk) : T{0};
      q_next[i] = q < q_count && qk < k_end ? product.q_at(qk, q) : T{0};
    }
  };
  T sum[kEach][kEach] = {};
  load(product.k_begin());
  for (uint32_t k0 = product.k_begin(); k0 < k_end; k0 += kDepth) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int e = threadIdx.x + i * kThreads;
      p_tile[e % kDepth][e / kDepth] = p_next[i];
      q_tile[e / kTile][e % kTile] = q_next[i];
    }
    __syncthreads();
    load(k0 + kDepth);
#pragma unroll
    for (int k = 0; k < kDepth; ++k)
#pragma unroll
      for (int a = 0; a < kEach; ++a)
#pragma unroll
        for (int b = 0; b < kEach; ++b) sum[a][b] += q_tile[k][row + a * kSide] * p_tile[k][column + b * kSide];
    __syncthreads();
  }
#pragma unroll
  for (int a = 0; a < kEach; ++a)
#pragma unroll
    for (int b = 0; b < kEach; ++b) {
      const uint32_t q = q0 + row + a * kSide, p = p0 + column + b * kSide;
      if (q < q_count && p < p_count) product.put(q, p, sum[a][b]);
    }
}

constexpr int kSumElements = 32, kMostLanes = 32, kFewLanes = 8;
constexpr int kManyParts = 256;

// 32 neighbouring elements per block; each of blockDim.y lanes adds up its share of an element's parts, and then their sums in order.
template <class T>
__global__ __launch_bounds__(kSumElements* kMostLanes) void add_parts(const __grid_constant__ kron::Sums<T> sums) {
  __shared__ T lanes[kMostLanes][kSumElements];
  const int64_t e = int64_t{blockIdx.x} * kSumElements + threadIdx.x;
  const T* partial = sums.partial + int64_t{blockIdx.y} * sums.parts * sums.elements + e;
  T sum{0};
  if (e < sums.elements) {
#pragma unroll 8
    for (int part = threadIdx.y; part < sums.parts; part += blockDim.y) sum += partial[part * sums.elements];
  }
  lanes[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || e >= sums.elements) return;
  for (unsigned lane = 1; lane < blockDim.y; ++lane) sum += lanes[lane][threadIdx.x];
  sums.out[blockIdx.y][e] = sum;
}

unsigned tiles(int64_t count) { return static_cast<unsigned>(ceil_div(count, kTile)); }
int64_t all_rows(const Stage& s) { return int64_t{s.batch} * s.rows; }

}  // namespace

namespace kron {

template <class T>
void stage_forward(const Stage& s, const T* in, const T* w, T* out, cudaStream_t stream) {
  multiply<T><<<dim3(tiles(all_rows(s)), tiles(s.factor)), kThreads, 0, stream>>>(ForwardProduct<T>{s, in, w, out});
}

template <class T>
void stage_backward(const Stage& s, const T* gradient, const T* w, T* in_gradient, cudaStream_t stream) {
  // Blocks along y are limited to 65535, so rows, which can be many, are spread over several launches.
  constexpr int64_t kRows = int64_t{kTile} * 65535;
  const uint32_t whole = std::max<uint32_t>(1, static_cast<uint32_t>(kRows / s.rows));
  for (uint32_t b = 0; b < s.batch; b += whole) {
    const int64_t skip = int64_t{b} * s.rows * s.factor;
    const Stage part{std::min(whole, s.batch - b), s.rows, s.factor};
    multiply<T><<<dim3(tiles(s.factor), tiles(all_rows(part))), kThreads, 0, stream>>>(
        BackwardProduct<T>{part, gradient + skip, w, in_gradient + skip});
  }
}

int weight_parts(const Stage& s) { return static_cast<int>(std::clamp<int64_t>(all_rows(s) / kRowsOfPart, 1, kMostParts)); }

template <class T>
void stage_weight(const Stage& s, const T* gradient, const T* in, T* partial, cudaStream_t stream) {
  const int parts = weight_parts(s);
  const auto rows_of_part = static_cast<uint32_t>(ceil_div(all_rows(s), parts));
  const dim3 blocks(tiles(s.factor), tiles(s.factor), parts);
  multiply<T><<<blocks, kThreads, 0, stream>>>(WeightProduct<T>{s, gradient, in, partial, rows_of_part});
}

template <class T>
void sum_parts(const Sums<T>& sums, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(ceil_div(sums.elements, kSumElements)), static_cast<unsigned>(sums.stages));
  const int lanes = sums.parts >= kManyParts ? kMostLanes : kFewLanes;
  add_parts<<<blocks, dim3(kSumElements, lanes), 0, stream>>>(sums);
}

template void stage_forward(const Stage&, const float*, const float*, float*, cudaStream_t);
template void stage_forward(const Stage&, const double*, const double*, double*, cudaStream_t);
template void stage_backward(const Stage&, const float*, const float*, float*, cudaStream_t);
template void stage_backward(const Stage&, const double*, const double*, double*, cudaStream_t);
template void stage_weight(const Stage&, const float*, const float*, float*, cudaStream_t);
template void stage_weight(const Stage&, const double*, const double*, double*, cudaStream_t);
template void sum_parts(const Sums<float>&, cudaStream_t);
template void sum_parts(const Sums<double>&, cudaStream_t);

}  // namespace kron
