// Rows out of a table, and their gradients added into it by atomic additions.
#include <algorithm>

#include "common/launch.cuh"
#include "common/wide.cuh"
#include "embedding/embedding.h"

namespace {

using embedding::Indices;
using embedding::Shape;
using warpwatch::Bf16;
using warpwatch::ceil_div;
using warpwatch::F16;
using warpwatch::narrow;
using warpwatch::Pack;
using warpwatch::widen;

constexpr int kWarp = 32;
constexpr int kWarps = 8;  // Of a block.
constexpr int kAhead = 4;  // Packs that a lane loads before it stores the first.

// Blocks of a warp per row along x; along y parts of a row, so that few long rows fill the machine as well.
dim3 grid_of(int64_t count, int64_t packs) {
  const int64_t parts = ceil_div(packs, kWarp * kAhead);
  return dim3(static_cast<unsigned>(ceil_div(count, kWarps)), static_cast<unsigned>(std::min<int64_t>(parts, 65535)));
}

// The row of the table that this warp's index names, and the place of that index; -1 past the last.
__device__ inline int64_t row_of_warp(const Shape& shape, Indices indices, int64_t& place) {
  place = int64_t{blockIdx.x} * kWarps + threadIdx.y;
  if (place >= shape.count) return -1;
  const int64_t row = indices.wide ? static_cast<const int64_t*>(indices.data)[place] : static_cast<const int32_t*>(indices.data)[place];
  if (row < 0 || row >= shape.rows) __trap();
  return row;
}

template <class P>
__global__ void __launch_bounds__(kWarp* kWarps) gather(Shape shape, int64_t packs, const P* weight, Indices indices, P* out) {
  int64_t place;
  const int64_t row = row_of_warp(shape, indices, place);
  if (row < 0) return;
  const P* from = weight + row * packs;
  P* to = out + place * packs;
  for (int64_t first = int64_t{blockIdx.y} * kWarp * kAhead; first < packs; first += int64_t{gridDim.y} * kWarp * kAhead) {
    P moved[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t p = first + i * kWarp + threadIdx.x;
      if (p < packs) moved[i] = from[p];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t p = first + i * kWarp + threadIdx.x;
      if (p < packs) to[p] = moved[i];
    }
  }
}

__device__ inline void add(double* to, const double (&values)[1]) { atomicAdd(to, values[0]); }
__device__ inline void add(float* to, const float (&values)[1]) { atomicAdd(to, values[0]); }

// Four neighbours at an address that is a multiple of 16; since Hopper that is one instruction.
__device__ inline void add(float* to, const float (&values)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(values[0]), "f"(values[1]), "f"(values[2]),
               "f"(values[3])
               : "memory");
#else
  for (int i = 0; i < 4; ++i) atomicAdd(to + i, values[i]);
#endif
}

template <int V, class T, class W>
__global__ void __launch_bounds__(kWarp* kWarps) scatter(Shape shape, int64_t packs, const T* gradient, Indices indices, W* sum) {
  int64_t place;
  const int64_t row = row_of_warp(shape, indices, place);
  if (row < 0 || row == shape.padding) return;
  const auto* from = reinterpret_cast<const Pack<T, V>*>(gradient + place * shape.width);
  for (int64_t first = int64_t{blockIdx.y} * kWarp * kAhead; first < packs; first += int64_t{gridDim.y} * kWarp * kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t p = first + i * kWarp + threadIdx.x;
      if (p >= packs) continue;
      const Pack<T, V> pack = from[p];
      W values[V];
#pragma unroll
      for (int e = 0; e < V; ++e) values[e] = widen(pack.element[e]);
      add(sum + row * shape.width + p * V, values);
    }
  }
}

template <class T>
__global__ void round_to(const float* from, T* to, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) to[i] = narrow<T>(from[i]);
}

template <class P>
void launch_gather(const Shape& shape, int64_t packs, const void* weight, Indices indices, void* out, cudaStream_t stream) {
  gather<P><<<grid_of(shape.count, packs), dim3(kWarp, kWarps), 0, stream>>>(shape, packs, static_cast<const P*>(weight), indices,
                                                                               static_cast<P*>(out));
}

}  // namespace

const char* embedding::gather_on(const Shape& shape, int element_bytes, const void* weight, Indices indices, void* out, void* stream) {
  const cudaStream_t on = warpwatch::as_stream(stream);
  const int64_t bytes = shape.width * element_bytes;
  if (bytes % 16 == 0 && warpwatch::aligned16(weight) && warpwatch::aligned16(out)) {
    launch_gather<Pack<uint32_t, 4>>(shape, bytes / 16, weight, indices, out, on);
  } else if (element_bytes == 2) {
    launch_gather<uint16_t>(shape, shape.width, weight, indices, out, on);
  } else {
    launch_gather<uint32_t>(shape, bytes / 4, weight, indices, out, on);
  }
  return warpwatch::launch_error();
}

template <class T, class W>
const char* embedding::scatter_on(const Shape& shape, const T* gradient, Indices indices, W* sum, void* stream) {
  const cudaStream_t on = warpwatch::as_stream(stream);
  if constexpr (sizeof(W) == 4) {
    const bool packs = shape.width % 4 == 0 && warpwatch::aligned16(gradient) && warpwatch::aligned16(sum);
    if (packs) {
      scatter<4><<<grid_of(shape.count, shape.width / 4), dim3(kWarp, kWarps), 0, on>>>(shape, shape.width / 4, gradient, indices, sum);
      return warpwatch::launch_error();
    }
  }
  scatter<1><<<grid_of(shape.count, shape.width), dim3(kWarp, kWarps), 0, on>>>(shape, shape.width, gradient, indices, sum);
  return warpwatch::launch_error();
}

template <class T>
const char* embedding::round_on(const float* from, T* to, int64_t count, void* stream) {
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(count, 256), warpwatch::multiprocessors() * 16));
  round_to<<<blocks, 256, 0, warpwatch::as_stream(stream)>>>(from, to, count);
  return warpwatch::launch_error();
}

template const char* embedding::scatter_on(const Shape&, const float*, Indices, float*, void*);
template const char* embedding::scatter_on(const Shape&, const double*, Indices, double*, void*);
template const char* embedding::scatter_on(const Shape&, const Bf16*, Indices, float*, void*);
template const char* embedding::scatter_on(const Shape&, const F16*, Indices, float*, void*);
template const char* embedding::round_on(const float*, Bf16*, int64_t, void*);
template const char* embedding::round_on(const float*, F16*, int64_t, void*);
