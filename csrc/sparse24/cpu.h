// Products with compressed W on the CPU. Tokens lie side by side in vectors, so a value of W multiplies whole vectors of whichever
// column its metadata names: half the multiplications of a dense product, and W is never decompressed.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/gemm.h"
#include "common/line_vector.h"
#include "sparse24/sparse24.h"

namespace sparse24 {

using warpwatch::gemm::narrow;
using warpwatch::gemm::padded;
using warpwatch::gemm::widen;

constexpr int kLanes = 8;
constexpr int64_t kDepth = 128;  // Columns whose vectors of 32 tokens fill half of a first-level cache.
constexpr int64_t kRowsOfTask = 256;
typedef float Lanes __attribute__((vector_size(32), aligned(4), may_alias));

// The four positions of a byte of metadata, counted from the first of its 8 columns.
struct Positions {
  std::array<std::array<uint8_t, 4>, 256> of;
  constexpr Positions() : of() {
    for (unsigned byte = 0; byte < 256; ++byte)
      for (unsigned i = 0; i < 4; ++i) of[byte][i] = static_cast<uint8_t>((byte >> 2 * i & 3) + 4 * (i / 2));
  }
};
inline constexpr Positions kPositions;

template <class T>
struct Compressed {
  const T* values;
  const uint8_t* metadata;
  int64_t rows, columns;

  int64_t bytes() const { return bytes_of(columns); }

  // Values [column / 2, …) of a row as float; beyond the row's end they are zero.
  void row(int64_t row, int64_t column, int64_t count, float* to) const {
    const T* from = values + row * (columns / 2) + column / 2;
    const int64_t there = std::min(count, columns - column) / 2;
    for (int64_t i = 0; i < there; ++i) to[i] = widen(from[i]);
    std::fill(to + there, to + count / 2, 0.0f);
  }
};

// to[column][token] = from[token][column] for up to Vectors * 8 tokens and `count` columns; those missing are zero.
template <int Vectors, class T>
void pack_tokens(const T* from, int64_t stride, int64_t tokens, int64_t columns, int64_t count, float* to) {
  constexpr int kTokens = Vectors * kLanes;
  std::fill(to, to + count * kTokens, 0.0f);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t c = 0; c < columns; ++c) to[c * kTokens + t] = widen(from[t * stride + c]);
}

template <int Vectors, class T>
void unpack_tokens(const float* from, int64_t tokens, int64_t columns, T* to, int64_t stride) {
  constexpr int kTokens = Vectors * kLanes;
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t c = 0; c < columns; ++c) to[t * stride + c] = narrow<T>(from[c * kTokens + t]);
}

// sum[row][token] += values · the columns of `x` (column, token) that the metadata names, for Rows rows at once.
template <int Rows, int Vectors>
inline void gather_rows(const float* x, const float (*values)[kDepth / 2], const uint8_t* const* metadata, int64_t bytes,
                        float* sum) {
  constexpr int kTokens = Vectors * kLanes;
  Lanes part[Rows][Vectors];
  std::memcpy(part, sum, sizeof part);
  for (int64_t b = 0; b < bytes; ++b, x += 8 * kTokens) {
#pragma GCC unroll 2
    for (int r = 0; r < Rows; ++r) {
      const auto& positions = kPositions.of[metadata[r][b]];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const float value = values[r][4 * b + i];
        const float* column = x + positions[i] * kTokens;
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) part[r][v] += value * *reinterpret_cast<const Lanes*>(column + v * kLanes);
      }
    }
  }
  std::memcpy(sum, part, sizeof part);
}

// gradient[column][token] += g[token] · values, the other way round: one row of W adds to the columns that its metadata names.
template <int Vectors>
inline void scatter_row(const float* g, const float* values, const uint8_t* metadata, int64_t bytes, float* gradient) {
  constexpr int kTokens = Vectors * kLanes;
  Lanes own[Vectors];
  std::memcpy(own, g, sizeof own);
  for (int64_t b = 0; b < bytes; ++b, gradient += 8 * kTokens) {
    const auto& positions = kPositions.of[metadata[b]];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      float* column = gradient + positions[i] * kTokens;
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) *reinterpret_cast<Lanes*>(column + v * kLanes) += values[4 * b + i] * own[v];
    }
  }
}

// A block of tokens times some rows of W. The result of row r and token t goes to y[t * w.rows + r], or where `across` tokens lie side by
// side to y[r * across + t].
template <int Vectors, class T>
void linear_block(const Compressed<T>& w, const T* x, T* y, int64_t tokens, int64_t row, int64_t rows, int64_t across) {
  constexpr int kTokens = Vectors * kLanes;
  static thread_local warpwatch::LineVector<float> columns(kDepth * kTokens), sums(kRowsOfTask * kTokens);
  std::fill_n(sums.begin(), padded(rows, 2) * kTokens, 0.0f);
  for (int64_t k = 0; k < w.columns; k += kDepth) {
    const int64_t depth = std::min(kDepth, padded(w.columns - k, 8));
    pack_tokens<Vectors>(x + k, w.columns, tokens, std::min(depth, w.columns - k), depth, columns.data());
    for (int64_t r = 0; r < rows; r += 2) {
      float values[2][kDepth / 2];
      const uint8_t* metadata[2];
      for (int i = 0; i < 2; ++i) {
        // An odd last row is computed twice.
        const int64_t from = row + std::min(r + i, rows - 1);
        w.row(from, k, depth, values[i]);
        metadata[i] = w.metadata + from * w.bytes() + k / 8;
      }
      gather_rows<2, Vectors>(columns.data(), values, metadata, depth / 8, sums.data() + r * kTokens);
    }
  }
  if (across == 0) return unpack_tokens<Vectors>(sums.data(), tokens, rows, y + row, w.rows);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t t = 0; t < tokens; ++t) y[(row + r) * across + t] = narrow<T>(sums[r * kTokens + t]);
}

// A block of tokens' gradients times kDepth columns of W.
template <int Vectors, class T>
void backward_block(const Compressed<T>& w, const T* g, T* dx, int64_t tokens, int64_t column) {
  constexpr int kTokens = Vectors * kLanes;
  static thread_local warpwatch::LineVector<float> sums(kDepth * kTokens), own(kRowsOfTask * kTokens);
  const int64_t depth = std::min(kDepth, padded(w.columns - column, 8));
  std::fill(sums.begin(), sums.end(), 0.0f);
  for (int64_t first = 0; first < w.rows; first += kRowsOfTask) {
    const int64_t rows = std::min(kRowsOfTask, w.rows - first);
    pack_tokens<Vectors>(g + first, w.rows, tokens, rows, rows, own.data());
    for (int64_t r = 0; r < rows; ++r) {
      float values[kDepth / 2];
      w.row(first + r, column, depth, values);
      const uint8_t* metadata = w.metadata + (first + r) * w.bytes() + column / 8;
      scatter_row<Vectors>(own.data() + r * kTokens, values, metadata, depth / 8, sums.data());
    }
  }
  unpack_tokens<Vectors>(sums.data(), tokens, std::min(depth, w.columns - column), dx + column, w.columns);
}

// run(std::integral_constant<int, Vectors>, first token, tokens, part) for every block of tokens and each of `parts` parts of W.
template <class Run>
void each_block(int64_t tokens, int64_t parts, const Run& run) {
  const auto blocks = [&](auto vectors) {
    constexpr int64_t kTokens = vectors() * kLanes;
    const int64_t count = (tokens + kTokens - 1) / kTokens;
    warpwatch::parallel_for(count * parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task / parts * kTokens;
        run(vectors, first, std::min(kTokens, tokens - first), task % parts);
      }
    });
  };
  if (tokens <= kLanes) {
    blocks(std::integral_constant<int, 1>{});
  } else {
    blocks(std::integral_constant<int, 4>{});
  }
}

// One row of W times one token, both from a multiple of 8 columns on: four of 8 columns are picked at once.
inline float dot(const float* x, const float* values, const uint8_t* metadata, int64_t bytes) {
  typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
  Four sum[4] = {};
  for (int64_t b = 0; b < bytes; ++b) {
    const auto& positions = kPositions.of[metadata[b]];
    const Four value = *reinterpret_cast<const Four*>(values + 4 * b);
#if defined(__AVX2__)
    int32_t packed;
    std::memcpy(&packed, positions.data(), sizeof packed);
    const __m256i at = _mm256_castsi128_si256(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(packed)));
    const Four column = _mm256_castps256_ps128(_mm256_permutevar8x32_ps(_mm256_loadu_ps(x + 8 * b), at));
#else
    const float* from = x + 8 * b;
    const Four column = {from[positions[0]], from[positions[1]], from[positions[2]], from[positions[3]]};
#endif
    sum[b % 4] += value * column;
  }
  const Four total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  return (total[0] + total[1]) + (total[2] + total[3]);
}

// For so few tokens that vectors along them would be mostly empty: vectors lie along the columns instead.
constexpr int64_t kFewTokens = 3;

template <class T>
void linear_of_few(const Compressed<T>& w, const T* x, T* y, int64_t tokens) {
  const int64_t stride = padded(w.columns, 8);
  std::vector<float> columns(tokens * stride);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t c = 0; c < w.columns; ++c) columns[t * stride + c] = widen(x[t * w.columns + c]);
  warpwatch::parallel_for(w.rows, std::max<int64_t>(1, 32768 / std::max<int64_t>(w.columns, 1)), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float sum[kFewTokens] = {};
      for (int64_t k = 0; k < w.columns; k += kDepth) {
        const int64_t depth = std::min(kDepth, padded(w.columns - k, 8));
        float values[kDepth / 2];
        w.row(row, k, depth, values);
        const uint8_t* metadata = w.metadata + row * w.bytes() + k / 8;
        for (int64_t t = 0; t < tokens; ++t) sum[t] += dot(columns.data() + t * stride + k, values, metadata, depth / 8);
      }
      for (int64_t t = 0; t < tokens; ++t) y[t * w.rows + row] = narrow<T>(sum[t]);
    }
  });
}

template <class T>
void linear(const Compressed<T>& w, const T* x, T* y, int64_t tokens) {
  if (tokens <= kFewTokens) return linear_of_few(w, x, y, tokens);
  each_block(tokens, (w.rows + kRowsOfTask - 1) / kRowsOfTask, [&](auto vectors, int64_t first, int64_t count, int64_t part) {
    const int64_t row = part * kRowsOfTask;
    linear_block<vectors()>(w, x + first * w.columns, y + first * w.rows, count, row, std::min(kRowsOfTask, w.rows - row), 0);
  });
}

// y' = W x', a row per row of W: the transposition costs nothing, because the sums lie that way.
template <class T>
void linear_transposed(const Compressed<T>& w, const T* x, T* y, int64_t tokens) {
  each_block(tokens, (w.rows + kRowsOfTask - 1) / kRowsOfTask, [&](auto vectors, int64_t first, int64_t count, int64_t part) {
    const int64_t row = part * kRowsOfTask;
    linear_block<vectors()>(w, x + first * w.columns, y + first, count, row, std::min(kRowsOfTask, w.rows - row), tokens);
  });
}

template <class T>
void linear_backward(const Compressed<T>& w, const T* g, T* dx, int64_t tokens) {
  each_block(tokens, (w.columns + kDepth - 1) / kDepth, [&](auto vectors, int64_t first, int64_t count, int64_t part) {
    backward_block<vectors()>(w, g + first * w.rows, dx + first * w.columns, count, part * kDepth);
  });
}

template <class Bits>
void prune(const Bits* w, Bits infinity, Bits* pruned, int64_t count) {
  warpwatch::parallel_for(count / 4, 4096, [=](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      const unsigned kept = kept_of_four(w + 4 * g, infinity);
      for (int i = 0; i < 4; ++i) pruned[4 * g + i] = kept >> i & 1 ? w[4 * g + i] : Bits{0};
    }
  });
}

template <class Bits>
void compress(const Bits* w, Bits infinity, Bits* values, uint8_t* metadata, int64_t rows, int64_t columns) {
  warpwatch::parallel_for(rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(columns, 1)), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      uint8_t* bytes = metadata + row * bytes_of(columns);
      std::fill(bytes, bytes + bytes_of(columns), uint8_t{0});
      for (int64_t g = 0; g < columns / 4; ++g) {
        const Bits* four = w + row * columns + 4 * g;
        const unsigned positions = positions_of(kept_of_four(four, infinity));
        bytes[g / 2] = static_cast<uint8_t>(bytes[g / 2] | positions << g % 2 * 4);
        values[row * (columns / 2) + 2 * g] = four[positions & 3];
        values[row * (columns / 2) + 2 * g + 1] = four[positions >> 2];
      }
    }
  });
}

// The 90 ways to keep two of four in every row and in every column of a block of 4 x 4, ordered by the columns that the first row keeps,
// then the second and so on. A way is four numbers of kPairs.
inline constexpr std::array<std::array<uint8_t, 2>, 6> kPairs{{{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}}};
constexpr int kWays = 90;
struct Ways {
  std::array<std::array<uint8_t, 4>, kWays> of;
  constexpr Ways() : of() {
    int found = 0;
    for (unsigned number = 0; number < 6 * 6 * 6 * 6; ++number) {
      const std::array<uint8_t, 4> pair{static_cast<uint8_t>(number / 216), static_cast<uint8_t>(number / 36 % 6),
                                        static_cast<uint8_t>(number / 6 % 6), static_cast<uint8_t>(number % 6)};
      int kept[4] = {};
      for (const uint8_t each : pair)
        for (const uint8_t column : kPairs[each]) ++kept[column];
      if (kept[0] == 2 && kept[1] == 2 && kept[2] == 2 && kept[3] == 2) of[found++] = pair;
    }
  }
};
inline constexpr Ways kTransposable;

// The way with the largest sum of magnitudes, of equal ones the first. Sums in double are exact for numbers of similar size, whatever
// the order of their terms.
template <class T>
const std::array<uint8_t, 4>& best_way(const T* block, int64_t columns) {
  double sum[4][6];
  for (int r = 0; r < 4; ++r)
    for (int p = 0; p < 6; ++p)
      sum[r][p] = std::fabs(static_cast<double>(widen(block[r * columns + kPairs[p][0]]))) +
                  std::fabs(static_cast<double>(widen(block[r * columns + kPairs[p][1]])));
  int best = 0;
  double largest = -1;
  for (int way = 0; way < kWays; ++way) {
    const auto& pair = kTransposable.of[way];
    const double total = (sum[0][pair[0]] + sum[1][pair[1]]) + (sum[2][pair[2]] + sum[3][pair[3]]);
    if (total > largest) {
      largest = total;
      best = way;
    }
  }
  return kTransposable.of[best];
}

template <class T>
struct Both {
  T *values, *values_transposed;
  uint8_t *metadata, *metadata_transposed;
};

// Prunes W to blocks that are 2:4 along rows and columns and compresses W and W', in one pass over W. Tasks are pairs of blocks of rows,
// which share the bytes of the metadata of W'.
template <class T>
void compress_both(const T* w, const Both<T>& to, int64_t rows, int64_t columns) {
  const int64_t bytes = bytes_of(columns), bytes_transposed = bytes_of(rows);
  std::fill_n(to.metadata, rows * bytes, uint8_t{0});
  std::fill_n(to.metadata_transposed, columns * bytes_transposed, uint8_t{0});
  warpwatch::parallel_for((rows + 7) / 8, 1, [=](int64_t begin, int64_t end) {
    for (int64_t i = 2 * begin; i < std::min(2 * end, rows / 4); ++i) {
      for (int64_t j = 0; j < columns / 4; ++j) {
        const T* block = w + 4 * i * columns + 4 * j;
        const auto& way = best_way(block, columns);
        unsigned kept[4] = {};  // Of each column, the rows that stay.
        for (int r = 0; r < 4; ++r) {
          const auto& [first, second] = kPairs[way[r]];
          const int64_t row = 4 * i + r;
          uint8_t& byte = to.metadata[row * bytes + j / 2];
          byte = static_cast<uint8_t>(byte | (first | second << 2) << j % 2 * 4);
          to.values[row * (columns / 2) + 2 * j] = block[r * columns + first];
          to.values[row * (columns / 2) + 2 * j + 1] = block[r * columns + second];
          kept[first] |= 1u << r;
          kept[second] |= 1u << r;
        }
        for (int c = 0; c < 4; ++c) {
          const unsigned positions = positions_of(kept[c]);
          const int64_t row = 4 * j + c;
          uint8_t& byte = to.metadata_transposed[row * bytes_transposed + i / 2];
          byte = static_cast<uint8_t>(byte | positions << i % 2 * 4);
          to.values_transposed[row * (rows / 2) + 2 * i] = block[(positions & 3) * columns + c];
          to.values_transposed[row * (rows / 2) + 2 * i + 1] = block[(positions >> 2) * columns + c];
        }
      }
    }
  });
}

}  // namespace sparse24
