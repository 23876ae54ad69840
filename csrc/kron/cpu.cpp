// The stages on a CPU: one batch row at a time stays in cache through all of them, and batch rows are spread over torch's threads.
//
// Vectors always lie along an axis of W, which is padded with zeros to whole vectors, so that odd factors need no second code path.
// What is read past the end of a row is dropped again; buffers that are read like that have a vector of slack behind them.
#include <algorithm>
#include <cstring>
#include <vector>

#include "common/tensor.h"
#include "kron/kron.h"

namespace {

using kron::Backward;
using kron::Forward;
using kron::Shape;

constexpr int kRows = 6;     // Rows and vectors of one register tile: 12 accumulators and 3 operands fit 16 registers.
constexpr int kVectors = 2;
constexpr int64_t kParts = 16;  // Weight gradients are summed in this many parts, however many threads there are: same bits every time.

template <class T>
struct Simd {
  static constexpr int lanes = 32 / sizeof(T);
  typedef T type __attribute__((vector_size(32), aligned(sizeof(T)), may_alias));
};

template <class T>
constexpr int kBlock = kVectors * Simd<T>::lanes;

int64_t padded(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// sum[row][vector] = sum over k < depth of scalar(row, k) * vectors[k * stride + column], where scalar(row, k) is
// scalars[row * row_step + k * k_step]: the one inner product that all three stage kernels are made of.
template <class T, int Rows>
inline void multiply(const T* scalars, int64_t row_step, int64_t k_step, const T* vectors, int64_t stride, int64_t depth,
                     typename Simd<T>::type (&sum)[Rows][kVectors]) {
  using V = typename Simd<T>::type;
  for (int64_t k = 0; k < depth; ++k) {
    const T* from = vectors + k * stride;
    const V v0 = *reinterpret_cast<const V*>(from);
    const V v1 = *reinterpret_cast<const V*>(from + Simd<T>::lanes);
    const T* scalar = scalars + k * k_step;
#pragma GCC unroll 8
    for (int row = 0; row < Rows; ++row) {
      sum[row][0] += scalar[row * row_step] * v0;
      sum[row][1] += scalar[row * row_step] * v1;
    }
  }
}

// out[o, r] for Rows rows from `in` on and one block of o; `count` of the block's columns exist.
template <class T, int Rows>
inline void forward_tile(const T* in, const T* w, T* out, int64_t f, int64_t stride, int64_t rows, int64_t count) {
  typename Simd<T>::type sum[Rows][kVectors] = {};
  multiply<T, Rows>(in, f, 1, w, stride, f, sum);
  const T* tile = reinterpret_cast<const T*>(sum);
  for (int64_t o = 0; o < count; ++o)
    for (int row = 0; row < Rows; ++row) out[o * rows + row] = tile[row * kBlock<T> + o];
}

// in_gradient[r, i] for Rows rows and one block of i; `w` is transposed, [out, in].
template <class T, int Rows>
inline void backward_tile(const T* g, const T* w, T* out, int64_t f, int64_t stride, int64_t rows, int64_t count) {
  typename Simd<T>::type sum[Rows][kVectors] = {};
  multiply<T, Rows>(g, 1, rows, w, stride, f, sum);
  for (int row = 0; row < Rows; ++row) std::memcpy(out + row * f, &sum[row], count * sizeof(T));
}

// Adds to the transposed weight gradient [out, in] for Rows columns o and one block of i.
template <class T, int Rows>
inline void weight_tile(const T* g, const T* h, T* out, int64_t f, int64_t stride, int64_t rows) {
  using V = typename Simd<T>::type;
  V sum[Rows][kVectors] = {};
  multiply<T, Rows>(g, rows, 1, h, f, rows, sum);
  for (int row = 0; row < Rows; ++row)
    for (int v = 0; v < kVectors; ++v) reinterpret_cast<V*>(out + row * stride)[v] += sum[row][v];
}

// Calls tile(std::integral_constant<int, Rows>, first row) over `rows` rows, kRows at a time and the rest one by one.
template <class Tile>
inline void over_rows(int64_t rows, const Tile& tile) {
  int64_t row = 0;
  for (; row + kRows <= rows; row += kRows) tile(std::integral_constant<int, kRows>{}, row);
  for (; row < rows; ++row) tile(std::integral_constant<int, 1>{}, row);
}

template <class T>
void forward_stage(const T* in, const T* w, T* out, int64_t f, int64_t rows) {
  const int64_t stride = padded(f, kBlock<T>);
  over_rows(rows, [&](auto tile_rows, int64_t row) {
    for (int64_t o = 0; o < f; o += kBlock<T>)
      forward_tile<T, tile_rows()>(in + row * f, w + o, out + o * rows + row, f, stride, rows, std::min<int64_t>(kBlock<T>, f - o));
  });
}

template <class T>
void backward_stage(const T* g, const T* w, T* out, int64_t f, int64_t rows) {
  const int64_t stride = padded(f, kBlock<T>);
  over_rows(rows, [&](auto tile_rows, int64_t row) {
    for (int64_t i = 0; i < f; i += kBlock<T>)
      backward_tile<T, tile_rows()>(g + row, w + i, out + row * f + i, f, stride, rows, std::min<int64_t>(kBlock<T>, f - i));
  });
}

template <class T>
void weight_stage(const T* g, const T* h, T* sum, int64_t f, int64_t rows) {
  const int64_t stride = padded(f, kBlock<T>);
  over_rows(f, [&](auto tile_rows, int64_t o) {
    for (int64_t i = 0; i < f; i += kBlock<T>)
      weight_tile<T, tile_rows()>(g + o * rows, h + i, sum + o * stride + i, f, stride, rows);
  });
}

// Every stage's weight in rows padded to whole blocks, transposed to [out, in] or as it is; also the form that gradients are summed in.
template <class T>
struct Padded {
  std::vector<int64_t> start;
  std::vector<T> values;

  explicit Padded(const Shape& shape) {
    int64_t total = 0;
    for (int s = 0; s < shape.stages; ++s) {
      start.push_back(total);
      total += shape.factor[s] * padded(shape.factor[s], kBlock<T>);
    }
    values.assign(total, T{0});
  }

  T* stage(int s) { return values.data() + start[s]; }
  const T* stage(int s) const { return values.data() + start[s]; }
};

template <class T>
Padded<T> pad_weights(const Shape& shape, const T* const (&w)[2], bool transposed) {
  Padded<T> result(shape);
  for (int s = 0; s < shape.stages; ++s) {
    const int64_t f = shape.factor[s], stride = padded(f, kBlock<T>);
    const T* from = w[2 * s >= shape.stages] + shape.weight[s];
    for (int64_t i = 0; i < f; ++i)
      for (int64_t o = 0; o < f; ++o) result.stage(s)[transposed ? o * stride + i : i * stride + o] = from[i * f + o];
  }
  return result;
}

template <class T>
void forward(const Shape& shape, const Forward<T>& call) {
  const Padded<T> w = pad_weights(shape, call.w, false);
  const int64_t n = shape.size, rows = shape.batch;
  warpwatch::parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> scratch(call.states ? 0 : 2 * n);
    for (int64_t b = begin; b < end; ++b) {
      const T* in = call.x + b * n;
      for (int s = 0; s < shape.stages; ++s) {
        T* kept = call.states ? call.states + (s * rows + b) * n : scratch.data() + (s % 2) * n;
        T* out = s + 1 == shape.stages ? call.y + b * n : kept;
        forward_stage(in, w.stage(s), out, shape.factor[s], n / shape.factor[s]);
        in = out;
      }
    }
  });
}

// One batch row backwards through all stages; `h` and `g` are scratch of one row with slack, two rows of the latter.
template <class T>
void backward_row(const Shape& shape, const Backward<T>& call, const Padded<T>& w, Padded<T>& sum, int64_t b, T* h, T* g) {
  const int64_t n = shape.size;
  const T* incoming = call.gradient + b * n;
  for (int s = shape.stages - 1; s >= 0; --s) {
    const int64_t f = shape.factor[s];
    const T* state = s == 0 ? call.x + b * n : call.states + ((s - 1) * shape.batch + b) * n;
    std::copy(state, state + n, h);
    weight_stage(incoming, h, sum.stage(s), f, n / f);
    T* outgoing = s == 0 ? call.x_gradient + b * n : g + (s % 2) * n;
    backward_stage(incoming, w.stage(s), outgoing, f, n / f);
    incoming = outgoing;
  }
}

template <class T>
void backward(const Shape& shape, const Backward<T>& call) {
  const Padded<T> w = pad_weights(shape, call.w, true);
  const int64_t n = shape.size, parts = std::max<int64_t>(1, std::min(kParts, shape.batch));
  std::vector<Padded<T>> sums(parts, Padded<T>(shape));
  warpwatch::parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> h(n + kBlock<T>), g(2 * n);
    for (int64_t part = begin; part < end; ++part)
      for (int64_t b = part * shape.batch / parts; b < (part + 1) * shape.batch / parts; ++b)
        backward_row(shape, call, w, sums[part], b, h.data(), g.data());
  });
  for (int s = 0; s < shape.stages; ++s) {
    const int64_t f = shape.factor[s], stride = padded(f, kBlock<T>);
    T* out = call.w_gradient[2 * s >= shape.stages] + shape.weight[s];
    for (int64_t i = 0; i < f; ++i)
      for (int64_t o = 0; o < f; ++o) {
        T total{0};
        for (const Padded<T>& sum : sums) total += sum.stage(s)[o * stride + i];
        out[i * f + o] = total;
      }
  }
}

}  // namespace

void kron::forward_cpu(const Shape& shape, const Forward<float>& call) { forward(shape, call); }
void kron::forward_cpu(const Shape& shape, const Forward<double>& call) { forward(shape, call); }
void kron::backward_cpu(const Shape& shape, const Backward<float>& call) { backward(shape, call); }
void kron::backward_cpu(const Shape& shape, const Backward<double>& call) { backward(shape, call); }
