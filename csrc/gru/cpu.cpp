// A layer on the CPU. Rows of the batch do not see each other, so that threads take rows of their own through all steps and never
// wait; a batch too small for that is split by units instead, step by step.
#include <vector>

#include "common/gru_cell.h"
#include "common/lanes.h"
#include "common/products.h"
#include "common/tensor.h"
#include "gru/gru.h"

namespace {

using gru::Backward;
using gru::Forward;
using gru::kGates;
using gru::kSaved;
using gru::Shape;
using warpwatch::load;
using warpwatch::store;

constexpr int64_t kRows = 4;       // Rows that one tile of the product takes at once.
constexpr int64_t kGrain = 16384;  // Multiply-adds below which a second thread costs more than it saves.

bool by_rows(const Shape& shape) { return shape.batch >= 2 * kRows || shape.batch * shape.hidden * shape.hidden * kGates < kGrain; }

// The lanes that cells of type T are computed in, as many at once as loads and stores of Lane move.
template <class T>
struct Several {
  using type = T;
};
template <>
struct Several<float> {
  using type = gru_cell::Lanes;
};

// Calls body(lane, j) over [from, to): as many units at once as there are lanes, the rest one by one.
template <class T, class Body>
void over_units(int64_t from, int64_t to, const Body& body) {
  using Lane = typename Several<T>::type;
  constexpr int64_t lanes = sizeof(Lane) / sizeof(T);
  int64_t j = from;
  for (; j + lanes <= to; j += lanes) body(Lane{}, j);
  for (; j < to; ++j) body(T{}, j);
}

template <class T>
void cells(const Shape& shape, const Forward<T>& call, int64_t t, int64_t b, int64_t from, int64_t to, const T* hidden) {
  const int64_t n = shape.hidden, row = t * shape.batch + b;
  const T *input = call.input + row * kGates * n, *before = call.before(shape, t) + b * n, *bias = call.bias;
  T *out = call.out + row * n, *saved = call.saved ? call.saved + row * kSaved * n : nullptr;
  over_units<T>(from, to, [=](auto lane, int64_t j) {
    using L = decltype(lane);
    const auto hidden_sum = [=](int64_t k) { return load<L>(hidden + k) + load<L>(bias + k); };
    const auto gates = gru_cell::open<L>(load<L>(input + j), load<L>(input + n + j), load<L>(input + 2 * n + j), hidden_sum(j),
                                         hidden_sum(n + j), hidden_sum(2 * n + j));
    store(out + j, gru_cell::next_state<L>(gates, load<L>(before + j)));
    if (saved == nullptr) return;
    store(saved + j, gates.r);
    store(saved + n + j, gates.z);
    store(saved + 2 * n + j, gates.n);
    store(saved + 3 * n + j, gates.q);
  });
}

// Units [from, to) of rows [first, last) at step t; `hidden` is (batch, 3 hidden).
template <class T>
void forward_step(const Shape& shape, const Forward<T>& call, int64_t t, int64_t first, int64_t last, int64_t from, int64_t to,
                  T* hidden) {
  const int64_t n = shape.hidden;
  T* rows = hidden + first * kGates * n;
  for (int64_t gate = 0; gate < kGates; ++gate)
    warpwatch::dot_rows<T>({call.before(shape, t) + first * n, n}, last - first, {call.w, n}, gate * n + from, gate * n + to, n,
                           [=](int64_t i, int64_t j, T sum) { rows[i * kGates * n + j] = sum; });
  for (int64_t b = first; b < last; ++b) cells(shape, call, t, b, from, to, hidden + b * kGates * n);
}

// Runs body(first row, last row) over groups of rows on all threads.
template <class Body>
void over_row_groups(const Shape& shape, const Body& body) {
  const int64_t groups = (shape.batch + kRows - 1) / kRows;
  const int64_t work = kRows * shape.steps * shape.hidden * shape.hidden * kGates;
  warpwatch::parallel_for(groups, kGrain / std::max<int64_t>(1, work) + 1, [&](int64_t begin, int64_t end) {
    body(begin * kRows, std::min(shape.batch, end * kRows));
  });
}

template <class T>
void forward(const Shape& shape, const Forward<T>& call) {
  std::vector<T> hidden(shape.batch * kGates * shape.hidden);
  if (by_rows(shape)) {
    over_row_groups(shape, [&](int64_t first, int64_t last) {
      for (int64_t t = 0; t < shape.steps; ++t) forward_step(shape, call, t, first, last, 0, shape.hidden, hidden.data());
    });
    return;
  }
  const int64_t grain = kGrain / (shape.batch * shape.hidden * kGates) + 1;
  for (int64_t t = 0; t < shape.steps; ++t)
    warpwatch::parallel_for(shape.hidden, grain, [&](int64_t from, int64_t to) {
      forward_step(shape, call, t, 0, shape.batch, from, to, hidden.data());
    });
}

template <class T>
void slopes(const Shape& shape, const Backward<T>& call, int64_t t, int64_t b, const T* __restrict__ later, T* __restrict__ carry) {
  const int64_t n = shape.hidden, row = t * shape.batch + b;
  const T* __restrict__ saved = call.saved + row * kSaved * n;
  const T* __restrict__ before = call.before(shape, t) + b * n;
  const T* __restrict__ gradient = call.gradient + row * n;
  T* __restrict__ d_input = call.d_input + row * kGates * n;
  T* __restrict__ d_hidden = call.d_hidden + row * kGates * n;
  for (int64_t j = 0; j < n; ++j) {
    const gru_cell::Gates<T> gates{saved[j], saved[n + j], saved[2 * n + j], saved[3 * n + j]};
    const gru_cell::Slopes<T> d = gru_cell::slopes(gates, before[j], gradient[j] + later[j]);
    d_input[j] = d_hidden[j] = d.r;
    d_input[n + j] = d_hidden[n + j] = d.z;
    d_input[2 * n + j] = d.n;
    d_hidden[2 * n + j] = d.q;
    carry[j] = d.h;
  }
}

template <class T>
std::vector<T> transposed(const T* w, int64_t rows, int64_t columns) {
  constexpr int64_t kTile = 16;
  std::vector<T> result(rows * columns);
  warpwatch::parallel_for((rows + kTile - 1) / kTile, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * kTile; i < std::min(rows, end * kTile); i += kTile)
      for (int64_t j = 0; j < columns; j += kTile)
        for (int64_t c = j; c < std::min(columns, j + kTile); ++c)
          for (int64_t r = i; r < std::min(rows, i + kTile); ++r) result[c * rows + r] = w[r * columns + c];
  });
  return result;
}

// Every row through all steps backwards, with the rows' own products by the transposed weights.
template <class T>
void backward_rows(const Shape& shape, const Backward<T>& call, const T* turned, int64_t first, int64_t last) {
  const int64_t n = shape.hidden;
  std::vector<T> later((last - first) * n, T{0}), carry((last - first) * n);
  for (int64_t t = shape.steps - 1; t >= 0; --t) {
    for (int64_t b = first; b < last; ++b) slopes(shape, call, t, b, &later[(b - first) * n], &carry[(b - first) * n]);
    const T* d_hidden = call.d_hidden + (t * shape.batch + first) * kGates * n;
    warpwatch::dot_rows<T>({d_hidden, kGates * n}, last - first, {turned, kGates * n}, 0, n, kGates * n,
                           [&](int64_t i, int64_t j, T sum) { later[i * n + j] = carry[i * n + j] + sum; });
  }
  std::copy(later.begin(), later.end(), call.d_h0 + first * n);
}

// A small batch: threads share the units and read the weights untransposed, because transposing them costs as much as a step.
template <class T>
void backward_steps(const Shape& shape, const Backward<T>& call) {
  const int64_t n = shape.hidden;
  std::vector<T> later(shape.batch * n, T{0});
  for (int64_t t = shape.steps - 1; t >= 0; --t) {
    for (int64_t b = 0; b < shape.batch; ++b) slopes(shape, call, t, b, &later[b * n], call.d_h0 + b * n);
    const T* d_hidden = call.d_hidden + t * shape.batch * kGates * n;
    warpwatch::parallel_for(n, kGrain / (shape.batch * n * kGates) + 1, [&](int64_t from, int64_t to) {
      warpwatch::product<T>({d_hidden, kGates * n, 1}, shape.batch, {call.w + from, n}, kGates * n, {call.d_h0 + from, n}, to - from,
                            true);
    });
    std::copy(call.d_h0, call.d_h0 + shape.batch * n, later.begin());
  }
}

template <class T>
void backward(const Shape& shape, const Backward<T>& call) {
  if (!by_rows(shape)) return backward_steps(shape, call);
  const std::vector<T> turned = transposed(call.w, kGates * shape.hidden, shape.hidden);
  over_row_groups(shape, [&](int64_t first, int64_t last) { backward_rows(shape, call, turned.data(), first, last); });
}

}  // namespace

void gru::forward_cpu(const Shape& shape, const Forward<float>& call) { forward(shape, call); }
void gru::forward_cpu(const Shape& shape, const Forward<double>& call) { forward(shape, call); }
void gru::backward_cpu(const Shape& shape, const Backward<float>& call) { backward(shape, call); }
void gru::backward_cpu(const Shape& shape, const Backward<double>& call) { backward(shape, call); }
