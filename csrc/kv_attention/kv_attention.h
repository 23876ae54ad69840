// The seam between the binding (g++, torch) and the kernels (nvcc, no torch).
#pragma once

#include <cstdint>

namespace kv_attention {

// Keys and values are pools of pages of `page` tokens with `kv_heads` heads each; a sequence lists `pages` of them in its row of the
// table. factor: of scores, 1/√dim.
struct Shape {
  int64_t batch, heads, kv_heads, dim, page, pages;
  float factor;
};

// How sequences are divided: into at most `count` parts of `tokens` each.
struct Split {
  int64_t count, tokens;
};

// A code of FP8, whose numbers have one scale for the keys and one for the values.
struct E4m3 {
  uint8_t bits;
};

// k_scale and v_scale: null where there are none.
template <class C>
struct Cache {
  const C *k, *v;
  const int32_t *table, *lengths;
  const float *k_scale, *v_scale;
};

Split split_of(const Shape& shape);

// parts: room for batch * heads * count results of dim + 1 floats. Returns null, or why a launch was refused.
template <class T, class C>
const char* forward_on(const Shape& shape, const Split& split, const T* q, const Cache<C>& cache, float* parts, T* y, void* stream);

}  // namespace kv_attention
