// The seam between the binding (torch), the CPU kernels (g++) and the CUDA kernels (nvcc, no torch).
//
// Two stacked layers of K factors each are one chain of 2K stages. Stage s has a weight W of f x f, row-major [in, out], and turns
// a state of shape (batch, R, f), R = N / f, into one of shape (batch, f, R):
//
//     out[b, o, r] = sum over i of in[b, r, i] * W[i, o]
//
// so the axis that was fastest becomes the slowest, and after K stages every axis is back in its place.
#pragma once

#include <cstdint>

namespace kron {

constexpr int kMostStages = 32;

struct Shape {
  int64_t batch;
  int64_t size;               // N, the product of one layer's factors.
  int stages;                 // 2K
  int factor[kMostStages];    // f of every stage
  int64_t weight[kMostStages];  // Where the stage's W starts in its layer's packed weights; layer 0 is the first half of the stages.
  int64_t weights;            // Elements of one layer's packed weights.
};

// How a GPU computes: which stages share a launch, and on tensor cores, in how many terms of tf32. The last two are `both` and `tensor`
// where no kernels of their own are faster. The numbers are part of the torch operators' schema.
enum class Version : int64_t { layer = 3, both = 4, tensor = 5, three_terms = 6, one_term = 7 };

template <class T>
struct Forward {
  const T* x;
  const T* w[2];
  T* y;
  T* states;  // Outputs of all stages but the last, (stages - 1, batch, N), for the backward pass; or null.
  T* scratch;  // scratch_elements(...) on a GPU
};

template <class T>
struct Backward {
  const T* gradient;
  const T* x;
  const T* states;
  const T* w[2];
  T* x_gradient;
  T* w_gradient[2];
  T* scratch;
};

void forward_cpu(const Shape& shape, const Forward<float>& call);
void forward_cpu(const Shape& shape, const Forward<double>& call);
void backward_cpu(const Shape& shape, const Backward<float>& call);
void backward_cpu(const Shape& shape, const Backward<double>& call);

// Elements of scratch that a launch needs, on the current device.
int64_t forward_scratch(const Shape& shape, Version version, bool keep, int element_bytes);
int64_t backward_scratch(const Shape& shape, Version version, int element_bytes);

// Return null, or why a launch was refused.
const char* forward_on(const Shape& shape, Version version, const Forward<float>& call, void* stream);
const char* forward_on(const Shape& shape, Version version, const Forward<double>& call, void* stream);
const char* backward_on(const Shape& shape, Version version, const Backward<float>& call, void* stream);
const char* backward_on(const Shape& shape, Version version, const Backward<double>& call, void* stream);

}  // namespace kron
