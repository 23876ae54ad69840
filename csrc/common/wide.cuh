// Numbers of every precision in kernels: computed as float, or double where they are that, and stored as they came.
#pragma once

#include "common/machine.cuh"

namespace warpwatch {

template <class T>
struct WideOf {
  using type = float;
};
template <>
struct WideOf<double> {
  using type = double;
};
// What sums and products of a T are computed in.
template <class T>
using Wide = typename WideOf<T>::type;

template <class T>
__device__ Wide<T> widen(T value) {
  if constexpr (sizeof(T) == 8) {
    return value;
  } else {
    return to_float(value);
  }
}

// Rounds to nearest, ties to even.
template <class T>
__device__ T narrow(Wide<T> value) {
  if constexpr (sizeof(T) == 8) {
    return value;
  } else {
    return from_float<T>(value);
  }
}

// Size elements that lie side by side, moved in one access.
template <class T, int Size>
struct alignas(Size * sizeof(T)) Pack {
  T element[Size];
};

}  // namespace warpwatch
