// The seam between the binding (g++, torch) and the kernels (nvcc, no torch).
#pragma once

#include <cstdint>

namespace stencil1d {

constexpr int kRadius = 3;
constexpr int kTaps = 2 * kRadius + 1;

// Where a block finds a thread's neighbours; the numbers are part of the torch operators' schema.
enum class Version : int64_t { shared = 3, vectors = 4 };

// Elements whose gradients of the taps are summed together; the parts' sums are added up afterwards.
constexpr int64_t kPart = 4096;

// Both return null, or why a launch was refused. T: float, double.

// y[i] = sum over j of w[j] * x[i + j - kRadius], zeros beyond the ends.
template <class T>
const char* forward_on(Version version, const T* x, const T* w, T* y, int64_t n, void* stream);

// dx by the mirrored stencil over g, and dw[j] = sum over i of g[i] * x[i + j - kRadius]. `partial` has room for kTaps sums per part.
template <class T>
const char* backward_on(Version version, const T* g, const T* x, const T* w, T* dx, T* partial, T* dw, int64_t n, void* stream);

}  // namespace stencil1d
