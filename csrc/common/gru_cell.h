// One cell of a gated recurrent unit and its gradient, for the CPU and for CUDA.
//
//     r = σ(input.r + hidden.r)   z = σ(input.z + hidden.z)   q = hidden.n   n = tanh(input.n + r q)   h' = (1 - z) n + z h
#pragma once

#include <cmath>

#if defined(__CUDACC__)
#define WARPWATCH_CELL __host__ __device__ inline
#else
#define WARPWATCH_CELL inline
#endif

namespace gru_cell {

// What a forward step leaves for the backward one.
template <class T>
struct Gates {
  T r, z, n, q;
};

// Gradients of the three sums before the nonlinearities; the input side sees n, the hidden side q.
template <class T>
struct Slopes {
  T r, z, n, q;
  T h;  // What reaches the earlier state past the gates.
};

#if defined(__CUDA_ARCH__)
__device__ inline float exponential(float x) { return expf(x); }
__device__ inline double exponential(double x) { return exp(x); }
__device__ inline float hyperbolic(float x) { return tanhf(x); }
__device__ inline double hyperbolic(double x) { return tanh(x); }
#else
template <class T>
inline T exponential(T x) {
  return std::exp(x);
}
template <class T>
inline T hyperbolic(T x) {
  return std::tanh(x);
}

#if !defined(__CUDACC__)
// Eight cells at once: the library's functions would take a quarter of a layer's time.
typedef float Lanes __attribute__((vector_size(32)));
typedef int Bits __attribute__((vector_size(32)));

template <>
inline Lanes exponential(Lanes x) {
  constexpr float kLog2E = 1.44269504f, kHigh = 0.693359375f, kLow = -2.12194440e-4f, kMagic = 12582912.0f;
  const Lanes zero = {};
  x = x > 88.0f ? zero + 88.0f : x;
  x = x < -87.0f ? zero - 87.0f : x;
  const Lanes shifted = x * kLog2E + kMagic;  // Rounds to a whole number, which then lies in the lowest bits.
  const Lanes whole = shifted - kMagic;
  const Lanes rest = x - whole * kHigh - whole * kLow;
  Lanes p = 1.9875691500e-4f * rest + 1.3981999507e-3f;
  p = p * rest + 8.3334519073e-3f;
  p = p * rest + 4.1665795894e-2f;
  p = p * rest + 1.6666665459e-1f;
  p = p * rest + 5.0000001201e-1f;
  const Bits power = (__builtin_bit_cast(Bits, shifted) << 23) + (127 << 23);
  return (p * rest * rest + rest + 1.0f) * __builtin_bit_cast(Lanes, power);
}

template <>
inline Lanes hyperbolic(Lanes x) {
  const Lanes square = x * x, size = x < 0.0f ? -x : x;
  Lanes p = -5.70498872745e-3f * square + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  const Lanes large = 1.0f - 2.0f / (exponential(size + size) + 1.0f);
  return size < 0.625f ? x + x * square * p : x < 0.0f ? -large : large;
}
#endif
#endif

template <class T>
WARPWATCH_CELL T sigmoid(T x) {
  return 1.0f / (1.0f + exponential(-x));
}

template <class T>
WARPWATCH_CELL Gates<T> open(T input_r, T input_z, T input_n, T hidden_r, T hidden_z, T hidden_n) {
  const T r = sigmoid(input_r + hidden_r);
  return {r, sigmoid(input_z + hidden_z), hyperbolic(input_n + r * hidden_n), hidden_n};
}

template <class T>
WARPWATCH_CELL T next_state(const Gates<T>& gates, T h) {
  return (1.0f - gates.z) * gates.n + gates.z * h;
}

// g is the gradient of h', h the state that the step began with.
template <class T>
WARPWATCH_CELL Slopes<T> slopes(const Gates<T>& gates, T h, T g) {
  const T n = g * (1.0f - gates.z) * (1.0f - gates.n * gates.n);
  return {n * gates.q * gates.r * (1.0f - gates.r), g * (h - gates.n) * gates.z * (1.0f - gates.z), n, n * gates.r, g * gates.z};
}

}  // namespace gru_cell
