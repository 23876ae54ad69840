// The same on a CPU: a thread takes one head of the cache of one sequence, with all heads of q that read it.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "common/tensor.h"
#include "common/wide.h"
#include "kv_attention/kv_attention.h"

namespace kv_attention {

inline float number_of(uint8_t code) {
  const int exponent = code >> 3 & 0xf, fraction = code & 7;
  const float size = (code & 0x7f) == 0x7f ? std::numeric_limits<float>::quiet_NaN()
                     : exponent == 0       ? std::ldexp(static_cast<float>(fraction), -9)
                                           : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  return code & 0x80 ? -size : size;
}

template <class C>
void widen_token(const C* from, float* to, int64_t count, const float* decoded) {
  if constexpr (std::is_same_v<C, E4m3>) {
    for (int64_t i = 0; i < count; ++i) to[i] = decoded[from[i].bits];
  } else {
    warpwatch::widen_row<C>(from, to, count);
  }
}

template <class T, class C>
void forward_on_cpu(const Shape& shape, const T* q, const Cache<C>& cache, T* y) {
  std::vector<float> decoded(256);
  for (int code = 0; code < 256; ++code) decoded[code] = number_of(static_cast<uint8_t>(code));
  const int64_t group = shape.heads / shape.kv_heads, dim = shape.dim;
  const float factor = shape.factor * (cache.k_scale ? *cache.k_scale : 1.0f), v_scale = cache.v_scale ? *cache.v_scale : 1.0f;
  warpwatch::parallel_for(shape.batch * shape.kv_heads, 1, [&, decoded = decoded.data()](int64_t first, int64_t last) {
    for (int64_t work = first; work < last; ++work) {
      const int64_t b = work / shape.kv_heads, kv_head = work % shape.kv_heads, from = (b * shape.heads + kv_head * group) * dim;
      const int64_t length = std::clamp<int64_t>(cache.lengths[b], 0, shape.pages * shape.page);
      const auto token = [&](const C* pool, int64_t t) {
        const int64_t page = cache.table[b * shape.pages + t / shape.page];
        return pool + ((page * shape.page + t % shape.page) * shape.kv_heads + kv_head) * dim;
      };
      std::vector<float> queries(group * dim), row(dim), weights(group * length), sums(group * dim);
      warpwatch::widen_row<T>(q + from, queries.data(), group * dim);
      for (int64_t t = 0; t < length; ++t) {
        widen_token<C>(token(cache.k, t), row.data(), dim, decoded);
        for (int64_t h = 0; h < group; ++h) {
          float dot = 0;
          for (int64_t i = 0; i < dim; ++i) dot += queries[h * dim + i] * row[i];
          weights[h * length + t] = dot * factor;
        }
      }
      std::vector<float> totals(group);
      for (int64_t h = 0; h < group && length > 0; ++h) {
        float* begin = weights.data() + h * length;
        const float highest = *std::max_element(begin, begin + length);
        for (int64_t t = 0; t < length; ++t) totals[h] += begin[t] = std::exp(begin[t] - highest);
      }
      for (int64_t t = 0; t < length; ++t) {
        widen_token<C>(token(cache.v, t), row.data(), dim, decoded);
        for (int64_t h = 0; h < group; ++h)
          for (int64_t i = 0; i < dim; ++i) sums[h * dim + i] += weights[h * length + t] * row[i];
      }
      for (int64_t h = 0; h < group; ++h)
        for (int64_t i = 0; i < dim; ++i) sums[h * dim + i] *= length > 0 ? v_scale / totals[h] : 0.0f;
      warpwatch::narrow_row<T>(sums.data(), y + from, group * dim);
    }
  });
}

}  // namespace kv_attention
