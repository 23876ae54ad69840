// The long convolution and its gradients on CUDA cores: products with Toeplitz matrices that are never stored.
//
// A convolved row is a triangular Toeplitz matrix times a row of k, so every batch row of a channel shares one matrix, and all its entries
// come from one row of w. What a tile needs of both lies in shared memory, what a thread needs for four steps lies in registers.
#include <algorithm>

#include "causal_conv/causal_conv.h"
#include "causal_conv/place.cuh"
#include "common/launch.cuh"

namespace {

using causal_conv::place;
using causal_conv::Shape;
using warpwatch::ceil_div;

constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kRows = 32;  // Batch rows of a tile.

// Four neighbours; shared memory is read in these.
template <class T>
struct alignas(16) Four {
  T at[4];
};

template <class T>
__device__ Four<T> four(const T* from) {
  return *reinterpret_cast<const Four<T>*>(from);
}

// --- convolution -----------------------------------------------------------------------------------------------------------------------

constexpr int kTimes = 256;   // Outputs of a block along time: 32 per warp,
constexpr int kOwn = 8;       // of which a thread has 8 neighbours, for every eighth of its batch rows.
constexpr int kSteps = 64;    // Inputs that are staged at a time.
constexpr int kRowStride = kSteps + 4;  // Rows are four banks apart, so that eight threads read eight rows at once.

template <class T>
struct Staged {
  alignas(16) T k[kRows][kRowStride];
  alignas(16) T w[kTimes + kSteps];  // By distance: w[x] is that of distance x + (first output) - (first input) - kSteps.
};

template <class T>
__device__ void stage(Staged<T>& staged, const Shape& shape, bool turned, const T* k, const T* w, int64_t first_row, int64_t t0, int64_t u0) {
  const int64_t c = blockIdx.y;
  for (int i = threadIdx.x; i < kRows * kSteps; i += kThreads) {
    const int64_t b = first_row + i / kSteps, u = u0 + i % kSteps;
    const bool inside = b < shape.batch && u < shape.length;
    const int64_t from = (b * shape.channels + c) * shape.length + place(turned, u, shape.length);
    staged.k[i / kSteps][i % kSteps] = inside ? k[from] : T{0};
  }
  for (int x = threadIdx.x; x < kTimes + kSteps; x += kThreads) {
    const int64_t d = t0 - u0 - kSteps + x;
    staged.w[x] = d >= 0 && d < shape.length ? w[c * shape.length + shape.length - 1 - d] : T{0};
  }
}

// What four inputs, from `step` on, add to a thread's outputs. Past the diagonal, where an input is later than an output, products are
// left out and not multiplied by zero, because NaN would get through.
template <int TB, bool kDiagonal, class T>
__device__ void add_steps(T (&sum)[TB][kOwn], const Staged<T>& staged, int row, int own, int step, int64_t ahead) {
  T w[12];
#pragma unroll
  for (int v = 0; v < 3; ++v) {
    const Four<T> part = four(staged.w + own - step + kSteps - 4 + 4 * v);
#pragma unroll
    for (int e = 0; e < 4; ++e) w[4 * v + e] = part.at[e];
  }
#pragma unroll
  for (int b = 0; b < TB; ++b) {
    const Four<T> k = four(staged.k[row + 8 * b] + step);
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int i = 0; i < kOwn; ++i)
        if (!kDiagonal || i + ahead >= j) sum[b][i] += k.at[j] * w[i - j + 4];
  }
}

// Blocks: parts of time along x, the longest sums first; channels along y; batch along z. A thread has TB batch rows.
template <class T, int TB>
__global__ void __launch_bounds__(kThreads) convolve(Shape shape, bool turned, const T* k, const T* w, const T* eps, T* y) {
  __shared__ Staged<T> staged;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, row = lane / 4, own = warp * 32 + lane % 4 * kOwn;
  const int64_t t0 = int64_t{gridDim.x - 1 - blockIdx.x} * kTimes, first_row = int64_t{blockIdx.z} * kRows, c = blockIdx.y;
  const int64_t warp_t = t0 + warp * 32;
  T sum[TB][kOwn] = {};
  const int64_t end = t0 + kTimes < shape.length ? t0 + kTimes : shape.length;
  for (int64_t u0 = 0; u0 < end; u0 += kSteps) {
    if (u0 > 0) __syncthreads();
    stage(staged, shape, turned, k, w, first_row, t0, u0);
    __syncthreads();
    // Up to the warp's first output every input counts for all its outputs; the next 32 inputs are the diagonal's.
    const int64_t before = warp_t - u0;
    const int full = static_cast<int>(before < 0 ? 0 : before < kSteps ? before : kSteps);
    const int last = static_cast<int>(before + 32 < 0 ? 0 : before + 32 < kSteps ? before + 32 : kSteps);
#pragma unroll 1
    for (int step = 0; step < full; step += 4) add_steps<TB, false>(sum, staged, row, own, step, 0);
#pragma unroll 1
    for (int step = full; step < last; step += 4) add_steps<TB, true>(sum, staged, row, own, step, t0 + own - u0 - step);
  }
  const T constant = eps ? *eps : T{0};
#pragma unroll
  for (int b = 0; b < TB; ++b)
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int64_t to = first_row + row + 8 * b, t = t0 + own + i;
      if (to < shape.batch && t < shape.length)
        y[(to * shape.channels + c) * shape.length + place(turned, t, shape.length)] = constant + sum[b][i];
    }
}

template <class T, int TB>
void launch_convolve(const Shape& shape, bool turned, const T* k, const T* w, const T* eps, T* y, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(shape.length, kTimes)), static_cast<unsigned>(shape.channels),
                  static_cast<unsigned>(ceil_div(shape.batch, kRows)));
  convolve<T, TB><<<grid, kThreads, 0, stream>>>(shape, turned, k, w, eps, y);
}

template <class T>
const char* convolve_any(const Shape& shape, bool turned, const T* k, const T* w, const T* eps, T* y, void* stream) {
  // Double precision is for checking, and kernels cost compile time.
  constexpr int kFew = sizeof(T) == 8 ? 4 : 1;
  if (shape.batch <= 8) {
    launch_convolve<T, kFew>(shape, turned, k, w, eps, y, warpwatch::as_stream(stream));
  } else {
    launch_convolve<T, 4>(shape, turned, k, w, eps, y, warpwatch::as_stream(stream));
  }
  return warpwatch::launch_error();
}

// --- gradient of the filter --------------------------------------------------------------------------------------------------------------

constexpr int kOwnDistances = 32;                           // Of a warp, whose lanes have a batch row each.
constexpr int kDistances = kWarps * kOwnDistances;          // Of a block.
constexpr int kInputs = 128;                                // Of k, staged at a time with the part of g that they meet.
constexpr int kUnit = 8;                                    // Inputs that a lane has in registers.
constexpr int kStrideK = kInputs + 4, kStrideG = kInputs + kDistances + 4;  // Eight lanes read eight rows at once, as above.

template <class T>
constexpr int kCorrelateBytes = kRows * (kStrideK + kStrideG) * sizeof(T);

// `count` elements of each of the tile's rows, from `start` on, with zeros beyond the row and beyond the batch.
template <class T>
__device__ void stage_rows(T* to, int stride, int count, const Shape& shape, const T* from, int64_t first_row, int64_t start) {
  for (int r = threadIdx.x / kWarp; r < kRows; r += kWarps) {
    const int64_t b = first_row + r;
    const T* row = from + (b * shape.channels + blockIdx.y) * shape.length;
    for (int i = threadIdx.x % kWarp; i < count; i += kWarp) {
      const int64_t t = start + i;
      to[r * stride + i] = b < shape.batch && t < shape.length ? row[t] : T{0};
    }
  }
}

// What kUnit inputs add to the lane's sums for all distances of its warp. Near the row's end, products with what lies beyond it are left
// out: `room` is how far the first input is from the end, less the warp's first distance.
template <bool kEnd, class T>
__device__ void add_unit(T (&sum)[kOwnDistances], const T* k, const T* g, int64_t room) {
  T at_k[kUnit], at_g[kUnit + kOwnDistances];
#pragma unroll
  for (int v = 0; v < kUnit; v += 4)
#pragma unroll
    for (int e = 0; e < 4; ++e) at_k[v + e] = four(k + v).at[e];
#pragma unroll
  for (int v = 0; v < kUnit + kOwnDistances; v += 4)
#pragma unroll
    for (int e = 0; e < 4; ++e) at_g[v + e] = four(g + v).at[e];
#pragma unroll
  for (int j = 0; j < kUnit; ++j)
#pragma unroll
    for (int d = 0; d < kOwnDistances; ++d)
      if (!kEnd || j + d < room) sum[d] += at_k[j] * at_g[j + d];
}

// Blocks: parts of the distances along x, the longest sums first; channels along y. All batch rows are summed here, in a fixed order.
template <class T>
__global__ void __launch_bounds__(kThreads) correlate(Shape shape, const T* k, const T* g, T* dw) {
  extern __shared__ __align__(16) unsigned char memory[];
  T* staged_k = reinterpret_cast<T*>(memory);
  T* staged_g = staged_k + kRows * kStrideK;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t d0 = int64_t{blockIdx.x} * kDistances, own = d0 + warp * kOwnDistances;
  T sum[kOwnDistances] = {};
  for (int64_t first_row = 0; first_row < shape.batch; first_row += kRows)
    for (int64_t u0 = 0; u0 < shape.length - d0; u0 += kInputs) {
      __syncthreads();
      stage_rows(staged_k, kStrideK, kInputs, shape, k, first_row, u0);
      stage_rows(staged_g, kStrideG, kInputs + kDistances, shape, g, first_row, u0 + d0);
      __syncthreads();
      const T* row_k = staged_k + lane * kStrideK;
      const T* row_g = staged_g + lane * kStrideG + warp * kOwnDistances;
#pragma unroll 1
      for (int i = 0; i < kInputs; i += kUnit) {
        const int64_t room = shape.length - own - u0 - i;
        if (room >= kUnit + kOwnDistances) {
          add_unit<false>(sum, row_k + i, row_g + i, room);
        } else if (room > 0) {
          add_unit<true>(sum, row_k + i, row_g + i, room);
        }
      }
    }
#pragma unroll
  for (int d = 0; d < kOwnDistances; ++d) {
    for (int apart = kWarp / 2; apart > 0; apart /= 2) sum[d] += __shfl_xor_sync(~0u, sum[d], apart);
    if (lane == d && own + d < shape.length) dw[blockIdx.y * shape.length + shape.length - 1 - own - d] = sum[d];
  }
}

template <class T>
const char* correlate_any(const Shape& shape, const T* k, const T* g, T* dw, void* stream) {
  const cudaError_t error = cudaFuncSetAttribute(correlate<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, kCorrelateBytes<T>);
  if (error != cudaSuccess) return warpwatch::words_of(error);
  const dim3 grid(static_cast<unsigned>(ceil_div(shape.length, kDistances)), static_cast<unsigned>(shape.channels));
  correlate<T><<<grid, kThreads, kCorrelateBytes<T>, warpwatch::as_stream(stream)>>>(shape, k, g, dw);
  return warpwatch::launch_error();
}

}  // namespace

namespace causal_conv {

const char* convolve_on(const Shape& shape, bool turned, const float* k, const float* w, const float* eps, float* y, void* stream) {
  return convolve_any(shape, turned, k, w, eps, y, stream);
}

const char* convolve_on(const Shape& shape, bool turned, const double* k, const double* w, const double* eps, double* y, void* stream) {
  return convolve_any(shape, turned, k, w, eps, y, stream);
}

const char* correlate_on(const Shape& shape, const float* k, const float* g, float* dw, void* stream) {
  return correlate_any(shape, k, g, dw, stream);
}

const char* correlate_on(const Shape& shape, const double* k, const double* g, double* dw, void* stream) {
  return correlate_any(shape, k, g, dw, stream);
}

}  // namespace causal_conv
