// Products of float matrices on tensor cores that keep the accuracy of a float, for few rows as well as for many.
//
// c(i, j) = sum over k of a(i, k) * b(j, k) + added(i, j). The sum may come in segments, each with operands of its own, so that parts of
// a concatenation stay where they are. The seam between launchers; the kernels are in split_tiles.cuh.
#pragma once

#include <cstdint>

namespace split_tiles {

constexpr int kMostSegments = 4, kMostProducts = 4;

// Element (i, k) is data[i * outer + k * along_k]; one of the strides is 1.
struct Operand {
  const float* data;
  int64_t outer, along_k;
};

struct Segment {
  Operand a, b;
  int64_t depth;
};

struct Product {
  Segment segments[kMostSegments];
  int count;
  int64_t m, n;
  float* c;
  int64_t c_stride;
  const float* added;  // (n), or rows of n that lie added_stride apart, or null
  int64_t added_stride;
};

// Products of one layout that share a launch.
struct Products {
  Product product[kMostProducts];
  int count;
};

}  // namespace split_tiles
