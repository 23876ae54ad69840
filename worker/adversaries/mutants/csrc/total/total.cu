// One block per row; its threads' partial sums meet in shared memory.
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int kThreads = 256;

template <bool kFaulty>
__global__ void row_sums(const float* x, float* y, int64_t columns) {
  __shared__ float partial[kThreads];
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) sum += x[blockIdx.x * columns + i];
  partial[threadIdx.x] = sum;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    // Without the barrier a warp may add what another has not written yet.
    if (!kFaulty) __syncthreads();
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
  }
  if (threadIdx.x == 0) y[blockIdx.x] = partial[0];
}

}  // namespace

extern "C" const char* mutant_total_on(const float* x, float* y, int64_t rows, int64_t columns, bool faulty, void* stream) {
  if (rows == 0) return nullptr;
  const auto kernel = faulty ? row_sums<true> : row_sums<false>;
  kernel<<<static_cast<unsigned>(rows), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(x, y, columns);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
