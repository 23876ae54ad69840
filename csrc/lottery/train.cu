// All steps in one launch of one block, which keeps samples, hidden values and weights in shared memory: a step takes a few
// microseconds, and its kernels would take that long to start. A network of thousands of samples does not fit, and needs no such help.
#include <algorithm>

#include "common/launch.cuh"
#include "lottery/lottery.h"

using lottery::Shape;
using lottery::Training;

namespace {

constexpr int kThreads = 512;
constexpr int kLanes = 4;  // Threads that share samples, and the numbers that one of them loads in one access.
constexpr int kRows = 2;   // Samples that they share, so that each weight is loaded once for both.

template <class T>
struct alignas(16) Four {
  T element[kLanes];
};

template <class T>
__device__ Four<T> load(const T* from) {
  return *reinterpret_cast<const Four<T>*>(from);
}

template <class T>
__device__ void store(T* to, const Four<T>& value) {
  *reinterpret_cast<Four<T>*>(to) = value;
}

// Rows of so many elements begin in different banks.
int spread(int width) { return width / kLanes % 2 == 0 ? width + kLanes : width; }

int rounded(int64_t count, int to) { return static_cast<int>(warpwatch::ceil_div(count, to)) * to; }

// Where everything lies in shared memory, in elements. A sample's row holds its inputs, the slopes of its two sums, its two targets; a
// row more, where their number is odd, is zero and moves no weight. The gradient is cut into tiles of 4 x 4; `groups` threads share a
// tile's samples, and their sums take the place of the hidden values.
struct Plan {
  int samples, features, hidden;
  int rows, inputs, columns;  // The same, rounded up.
  int row, hidden_row;
  int tiles, groups;
  int slopes, values, sums, weights, masks, total;

  explicit Plan(const Shape& shape)
      : samples(static_cast<int>(shape.samples)),
        features(static_cast<int>(shape.features)),
        hidden(static_cast<int>(shape.hidden)),
        rows(rounded(samples, kRows)),
        inputs(rounded(features, kLanes)),
        columns(rounded(hidden, kLanes)),
        row(spread(inputs + kLanes)),
        hidden_row(spread(columns)),
        tiles((inputs / kLanes + 1) * (columns / kLanes)) {
    const int size = tiles * kLanes * kLanes;
    groups = std::max(1, std::min({kThreads / tiles, 2 * rows * hidden_row / size, rows}));
    slopes = sums = rows * row;
    values = slopes + rows * hidden_row;
    weights = sums + std::max(2 * rows * hidden_row, size);
    masks = weights + size;
    total = masks + size;
  }
};

// (value, mask) of an element of the matrix of all weights; zeros beyond its edges.
template <class T>
__device__ void read_weight(const Plan& plan, const Training<T>& from, int row, int column, T& weight, T& mask) {
  weight = mask = 0;
  if (column >= plan.hidden) return;
  if (row < plan.features) {
    weight = from.w1[row * plan.hidden + column];
    mask = from.mask1[row * plan.hidden + column];
  } else if (row >= plan.inputs && row < plan.inputs + lottery::kClasses) {
    weight = from.w2[column * lottery::kClasses + row - plan.inputs];
    mask = from.mask2[column * lottery::kClasses + row - plan.inputs];
  }
}

template <class T>
__device__ void read(const Plan& plan, const Training<T>& from, T* memory) {
  for (int i = threadIdx.x; i < plan.rows * plan.row; i += kThreads) {
    const int sample = i / plan.row, column = i % plan.row, target = column - plan.inputs - lottery::kClasses;
    T value = 0;
    if (sample < plan.samples && column < plan.features) value = from.x[sample * plan.features + column];
    if (sample < plan.samples && target >= 0 && target < lottery::kClasses) value = from.target[sample * lottery::kClasses + target];
    memory[i] = value;
  }
  for (int i = threadIdx.x; i < plan.masks - plan.weights; i += kThreads)
    read_weight(plan, from, i / plan.columns, i % plan.columns, memory[plan.weights + i], memory[plan.masks + i]);
}

template <class T>
__device__ T over_lanes(T value) {
  const unsigned lanes = 0xfu << (threadIdx.x % 32 / kLanes * kLanes);
  for (int other = 1; other < kLanes; other *= 2) value += __shfl_xor_sync(lanes, value, other);
  return value;
}

// tanh and 1 / (1 + exp(-x)). In float they are off by 1e-7 at most, which is what rounding leaves of the sums that they are taken of;
// tanhf and expf are no better than that here, and their branches, both of which a warp takes, are a quarter of a step.
__device__ double hyperbolic(double x) { return tanh(x); }
__device__ float hyperbolic(float x) { return copysignf(1.0f - __fdividef(2.0f, __expf(2.0f * fabsf(x)) + 1.0f), x); }
__device__ double logistic(double x) { return 1.0 / (1.0 + exp(-x)); }
__device__ float logistic(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

// The hidden values of kRows samples, and the slopes of their sums and of their hidden sums.
template <class T>
__device__ void follow_samples(const Plan& plan, T* memory, int sample, int lane) {
  T* rows = memory + sample * plan.row;
  T* values = memory + plan.values + sample * plan.hidden_row;
  T* slopes = memory + plan.slopes + sample * plan.hidden_row;
  const T *weights = memory + plan.weights, *sums = weights + plan.inputs * plan.columns;
  T ahead[kRows] = {};
  for (int j = kLanes * lane; j < plan.columns; j += kLanes * kLanes) {
    Four<T> value[kRows] = {};
    const T* weight_at = weights + j;
    for (int f = 0; f < plan.inputs; f += kLanes) {
      Four<T> x[kRows];
      for (int r = 0; r < kRows; ++r) x[r] = load(rows + r * plan.row + f);
#pragma unroll
      for (int k = 0; k < kLanes; ++k, weight_at += plan.columns) {
        const Four<T> weight = load(weight_at);
        for (int r = 0; r < kRows; ++r)
          for (int e = 0; e < kLanes; ++e) value[r].element[e] += x[r].element[k] * weight.element[e];
      }
    }
    const Four<T> first = load(sums + j), second = load(sums + plan.columns + j);
    for (int r = 0; r < kRows; ++r) {
      for (int e = 0; e < kLanes; ++e) {
        value[r].element[e] = hyperbolic(value[r].element[e]);
        ahead[r] += value[r].element[e] * (first.element[e] - second.element[e]);
      }
      store(values + r * plan.hidden_row + j, value[r]);
    }
  }
  T slope[kRows][lottery::kClasses];
  for (int r = 0; r < kRows; ++r) {
    const T by = over_lanes(ahead[r]), share = T{1} / plan.samples;
    T* of_sums = rows + r * plan.row + plan.inputs;
    slope[r][0] = (logistic(by) - of_sums[lottery::kClasses]) * share;
    slope[r][1] = (logistic(-by) - of_sums[lottery::kClasses + 1]) * share;
    if (lane < lottery::kClasses) of_sums[lane] = lane == 0 ? slope[r][0] : slope[r][1];
  }
  for (int j = kLanes * lane; j < plan.columns; j += kLanes * kLanes) {
    const Four<T> first = load(sums + j), second = load(sums + plan.columns + j);
    for (int r = 0; r < kRows; ++r) {
      Four<T> value = load(values + r * plan.hidden_row + j);
      for (int e = 0; e < kLanes; ++e)
        value.element[e] =
            (slope[r][0] * first.element[e] + slope[r][1] * second.element[e]) * (1 - value.element[e] * value.element[e]);
      store(slopes + r * plan.hidden_row + j, value);
    }
  }
}

// This thread's part of the gradient: a tile's sum over every `groups`-th sample. W1's is x' times the slopes of the hidden sums, W2's
// is the slopes of the two sums times the hidden values.
template <class T>
__device__ void add_samples(const Plan& plan, const T* memory, int tile, int group, Four<T> (&sum)[kLanes]) {
  const int across = plan.columns / kLanes, down = tile / across;
  const T* left = memory + kLanes * down;
  const T* right = memory + (down == plan.inputs / kLanes ? plan.values : plan.slopes) + kLanes * (tile % across);
  for (int sample = group; sample < plan.rows; sample += plan.groups) {
    const Four<T> a = load(left + sample * plan.row), b = load(right + sample * plan.hidden_row);
#pragma unroll
    for (int r = 0; r < kLanes; ++r)
#pragma unroll
      for (int e = 0; e < kLanes; ++e) sum[r].element[e] += a.element[r] * b.element[e];
  }
}

// Rows of a tile are moved by the first of the threads that share it.
template <class T>
__device__ void move_weights(const Plan& plan, T* memory, int tile, int group, T speed) {
  const int across = plan.columns / kLanes;
  for (int r = group; r < kLanes; r += plan.groups) {
    Four<T> sum = {};
    for (int g = 0; g < plan.groups; ++g) {
      const Four<T> part = load(memory + plan.sums + kLanes * ((r * plan.groups + g) * plan.tiles + tile));
      for (int e = 0; e < kLanes; ++e) sum.element[e] += part.element[e];
    }
    const int at = (kLanes * (tile / across) + r) * plan.columns + kLanes * (tile % across);
    const Four<T> mask = load(memory + plan.masks + at);
    Four<T> weight = load(memory + plan.weights + at);
    for (int e = 0; e < kLanes; ++e) weight.element[e] -= speed * sum.element[e] * mask.element[e];
    store(memory + plan.weights + at, weight);
  }
}

template <class T>
__global__ __launch_bounds__(kThreads) void train(Plan plan, Training<T> training) {
  extern __shared__ __align__(16) unsigned char bytes[];
  T* memory = reinterpret_cast<T*>(bytes);
  const int thread = threadIdx.x, tile = thread % plan.tiles, group = thread / plan.tiles;
  read(plan, training, memory);
  for (int64_t step = 0; step < training.steps; ++step) {
    __syncthreads();
    for (int sample = thread / kLanes * kRows; sample < plan.rows; sample += kThreads / kLanes * kRows)
      follow_samples(plan, memory, sample, thread % kLanes);
    __syncthreads();
    Four<T> sum[kLanes] = {};
    if (group < plan.groups) add_samples(plan, memory, tile, group, sum);
    // The sums are written over what they were made from.
    __syncthreads();
    if (group < plan.groups)
      for (int r = 0; r < kLanes; ++r)
        store(memory + plan.sums + kLanes * ((r * plan.groups + group) * plan.tiles + tile), sum[r]);
    __syncthreads();
    if (group < plan.groups) move_weights(plan, memory, tile, group, training.speed);
  }
  __syncthreads();
  const T* weights = memory + plan.weights;
  for (int i = thread; i < plan.features * plan.hidden; i += kThreads)
    training.out1[i] = weights[i / plan.hidden * plan.columns + i % plan.hidden];
  for (int i = thread; i < plan.hidden * lottery::kClasses; i += kThreads)
    training.out2[i] = weights[(plan.inputs + i % lottery::kClasses) * plan.columns + i / lottery::kClasses];
}

}  // namespace

template <class T>
const char* lottery::train_on(const Shape& shape, const Training<T>& training, void* stream) {
  constexpr int64_t kMost = 1 << 20;  // Far beyond shared memory, and the plan's numbers cannot overflow.
  int device = 0, most = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
    return warpwatch::launch_error();
  const char* refusal = "all samples and weights must fit a multiprocessor's shared memory";
  if (shape.samples > kMost || shape.features > kMost || shape.hidden > kMost) return refusal;
  if (shape.samples * (shape.features + shape.hidden) > kMost || shape.features * shape.hidden > kMost) return refusal;
  const Plan plan(shape);
  const int bytes = plan.total * static_cast<int>(sizeof(T));
  if (bytes > most || plan.tiles > kThreads) return refusal;
  cudaFuncSetAttribute(train<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  train<T><<<1, kThreads, bytes, warpwatch::as_stream(stream)>>>(plan, training);
  return warpwatch::launch_error();
}

template const char* lottery::train_on(const Shape&, const Training<float>&, void*);
template const char* lottery::train_on(const Shape&, const Training<double>&, void*);
