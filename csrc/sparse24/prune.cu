// Prunes or compresses W in one pass: a thread takes 8 columns, which is one byte of metadata.
#include <algorithm>

#include "common/launch.cuh"
#include "sparse24/sparse24.h"

using sparse24::Format;
using warpwatch::ceil_div;

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = int64_t{1} << 30;

// Count elements moved in accesses of 16 bytes at most; without Wide one by one.
template <class Bits, int Count, bool Wide>
__device__ inline void copy(const Bits* from, Bits* to) {
  constexpr int kBytes = Count * static_cast<int>(sizeof(Bits)) < 16 ? Count * static_cast<int>(sizeof(Bits)) : 16;
  struct alignas(kBytes) Block {
    Bits element[kBytes / sizeof(Bits)];
  };
  constexpr int kEach = Wide ? kBytes / static_cast<int>(sizeof(Bits)) : 1;
#pragma unroll
  for (int i = 0; i < Count; i += kEach) {
    if constexpr (Wide) {
      *reinterpret_cast<Block*>(to + i) = *reinterpret_cast<const Block*>(from + i);
    } else {
      to[i] = from[i];
    }
  }
}

// One unit of up to 8 columns: `groups` is 2, or 1 at the end of a row whose length is no multiple of 8.
template <class Bits, bool Wide>
struct Unit {
  alignas(16) Bits w[8];
  int groups;

  __device__ void load(const Bits* from, int count) {
    groups = count;
    if (groups == 2) {
      copy<Bits, 8, Wide>(from, w);
    } else {
      copy<Bits, 4, false>(from, w);
    }
  }
};

template <class Bits, bool Wide>
__global__ __launch_bounds__(kThreads) void prune(const Bits* w, Bits infinity, Bits* pruned, int64_t rows, int64_t columns) {
  const int64_t across = sparse24::bytes_of(columns), units = rows * across;
  for (int64_t u = int64_t{blockIdx.x} * kThreads + threadIdx.x; u < units; u += int64_t{gridDim.x} * kThreads) {
    const int64_t row = u / across, column = (u - row * across) * 8;
    Unit<Bits, Wide> unit;
    unit.load(w + row * columns + column, column + 8 <= columns ? 2 : 1);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      if (g >= unit.groups) break;
      const unsigned kept = sparse24::kept_of_four(unit.w + 4 * g, infinity);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (!(kept >> i & 1)) unit.w[4 * g + i] = 0;
    }
    Bits* to = pruned + row * columns + column;
    if (unit.groups == 2) {
      copy<Bits, 8, Wide>(unit.w, to);
    } else {
      copy<Bits, 4, false>(unit.w, to);
    }
  }
}

template <class Bits, bool Wide>
__global__ __launch_bounds__(kThreads) void compress(const Bits* w, Bits infinity, Bits* values, uint8_t* metadata, int64_t rows,
                                                     int64_t columns) {
  const int64_t across = sparse24::bytes_of(columns), units = rows * across;
  for (int64_t u = int64_t{blockIdx.x} * kThreads + threadIdx.x; u < units; u += int64_t{gridDim.x} * kThreads) {
    const int64_t row = u / across, column = (u - row * across) * 8;
    Unit<Bits, Wide> unit;
    unit.load(w + row * columns + column, column + 8 <= columns ? 2 : 1);
    alignas(16) Bits chosen[4];
    unsigned byte = 0;
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      if (g >= unit.groups) break;
      const Bits* four = unit.w + 4 * g;
      const unsigned kept = sparse24::kept_of_four(four, infinity);
      byte |= sparse24::positions_of(kept) << 4 * g;
      // The first that stays is one of the first three, the second one of the last three: no indexing, so all stays in registers.
      chosen[2 * g] = kept & 1 ? four[0] : kept & 2 ? four[1] : four[2];
      chosen[2 * g + 1] = kept & 8 ? four[3] : kept & 4 ? four[2] : four[1];
    }
    metadata[u] = static_cast<uint8_t>(byte);
    Bits* to = values + row * (columns / 2) + column / 2;
    if (unit.groups == 2) {
      copy<Bits, 4, Wide>(chosen, to);
    } else {
      copy<Bits, 2, false>(chosen, to);
    }
  }
}

int64_t blocks_for(int64_t rows, int64_t columns) {
  return std::min(ceil_div(rows * sparse24::bytes_of(columns), kThreads), kMostBlocks);
}

// 16-byte accesses need every row, and so its length, to lie on 16 bytes; half as many for values.
bool wide(const void* w, const void* out, int64_t columns) {
  return columns % 8 == 0 && warpwatch::aligned16(w) && warpwatch::aligned16(out);
}

template <class Bits>
void prune_bits(Bits infinity, const void* w, void* pruned, int64_t rows, int64_t columns, cudaStream_t stream) {
  const auto kernel = wide(w, pruned, columns) ? prune<Bits, true> : prune<Bits, false>;
  kernel<<<blocks_for(rows, columns), kThreads, 0, stream>>>(static_cast<const Bits*>(w), infinity, static_cast<Bits*>(pruned),
                                                             rows, columns);
}

template <class Bits>
void compress_bits(Bits infinity, const void* w, void* values, uint8_t* metadata, int64_t rows, int64_t columns,
                   cudaStream_t stream) {
  const auto kernel = wide(w, values, columns) ? compress<Bits, true> : compress<Bits, false>;
  kernel<<<blocks_for(rows, columns), kThreads, 0, stream>>>(static_cast<const Bits*>(w), infinity, static_cast<Bits*>(values),
                                                             metadata, rows, columns);
}

}  // namespace

const char* sparse24::prune_on(Format format, const void* w, void* pruned, int64_t rows, int64_t columns, void* stream) {
  if (rows * columns == 0) return nullptr;
  const cudaStream_t on = warpwatch::as_stream(stream);
  if (format == Format::f32) prune_bits<uint32_t>(0x7f800000, w, pruned, rows, columns, on);
  if (format == Format::f16) prune_bits<uint16_t>(0x7c00, w, pruned, rows, columns, on);
  if (format == Format::bf16) prune_bits<uint16_t>(0x7f80, w, pruned, rows, columns, on);
  return warpwatch::launch_error();
}

const char* sparse24::compress_on(Format format, const void* w, void* values, uint8_t* metadata, int64_t rows, int64_t columns,
                                  void* stream) {
  if (rows * columns == 0) return nullptr;
  const cudaStream_t on = warpwatch::as_stream(stream);
  if (format == Format::f32) compress_bits<uint32_t>(0x7f800000, w, values, metadata, rows, columns, on);
  if (format == Format::f16) compress_bits<uint16_t>(0x7c00, w, values, metadata, rows, columns, on);
  if (format == Format::bf16) compress_bits<uint16_t>(0x7f80, w, values, metadata, rows, columns, on);
  return warpwatch::launch_error();
}
