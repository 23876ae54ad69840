// The smallest kernels there are, and a copy that moves 16 bytes per access.
#include <algorithm>

#include "common/launch.cuh"
#include "launch/launch.h"

namespace {

using warpwatch::ceil_div;

constexpr int kThreads = 256;
constexpr int kVectorsEach = 4;  // Reads under way per thread: a write can only follow its own read.

__global__ void launch_empty() {}

__global__ void launch_add(const float* x, float* y, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) y[i] = x[i] + 1.0f;
}

__global__ void launch_add_vectors(const int32_t* a, const int32_t* b, int32_t* y, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) y[i] = a[i] + b[i];
}

cudaError_t allocate(void** memory, int64_t n, bool pool, cudaStream_t stream) {
  return pool ? cudaMallocAsync(memory, n, stream) : cudaMalloc(memory, n);
}

cudaError_t release(void* memory, bool pool, cudaStream_t stream) { return pool ? cudaFreeAsync(memory, stream) : cudaFree(memory); }

cudaError_t add_vectors(const int32_t* a, const int32_t* b, int32_t* y, int64_t n, int32_t* const (&on_device)[3], bool pool,
                        cudaStream_t stream) {
  const int64_t bytes = n * static_cast<int64_t>(sizeof(int32_t));
  cudaError_t error = cudaMemcpyAsync(on_device[0], a, bytes, cudaMemcpyHostToDevice, stream);
  if (error == cudaSuccess && !pool) error = cudaStreamSynchronize(stream);
  if (error == cudaSuccess) error = cudaMemcpyAsync(on_device[1], b, bytes, cudaMemcpyHostToDevice, stream);
  if (error == cudaSuccess && !pool) error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess) return error;
  launch_add_vectors<<<ceil_div(n, kThreads), kThreads, 0, stream>>>(on_device[0], on_device[1], on_device[2], n);
  error = cudaGetLastError();
  if (error == cudaSuccess) error = cudaMemcpyAsync(y, on_device[2], bytes, cudaMemcpyDeviceToHost, stream);
  return error == cudaSuccess && !pool ? cudaStreamSynchronize(stream) : error;
}

__global__ void launch_copy(const uint4* x, uint4* y, int64_t n) {
  const int64_t first = int64_t{blockIdx.x} * kThreads * kVectorsEach + threadIdx.x;
  uint4 moved[kVectorsEach];
#pragma unroll
  for (int k = 0; k < kVectorsEach; ++k)
    if (first + k * kThreads < n) moved[k] = x[first + k * kThreads];
#pragma unroll
  for (int k = 0; k < kVectorsEach; ++k)
    if (first + k * kThreads < n) y[first + k * kThreads] = moved[k];
}

__global__ void launch_copy_bytes(const unsigned char* x, unsigned char* y, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) y[i] = x[i];
}

}  // namespace

const char* launch::empty_on(void* stream) {
  launch_empty<<<1, 1, 0, warpwatch::as_stream(stream)>>>();
  return warpwatch::launch_error();
}

const char* launch::add_on(const float* x, float* y, int64_t n, void* stream) {
  if (n == 0) return nullptr;
  launch_add<<<ceil_div(n, kThreads), kThreads, 0, warpwatch::as_stream(stream)>>>(x, y, n);
  return warpwatch::launch_error();
}

const char* launch::copy_on(const void* x, void* y, int64_t n, void* stream) {
  const auto* from = static_cast<const unsigned char*>(x);
  auto* to = static_cast<unsigned char*>(y);
  const int64_t whole = warpwatch::aligned16(x) && warpwatch::aligned16(y) ? n / 16 : 0;
  if (whole > 0)
    launch_copy<<<ceil_div(whole, kThreads * kVectorsEach), kThreads, 0, warpwatch::as_stream(stream)>>>(
        reinterpret_cast<const uint4*>(from), reinterpret_cast<uint4*>(to), whole);
  const int64_t rest = n - 16 * whole;
  if (rest > 0)
    launch_copy_bytes<<<ceil_div(rest, kThreads), kThreads, 0, warpwatch::as_stream(stream)>>>(from + 16 * whole, to + 16 * whole,
                                                                                               rest);
  return warpwatch::launch_error();
}

const char* launch::memcpy_on(const void* x, void* y, int64_t n, void* stream) {
  if (n == 0) return nullptr;
  const cudaError_t error = cudaMemcpyAsync(y, x, n, cudaMemcpyDeviceToDevice, warpwatch::as_stream(stream));
  return warpwatch::words_of(error);
}

const char* launch::allocate_on(int64_t n, int64_t memory, void* stream_given) {
  if (n == 0) return nullptr;
  const cudaStream_t stream = warpwatch::as_stream(stream_given);
  void* allocated = nullptr;
  cudaError_t error = memory == kPinned ? cudaHostAlloc(&allocated, n, cudaHostAllocDefault) : allocate(&allocated, n, memory == kPool, stream);
  if (error == cudaSuccess) error = memory == kPinned ? cudaFreeHost(allocated) : release(allocated, memory == kPool, stream);
  return warpwatch::words_of(error);
}

const char* launch::add_from_host_on(const int32_t* a, const int32_t* b, int32_t* y, int64_t n, int64_t memory, void* stream_given) {
  if (n == 0) return nullptr;
  const cudaStream_t stream = warpwatch::as_stream(stream_given);
  const bool pool = memory == kPool;
  int32_t* on_device[3] = {};
  cudaError_t error = cudaSuccess;
  for (int32_t*& each : on_device)
    if (error == cudaSuccess) error = allocate(reinterpret_cast<void**>(&each), n * static_cast<int64_t>(sizeof(int32_t)), pool, stream);
  if (error == cudaSuccess) error = add_vectors(a, b, y, n, on_device, pool, stream);
  // What was allocated is freed, whatever failed.
  for (int32_t* each : on_device) {
    const cudaError_t freed = each == nullptr ? cudaSuccess : release(each, pool, stream);
    if (error == cudaSuccess) error = freed;
  }
  // The result lies in the host's memory, which the caller reads next.
  if (error == cudaSuccess && pool) error = cudaStreamSynchronize(stream);
  return warpwatch::words_of(error);
}
