// The seam between the binding (g++, torch) and the kernels (nvcc, no torch).
#pragma once

#include <cstdint>

namespace causal_conv {

// What the products run on; the numbers are part of the torch operators' schema.
enum class Version : int64_t { cuda_cores = 3, tensor_cores = 4, split_tensor_cores = 5 };

// k lies as (batch, channels, length), and w as (channels, length): a filter as long as the row. Filters are told by their distance,
// w[c][length - 1 - d] being what an element adds to the one d places later.
struct Shape {
  int64_t batch, channels, length;
};

// All return null, or why a launch was refused. T: float, double; in tf32 floats are rounded, `split` keeps
// their accuracy.

// y[t] = eps + sum over u <= t of w[length - 1 - (t - u)] * k[u]. With `turned`, time runs backwards in k and y, which is the gradient of
// k; eps is null there.
const char* convolve_on(const Shape& shape, bool turned, const float* k, const float* w, const float* eps, float* y, void* stream);
const char* convolve_on(const Shape& shape, bool turned, const double* k, const double* w, const double* eps, double* y, void* stream);
const char* convolve_tf32_on(const Shape& shape, bool turned, const float* k, const float* w, const float* eps, float* y, void* stream);
const char* convolve_split_on(const Shape& shape, bool turned, const float* k, const float* w, const float* eps, float* y, void* stream);

// dw[length - 1 - d] = sum over batch and u of k[u] * g[u + d].
const char* correlate_on(const Shape& shape, const float* k, const float* g, float* dw, void* stream);
const char* correlate_on(const Shape& shape, const double* k, const double* g, double* dw, void* stream);
const char* correlate_tf32_on(const Shape& shape, const float* k, const float* g, float* dw, void* stream);

}  // namespace causal_conv
