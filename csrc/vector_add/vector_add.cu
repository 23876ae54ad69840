// y = a + b. One template per launch shape, so that a chart shows the cost of each launch shape.
#include "common/launch.cuh"
#include "vector_add/vector_add.h"

namespace {

using vector_add::Launch;
using warpwatch::ceil_div;
using warpwatch::Vector16;

constexpr int kThreads = 256;
constexpr int kLargestBlock = 1024;

// <<<N/T, T>>>: one element per thread, neighbours side by side.
template <class T>
__global__ void vector_add_threads(const T* a, const T* b, T* y, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a[i] + b[i];
}

// <<<N, 1>>>: one element per block. 31 of 32 lanes idle.
template <class T>
__global__ void vector_add_blocks(const T* a, const T* b, T* y) {
  y[blockIdx.x] = a[blockIdx.x] + b[blockIdx.x];
}

// <<<1, T>>>: one block loops over all elements. One multiprocessor works, the others are idle.
template <class T>
__global__ void vector_add_one_block(const T* a, const T* b, T* y, int64_t n) {
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) y[i] = a[i] + b[i];
}

// 16 bytes per access, a fixed grid that strides over the vectors; the first block also adds the tail.
template <class T>
__global__ void vector_add_vectors(const T* a, const T* b, T* y, int64_t n) {
  using Vector = Vector16<T>;
  const int64_t vectors = n / Vector::size;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < vectors; i += stride) {
    const Vector u = reinterpret_cast<const Vector*>(a)[i];
    const Vector v = reinterpret_cast<const Vector*>(b)[i];
    Vector sum;
#pragma unroll
    for (int k = 0; k < Vector::size; ++k) sum.element[k] = u.element[k] + v.element[k];
    reinterpret_cast<Vector*>(y)[i] = sum;
  }
  const int64_t tail = vectors * Vector::size + first;
  if (tail < n) y[tail] = a[tail] + b[tail];
}

template <class T>
const char* launch(Launch shape, const T* a, const T* b, T* y, int64_t n, cudaStream_t stream) {
  if (n == 0) return nullptr;
  const bool aligned = warpwatch::aligned16(a) && warpwatch::aligned16(b) && warpwatch::aligned16(y);
  if (shape == Launch::vectors && aligned) {
    const int64_t blocks = warpwatch::stride_blocks(ceil_div(n, Vector16<T>::size));
    vector_add_vectors<<<blocks, warpwatch::kStrideThreads, 0, stream>>>(a, b, y, n);
  } else if (shape == Launch::blocks) {
    vector_add_blocks<<<n, 1, 0, stream>>>(a, b, y);
  } else if (shape == Launch::one_block) {
    vector_add_one_block<<<1, kLargestBlock, 0, stream>>>(a, b, y, n);
  } else {
    vector_add_threads<<<ceil_div(n, kThreads), kThreads, 0, stream>>>(a, b, y, n);
  }
  return warpwatch::launch_error();
}

}  // namespace

const char* vector_add::launch_on(Launch shape, const float* a, const float* b, float* y, int64_t n, void* stream) {
  return launch(shape, a, b, y, n, warpwatch::as_stream(stream));
}

const char* vector_add::launch_on(Launch shape, const double* a, const double* b, double* y, int64_t n, void* stream) {
  return launch(shape, a, b, y, n, warpwatch::as_stream(stream));
}

const char* vector_add::launch_on(Launch shape, const int32_t* a, const int32_t* b, int32_t* y, int64_t n, void* stream) {
  return launch(shape, a, b, y, n, warpwatch::as_stream(stream));
}
