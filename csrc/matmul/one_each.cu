// The first rungs: one thread per element of the result, with nothing shared between threads but what the caches hold.
#include "matmul/tiles.cuh"

namespace {

using matmul::Product;

constexpr int kSide = 32;

// Neighbouring threads compute neighbouring rows when `ByRows`, so that a warp reads 32 rows of A at once; else neighbouring columns.
template <class T, bool ByRows>
__global__ __launch_bounds__(kSide * kSide) void one_each(const __grid_constant__ Product<T> call) {
  const matmul::Tile tile(call, kSide, kSide);
  const int64_t m = tile.m + (ByRows ? threadIdx.x % kSide : threadIdx.x / kSide);
  const int64_t n = tile.n + (ByRows ? threadIdx.x / kSide : threadIdx.x % kSide);
  if (m >= call.m || n >= call.n) return;
  const T* a = call.a.data + tile.batch * call.a.batch + m * call.a.outer;
  const T* b = call.b.data + tile.batch * call.b.batch + n * call.b.outer;
  T sum{};
  for (int64_t k = 0; k < call.k; ++k) sum += a[k * call.a.k] * b[k * call.b.k];
  call.c[(tile.batch * call.m + m) * call.n + n] = sum;
}

// Each operand's tile is read once per block and used 32 times. Rows of one float more keep columns in different banks.
__global__ __launch_bounds__(kSide * kSide) void shared_tile(const __grid_constant__ Product<float> call) {
  __shared__ float a[kSide][kSide + 1], b[kSide][kSide + 1];
  const matmul::Tile tile(call, kSide, kSide);
  const matmul::Strip<float> from_a(call.a, tile.batch, tile.m, call.m, call.k), from_b(call.b, tile.batch, tile.n, call.n, call.k);
  const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
  float sum = 0;
  for (int64_t k = 0; k < call.k; k += kSide) {
    // The fastest thread index goes along the axis that is contiguous; both tiles end up as [i][k].
    if (from_a.along_k == 1) {
      a[y][x] = from_a.element(y, k + x);
    } else {
      a[x][y] = from_a.element(x, k + y);
    }
    if (from_b.along_k == 1) {
      b[y][x] = from_b.element(y, k + x);
    } else {
      b[x][y] = from_b.element(x, k + y);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kSide; ++i) sum += a[y][i] * b[x][i];
    __syncthreads();
  }
  if (tile.m + y < call.m && tile.n + x < call.n) call.c[(tile.batch * call.m + tile.m + y) * call.n + tile.n + x] = sum;
}

template <class T>
const char* launch(matmul::Version version, const Product<T>& call, void* stream) {
  const int64_t blocks = matmul::tiles_of(call, kSide, kSide);
  const cudaStream_t on = warpwatch::as_stream(stream);
  if (version == matmul::Version::coalesced) {
    one_each<T, false><<<blocks, kSide * kSide, 0, on>>>(call);
  } else {
    one_each<T, true><<<blocks, kSide * kSide, 0, on>>>(call);
  }
  return warpwatch::launch_error();
}

}  // namespace

const char* matmul::one_each_on(Version version, const Product<float>& call, void* stream) { return launch(version, call, stream); }
const char* matmul::one_each_on(Version version, const Product<double>& call, void* stream) { return launch(version, call, stream); }

const char* matmul::shared_tile_on(const Product<float>& call, void* stream) {
  shared_tile<<<tiles_of(call, kSide, kSide), kSide * kSide, 0, warpwatch::as_stream(stream)>>>(call);
  return warpwatch::launch_error();
}
