// The same on a CPU: a row of W is decoded once, for all rows of x.
#pragma once

#include <algorithm>
#include <vector>

#include "common/tensor.h"
#include "common/wide.h"
#include "int4_linear/int4_linear.h"

namespace int4_linear {

constexpr int64_t kLanes = 16;  // Sums beside each other, so that compilers add many products at once.

inline float dot(const float* a, const float* b, int64_t count) {
  float sum[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) sum[lane] += a[i + lane] * b[i + lane];
  for (int64_t lane = 0; i < count; ++i, ++lane) sum[lane] += a[i] * b[i];
  for (int64_t width = kLanes / 2; width > 0; width /= 2)
    for (int64_t lane = 0; lane < width; ++lane) sum[lane] += sum[lane + width];
  return sum[0];
}

template <class T>
void forward_on_cpu(const Shape& shape, const T* x, const uint8_t* w, const float* scale, T* y) {
  std::vector<float> wide(shape.rows * shape.columns);
  warpwatch::widen_row<T>(x, wide.data(), shape.rows * shape.columns);
  const int64_t grain = std::max<int64_t>(1, 65536 / std::max<int64_t>(1, shape.columns * shape.rows));
  warpwatch::parallel_for(shape.out, grain, [&, wide = wide.data()](int64_t first, int64_t last) {
    std::vector<float> row(shape.columns);
    for (int64_t o = first; o < last; ++o) {
      const uint8_t* codes = w + o * shape.columns / 2;
      for (int64_t group = 0; group < shape.groups; ++group) {
        const int64_t begin = (group << shape.shift) / 2, size = int64_t{1} << std::min(shape.shift, 40);
        const int64_t end = std::min(begin + size / 2, shape.columns / 2);
        const float factor = scale[o * shape.groups + group];
        for (int64_t i = begin; i < end; ++i) {
          row[2 * i] = static_cast<float>(static_cast<int8_t>(codes[i] << 4) >> 4) * factor;
          row[2 * i + 1] = static_cast<float>(static_cast<int8_t>(codes[i]) >> 4) * factor;
        }
      }
      for (int64_t r = 0; r < shape.rows; ++r)
        y[r * shape.out + o] = static_cast<T>(dot(wide + r * shape.columns, row.data(), shape.columns));
    }
  });
}

}  // namespace int4_linear
