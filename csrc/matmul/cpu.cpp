// The product on a CPU: B is packed once into panels, blocks of A into others, and a register tile of 6 x 2 vectors runs over both.
//
// Packing widens 16-bit elements and turns whatever layout the operands have, so there is one inner loop for all of them.
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "common/tensor.h"
#include "matmul/matmul.h"

namespace {

using matmul::Bf16;
using matmul::Operand;
using matmul::Product;

constexpr int64_t kRows = 6;  // Of the register tile: 12 sums and 3 operands fill 15 of 16 vector registers.
constexpr int64_t kDepth = 256;  // A panel of B is read from the L1 cache over and over: 16 KiB.
constexpr int64_t kBlock = 96;  // Rows of A that a thread packs at once: 96 KiB, which the L2 cache holds.
constexpr int64_t kWidest = 4096;  // Columns of B packed at once.

template <class T>
using Wide = std::conditional_t<sizeof(T) == 2, float, T>;

template <class W>
struct Simd {
  static constexpr int64_t lanes = 32 / sizeof(W), columns = 2 * lanes;
  typedef W type __attribute__((vector_size(32), aligned(sizeof(W)), may_alias));
};

inline float widen(Bf16 value) {
  const uint32_t bits = uint32_t{value.bits} << 16;
  float wide;
  std::memcpy(&wide, &bits, 4);
  return wide;
}
inline float widen(float value) { return value; }
inline double widen(double value) { return value; }

inline void narrow(float value, Bf16& to) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  // To the nearest, ties to even; NaN stays one.
  to.bits = value != value ? 0x7fc0 : static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

constexpr int64_t divided(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Elements (first + i, k + row) for i < Width as a panel [row][i]; what lies past `outers` is zero.
template <int64_t Width, class T>
void pack(const T* data, int64_t outer, int64_t along_k, int64_t outers, int64_t depth, Wide<T>* to) {
  if (outers < Width) std::fill(to, to + depth * Width, Wide<T>{0});
  const int64_t width = std::min(Width, outers);
  if (along_k == 1) {
    for (int64_t i = 0; i < width; ++i)
      for (int64_t row = 0; row < depth; ++row) to[row * Width + i] = widen(data[i * outer + row]);
  } else {
    for (int64_t row = 0; row < depth; ++row)
      for (int64_t i = 0; i < width; ++i) to[row * Width + i] = widen(data[row * along_k + i * outer]);
  }
}

// One register tile: c (rows x columns, `stride` apart) = or += a panel [k][6] times a panel [k][2 vectors].
template <class W>
void micro(const W* a, const W* b, int64_t depth, W* c, int64_t stride, int64_t rows, int64_t columns, bool first) {
  using V = typename Simd<W>::type;
  constexpr int64_t lanes = Simd<W>::lanes;
  V sum[kRows][2] = {};
  for (int64_t k = 0; k < depth; ++k) {
    const V left = *reinterpret_cast<const V*>(b + k * 2 * lanes), right = *reinterpret_cast<const V*>(b + k * 2 * lanes + lanes);
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      sum[row][0] += a[k * kRows + row] * left;
      sum[row][1] += a[k * kRows + row] * right;
    }
  }
  if (rows == kRows && columns == 2 * lanes) {
    for (int row = 0; row < kRows; ++row)
      for (int half = 0; half < 2; ++half) {
        V* to = reinterpret_cast<V*>(c + row * stride + half * lanes);
        *to = first ? sum[row][half] : *to + sum[row][half];
      }
    return;
  }
  const W* tile = reinterpret_cast<const W*>(sum);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t j = 0; j < columns; ++j)
      c[row * stride + j] = tile[row * 2 * lanes + j] + (first ? W{0} : c[row * stride + j]);
}

// B's columns [first, first + count) over all of k, as panels [k block][panel][k][2 vectors].
template <class T, class Loop>
void pack_b(const Product<T>& call, const T* b, int64_t first, int64_t count, Wide<T>* packed, const Loop& loop) {
  constexpr int64_t width = Simd<Wide<T>>::columns;
  const int64_t panels = divided(count, width);
  loop(panels, [&](int64_t begin, int64_t end) {
    for (int64_t k = 0; k < call.k; k += kDepth) {
      const int64_t depth = std::min(kDepth, call.k - k);
      for (int64_t panel = begin; panel < end; ++panel)
        pack<width>(b + (first + panel * width) * call.b.outer + k * call.b.k, call.b.outer, call.b.k, count - panel * width, depth,
                    packed + k * panels * width + panel * depth * width);
    }
  });
}

// C's rows [m, m + rows) and panels [begin, end) of the packed columns; c points at the first of both.
template <class T>
void block(const Product<T>& call, const T* a, const Wide<T>* packed, int64_t panels, int64_t m, int64_t rows, int64_t begin,
           int64_t end, int64_t columns, Wide<T>* c, int64_t stride) {
  using W = Wide<T>;
  constexpr int64_t width = Simd<W>::columns;
  std::vector<W> strips(divided(rows, kRows) * kRows * std::min(kDepth, call.k));
  for (int64_t k = 0; k < call.k; k += kDepth) {
    const int64_t depth = std::min(kDepth, call.k - k);
    for (int64_t row = 0; row < rows; row += kRows)
      pack<kRows>(a + (m + row) * call.a.outer + k * call.a.k, call.a.outer, call.a.k, rows - row, depth, strips.data() + row * depth);
    for (int64_t panel = begin; panel < end; ++panel)
      for (int64_t row = 0; row < rows; row += kRows)
        micro(strips.data() + row * depth, packed + k * panels * width + panel * depth * width, depth,
              c + row * stride + (panel - begin) * width, stride, std::min(kRows, rows - row),
              std::min(width, columns - panel * width), k == 0);
  }
}

// One matrix of the batch. `loop(count, body)` runs body(begin, end) over [0, count), on `threads` threads at best.
template <class T, class Loop>
void one_matrix(const Product<T>& call, int64_t batch, int64_t threads, const Loop& loop) {
  using W = Wide<T>;
  constexpr int64_t width = Simd<W>::columns;
  const T* a = call.a.data + batch * call.a.batch;
  T* c = call.c + batch * call.m * call.n;
  std::vector<W> packed(divided(std::min(kWidest, call.n), width) * width * call.k);
  // As many blocks of rows as make all threads finish together; where rows are too few for that, columns are shared out as well.
  const int64_t wanted = divided(divided(call.m, kBlock), threads) * threads;
  const int64_t height = divided(divided(call.m, wanted), kRows) * kRows, row_blocks = divided(call.m, height);
  for (int64_t first = 0; first < call.n; first += kWidest) {
    const int64_t count = std::min(kWidest, call.n - first), panels = divided(count, width);
    pack_b(call, call.b.data + batch * call.b.batch, first, count, packed.data(), loop);
    const int64_t column_blocks = std::min(panels, divided(threads, row_blocks)), wide = divided(panels, column_blocks);
    loop(row_blocks * column_blocks, [&](int64_t begin, int64_t end) {
      std::vector<W> scratch;
      for (int64_t task = begin; task < end; ++task) {
        const int64_t m = task / column_blocks * height, rows = std::min(height, call.m - m);
        const int64_t from = std::min(panels, task % column_blocks * wide), to = std::min(panels, from + wide);
        if (from == to) continue;
        T* out = c + m * call.n + first + from * width;
        if constexpr (std::is_same_v<T, W>) {
          block(call, a, packed.data(), panels, m, rows, from, to, count, out, call.n);
        } else {
          // Sums over blocks of k are kept in full precision and rounded once.
          const int64_t stride = (to - from) * width, columns = std::min(stride, count - from * width);
          scratch.resize(rows * stride);
          block(call, a, packed.data(), panels, m, rows, from, to, count, scratch.data(), stride);
          for (int64_t row = 0; row < rows; ++row)
            for (int64_t j = 0; j < columns; ++j) narrow(scratch[row * stride + j], out[row * call.n + j]);
        }
      }
    });
  }
}

template <class T>
void multiply(const Product<T>& call) {
  const int64_t threads = torch::stable::get_num_threads();
  if (call.batches < threads) {
    for (int64_t batch = 0; batch < call.batches; ++batch)
      one_matrix(call, batch, threads, [](int64_t count, const auto& body) { warpwatch::parallel_for(count, 1, body); });
    return;
  }
  warpwatch::parallel_for(call.batches, 1, [&](int64_t begin, int64_t end) {
    for (int64_t batch = begin; batch < end; ++batch)
      one_matrix(call, batch, 1, [](int64_t count, const auto& body) { body(0, count); });
  });
}

}  // namespace

void matmul::on_cpu(const Product<float>& call) { multiply(call); }
void matmul::on_cpu(const Product<double>& call) { multiply(call); }
void matmul::on_cpu(const Product<Bf16>& call) { multiply(call); }
