// Attention on a CPU: a few dozen queries against a few dozen keys at a time, so that neither scores nor probabilities leave the cache.
//
// Whatever the precision, a head's operands are widened to float once, in rows padded with zeros to whole vectors; keys are kept
// turned as well, [dim][key], so that both products of a tile multiply scalars with rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "common/products.h"
#include "common/wide.h"

namespace attention {

using warpwatch::axpy_rows;
using warpwatch::Scalars;

constexpr int64_t kQueries = 48, kKeys = 48;  // Of a tile: whole register tiles of 6 rows and 2 vectors, however it is turned.

// e to the power of x for x <= 0, to the last bit or two; NaN stays NaN. Written so that the compiler turns a loop over it into vectors.
inline float exponential(float x) {
  constexpr float magic = 12582912.0f;  // Added, it pushes the fraction out of the mantissa.
  const float n = (x * 1.44269504f + magic) - magic;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const float clipped = n < -126.0f ? -126.0f : n;
  const int32_t bits = (static_cast<int32_t>(clipped) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, 4);
  // Below this the result is no normal number; minus infinity, whose remainder is NaN, comes here as well.
  return x < -87.3f ? 0.0f : p * power;
}

inline double exponential(double x) { return std::exp(x); }

template <class W>
using Vector = typename warpwatch::Simd<W>::type;

// A row of scores, scaled; returns the highest or `top`, whichever is higher. NaN is higher than nothing.
template <class W>
inline W scale_row(W* row, W scale, W top) {
  constexpr int lanes = warpwatch::Simd<W>::lanes;
  Vector<W> tops = top - Vector<W>{};
  for (int64_t j = 0; j < kKeys; j += lanes) {
    const Vector<W> x = warpwatch::load_vector(row + j) * scale;
    warpwatch::store_vector(row + j, x);
    tops = x > tops ? x : tops;
  }
  for (int lane = 0; lane < lanes; ++lane) top = tops[lane] > top ? tops[lane] : top;
  return top;
}

template <class W>
inline W sum_row(const W* row) {
  Vector<W> sum{};
  for (int64_t j = 0; j < kKeys; j += warpwatch::Simd<W>::lanes) sum += warpwatch::load_vector(row + j);
  return warpwatch::sum_of<W>(sum);
}

template <class W>
constexpr int64_t kWidth = 2 * warpwatch::Simd<W>::lanes;

inline int64_t padded(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// `count` rows of `dim` from `first` on, widened and padded with zeros.
template <class T>
struct Wide {
  using W = warpwatch::WideType<T>;
  int64_t stride;
  std::vector<W> data;

  Wide(warpwatch::Rows<const T> from, int64_t first, int64_t count, int64_t dim) : stride(padded(dim, kWidth<W>)), data(count * stride) {
    for (int64_t i = 0; i < count; ++i) warpwatch::widen_row(from.row(first + i), data.data() + i * stride, dim);
  }
  const W* row(int64_t i) const { return data.data() + i * stride; }
  warpwatch::Rows<const W> rows(int64_t i) const { return {row(i), stride}; }
};

// The same turned, [dim][row], each line padded to whole tiles.
template <class W, class From>
struct Turned {
  int64_t stride;
  std::vector<W> data;

  Turned(const From& from, int64_t count, int64_t dim) : stride(padded(count, kKeys)), data(stride * dim) {
    for (int64_t i = 0; i < count; ++i)
      for (int64_t d = 0; d < dim; ++d) data[d * stride + i] = from.row(i)[d];
  }
  warpwatch::Rows<const W> lines(int64_t first) const { return {data.data() + first, stride}; }
};

// Keys that query i may see, of the `keys` there are.
inline int64_t visible(bool causal, int64_t i, int64_t keys) { return causal ? std::min(keys, i + 1) : keys; }

// One head: out (queries x dim) and the logarithms of its sums, for the queries [first, end).
template <class T>
struct HeadForward {
  using W = warpwatch::WideType<T>;
  warpwatch::Rows<const T> q, k, v;
  int64_t queries, keys, dim;
  bool causal;
  W scale;
  warpwatch::Rows<T> out;
  W* log_sum;

  void run(int64_t first, int64_t end) const {
    const int64_t reach = visible(causal, end - 1, keys);
    const Wide<T> wide_k(k, 0, reach, dim), wide_v(v, 0, reach, dim), wide_q(q, first, end - first, dim);
    const Turned<W, Wide<T>> turned(wide_k, reach, dim);
    std::vector<W> sums(kQueries * wide_v.stride), scores(kQueries * kKeys);
    for (int64_t i = first; i < end; i += kQueries) {
      const int64_t count = std::min(kQueries, end - i), stop = visible(causal, i + count - 1, keys);
      W highest[kQueries], total[kQueries];
      std::fill_n(highest, kQueries, -std::numeric_limits<W>::infinity());
      std::fill_n(total, kQueries, W{0});
      std::fill(sums.begin(), sums.end(), W{0});
      for (int64_t j = 0; j < stop; j += kKeys) {
        axpy_rows<W>({wide_q.row(i - first), wide_q.stride, 1}, count, turned.lines(j), dim, {scores.data(), kKeys}, kKeys, false);
        const int64_t depth = std::min(kKeys, stop - j);
        for (int64_t r = 0; r < count; ++r)
          soften(scores.data() + r * kKeys, std::min(depth, visible(causal, i + r, keys) - j), highest[r], total[r],
                 sums.data() + r * wide_v.stride, wide_v.stride);
        axpy_rows<W>({scores.data(), kKeys, 1}, count, wide_v.rows(j), depth, {sums.data(), wide_v.stride}, wide_v.stride, true);
      }
      for (int64_t r = 0; r < count; ++r) {
        W* row = sums.data() + r * wide_v.stride;
        for (int64_t d = 0; d < dim; ++d) row[d] /= total[r];
        warpwatch::narrow_row(row, out.row(i + r), dim);
        log_sum[i + r] = highest[r] + std::log(total[r]);
      }
    }
  }

  // Scores of one query become exponentials under its highest score so far; what was summed up under a lower one is scaled down.
  void soften(W* scores, int64_t seen, W& highest, W& total, W* sums, int64_t width) const {
    std::fill(scores + std::max<int64_t>(seen, 0), scores + kKeys, -std::numeric_limits<W>::infinity());
    const W top = scale_row(scores, scale, highest);
    // A row that has seen nothing but minus infinity has no highest score to subtract.
    const W base = top == -std::numeric_limits<W>::infinity() ? W{0} : top;
    if (top != highest) {
      const W shrink = exponential(highest - base);
      total *= shrink;
      for (int64_t d = 0; d < width; ++d) sums[d] *= shrink;
      highest = top;
    }
    for (int64_t j = 0; j < kKeys; ++j) scores[j] = exponential(scores[j] - base);
    total += sum_row(scores);
  }
};

// One head's gradients, from probabilities computed anew.
template <class T>
struct HeadBackward {
  using W = warpwatch::WideType<T>;
  warpwatch::Rows<const T> gradient, q, k, v, out;
  int64_t queries, keys, dim;
  bool causal;
  W scale;
  const W* log_sum;
  warpwatch::Rows<T> dq, dk, dv;

  void run() const {
    const Wide<T> g(gradient, 0, queries, dim), wide_q(q, 0, queries, dim), wide_k(k, 0, keys, dim), wide_v(v, 0, keys, dim);
    const Turned<W, Wide<T>> turned_k(wide_k, keys, dim), turned_v(wide_v, keys, dim);
    const int64_t stride = g.stride;
    std::vector<W> p(kQueries * kKeys), ds(kQueries * kKeys), k_sums(keys * stride), v_sums(keys * stride), q_sums(kQueries * stride);
    for (int64_t i = 0; i < queries; i += kQueries) {
      const int64_t count = std::min(kQueries, queries - i), stop = visible(causal, i + count - 1, keys);
      W delta[kQueries];
      deltas(g, i, count, delta);
      std::fill(q_sums.begin(), q_sums.end(), W{0});
      for (int64_t j = 0; j < stop; j += kKeys) {
        const int64_t depth = std::min(kKeys, stop - j);
        axpy_rows<W>({wide_q.row(i), stride, 1}, count, turned_k.lines(j), dim, {p.data(), kKeys}, kKeys, false);
        axpy_rows<W>({g.row(i), stride, 1}, count, turned_v.lines(j), dim, {ds.data(), kKeys}, kKeys, false);
        for (int64_t r = 0; r < count; ++r)
          soften(p.data() + r * kKeys, ds.data() + r * kKeys, std::min(depth, visible(causal, i + r, keys) - j), log_sum[i + r], delta[r]);
        axpy_rows<W>({ds.data(), kKeys, 1}, count, wide_k.rows(j), depth, {q_sums.data(), stride}, stride, true);
        axpy_rows<W>({ds.data(), 1, kKeys}, depth, wide_q.rows(i), count, {k_sums.data() + j * stride, stride}, stride, true);
        axpy_rows<W>({p.data(), 1, kKeys}, depth, g.rows(i), count, {v_sums.data() + j * stride, stride}, stride, true);
      }
      for (int64_t r = 0; r < count; ++r) warpwatch::narrow_row(q_sums.data() + r * stride, dq.row(i + r), dim);
    }
    for (int64_t j = 0; j < keys; ++j) {
      warpwatch::narrow_row(k_sums.data() + j * stride, dk.row(j), dim);
      warpwatch::narrow_row(v_sums.data() + j * stride, dv.row(j), dim);
    }
  }

  // gradient times out, summed over each row: what the normalisation takes from every gradient of a score.
  void deltas(const Wide<T>& g, int64_t first, int64_t count, W* delta) const {
    std::vector<W> row(dim);
    for (int64_t r = 0; r < count; ++r) {
      warpwatch::widen_row(out.row(first + r), row.data(), dim);
      delta[r] = 0;
      for (int64_t d = 0; d < dim; ++d) delta[r] += row[d] * g.row(first + r)[d];
    }
  }

  // Scores and gradients of probabilities of one query become probabilities and gradients of scores, both zero for hidden keys.
  void soften(W* scores, W* gradients, int64_t seen, W sum, W delta) const {
    seen = std::max<int64_t>(seen, 0);
    for (int64_t j = 0; j < seen; ++j) {
      scores[j] = exponential(scores[j] * scale - sum);
      gradients[j] = scores[j] * (gradients[j] - delta) * scale;
    }
    std::fill(scores + seen, scores + kKeys, W{0});
    std::fill(gradients + seen, gradients + kKeys, W{0});
  }
};

}  // namespace attention
