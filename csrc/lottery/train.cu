// All steps in one launch of one block, which keeps samples, hidden values and weights in shared memory: a step takes a few
// microseconds, and its kernels would take that long to start. A network of thousands of samples does not fit, and needs no such help.
#include <algorithm>

#include "common/launch.cuh"
#include "lottery/lottery.h"

using lottery::Shape;
using lottery::Training;

namespace {

constexpr int kLanes = 4;  // Threads that share a sample, and the width of what one of them takes at once.

template <class T>
constexpr int kThreads = sizeof(T) == 4 ? 1024 : 512;

template <class T>
struct alignas(16) Four {
  T element[kLanes];
};

template <class T>
__device__ Four<T> load(const T* from) {
  return *reinterpret_cast<const Four<T>*>(from);
}

// Rows of so many elements begin in different banks.
int spread(int width) { return width / kLanes % 2 == 0 ? width + kLanes : width; }

int rounded(int64_t width) { return static_cast<int>(warpwatch::ceil_div(width, kLanes)) * kLanes; }

// Where everything lies in shared memory, in elements. A sample's row holds its inputs, the slopes of its two sums, its two targets. The
// gradient is cut into tiles of 4 x 4; `groups` threads share a tile's samples, and their sums take the place of the hidden values.
struct Plan {
  int samples, features, hidden;
  int inputs, columns;  // Features and hidden, rounded up.
  int row, hidden_row;
  int tiles, groups;
  int slopes, values, sums, weights, masks, total;

  Plan(const Shape& shape, int threads)
      : samples(static_cast<int>(shape.samples)),
        features(static_cast<int>(shape.features)),
        hidden(static_cast<int>(shape.hidden)),
        inputs(rounded(features)),
        columns(rounded(hidden)),
        row(spread(inputs + kLanes)),
        hidden_row(spread(columns)),
        tiles((inputs / kLanes + 1) * (columns / kLanes)) {
    const int size = tiles * kLanes * kLanes;
    groups = std::max(1, std::min({threads / tiles, 2 * samples * hidden_row / size, samples}));
    slopes = sums = samples * row;
    values = slopes + samples * hidden_row;
    weights = sums + std::max(2 * samples * hidden_row, size);
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
  for (int i = threadIdx.x; i < plan.samples * plan.row; i += blockDim.x) {
    const int sample = i / plan.row, column = i % plan.row, target = column - plan.inputs - lottery::kClasses;
    T value = 0;
    if (column < plan.features) value = from.x[sample * plan.features + column];
    if (target >= 0 && target < lottery::kClasses) value = from.target[sample * lottery::kClasses + target];
    memory[i] = value;
  }
  for (int i = threadIdx.x; i < plan.masks - plan.weights; i += blockDim.x)
    read_weight(plan, from, i / plan.columns, i % plan.columns, memory[plan.weights + i], memory[plan.masks + i]);
}

template <class T>
__device__ T over_lanes(T value) {
  const unsigned lanes = 0xfu << (threadIdx.x % 32 / kLanes * kLanes);
  for (int other = 1; other < kLanes; other *= 2) value += __shfl_xor_sync(lanes, value, other);
  return value;
}

__device__ float hyperbolic(float x) { return tanhf(x); }
__device__ double hyperbolic(double x) { return tanh(x); }
__device__ float exponential(float x) { return expf(x); }
__device__ double exponential(double x) { return exp(x); }

// A sample's hidden values, and the slopes of its sums and of its hidden sums.
template <class T>
__device__ void follow_sample(const Plan& plan, T* memory, int sample, int lane) {
  T* row = memory + sample * plan.row;
  T* values = memory + plan.values + sample * plan.hidden_row;
  T* slopes = memory + plan.slopes + sample * plan.hidden_row;
  const T *weights = memory + plan.weights, *first = weights + plan.inputs * plan.columns, *second = first + plan.columns;
  T sum[lottery::kClasses] = {};
  for (int j = kLanes * lane; j < plan.columns; j += kLanes * kLanes) {
    Four<T> value = {};
    for (int f = 0; f < plan.features; ++f) {
      const Four<T> weight = load(weights + f * plan.columns + j);
      for (int e = 0; e < kLanes; ++e) value.element[e] += row[f] * weight.element[e];
    }
    for (int e = 0; e < kLanes; ++e) {
      value.element[e] = hyperbolic(value.element[e]);
      sum[0] += value.element[e] * first[j + e];
      sum[1] += value.element[e] * second[j + e];
    }
    *reinterpret_cast<Four<T>*>(values + j) = value;
  }
  const T ahead = over_lanes(sum[0]) - over_lanes(sum[1]);
  const T* target = row + plan.inputs + lottery::kClasses;
  const T share = T{1} / plan.samples;
  const T slope0 = (1 / (1 + exponential(-ahead)) - target[0]) * share, slope1 = (1 / (1 + exponential(ahead)) - target[1]) * share;
  if (lane == 0) {
    row[plan.inputs] = slope0;
    row[plan.inputs + 1] = slope1;
  }
  for (int j = kLanes * lane; j < plan.columns; j += kLanes * kLanes) {
    Four<T> value = load(values + j);
    for (int e = 0; e < kLanes; ++e)
      value.element[e] = (slope0 * first[j + e] + slope1 * second[j + e]) * (1 - value.element[e] * value.element[e]);
    *reinterpret_cast<Four<T>*>(slopes + j) = value;
  }
}

// This thread's part of the gradient: a tile's sum over every `groups`-th sample. W1's is x' times the slopes of the hidden sums, W2's
// is the slopes of the two sums times the hidden values.
template <class T>
__device__ void add_samples(const Plan& plan, const T* memory, int tile, int group, Four<T> (&sum)[kLanes]) {
  const int across = plan.columns / kLanes, down = tile / across;
  const T* left = memory + kLanes * down;
  const T* right = memory + (down == plan.inputs / kLanes ? plan.values : plan.slopes) + kLanes * (tile % across);
  for (int sample = group; sample < plan.samples; sample += plan.groups) {
    const Four<T> a = load(left + sample * plan.row), b = load(right + sample * plan.hidden_row);
#pragma unroll
    for (int r = 0; r < kLanes; ++r)
#pragma unroll
      for (int e = 0; e < kLanes; ++e) sum[r].element[e] += a.element[r] * b.element[e];
  }
}

template <class T>
__device__ void move_weights(const Plan& plan, T* memory, T speed) {
  for (int i = threadIdx.x; i < plan.tiles * kLanes * kLanes; i += blockDim.x) {
    const int element = i % kLanes, tile = i / kLanes % plan.tiles, r = i / kLanes / plan.tiles, across = plan.columns / kLanes;
    T sum = 0;
    for (int group = 0; group < plan.groups; ++group)
      sum += memory[plan.sums + ((r * plan.groups + group) * plan.tiles + tile) * kLanes + element];
    const int at = (kLanes * (tile / across) + r) * plan.columns + kLanes * (tile % across) + element;
    memory[plan.weights + at] -= speed * sum * memory[plan.masks + at];
  }
}

template <class T>
__global__ __launch_bounds__(kThreads<T>) void train(Plan plan, Training<T> training) {
  extern __shared__ __align__(16) unsigned char bytes[];
  T* memory = reinterpret_cast<T*>(bytes);
  const int thread = threadIdx.x, tile = thread % plan.tiles, group = thread / plan.tiles;
  read(plan, training, memory);
  for (int64_t step = 0; step < training.steps; ++step) {
    __syncthreads();
    for (int sample = thread / kLanes; sample < plan.samples; sample += kThreads<T> / kLanes)
      follow_sample(plan, memory, sample, thread % kLanes);
    __syncthreads();
    Four<T> sum[kLanes] = {};
    if (group < plan.groups) add_samples(plan, memory, tile, group, sum);
    // The sums are written over what they were made from.
    __syncthreads();
    if (group < plan.groups)
      for (int r = 0; r < kLanes; ++r)
        reinterpret_cast<Four<T>*>(memory + plan.sums)[(r * plan.groups + group) * plan.tiles + tile] = sum[r];
    __syncthreads();
    move_weights(plan, memory, training.speed);
  }
  __syncthreads();
  const T* weights = memory + plan.weights;
  for (int i = thread; i < plan.features * plan.hidden; i += kThreads<T>)
    training.out1[i] = weights[i / plan.hidden * plan.columns + i % plan.hidden];
  for (int i = thread; i < plan.hidden * lottery::kClasses; i += kThreads<T>)
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
  const Plan plan(shape, kThreads<T>);
  const int bytes = plan.total * static_cast<int>(sizeof(T));
  if (bytes > most || plan.tiles > kThreads<T>) return refusal;
  cudaFuncSetAttribute(train<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  train<T><<<1, kThreads<T>, bytes, warpwatch::as_stream(stream)>>>(plan, training);
  return warpwatch::launch_error();
}

template const char* lottery::train_on(const Shape&, const Training<float>&, void*);
template const char* lottery::train_on(const Shape&, const Training<double>&, void*);
