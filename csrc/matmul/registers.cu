// The middle rungs: a thread computes several elements, so that what it reads from shared memory is used more than once.
#include "matmul/tiles.cuh"

namespace {

using matmul::EightByEight;
using matmul::Product;
using matmul::Strip;
using matmul::Tile;

constexpr int kDepth = 8;

// 64 x 64 elements per block, 8 below each other per thread: one element of B is used 8 times.
__global__ __launch_bounds__(512) void column_of_registers(const __grid_constant__ Product<float> call) {
  constexpr int side = 64, each = 8, threads = 512, pitch = side + 4;
  __shared__ __align__(16) float a[kDepth * pitch], b[kDepth * pitch];
  const Tile tile(call, side, side);
  const matmul::Share<side, kDepth, threads> from_a(Strip<float>(call.a, tile.batch, tile.m, call.m, call.k), false);
  const matmul::Share<side, kDepth, threads> from_b(Strip<float>(call.b, tile.batch, tile.n, call.n, call.k), false);
  const int n = threadIdx.x % side, m = threadIdx.x / side * each;
  float sum[each] = {};
  for (int64_t k = 0; k < call.k; k += kDepth) {
    from_a.copy(k, a);
    from_b.copy(k, b);
    __syncthreads();
#pragma unroll
    for (int row = 0; row < kDepth; ++row) {
      const float y = b[row * pitch + n];
#pragma unroll
      for (int i = 0; i < each; ++i) sum[i] += a[row * pitch + m + i] * y;
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < each; ++i)
    if (tile.m + m + i < call.m && tile.n + n < call.n)
      call.c[(tile.batch * call.m + tile.m + m + i) * call.n + tile.n + n] = sum[i];
}

constexpr int kSide = 128, kThreads = 256, kPitch = kSide + 4;

// A tile in one access of 16 bytes per thread, whichever axis is contiguous: 128 x 8 floats are 256 vectors.
__device__ void copy_vectors(const Strip<float>& strip, int64_t k, float* tile) {
  const bool turned = strip.along_k == 1;
  const int i = turned ? threadIdx.x / 2 : threadIdx.x % 32 * 4, row = turned ? threadIdx.x % 2 * 4 : threadIdx.x / 32;
  const int64_t left = !strip.inside(i, k + row) ? 0 : turned ? strip.ks - k - row : strip.outers - i;
  float4 v = make_float4(0, 0, 0, 0);
  if (left >= 4) {
    v = *reinterpret_cast<const float4*>(strip.at(i, k + row));
  } else if (left > 0) {
    const float* from = strip.at(i, k + row);
    v.x = from[0];
    if (left > 1) v.y = from[1];
    if (left > 2) v.z = from[2];
  }
  float* to = tile + row * kPitch + i;
  if (turned) {
    to[0] = v.x, to[kPitch] = v.y, to[2 * kPitch] = v.z, to[3 * kPitch] = v.w;
  } else {
    *reinterpret_cast<float4*>(to) = v;
  }
}

// 128 x 128 elements per block. Without vectors a thread's 8 x 8 are neighbours, as one writes it down first; with them they are 2 x 2
// squares of 4 x 4, whose reads of 16 bytes fall into different banks.
template <bool Vectors>
__global__ __launch_bounds__(kThreads, 2) void tile_of_registers(const __grid_constant__ Product<float> call) {
  __shared__ __align__(16) float a[kDepth * kPitch], b[kDepth * kPitch];
  const Tile tile(call, kSide, kSide);
  const Strip<float> from_a(call.a, tile.batch, tile.m, call.m, call.k), from_b(call.b, tile.batch, tile.n, call.n, call.k);
  const matmul::Share<kSide, kDepth, kThreads> share_a(from_a, false), share_b(from_b, false);
  const int x = threadIdx.x % 16, y = threadIdx.x / 16;
  EightByEight part(y * (Vectors ? 4 : 8), x * (Vectors ? 4 : 8), Vectors ? 64 : 4, Vectors ? 64 : 4);
  for (int64_t k = 0; k < call.k; k += kDepth) {
    if (Vectors && from_a.vectors) {
      copy_vectors(from_a, k, a);
    } else {
      share_a.copy(k, a);
    }
    if (Vectors && from_b.vectors) {
      copy_vectors(from_b, k, b);
    } else {
      share_b.copy(k, b);
    }
    __syncthreads();
#pragma unroll
    for (int row = 0; row < kDepth; ++row) part.add(a + row * kPitch, b + row * kPitch);
    __syncthreads();
  }
  part.store(call, tile);
}

}  // namespace

const char* matmul::registers_on(Version version, const Product<float>& call, void* stream) {
  const cudaStream_t on = warpwatch::as_stream(stream);
  if (version == Version::column_of_registers) {
    column_of_registers<<<tiles_of(call, 64, 64), 512, 0, on>>>(call);
  } else if (version == Version::tile_of_registers) {
    tile_of_registers<false><<<tiles_of(call, kSide, kSide), kThreads, 0, on>>>(call);
  } else {
    tile_of_registers<true><<<tiles_of(call, kSide, kSide), kThreads, 0, on>>>(call);
  }
  return warpwatch::launch_error();
}
