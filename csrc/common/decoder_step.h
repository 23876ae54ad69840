// One step of a GRU for few rows, its input products included: weights pass through the chip once and nothing else leaves it.
//
// What the input side adds besides e (a bias, or a bias and the products of a context that stays the same) comes in ready.
// The seam between bindings (torch) and kernels (no torch); operators that use it instantiate decoder_step.cuh, one type per .cu.
#pragma once

#include <cstdint>

namespace decoder_step {

template <class T>
struct Cells {
  int64_t batch, inputs, hidden;
  const T* e;                // Row b is e + b * e_stride, or e + tokens[b * token_stride] * e_stride.
  int64_t e_stride;
  const int64_t* tokens;     // or null
  int64_t token_stride;
  const T* h;                // (batch, hidden)
  const T* w_e;              // (3 hidden, inputs), rows w_stride apart
  int64_t w_stride;
  const T* w_h;              // (3 hidden, hidden)
  const T* added;            // (3 hidden), or (batch, 3 hidden) when added_stride is not 0
  int64_t added_stride;
  const T* bias;             // (3 hidden), of the hidden side
  T* out;                    // (batch, hidden)
  T* saved;                  // (batch, 4 hidden): r, z, n, q; or null
};

// Returns null, or why the launch was refused.
const char* cells_on(const Cells<float>& call, void* stream);
const char* cells_on(const Cells<double>& call, void* stream);

}  // namespace decoder_step
