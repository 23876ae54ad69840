// The seam between the binding (g++, torch) and the kernels (nvcc, no torch).
#pragma once

#include <cstdint>

#include "common/sixteen.h"

namespace attention {

// Rungs; the numbers are part of the torch operators' schema. On a CPU every number means the same code.
enum class Version : int64_t {
  tensor_cores = 3,
  warpgroups = 4,
};

constexpr int kPassingQueries = 64;  // Kernels for gradients on Hopper copy so many at a time, with their numbers.

// What all tensors of a call agree on. `heads` counts over the batch as well; key j is hidden from query i < j when `causal`.
struct Shape {
  int64_t batch, heads_each, queries, keys, dim;
  bool causal;
  float scale;

  int64_t heads() const { return batch * heads_each; }
  // Queries of a head, rounded up to whole copies.
  int64_t numbered() const { return (queries + kPassingQueries - 1) / kPassingQueries * kPassingQueries; }
};

// Rows of `dim` neighbours, by the distances between batches, heads and rows.
template <class T>
struct Rows {
  T* data;
  int64_t batch, head, row;
};

// log_sum, one number per query, is the logarithm of the sum of its exponentials.
template <class T>
struct Forward {
  Rows<const T> q, k, v;
  Rows<T> out;
  float* log_sum;
};

// `scratch` is for delta, a number per query. Kernels on Hopper keep in it, head by head, log_sum in powers of two and then delta, of
// `numbered()` queries each.
template <class T>
struct Backward {
  Rows<const T> gradient, q, k, v, out;
  const float* log_sum;
  float* scratch;
  Rows<T> dq, dk, dv;
};

constexpr int64_t kLargestDim = 128;  // Of a head, for the kernels.

// Each returns null, or why the launch was refused.
#define ATTENTION_KERNELS(T)                                                        \
  const char* forward_on(const Shape& shape, const Forward<T>& call, void* stream); \
  const char* backward_on(const Shape& shape, const Backward<T>& call, void* stream);
ATTENTION_KERNELS(float)
ATTENTION_KERNELS(warpwatch::Bf16)
ATTENTION_KERNELS(warpwatch::F16)
#undef ATTENTION_KERNELS

// The same on Hopper's tensor cores; elsewhere they call the kernels above.
#define ATTENTION_WARPGROUPS(T)                                                                \
  const char* warpgroups_forward_on(const Shape& shape, const Forward<T>& call, void* stream); \
  const char* warpgroups_backward_on(const Shape& shape, const Backward<T>& call, void* stream);
ATTENTION_WARPGROUPS(warpwatch::Bf16)
ATTENTION_WARPGROUPS(warpwatch::F16)
#undef ATTENTION_WARPGROUPS

}  // namespace attention
