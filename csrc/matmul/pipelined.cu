// The rungs in which the next tiles are on their way while this one is multiplied.
#include "matmul/tiles.cuh"

namespace {

using matmul::EightByEight;
using matmul::Product;
using matmul::Strip;
using matmul::Tile;

constexpr int kSide = 128, kDepth = 16, kThreads = 256, kPitch = kSide + 4;
constexpr int kTile = kDepth * kPitch;

using Share = matmul::Share<kSide, kDepth, kThreads>;

constexpr int shared_bytes(int stages) { return stages * 2 * kTile * static_cast<int>(sizeof(float)); }

// A ring of `Stages` pairs of tiles. What is loaded at step s lies in slot s % Stages, whose last readers have all passed the barrier of
// the step before.
template <int Stages>
__device__ void multiply(const Product<float>& call, const Tile& tile, EightByEight& part) {
  extern __shared__ __align__(16) float memory[];
  const Share from_a(Strip<float>(call.a, tile.batch, tile.m, call.m, call.k), true);
  const Share from_b(Strip<float>(call.b, tile.batch, tile.n, call.n, call.k), true);
  const int64_t steps = warpwatch::ceil_div(call.k, kDepth);
  const auto load = [&](int64_t step, int slot) {
    if (step < steps) {
      from_a.start(step * kDepth, memory + slot * 2 * kTile);
      from_b.start(step * kDepth, memory + slot * 2 * kTile + kTile);
    }
    warpwatch::close_copies();
  };
#pragma unroll
  for (int stage = 0; stage + 1 < Stages; ++stage) load(stage, stage);
  int slot = 0;
  for (int64_t step = 0; step < steps; ++step) {
    warpwatch::await_copies<Stages - 2>();
    __syncthreads();
    load(step + Stages - 1, slot == 0 ? Stages - 1 : slot - 1);
    const float *a = memory + slot * 2 * kTile, *b = a + kTile;
#pragma unroll
    for (int row = 0; row < kDepth; ++row) part.add(a + row * kPitch, b + row * kPitch);
    slot = slot + 1 == Stages ? 0 : slot + 1;
  }
  warpwatch::await_copies<0>();
}

__global__ __launch_bounds__(kThreads, 2) void double_buffer(const __grid_constant__ Product<float> call) {
  const Tile tile(call, kSide, kSide);
  EightByEight part(threadIdx.x / 16 * 4, threadIdx.x % 16 * 4, 64, 64);
  multiply<2>(call, tile, part);
  part.store(call, tile);
}

constexpr int kStages = 4;

// A warp computes 64 x 32 elements, so that its 32 lanes read 8 + 4 different vectors per half and not 2 + 16. Lanes are interleaved:
// neighbours share addresses, which the memory then serves together.
__global__ __launch_bounds__(kThreads, 2) void warp_tiles(const __grid_constant__ Product<float> call) {
  const Tile tile(call, kSide, kSide);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int lane_m = (lane & 1) | (lane / 4 % 4) << 1, lane_n = (lane / 2 & 1) | (lane / 16) << 1;
  EightByEight part(warp % 2 * 64 + lane_m * 4, warp / 2 * 32 + lane_n * 4, 32, 16);
  multiply<kStages>(call, tile, part);
  part.store(call, tile);
}

}  // namespace

const char* matmul::double_buffer_on(const Product<float>& call, void* stream) {
  double_buffer<<<tiles_of(call, kSide, kSide), kThreads, shared_bytes(2), warpwatch::as_stream(stream)>>>(call);
  return warpwatch::launch_error();
}

const char* matmul::warp_tiles_on(const Product<float>& call, void* stream) {
  // More than 48 KiB has to be asked for.
  cudaFuncSetAttribute(warp_tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes(kStages));
  warp_tiles<<<tiles_of(call, kSide, kSide), kThreads, shared_bytes(kStages), warpwatch::as_stream(stream)>>>(call);
  return warpwatch::launch_error();
}
