// A stencil of seven taps over a line: staged in shared memory, or in registers and vectors of 16 bytes.
#include <algorithm>

#include "common/launch.cuh"
#include "common/reduce.cuh"
#include "stencil1d/stencil1d.h"

namespace {

using stencil1d::kPart;
using stencil1d::kRadius;
using stencil1d::kTaps;
using stencil1d::Version;
using warpwatch::ceil_div;
using warpwatch::sum_over_block;
using warpwatch::Vector16;

constexpr int kThreads = 256;

// The taps in registers, in the order in which they meet x.
template <class T>
struct Taps {
  T w[kTaps];

  __device__ Taps(const T* from, bool mirrored) {
#pragma unroll
    for (int j = 0; j < kTaps; ++j) w[j] = from[mirrored ? kTaps - 1 - j : j];
  }
};

template <class T>
__device__ T at_or_zero(const T* x, int64_t i, int64_t n) {
  return i >= 0 && i < n ? x[i] : T{0};
}

// One element per thread. The block loads blockDim + 6 elements once, and each is read seven times from shared memory.
template <class T>
__global__ void __launch_bounds__(kThreads) stencil_shared(const T* x, const T* w, T* y, int64_t n, bool mirrored) {
  __shared__ T staged[kThreads + 2 * kRadius];
  const int64_t first = int64_t{blockIdx.x} * kThreads, i = first + threadIdx.x;
  staged[threadIdx.x + kRadius] = at_or_zero(x, i, n);
  if (threadIdx.x < kRadius) {
    staged[threadIdx.x] = at_or_zero(x, i - kRadius, n);
    staged[threadIdx.x + kThreads + kRadius] = at_or_zero(x, i + kThreads, n);
  }
  // A thread's neighbours were loaded by others.
  __syncthreads();
  if (i >= n) return;
  const Taps<T> taps(w, mirrored);
  T sum{0};
#pragma unroll
  for (int j = 0; j < kTaps; ++j) sum += taps.w[j] * staged[threadIdx.x + j];
  y[i] = sum;
}

// x[i - kRadius .. i + V + kRadius) for the V elements of a thread. Inside the line these are three aligned vectors, of which the first
// and last are neighbours' and come from the first-level cache.
template <class T>
struct Window {
  static constexpr int V = Vector16<T>::size;
  static constexpr int kSide = (kRadius + V - 1) / V * V;  // Elements loaded on either side: whole vectors.
  T at[V + 2 * kSide];

  __device__ Window(const T* x, int64_t i, int64_t n) {
    if (i >= kSide && i + V + kSide <= n) {
#pragma unroll
      for (int v = 0; v < (V + 2 * kSide) / V; ++v) {
        const Vector16<T> vector = *reinterpret_cast<const Vector16<T>*>(x + i - kSide + v * V);
#pragma unroll
        for (int e = 0; e < V; ++e) at[v * V + e] = vector.element[e];
      }
    } else {
#pragma unroll
      for (int e = 0; e < V + 2 * kSide; ++e) at[e] = at_or_zero(x, i - kSide + e, n);
    }
  }

  // x[i + e + offset].
  __device__ T near(int e, int offset) const { return at[kSide + e + offset]; }
};

// The stencil at the V elements of a window, stored where they lie inside the line.
template <class T>
__device__ void store_stencil(const Taps<T>& taps, const Window<T>& window, T* y, int64_t i, int64_t n) {
  constexpr int V = Vector16<T>::size;
  Vector16<T> sum;
#pragma unroll
  for (int e = 0; e < V; ++e) {
    sum.element[e] = T{0};
#pragma unroll
    for (int j = 0; j < kTaps; ++j) sum.element[e] += taps.w[j] * window.near(e, j - kRadius);
  }
  if (i + V <= n) {
    *reinterpret_cast<Vector16<T>*>(y + i) = sum;
  } else {
#pragma unroll
    for (int e = 0; e < V; ++e)
      if (i + e < n) y[i + e] = sum.element[e];
  }
}

// V elements per thread; no shared memory, no barrier. x and y must be aligned to 16 bytes.
template <class T>
__global__ void __launch_bounds__(kThreads) stencil_vectors(const T* x, const T* w, T* y, int64_t n) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * Vector16<T>::size;
  if (i < n) store_stencil(Taps<T>(w, false), Window<T>(x, i, n), y, i, n);
}

// The part's share of every tap's gradient goes to `partial`. A thread with nothing to add still reaches the barrier.
template <class T>
__device__ void store_share(T (&sum)[kTaps], T* partial) {
  sum_over_block(sum);
  if (threadIdx.x == 0)
    for (int j = 0; j < kTaps; ++j) partial[blockIdx.x * kTaps + j] = sum[j];
}

// A block per part, an element per thread and step.
template <class T>
__global__ void __launch_bounds__(kThreads) sum_taps(const T* g, const T* x, T* partial, int64_t n) {
  const int64_t first = int64_t{blockIdx.x} * kPart, end = first + kPart < n ? first + kPart : n;
  T sum[kTaps] = {};
  for (int64_t i = first + threadIdx.x; i < end; i += kThreads)
#pragma unroll
    for (int j = 0; j < kTaps; ++j) sum[j] += g[i] * at_or_zero(x, i + j - kRadius, n);
  store_share(sum, partial);
}

// Both gradients while g and x pass by once. g, x and dx must be aligned to 16 bytes.
template <class T>
__global__ void __launch_bounds__(kThreads) gradients_vectors(const T* g, const T* x, const T* w, T* dx, T* partial, int64_t n) {
  constexpr int V = Vector16<T>::size;
  const int64_t first = int64_t{blockIdx.x} * kPart, end = first + kPart < n ? first + kPart : n;
  const Taps<T> mirrored(w, true);
  T sum[kTaps] = {};
  for (int64_t i = first + threadIdx.x * V; i < end; i += kThreads * V) {
    const Window<T> incoming(g, i, n), window(x, i, n);
    store_stencil(mirrored, incoming, dx, i, n);
#pragma unroll
    for (int e = 0; e < V; ++e)
#pragma unroll
      for (int j = 0; j < kTaps; ++j) sum[j] += incoming.near(e, 0) * window.near(e, j - kRadius);
  }
  store_share(sum, partial);
}

// dw[j] = the sum of all parts, by one block.
template <class T>
__global__ void __launch_bounds__(kThreads) sum_parts(const T* partial, T* dw, int64_t parts) {
  T sum[kTaps] = {};
  for (int64_t part = threadIdx.x; part < parts; part += kThreads)
#pragma unroll
    for (int j = 0; j < kTaps; ++j) sum[j] += partial[part * kTaps + j];
  sum_over_block(sum);
  if (threadIdx.x == 0)
    for (int j = 0; j < kTaps; ++j) dw[j] = sum[j];
}

}  // namespace

template <class T>
const char* stencil1d::forward_on(Version version, const T* x, const T* w, T* y, int64_t n, void* stream) {
  const cudaStream_t on = warpwatch::as_stream(stream);
  if (version == Version::vectors && warpwatch::aligned16(x) && warpwatch::aligned16(y)) {
    const auto blocks = static_cast<unsigned>(ceil_div(n, kThreads * Vector16<T>::size));
    stencil_vectors<<<blocks, kThreads, 0, on>>>(x, w, y, n);
  } else {
    stencil_shared<<<static_cast<unsigned>(ceil_div(n, kThreads)), kThreads, 0, on>>>(x, w, y, n, false);
  }
  return warpwatch::launch_error();
}

template <class T>
const char* stencil1d::backward_on(Version version, const T* g, const T* x, const T* w, T* dx, T* partial, T* dw, int64_t n,
                                   void* stream) {
  const cudaStream_t on = warpwatch::as_stream(stream);
  const auto parts = static_cast<unsigned>(ceil_div(n, kPart));
  const bool aligned = warpwatch::aligned16(g) && warpwatch::aligned16(x) && warpwatch::aligned16(dx);
  if (version == Version::vectors && aligned) {
    gradients_vectors<<<parts, kThreads, 0, on>>>(g, x, w, dx, partial, n);
  } else {
    stencil_shared<<<static_cast<unsigned>(ceil_div(n, kThreads)), kThreads, 0, on>>>(g, w, dx, n, true);
    sum_taps<<<parts, kThreads, 0, on>>>(g, x, partial, n);
  }
  sum_parts<<<1, kThreads, 0, on>>>(partial, dw, int64_t{parts});
  return warpwatch::launch_error();
}

#define WARPWATCH_STENCIL(T)                                                                                                  \
  template const char* stencil1d::forward_on(Version, const T*, const T*, T*, int64_t, void*);                                \
  template const char* stencil1d::backward_on(Version, const T*, const T*, const T*, T*, T*, T*, int64_t, void*);
WARPWATCH_STENCIL(float)
WARPWATCH_STENCIL(double)
#undef WARPWATCH_STENCIL
