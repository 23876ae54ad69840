// The seam between the binding (g++, torch) and the kernels (nvcc, no torch).
#pragma once

#include <cstdint>

#include "common/sixteen.h"

namespace scaled_matmul {

// Sides of the blocks of B that have a scale each, and length of those of A, which are parts of a row.
constexpr int kBlock = 128;

// y (m, n) = A (m, k) times the transpose of B (n, k), codes in e4m3. by_block: the scale of row i of A and of its codes 128 * c and on
// is a_scale[i * a_step + c], that of rows 128 * j and on of B b_scale[j * b_step + c]. Otherwise the scale of row i is
// a_scale[i * a_step], that of row j of B b_scale[j * b_step]. Where there is one row of scales, their step is 0.
struct Product {
  const uint8_t *a, *b;
  const float *a_scale, *b_scale;
  warpwatch::Bf16* y;
  int64_t m, n, k;
  int a_step, b_step;
  bool by_block;
};

// Returns null, or why the launch was refused. k must be a multiple of 16, n one of 8, no matrix empty, no size above INT32_MAX / 2.
const char* warpgroups_on(const Product& call, void* stream);

}  // namespace scaled_matmul
