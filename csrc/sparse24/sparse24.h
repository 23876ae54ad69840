// The seam between the binding (g++, torch) and the kernels (nvcc, no torch), and the compressed format.
//
// W, (rows, columns) with columns a multiple of 4, keeps of each aligned group of four along a row the two largest magnitudes, of
// equal ones the first. Compressed it is `values`, (rows, columns / 2), and `metadata`, one byte for each 8 columns: four bits per
// group, the position of the first value in the lower two and that of the second in the upper two; the earlier group has the lower
// half.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define SPARSE24_BOTH __host__ __device__
#else
#define SPARSE24_BOTH
#endif

namespace sparse24 {

enum class Format : int { f32, f16, bf16 };

// Bytes of metadata in a row.
SPARSE24_BOTH constexpr int64_t bytes_of(int64_t columns) { return (columns + 7) / 8; }

// Magnitudes compare as the bits without the sign do; all that lies above infinity is NaN, which counts as one magnitude.
template <class Bits>
SPARSE24_BOTH inline Bits magnitude(Bits bits, Bits infinity) {
  const Bits key = bits & static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1);
  return key > infinity ? static_cast<Bits>(infinity + 1) : key;
}

// Which of the four stay, as four bits. An element stays when fewer than two others come before it.
template <class Bits>
SPARSE24_BOTH inline unsigned kept_of_four(const Bits* w, Bits infinity) {
  Bits key[4];
  for (int i = 0; i < 4; ++i) key[i] = magnitude(w[i], infinity);
  unsigned kept = 0;
  for (int i = 0; i < 4; ++i) {
    int larger = 0;
    for (int j = 0; j < 4; ++j) larger += j < i ? key[j] >= key[i] : j > i ? key[j] > key[i] : 0;
    if (larger < 2) kept |= 1u << i;
  }
  return kept;
}

// The positions of the two, in the format's four bits.
SPARSE24_BOTH inline unsigned positions_of(unsigned kept) {
  const unsigned first = kept & 1 ? 0 : kept & 2 ? 1 : 2, second = kept & 8 ? 3 : kept & 4 ? 2 : 1;
  return first | second << 2;
}

// W itself with zeros where nothing stays, or W compressed. Each returns null, or why the launch was refused.
const char* prune_on(Format format, const void* w, void* pruned, int64_t rows, int64_t columns, void* stream);
const char* compress_on(Format format, const void* w, void* values, uint8_t* metadata, int64_t rows, int64_t columns, void* stream);

// y = x W' for at most kMostTokens rows of x. columns must be a multiple of 16, and x, values and metadata lie on 16 bytes.
constexpr int64_t kMostTokens = 8;
const char* linear_on(Format format, const void* x, const void* values, const uint8_t* metadata, void* y, int64_t tokens,
                      int64_t rows, int64_t columns, void* stream);

// Compressed W of 16-bit elements in the order in which sparse tensor cores take it: blocks of kBlockRows rows, and in these steps of
// kStepColumns columns, so many that kStepMultiple divides them. What is missing to whole blocks and steps has values of zero and any
// two different positions. The 32 lanes of a warp, 4 * g + t, take of a step first 16 bytes of values for each half of its columns,
// those of (g, 2t), (g + 8, 2t), (g, 2t + 8) and (g + 8, 2t + 8), two each, counted in values; and 4 bytes of metadata: those of columns
// 16 * t and on, of rows g and g + 8.
constexpr int64_t kBlockRows = 16, kStepColumns = 64, kStepMultiple = 4;
struct Ordered {
  const void *values, *positions;
  int64_t rows, steps;
};

// y = x W' for any number of rows of x, on Hopper. rows and columns must be multiples of 8, and all lie on 16 bytes.
const char* tensor_linear_on(Format format, const Ordered& w, const void* x, void* y, int64_t tokens, int64_t columns, void* stream);

}  // namespace sparse24
