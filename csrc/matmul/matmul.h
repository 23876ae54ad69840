// The seam between the binding (g++, torch) and the kernels (nvcc, no torch).
//
// C(m, n) = sum over k of A(m, k) * B(n, k), for every matrix of a batch. Written so, both operands are the same thing: an axis of the
// result's, called outer, and the axis that is summed over. A transpose is nothing but other strides, and so gradients take no copies.
#pragma once

#include <cstdint>

#include "common/sixteen.h"

namespace matmul {

using warpwatch::Bf16;

// Rungs of the ladder; the numbers are part of the torch operator's schema. On a CPU every number means the same code.
enum class Version : int64_t {
  naive = 3,
  coalesced = 4,
  shared_tile = 5,
  column_of_registers = 6,
  tile_of_registers = 7,
  vectors = 8,
  double_buffer = 9,
  warp_tiles = 10,
  tensor_cores = 11,
  split_tensor_cores = 12,
  split_tiles = 13,
  warpgroups = 14,
};

// Strides in elements. Unless only the naive kernels see it, one of `outer` and `k` is 1.
template <class T>
struct Operand {
  const T* data;
  int64_t batch, outer, k;
};

template <class T>
struct Product {
  Operand<T> a, b;
  T* c;  // Contiguous, (batches, m, n).
  int64_t batches, m, n, k;
};

// Each returns null, or why the launch was refused.
const char* one_each_on(Version version, const Product<float>& call, void* stream);
const char* one_each_on(Version version, const Product<double>& call, void* stream);
const char* shared_tile_on(const Product<float>& call, void* stream);
const char* registers_on(Version version, const Product<float>& call, void* stream);
const char* double_buffer_on(const Product<float>& call, void* stream);
const char* warp_tiles_on(const Product<float>& call, void* stream);
const char* tensor_cores_on(const Product<float>& call, void* stream);
const char* tensor_cores_on(const Product<Bf16>& call, void* stream);
const char* split_tensor_cores_on(const Product<float>& call, void* stream);
const char* split_tiles_on(const Product<float>& call, void* stream);
const char* warpgroups_on(const Product<Bf16>& call, void* stream);

}  // namespace matmul
