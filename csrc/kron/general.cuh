// One stage at a time, for factors of any size: the path that is always right. Launchers return null or what the runtime refused.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kron/kron.h"

namespace kron {

// One stage: `rows` = N / f of each of `batch` states.
struct Stage {
  uint32_t batch;
  uint32_t rows;
  uint32_t factor;
};

// out[b, o, r] = sum over i of in[b, r, i] * w[i, o]
template <class T>
void stage_forward(const Stage& stage, const T* in, const T* w, T* out, cudaStream_t stream);

// in_gradient[b, r, i] = sum over o of gradient[b, o, r] * w[i, o]
template <class T>
void stage_backward(const Stage& stage, const T* gradient, const T* w, T* in_gradient, cudaStream_t stream);

// How many partial sums stage_weight writes, each of f * f elements.
int weight_parts(const Stage& stage);

// partial[part, i, o] = sum over the part's (b, r) of in[b, r, i] * gradient[b, o, r]
template <class T>
void stage_weight(const Stage& stage, const T* gradient, const T* in, T* partial, cudaStream_t stream);

// Partial sums of several weight gradients of equal size, (stages, parts, elements), and where each gradient belongs.
template <class T>
struct Sums {
  const T* partial;
  T* out[kMostStages];
  int stages;
  int parts;
  int64_t elements;
};

// out[stage][e] = sum over parts of partial[stage, part, e], always in the same order.
template <class T>
void sum_parts(const Sums<T>& sums, cudaStream_t stream);

}  // namespace kron
