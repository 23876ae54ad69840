// Transposes each matrix of a batch through a tile in shared memory, so that both its reads and its writes run along rows.
#include <algorithm>

#include "common/launch.cuh"
#include "cublas_matmul/cublas_matmul.h"

namespace {

constexpr int kTile = 32, kRows = 8;
constexpr int64_t kMostBlocks = int64_t{1} << 30;

template <class T>
__global__ __launch_bounds__(kTile * kRows) void turn(const T* in, T* out, int64_t tiles, int64_t rows, int64_t columns) {
  // One column more than needed: else the threads of a warp, which read a column, would all use one bank.
  __shared__ T tile[kTile][kTile + 1];
  const int64_t across = warpwatch::ceil_div(columns, kTile), down = warpwatch::ceil_div(rows, kTile);
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t matrix = t / (across * down) * rows * columns;
    const int64_t row = t / across % down * kTile, column = t % across * kTile;
    for (int y = threadIdx.y; y < kTile; y += kRows)
      if (row + y < rows && column + threadIdx.x < columns)
        tile[y][threadIdx.x] = in[matrix + (row + y) * columns + column + threadIdx.x];
    __syncthreads();
    for (int y = threadIdx.y; y < kTile; y += kRows)
      if (column + y < columns && row + threadIdx.x < rows)
        out[matrix + (column + y) * rows + row + threadIdx.x] = tile[threadIdx.x][y];
    __syncthreads();
  }
}

template <class T>
void launch(const void* in, void* out, int64_t batch, int64_t rows, int64_t columns, cudaStream_t stream) {
  const int64_t tiles = batch * warpwatch::ceil_div(rows, kTile) * warpwatch::ceil_div(columns, kTile);
  const int64_t blocks = std::min(tiles, kMostBlocks);
  turn<<<blocks, dim3(kTile, kRows), 0, stream>>>(static_cast<const T*>(in), static_cast<T*>(out), tiles, rows, columns);
}

}  // namespace

const char* cublas_matmul::turn_on(int bytes, const void* in, void* out, int64_t batch, int64_t rows, int64_t columns,
                                   void* stream) {
  if (batch * rows * columns == 0) return nullptr;
  const cudaStream_t on = warpwatch::as_stream(stream);
  if (bytes == 2) launch<uint16_t>(in, out, batch, rows, columns, on);
  if (bytes == 4) launch<uint32_t>(in, out, batch, rows, columns, on);
  if (bytes == 8) launch<uint64_t>(in, out, batch, rows, columns, on);
  return warpwatch::launch_error();
}
