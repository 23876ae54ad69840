// y = a * a and its gradient d = 2 * g * a, once in 16x16 tiles and once in 16-byte vectors.
#include <algorithm>

#include "common/launch.cuh"
#include "square/square.h"

namespace {

using square::Launch;
using warpwatch::ceil_div;
using warpwatch::Vector16;

constexpr int kTile = 16;
constexpr int64_t kLargestGridY = 65535;

// Forward is 1 * a * a and backward 2 * g * a: one product of a constant and two operands, which may be the same.
template <class T>
__global__ void product_tiles(T factor, const T* a, const T* b, T* y, int64_t rows, int64_t columns) {
  const int64_t column = int64_t{blockIdx.x} * kTile + threadIdx.x;
  if (column >= columns) return;
  for (int64_t row = int64_t{blockIdx.y} * kTile + threadIdx.y; row < rows; row += int64_t{gridDim.y} * kTile) {
    const int64_t i = row * columns + column;
    y[i] = factor * a[i] * b[i];
  }
}

template <class T>
__global__ void product_vectors(T factor, const T* a, const T* b, T* y, int64_t n) {
  using Vector = Vector16<T>;
  const int64_t vectors = n / Vector::size;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < vectors; i += stride) {
    const Vector u = reinterpret_cast<const Vector*>(a)[i];
    const Vector v = a == b ? u : reinterpret_cast<const Vector*>(b)[i];
    Vector product;
#pragma unroll
    for (int k = 0; k < Vector::size; ++k) product.element[k] = factor * u.element[k] * v.element[k];
    reinterpret_cast<Vector*>(y)[i] = product;
  }
  const int64_t tail = vectors * Vector::size + first;
  if (tail < n) y[tail] = factor * a[tail] * b[tail];
}

template <class T>
const char* product(Launch shape, T factor, const T* a, const T* b, T* y, int64_t rows, int64_t columns, void* stream) {
  const int64_t n = rows * columns;
  if (n == 0) return nullptr;
  const bool aligned = warpwatch::aligned16(a) && warpwatch::aligned16(b) && warpwatch::aligned16(y);
  if (shape == Launch::vectors && aligned) {
    const int64_t blocks = warpwatch::stride_blocks(ceil_div(n, Vector16<T>::size));
    product_vectors<<<blocks, warpwatch::kStrideThreads, 0, warpwatch::as_stream(stream)>>>(factor, a, b, y, n);
  } else {
    const dim3 grid(ceil_div(columns, kTile), std::min(ceil_div(rows, kTile), kLargestGridY));
    product_tiles<<<grid, dim3(kTile, kTile), 0, warpwatch::as_stream(stream)>>>(factor, a, b, y, rows, columns);
  }
  return warpwatch::launch_error();
}

}  // namespace

const char* square::forward_on(Launch shape, const float* a, float* y, int64_t rows, int64_t columns, void* stream) {
  return product(shape, 1.0f, a, a, y, rows, columns, stream);
}

const char* square::forward_on(Launch shape, const double* a, double* y, int64_t rows, int64_t columns, void* stream) {
  return product(shape, 1.0, a, a, y, rows, columns, stream);
}

const char* square::backward_on(Launch shape, const float* g, const float* a, float* d, int64_t rows, int64_t columns,
                                void* stream) {
  return product(shape, 2.0f, g, a, d, rows, columns, stream);
}

const char* square::backward_on(Launch shape, const double* g, const double* a, double* d, int64_t rows, int64_t columns,
                                void* stream) {
  return product(shape, 2.0, g, a, d, rows, columns, stream);
}
