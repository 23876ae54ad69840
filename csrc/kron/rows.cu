// A block takes one batch row after the other through all stages. A state is read in rows of f elements that lie an odd number of
// elements apart, so that lanes reading one column hit different banks; W has rows of whole vectors of four, filled up with zeros.
#include "kron/rows.cuh"

#include <algorithm>

#include "common/launch.cuh"

namespace {

using kron::Backward;
using kron::Forward;
using kron::Shape;
using warpwatch::ceil_div;

constexpr int kThreads = 256;
constexpr int kMostRows = 8;         // Of a block, one after the other; beyond, one launch per stage is faster.
constexpr int kLargestFactor = 32;   // Beyond, the tiles of one launch per stage use what they load more often.
constexpr int kSharedBytes = 220 * 1024;

// Two blocks for each multiprocessor.
int64_t most_blocks() { return 2 * int64_t{warpwatch::multiprocessors()}; }

__host__ __device__ constexpr int padded(int f) { return (f + 3) / 4 * 4; }
__host__ __device__ constexpr int odd(int f) { return f | 1; }

struct Sizes {
  int state;    // Elements of a state in any stage's layout.
  int weights;  // Of all padded weights.
};

Sizes sizes_of(const Shape& shape) {
  int64_t state = 0, weights = 0;
  for (int s = 0; s < shape.stages; ++s) {
    const int64_t f = shape.factor[s];
    state = std::max(state, shape.size / f * odd(static_cast<int>(f)));
    weights += f * padded(static_cast<int>(f));
  }
  return {static_cast<int>(std::min<int64_t>(state, 1 << 28) + 3) / 4 * 4, static_cast<int>(std::min<int64_t>(weights, 1 << 28))};
}

template <class T>
struct Row {
  const Shape& shape;
  T* weights;  // Of all stages, one after the other.
  T *state, *other;

  __device__ Row(const Shape& s, T* memory, const Sizes& sizes, const T* const (&w)[2]) : shape(s), weights(memory) {
    state = memory + sizes.weights;
    other = state + sizes.state;
    T* to = weights;
    for (int stage = 0; stage < s.stages; ++stage) {
      const int f = s.factor[stage], width = padded(f);
      const T* from = w[2 * stage >= s.stages] + s.weight[stage];
      for (int e = threadIdx.x; e < f * width; e += kThreads) to[e] = e % width < f ? from[e / width * f + e % width] : T{0};
      to += f * width;
    }
  }

  __device__ int rows(int stage) const { return static_cast<int>(shape.size) / shape.factor[stage]; }
  __device__ int size() const { return static_cast<int>(shape.size); }

  // The state in the layout that `stage` reads, rows an odd number of elements apart.
  __device__ void load_rows(T* to, const T* from, int stage) const {
    const int f = shape.factor[stage];
    for (int e = threadIdx.x; e < size(); e += kThreads) to[e / f * odd(f) + e % f] = from[e];
  }

  // out[o, r] = sum over i of in[r, i] * w[i, o]; a thread computes four o for two r. put(n, value) takes them.
  template <class Put>
  __device__ void forward(int stage, const T* w, const Put& put) const {
    const int f = shape.factor[stage], r_count = rows(stage), half = (r_count + 1) / 2, width = padded(f);
    for (int item = threadIdx.x; item < half * (width / 4); item += kThreads) {
      const int r0 = item % half, r1 = min(r0 + half, r_count - 1), o0 = item / half * 4;
      T sum[2][4] = {};
      for (int i = 0; i < f; ++i) {
        const T a = state[r0 * odd(f) + i], b = state[r1 * odd(f) + i];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sum[0][j] += a * w[i * width + o0 + j];
          sum[1][j] += b * w[i * width + o0 + j];
        }
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (o0 + j >= f) break;
        put((o0 + j) * r_count + r0, sum[0][j]);
        if (r0 + half < r_count) put((o0 + j) * r_count + r1, sum[1][j]);
      }
    }
  }

  // in_gradient[r, i] = sum over o of gradient[o, r] * w[i, o]; a thread computes four i for one r.
  __device__ void backward(int stage, const T* w) const {
    const int f = shape.factor[stage], r_count = rows(stage), width = padded(f);
    for (int item = threadIdx.x; item < r_count * (width / 4); item += kThreads) {
      const int r = item % r_count, i0 = item / r_count * 4;
      T sum[4] = {};
      for (int o = 0; o < f; ++o) {
        const T g = state[o * r_count + r];
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[j] += g * w[min(i0 + j, f - 1) * width + o];
      }
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (i0 + j < f) other[r * f + i0 + j] = sum[j];
    }
  }

  // partial[i, o] (+)= sum over r of in[r, i] * gradient[o, r]; a thread computes four o for one i.
  __device__ void weight(int stage, const T* in, T* partial, bool add) const {
    const int f = shape.factor[stage], r_count = rows(stage);
    for (int item = threadIdx.x; item < f * (padded(f) / 4); item += kThreads) {
      const int i = item % f, o0 = item / f * 4;
      T sum[4] = {};
      for (int r = 0; r < r_count; ++r) {
        const T h = in[r * odd(f) + i];
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[j] += h * state[min(o0 + j, f - 1) * r_count + r];
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (o0 + j < f) partial[i * f + o0 + j] = add ? partial[i * f + o0 + j] + sum[j] : sum[j];
      }
    }
  }
};

template <class T>
__global__ __launch_bounds__(kThreads) void forward_rows(const __grid_constant__ Shape shape, const __grid_constant__ Forward<T> call,
                                                         const Sizes sizes) {
  extern __shared__ __align__(16) unsigned char memory[];
  Row<T> row(shape, reinterpret_cast<T*>(memory), sizes, call.w);
  for (int64_t b = blockIdx.x; b < shape.batch; b += gridDim.x) {
    row.load_rows(row.state, call.x + b * shape.size, 0);
    __syncthreads();
    const T* w = row.weights;
    for (int s = 0; s < shape.stages; ++s) {
      const bool last = s + 1 == shape.stages;
      T* global = last ? call.y + b * shape.size : call.states ? call.states + (s * shape.batch + b) * shape.size : nullptr;
      const int f_next = last ? 1 : shape.factor[s + 1];
      row.forward(s, w, [&](int n, T value) {
        if (global) global[n] = value;
        if (!last) row.other[n / f_next * odd(f_next) + n % f_next] = value;
      });
      w += shape.factor[s] * padded(shape.factor[s]);
      T* was = row.state;
      row.state = row.other;
      row.other = was;
      __syncthreads();
    }
  }
}

template <class T>
__global__ __launch_bounds__(kThreads) void backward_rows(const __grid_constant__ Shape shape, const __grid_constant__ Backward<T> call,
                                                          const Sizes sizes, T* partial) {
  extern __shared__ __align__(16) unsigned char memory[];
  Row<T> row(shape, reinterpret_cast<T*>(memory), sizes, call.w);
  T* in = row.other + sizes.state;
  for (int64_t b = blockIdx.x; b < shape.batch; b += gridDim.x) {
    for (int e = threadIdx.x; e < row.size(); e += kThreads) row.state[e] = call.gradient[b * shape.size + e];
    const T* w = row.weights + sizes.weights;
    for (int s = shape.stages - 1; s >= 0; --s) {
      w -= shape.factor[s] * padded(shape.factor[s]);
      row.load_rows(in, s == 0 ? call.x + b * shape.size : call.states + ((s - 1) * shape.batch + b) * shape.size, s);
      __syncthreads();
      const bool second = 2 * s >= shape.stages;
      T* sums = partial + (int64_t{second} * gridDim.x + blockIdx.x) * shape.weights + shape.weight[s];
      row.weight(s, in, sums, b != blockIdx.x);
      row.backward(s, w);
      T* was = row.state;
      row.state = row.other;
      row.other = was;
      __syncthreads();
    }
    for (int e = threadIdx.x; e < row.size(); e += kThreads) call.x_gradient[b * shape.size + e] = row.state[e];
    __syncthreads();
  }
}

int shared_bytes(const Sizes& sizes, int states, int element_bytes) { return (states * sizes.state + sizes.weights) * element_bytes; }

}  // namespace

namespace kron {

bool rows_take(const Shape& shape, int element_bytes) {
  const Sizes sizes = sizes_of(shape);
  if (*std::max_element(shape.factor, shape.factor + shape.stages) > kLargestFactor) return false;
  if ((3 * int64_t{sizes.state} + sizes.weights) * element_bytes > kSharedBytes) return false;
  if (ceil_div(shape.batch, most_blocks()) > kMostRows) return false;
  int device = 0, available = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&available, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return shared_bytes(sizes, 3, element_bytes) <= available;
}

int rows_parts(const Shape& shape) { return static_cast<int>(std::min(shape.batch, most_blocks())); }

template <class T>
void rows_forward(const Shape& shape, const Forward<T>& call, cudaStream_t stream) {
  const Sizes sizes = sizes_of(shape);
  const int bytes = shared_bytes(sizes, 2, sizeof(T));
  cudaFuncSetAttribute(forward_rows<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  forward_rows<T><<<rows_parts(shape), kThreads, bytes, stream>>>(shape, call, sizes);
}

template <class T>
void rows_backward(const Shape& shape, const Backward<T>& call, T* partial, cudaStream_t stream) {
  const Sizes sizes = sizes_of(shape);
  const int bytes = shared_bytes(sizes, 3, sizeof(T));
  cudaFuncSetAttribute(backward_rows<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  backward_rows<T><<<rows_parts(shape), kThreads, bytes, stream>>>(shape, call, sizes, partial);
}

template void rows_forward(const Shape&, const Forward<float>&, cudaStream_t);
template void rows_forward(const Shape&, const Forward<double>&, cudaStream_t);
template void rows_backward(const Shape&, const Backward<float>&, float*, cudaStream_t);
template void rows_backward(const Shape&, const Backward<double>&, double*, cudaStream_t);

}  // namespace kron
