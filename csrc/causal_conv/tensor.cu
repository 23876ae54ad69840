// The long convolution and its gradients on tensor cores, in tf32; the convolution also with the accuracy of floats, each of which is
// then the sum of two numbers of tf32.
//
// Forward, 16 x 8 tiles of the Toeplitz matrix meet 8 x 8 tiles of k. A tile of the matrix is told by one distance, and its fragment by the
// lane's place in it, so all the fragments that a warp needs for 64 inputs are 30 numbers, loaded once into registers.
//
// Backward, dw is a sum over diagonals of products k g: with u = 16 q + i, distance m - i + D of dw is the sum over i of
// P[i][m] = sum over batch and q of k[16 q + i] * g[16 q + m + D], which is a plain product of matrices with 16 rows. Moving on by one q
// moves the columns by two tiles of 8, so most of them are in registers already.
#include "causal_conv/causal_conv.h"
#include "causal_conv/place.cuh"
#include "common/launch.cuh"
#include "common/machine.cuh"

namespace {

using causal_conv::place;
using causal_conv::Shape;
using warpwatch::ceil_div;
using warpwatch::low_part;
using warpwatch::tensor_step;
using warpwatch::to_tf32;

constexpr int kWarp = 32;
constexpr int kRows = 32;  // Batch rows of a tile, at most.

// --- convolution -----------------------------------------------------------------------------------------------------------------------

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kOwn = 64, kTimes = kWarps * kOwn;  // Outputs along time, of a warp and of a block.
constexpr int kSteps = 64;                        // Inputs that are staged at a time.
constexpr int kStride = kSteps + 4;               // Rows are four banks apart: a fragment of 8 rows and 4 columns fills all 32.
constexpr int kDistances = kTimes + kSteps;

// How the product is computed: for 8 * Tiles batch rows, and with each float as a sum of two numbers if `Split`.
template <int Tiles, bool Split>
struct Plan {
  static constexpr int kTiles = Tiles, kRows = 8 * Tiles;
  static constexpr bool kSplit = Split;
  // Staged elements of a thread, which are on their way while the ones before are used.
  static constexpr int kHeld = kRows * kSteps / kThreads;
  using Sums = float[4][Tiles][4];

  struct Staged {
    uint32_t k[kRows][kStride];
    uint32_t w[kDistances];  // w[x] is that of distance x + (first output) - (first input) - kSteps.
  };

  static __device__ uint32_t bits_of(float value) { return Split ? __float_as_uint(value) : to_tf32(value); }
};

template <int kHeld>
__device__ inline void load_inputs(float (&held)[kHeld], const Shape& shape, bool turned, const float* k, int64_t first_row, int64_t u0) {
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int at = i * kThreads + threadIdx.x;
    const int64_t b = first_row + at / kSteps, u = u0 + at % kSteps;
    const int64_t row = (b * shape.channels + blockIdx.y) * shape.length;
    held[i] = b < shape.batch && u < shape.length ? k[row + place(turned, u, shape.length)] : 0.0f;
  }
}

template <class Plan>
__device__ inline void store_staged(typename Plan::Staged& staged, const float (&held)[Plan::kHeld], const Shape& shape, const float* w, int64_t t0,
                                    int64_t u0) {
#pragma unroll
  for (int i = 0; i < Plan::kHeld; ++i) {
    const int at = i * kThreads + threadIdx.x;
    staged.k[at / kSteps][at % kSteps] = Plan::bits_of(held[i]);
  }
  for (int x = threadIdx.x; x < kDistances; x += kThreads) {
    const int64_t d = t0 - u0 - kSteps + x;
    staged.w[x] = d >= 0 && d < shape.length ? Plan::bits_of(w[blockIdx.y * shape.length + shape.length - 1 - d]) : 0u;
  }
}

// What the staged inputs add to the warp's 64 outputs of every batch row. `own` is the warp's first output in the block.
template <class Plan>
__device__ inline void add_steps(typename Plan::Sums& sum, const typename Plan::Staged& staged, int own, int g, int t) {
  constexpr int kTiles = Plan::kTiles, kProducts = Plan::kSplit ? 3 : 1;
  // Number q + 15 is that of distance (own) - (first input) + 4 q + g - t.
  uint32_t near[30], near_low[30];
#pragma unroll
  for (int q = -15; q < 15; ++q) near[q + 15] = staged.w[own + kSteps + 4 * q + g - t];
  if constexpr (Plan::kSplit) {
#pragma unroll
    for (int q = 0; q < 30; ++q) near_low[q] = low_part(near[q]);
  }
#pragma unroll
  for (int s = 0; s < kSteps / 8; ++s) {
    uint32_t b[kTiles][2], b_low[kTiles][2];
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        b[n][e] = staged.k[8 * n + g][8 * s + t + 4 * e];
        if constexpr (Plan::kSplit) b_low[n][e] = low_part(b[n][e]);
      }
    // Of a number's parts, the small products come first: added to a large sum they would lose their last bits.
#pragma unroll
    for (int product = 0; product < kProducts; ++product)
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const int q = 4 * m - 2 * s + 15;
        const auto& from = kProducts == 3 && product == 0 ? near_low : near;
        const uint32_t a[4] = {from[q], from[q + 2], from[q - 1], from[q + 1]};
#pragma unroll
        for (int n = 0; n < kTiles; ++n) tensor_step<float>(sum[m][n], a, product == 1 ? b_low[n] : b[n]);
      }
  }
}

// Blocks: parts of time along x, the longest sums first; channels along y; batch along z.
template <class Plan>
__global__ void __launch_bounds__(kThreads, Plan::kSplit ? 2 : 3)
    convolve(Shape shape, bool turned, const float* k, const float* w, const float* eps, float* y) {
  constexpr int kTiles = Plan::kTiles;
  __shared__ typename Plan::Staged staged;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4, own = warp * kOwn;
  const int64_t t0 = int64_t{gridDim.x - 1 - blockIdx.x} * kTimes, first_row = int64_t{blockIdx.z} * Plan::kRows;
  const int64_t end = t0 + kTimes < shape.length ? t0 + kTimes : shape.length;
  typename Plan::Sums sum = {};
  float held[Plan::kHeld];
  load_inputs(held, shape, turned, k, first_row, 0);
#pragma unroll 1
  for (int64_t u0 = 0; u0 < end; u0 += kSteps) {
    if (u0 > 0) __syncthreads();
    store_staged<Plan>(staged, held, shape, w, t0, u0);
    __syncthreads();
    if (u0 + kSteps < end) load_inputs(held, shape, turned, k, first_row, u0 + kSteps);
    // Inputs later than all outputs of the warp have nothing to add.
    if (u0 >= t0 + own + kOwn) continue;
    if constexpr (Plan::kSplit) {
      // Tensor cores cut off what does not fit a sum: short sums, added up with proper rounding, keep the accuracy of a float.
      typename Plan::Sums part = {};
      add_steps<Plan>(part, staged, own, g, t);
#pragma unroll
      for (int e = 0; e < 4 * kTiles * 4; ++e) (&sum[0][0][0])[e] += (&part[0][0][0])[e];
    } else {
      add_steps<Plan>(sum, staged, own, g, t);
    }
  }
  const float constant = eps ? *eps : 0.0f;
  const int64_t next_row = shape.channels * shape.length, time = t0 + own + g;
  float* out = y + (first_row + 2 * t) * next_row + blockIdx.y * shape.length;
#pragma unroll
  for (int m = 0; m < 4; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t at = time + 16 * m + 8 * half;
      if (at >= shape.length) continue;
      float* to = out + place(turned, at, shape.length);
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (first_row + 8 * n + 2 * t + e < shape.batch) to[(8 * n + e) * next_row] = constant + sum[m][n][2 * half + e];
    }
}

// --- gradient of the filter --------------------------------------------------------------------------------------------------------------

constexpr int kTeams = 4, kGroups = 2;            // Warps: a team has 8 batch rows, a group 112 distances.
constexpr int kCorrelators = kTeams * kGroups * kWarp;
constexpr int kColumns = 128, kFilter = kColumns - 16;  // Columns of P, and distances all of whose 16 terms lie in them.
constexpr int kInputs = 128, kMoves = kInputs / 16;     // Inputs that are staged at a time; values of q in them.
constexpr int kWindow = kInputs - 16 + kColumns + (kGroups - 1) * kFilter;  // Elements of g that they meet.
constexpr int kStrideK = kInputs + 8, kStrideG = kWindow + 8;  // Rows are eight banks apart: 4 rows of 8 columns fill all 32.
constexpr int kTiles = kColumns / 8;
constexpr int kSums = kTeams * kGroups * 16 * kColumns;
constexpr int kStagedWords = kRows * (kStrideK + kStrideG);
constexpr int kBytes = 4 * (kSums > kStagedWords ? kSums : kStagedWords);
static_assert(kStrideK % 32 == 8 && kStrideG % 32 == 8 && 2 * kMoves == kTiles);

__device__ inline void stage_rows(uint32_t* to, int stride, int count, const Shape& shape, const float* from, int64_t first_row,
                                  int64_t start) {
  for (int r = threadIdx.x / kWarp; r < kRows; r += kCorrelators / kWarp) {
    const int64_t b = first_row + r;
    const float* row = from + (b * shape.channels + blockIdx.y) * shape.length;
    for (int i = threadIdx.x % kWarp; i < count; i += kWarp) {
      const int64_t at = start + i;
      to[r * stride + i] = b < shape.batch && at < shape.length ? to_tf32(row[at]) : 0u;
    }
  }
}

// Adds the staged inputs of the team's rows to P. `k` and `g` are the lane's own: row t of the team, column g of the tile.
__device__ inline void add_products(float (&sum)[kTiles][4], const uint32_t* k, const uint32_t* g) {
  uint32_t column[kTiles][2];  // Tile p of the window, counted from the first, is number p % kTiles.
#pragma unroll
  for (int p = 0; p < kTiles - 2; ++p)
#pragma unroll
    for (int e = 0; e < 2; ++e) column[p][e] = g[4 * e * kStrideG + 8 * p];
#pragma unroll
  for (int q = 0; q < kMoves; ++q) {
#pragma unroll
    for (int p = 2 * q + kTiles - 2; p < 2 * q + kTiles; ++p)
#pragma unroll
      for (int e = 0; e < 2; ++e) column[p % kTiles][e] = g[4 * e * kStrideG + 8 * p];
    const uint32_t a[4] = {k[16 * q], k[16 * q + 8], k[4 * kStrideK + 16 * q], k[4 * kStrideK + 16 * q + 8]};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) tensor_step<float>(sum[n], a, column[(2 * q + n) % kTiles]);
  }
}

// dw of the block's distances: the sums along diagonals of all warps' P, in an order that never changes.
__device__ inline void store_diagonals(const float* products, const Shape& shape, int64_t d0, float* dw) {
  for (int i = threadIdx.x; i < kGroups * kFilter; i += kCorrelators) {
    const int group = i / kFilter, own = i % kFilter;
    float total = 0.0f;
    for (int team = 0; team < kTeams; ++team)
      for (int row = 0; row < 16; ++row) total += products[((team * kGroups + group) * 16 + row) * kColumns + own + row];
    if (d0 + i < shape.length) dw[blockIdx.y * shape.length + shape.length - 1 - d0 - i] = total;
  }
}

// Blocks: parts of the distances along x, the longest sums first; channels along y.
__global__ void __launch_bounds__(kCorrelators) correlate(Shape shape, const float* k, const float* g, float* dw) {
  extern __shared__ __align__(16) unsigned char memory[];
  uint32_t* staged_k = reinterpret_cast<uint32_t*>(memory);
  uint32_t* staged_g = staged_k + kRows * kStrideK;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, team = warp / kGroups, group = warp % kGroups;
  const int column = lane / 4, row = team * 8 + lane % 4;
  const int64_t d0 = int64_t{blockIdx.x} * kGroups * kFilter, own = d0 + group * kFilter;
  float sum[kTiles][4] = {};
  for (int64_t first_row = 0; first_row < shape.batch; first_row += kRows)
    for (int64_t u0 = 0; u0 < shape.length - d0; u0 += kInputs) {
      __syncthreads();
      stage_rows(staged_k, kStrideK, kInputs, shape, k, first_row, u0);
      stage_rows(staged_g, kStrideG, kWindow, shape, g, first_row, u0 + d0);
      __syncthreads();
      if (u0 + own < shape.length)
        add_products(sum, staged_k + row * kStrideK + column, staged_g + row * kStrideG + group * kFilter + column);
    }
  __syncthreads();
  float* products = reinterpret_cast<float*>(memory) + warp * 16 * kColumns;
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) products[(column + e / 2 * 8) * kColumns + 8 * n + 2 * (lane % 4) + e % 2] = sum[n][e];
  __syncthreads();
  store_diagonals(reinterpret_cast<const float*>(memory), shape, d0, dw);
}

}  // namespace

namespace causal_conv {

template <class Plan>
const char* launch_convolve(const Shape& shape, bool turned, const float* k, const float* w, const float* eps, float* y, void* stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(shape.length, kTimes)), static_cast<unsigned>(shape.channels),
                  static_cast<unsigned>(ceil_div(shape.batch, Plan::kRows)));
  convolve<Plan><<<grid, kThreads, 0, warpwatch::as_stream(stream)>>>(shape, turned, k, w, eps, y);
  return warpwatch::launch_error();
}

const char* convolve_tf32_on(const Shape& shape, bool turned, const float* k, const float* w, const float* eps, float* y, void* stream) {
  if (shape.batch <= 8) return launch_convolve<Plan<1, false>>(shape, turned, k, w, eps, y, stream);
  return launch_convolve<Plan<4, false>>(shape, turned, k, w, eps, y, stream);
}

const char* convolve_split_on(const Shape& shape, bool turned, const float* k, const float* w, const float* eps, float* y, void* stream) {
  if (shape.batch <= 8) return launch_convolve<Plan<1, true>>(shape, turned, k, w, eps, y, stream);
  // More rows would take more registers than there are.
  return launch_convolve<Plan<2, true>>(shape, turned, k, w, eps, y, stream);
}

const char* correlate_tf32_on(const Shape& shape, const float* k, const float* g, float* dw, void* stream) {
  const cudaError_t error = cudaFuncSetAttribute(correlate, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return warpwatch::words_of(error);
  const dim3 grid(static_cast<unsigned>(ceil_div(shape.length, kGroups * kFilter)), static_cast<unsigned>(shape.channels));
  correlate<<<grid, kCorrelators, kBytes, warpwatch::as_stream(stream)>>>(shape, k, g, dw);
  return warpwatch::launch_error();
}

}  // namespace causal_conv
