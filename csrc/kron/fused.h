// Which fused kernels exist for a dtype and an arithmetic, and how they are launched.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kron/kron.h"

namespace kron {

// What one launch of a chain computes: stages 0 … stages-1 forward, or the same stages in reverse backward, `in` being the gradient
// of the last one's output. All have the same factor. Sizes are powers of two, given as logarithms.
template <class T>
struct Chain {
  const T* in;
  T* out;
  T* kept;  // Where the states between the stages go as well, `elements` apart: behind stage s at kept + s * elements; or null.
  const T* weight[kMostStages];
  int stages;
  int log_size;    // N
  int log_blocks;  // Blocks that share one batch row.
  int64_t elements;  // batch * N

  // Backward with short factors also sums the weight gradients, for which it needs what every stage had as its input: the first of
  // them, and the later ones, `elements` apart. Each block writes its own parts, (stages, blocks, f, f).
  const T* first_in;
  const T* later_in;
  T* partial;  // Null where weight gradients are summed by `weights` below.
};

// Weight gradients of several stages with the same factor; the sum over the rows of the whole batch is cut into parts.
template <class T>
struct Weights {
  const T* in[kMostStages];
  const T* gradient[kMostStages];
  T* partial;  // (stages, parts, f, f)
  int log_size;
  int64_t rows;
  int64_t rows_of_part;  // A multiple of weight_depth.
};

template <class T, bool OnTensorCores>
struct Fused {
  static constexpr int kLargestPlan = sizeof(T) == 4 ? 14 : 13, kMiddlePlan = 12, kSmallestPlan = 10;
  static constexpr int kPlans[3] = {kLargestPlan, kMiddlePlan, kSmallestPlan};  // Elements of a block, as logarithms.
  static constexpr int kSmallestLog = OnTensorCores ? 4 : 3, kLargestLog = 7;   // Of a factor.
  static constexpr int kFewestRows = 16;  // A block must have as many.

  // Whether a chain sums weight gradients itself: where factors are short the sums are small, and memory is what limits the rest.
  static constexpr bool sums_weights(int log_factor, int log_plan) {
    return !OnTensorCores && log_factor <= 4 && log_plan == kLargestPlan;
  }

  // Rows that a block of `weights` adds up at a time.
  static constexpr int weight_depth(int log_factor) { return 16384 / static_cast<int>(sizeof(T)) >> log_factor; }

  static void forward(const Chain<T>& chain, int log_factor, int log_plan, cudaStream_t stream);
  static void backward(const Chain<T>& chain, int log_factor, int log_plan, cudaStream_t stream);
  // A layer of two factors of 128, four blocks to a batch row.
  static void forward_slices(const Chain<T>& chain, cudaStream_t stream);
  static void backward_slices(const Chain<T>& chain, cudaStream_t stream);
  static void weights(const Weights<T>& call, int log_factor, int parts, int stages, cudaStream_t stream);
};

}  // namespace kron
