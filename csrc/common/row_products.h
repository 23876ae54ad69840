// y[b, v] = sum over k of x[b, k] * w[v, k] + bias, for few rows b: weights pass through the chip once, x comes in up to four parts.
//
// The parts of x stay in their own tensors: they are never concatenated. The interface between binding (torch) and kernels (no torch);
// operators that use it instantiate row_products.cuh, one type per .cu.
#pragma once

#include <cstdint>

#include "common/sixteen.h"

namespace row_products {

// How the products are computed on a GPU; the numbers are part of the torch operators' schema. On a CPU every number means the same code.
enum class Version : int64_t { rows = 3, tiles = 5 };

constexpr int kMostParts = 4;
constexpr int64_t kMostGradientRows = 8;  // Rows of x that the backward kernel keeps in registers.

template <class T>
struct Parts {
  const T* data[kMostParts];
  int64_t stride[kMostParts];  // Elements between two rows of the part.
  int64_t width[kMostParts];
  int count;
};

template <class T>
struct Forward {
  Parts<T> x;
  int64_t batch;
  const T* w;         // (outputs, sum of the widths), rows `w_stride` apart
  int64_t w_stride;
  const T* bias;      // (outputs), or (batch, outputs) when bias_stride is not 0, or null
  int64_t bias_stride;
  T* y;               // (batch, outputs)
  int64_t outputs;
};

template <class T>
struct Backward {
  Parts<T> x;
  int64_t batch;      // At most kMostGradientRows, except by tiles.
  const T* gradient;  // (batch, outputs)
  const T* w;         // (outputs, depth)
  int64_t outputs, depth;
  T* x_gradient;      // (batch, depth)
  T* w_gradient;      // (outputs, depth)
  T* b_gradient;      // (outputs) or null
  void* scratch;      // scratch_bytes(call), or tiles_scratch_bytes(call)
};

// Bytes of scratch that a backward call needs on the current device; the pointers of the call are not read.
int64_t scratch_bytes(const Backward<float>& call);
int64_t scratch_bytes(const Backward<double>& call);
int64_t scratch_bytes(const Backward<warpwatch::Bf16>& call);

// Return null, or why a launch was refused.
const char* forward_on(const Forward<float>& call, void* stream);
const char* forward_on(const Forward<double>& call, void* stream);
const char* forward_on(const Forward<warpwatch::Bf16>& call, void* stream);
const char* backward_on(const Backward<float>& call, void* stream);
const char* backward_on(const Backward<double>& call, void* stream);
const char* backward_on(const Backward<warpwatch::Bf16>& call, void* stream);

// The same by tiles on tensor cores, for any number of rows; the calls of one launch are independent of each other. For float alone: the
// operators that use them include row_tiles.cuh in one .cu.
const char* forward_tiles_on(const Forward<float>* calls, int count, void* stream);
int64_t tiles_scratch_bytes(const Backward<float>& call);
const char* backward_tiles_on(const Backward<float>& call, void* stream);

}  // namespace row_products
