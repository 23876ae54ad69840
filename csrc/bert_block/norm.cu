// Residual and layer norm in one pass over memory, and sums over columns. Forward a warp takes a whole row, so that its sums need no
// barrier. Backward a thread keeps sums of its columns as well, so it takes only 8 of a row, and a block several rows at once.
#include "bert_block/bert_block.h"
#include "common/launch.cuh"
#include "common/machine.cuh"

using bert_block::Format;
using bert_block::kMostColumns;
using bert_block::Shape;
using warpwatch::Bf16;
using warpwatch::ceil_div;
using warpwatch::F16;

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kUnit = 8, kUnits = static_cast<int>(kMostColumns) / (32 * kUnit);
constexpr int kSums = 3, kSlices = 8, kBlocksEach = 3;

struct alignas(16) Words {
  uint32_t word[kUnit / 2];
};

// A lane's part of a row: of each 256 columns, 8 neighbours.
using Part = float[kUnits][kUnit];

template <class T>
__device__ void unpack(float (&to)[kUnit], const T* from, int64_t unit) {
  const Words& words = reinterpret_cast<const Words*>(from)[unit];
#pragma unroll
  for (int i = 0; i < kUnit; ++i) to[i] = warpwatch::to_float(T{static_cast<uint16_t>(words.word[i / 2] >> 16 * (i % 2))});
}

template <class T>
__device__ void pack(T* to, int64_t unit, const float (&from)[kUnit]) {
  Words words;
#pragma unroll
  for (int i = 0; i < kUnit; i += 2) words.word[i / 2] = warpwatch::pack_pair<T>(from[i], from[i + 1]);
  reinterpret_cast<Words*>(to)[unit] = words;
}

__device__ inline float sum_of_warp(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

// run(i, unit) for each of this lane's units of a row.
template <class Run>
__device__ void for_units(int units, const Run& run) {
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    const int unit = i * 32 + static_cast<int>(threadIdx.x) % 32;
    if (unit < units) run(i, unit);
  }
}

template <class T>
__global__ __launch_bounds__(kThreads) void norm(const T* x, const T* y, const T* gain, const T* shift, T* out, float2* stats,
                                                 int64_t rows, int units, float epsilon) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= rows) return;
  const int64_t first = row * units;
  const float share = 1.0f / static_cast<float>(units * kUnit);
  Part z;
  float sum = 0, squares = 0;
  for_units(units, [&](int i, int unit) {
    float other[kUnit];
    unpack(z[i], x, first + unit);
    unpack(other, y, first + unit);
#pragma unroll
    for (int e = 0; e < kUnit; ++e) sum += z[i][e] += other[e];
  });
  const float mean = sum_of_warp(sum) * share;
  for_units(units, [&](int i, int) {
#pragma unroll
    for (int e = 0; e < kUnit; ++e) squares += (z[i][e] - mean) * (z[i][e] - mean);
  });
  const float scale = rsqrtf(sum_of_warp(squares) * share + epsilon);
  for_units(units, [&](int i, int unit) {
    float a[kUnit], b[kUnit];
    unpack(a, gain, unit);
    unpack(b, shift, unit);
#pragma unroll
    for (int e = 0; e < kUnit; ++e) z[i][e] = (z[i][e] - mean) * scale * a[e] + b[e];
    pack(out, first + unit, z[i]);
  });
  if (threadIdx.x % 32 == 0) stats[row] = make_float2(mean, scale);
}

// Where a thread of a block works that takes several rows at once, 8 columns a thread and whole warps a row.
struct Seat {
  int warps, rows, row, unit;  // Warps of a row and rows of a block; which of these rows, and which 8 columns of it.
  bool used;

  __device__ explicit Seat(int units) {
    warps = (units + 31) / 32;
    rows = kWarps / warps;
    row = static_cast<int>(threadIdx.x) / (32 * warps);
    unit = static_cast<int>(threadIdx.x) % (32 * warps);
    used = row < rows && unit < units;
  }
};

// Adds the sums of a block's rows, always in the same order, and stores them.
__device__ inline void store_sum(const float (&sum)[kUnit], const Seat& seat, float* shared, float* to) {
  for (int turn = 0; turn < seat.rows; ++turn) {
    if (seat.used && seat.row == turn) {
#pragma unroll
      for (int e = 0; e < kUnit; ++e) {
        float& at = shared[seat.unit * kUnit + e];
        at = turn == 0 ? sum[e] : at + sum[e];
        if (turn + 1 == seat.rows) to[seat.unit * kUnit + e] = at;
      }
    }
    __syncthreads();
  }
}

template <class T>
__global__ __launch_bounds__(kThreads, kBlocksEach) void norm_backward(const T* g, const T* x, const T* y, const T* gain,
                                                                      const float2* stats, T* d, float* partial, int64_t rows,
                                                                      int units) {
  __shared__ float shared[kMostColumns];
  __shared__ float2 of_warps[2][kWarps];
  const Seat seat(units);
  const float share = 1.0f / static_cast<float>(units * kUnit);
  float factor[kUnit] = {}, of_gain[kUnit] = {}, of_shift[kUnit] = {}, of_bias[kUnit] = {};
  if (seat.used) unpack(factor, gain, seat.unit);
  int turn = 0;
  for (int64_t first = int64_t{blockIdx.x} * seat.rows; first < rows; first += int64_t{gridDim.x} * seat.rows, turn ^= 1) {
    const int64_t row = first + seat.row, at = row * units + seat.unit;
    const bool works = seat.used && row < rows;
    float incoming[kUnit] = {}, normal[kUnit] = {}, sum = 0, products = 0, scale = 0;
    if (works) {
      float other[kUnit];
      unpack(incoming, g, at);
      unpack(normal, x, at);
      unpack(other, y, at);
      const float2 known = stats[row];
      scale = known.y;
#pragma unroll
      for (int e = 0; e < kUnit; ++e) {
        normal[e] = (normal[e] + other[e] - known.x) * scale;
        of_gain[e] += incoming[e] * normal[e];
        of_shift[e] += incoming[e];
        incoming[e] *= factor[e];
        sum += incoming[e];
        products += incoming[e] * normal[e];
      }
    }
    sum = sum_of_warp(sum);
    products = sum_of_warp(products);
    // Of two places the turn before still reads one.
    if (threadIdx.x % 32 == 0) of_warps[turn][threadIdx.x / 32] = make_float2(sum, products);
    __syncthreads();
    if (!works) continue;
    sum = products = 0;
    for (int warp = 0; warp < seat.warps; ++warp) {
      const float2 part = of_warps[turn][seat.row * seat.warps + warp];
      sum += part.x;
      products += part.y;
    }
#pragma unroll
    for (int e = 0; e < kUnit; ++e) {
      incoming[e] = scale * (incoming[e] - (sum + normal[e] * products) * share);
      of_bias[e] += incoming[e];
    }
    pack(d, at, incoming);
  }
  const int columns = units * kUnit;
  partial += int64_t{blockIdx.x} * kSums * columns;
  store_sum(of_gain, seat, shared, partial);
  store_sum(of_shift, seat, shared, partial + columns);
  store_sum(of_bias, seat, shared, partial + 2 * columns);
}

template <class T>
struct Matrices {
  const T* matrix[kSums];
};

template <class T>
__global__ __launch_bounds__(kThreads, kBlocksEach) void column_sums(const Matrices<T> from, float* partial, int64_t rows, int units) {
  __shared__ float shared[kMostColumns];
  const Seat seat(units);
  const int64_t hop = int64_t{gridDim.x} * seat.rows;
#pragma unroll
  for (int which = 0; which < kSums; ++which) {
    float sum[kUnit] = {};
    if (seat.used) {
#pragma unroll 4
      for (int64_t row = int64_t{blockIdx.x} * seat.rows + seat.row; row < rows; row += hop) {
        float values[kUnit];
        unpack(values, from.matrix[which], row * units + seat.unit);
#pragma unroll
        for (int e = 0; e < kUnit; ++e) sum[e] += values[e];
      }
    }
    store_sum(sum, seat, shared, partial + (int64_t{blockIdx.x} * kSums + which) * units * kUnit);
  }
}

// Adds the blocks' parts: 32 columns a block, whose kSlices warps take every kSlices-th part.
template <class T>
__global__ __launch_bounds__(32 * kSlices) void add_partial(const float* partial, T* sums, int64_t blocks, int columns) {
  __shared__ float shared[kSlices][32];
  const int column = static_cast<int>(blockIdx.x) * 32 + static_cast<int>(threadIdx.x) % 32, slice = static_cast<int>(threadIdx.x) / 32;
  float sum = 0;
  if (column < columns)
#pragma unroll 4
    for (int64_t block = slice; block < blocks; block += kSlices) sum += partial[block * columns + column];
  shared[slice][threadIdx.x % 32] = sum;
  __syncthreads();
  if (slice != 0 || column >= columns) return;
  for (int i = 1; i < kSlices; ++i) sum += shared[i][threadIdx.x];
  sums[column] = warpwatch::from_float<T>(sum);
}

template <class T>
void add(const Shape& shape, const float* partial, void* sums, cudaStream_t stream) {
  const int columns = kSums * static_cast<int>(shape.columns);
  add_partial<<<static_cast<unsigned>(ceil_div(columns, 32)), 32 * kSlices, 0, stream>>>(partial, static_cast<T*>(sums),
                                                                                          bert_block::blocks_for(shape.rows), columns);
}

template <class T>
const T* as(const void* data) {
  return static_cast<const T*>(data);
}

// run(T{}) with the element type.
template <class Run>
const char* with_type(const Shape& shape, const Run& run) {
  if (shape.format == Format::f16) {
    run(F16{});
  } else {
    run(Bf16{});
  }
  return warpwatch::launch_error();
}

}  // namespace

int64_t bert_block::blocks_for(int64_t rows) {
  return std::max<int64_t>(1, std::min<int64_t>(ceil_div(rows, kWarps), kBlocksEach * warpwatch::multiprocessors()));
}

const char* bert_block::norm_on(const Shape& shape, const void* x, const void* y, const void* gain, const void* shift, void* out,
                                float* stats, float epsilon, void* stream) {
  if (shape.rows == 0) return nullptr;
  return with_type(shape, [&](auto zero) {
    using T = decltype(zero);
    norm<<<static_cast<unsigned>(ceil_div(shape.rows, kWarps)), kThreads, 0, warpwatch::as_stream(stream)>>>(
        as<T>(x), as<T>(y), as<T>(gain), as<T>(shift), static_cast<T*>(out), reinterpret_cast<float2*>(stats), shape.rows,
        static_cast<int>(shape.columns) / kUnit, epsilon);
  });
}

const char* bert_block::norm_backward_on(const Shape& shape, const void* g, const void* x, const void* y, const void* gain,
                                         const float* stats, void* d, void* sums, float* partial, void* stream) {
  return with_type(shape, [&](auto zero) {
    using T = decltype(zero);
    const cudaStream_t on = warpwatch::as_stream(stream);
    norm_backward<<<static_cast<unsigned>(blocks_for(shape.rows)), kThreads, 0, on>>>(
        as<T>(g), as<T>(x), as<T>(y), as<T>(gain), reinterpret_cast<const float2*>(stats), static_cast<T*>(d), partial, shape.rows,
        static_cast<int>(shape.columns) / kUnit);
    add<T>(shape, partial, sums, on);
  });
}

const char* bert_block::column_sums_on(const Shape& shape, const void* const (&matrices)[3], void* sums, float* partial, void* stream) {
  return with_type(shape, [&](auto zero) {
    using T = decltype(zero);
    const cudaStream_t on = warpwatch::as_stream(stream);
    const Matrices<T> from{as<T>(matrices[0]), as<T>(matrices[1]), as<T>(matrices[2])};
    column_sums<<<static_cast<unsigned>(blocks_for(shape.rows)), kThreads, 0, on>>>(
        from, partial, shape.rows, static_cast<int>(shape.columns) / kUnit);
    add<T>(shape, partial, sums, on);
  });
}
