// Numbers of every precision in bindings: computed as float, or double where they are that, and converted whole rows at a time,
// because GCC does not turn torch's own conversions of f16 into the processor's.
#pragma once

#include <cstdint>
#include <type_traits>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "common/sixteen.h"
#include "common/tensor.h"

namespace warpwatch {

// The type in which kernels take a type of torch.
template <class T>
struct KernelTypeOf {
  using type = T;
};
template <>
struct KernelTypeOf<c10::BFloat16> {
  using type = Bf16;
};
template <>
struct KernelTypeOf<c10::Half> {
  using type = F16;
};
template <class T>
using KernelType = typename KernelTypeOf<T>::type;

// What sums and products of a type are computed in.
template <class T>
using WideType = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
inline void widen_row(const T* from, WideType<T>* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}

template <class T>
inline void narrow_row(const WideType<T>* from, T* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(from[i]);
}

#if defined(__F16C__)
template <>
inline void widen_row<c10::Half>(const c10::Half* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  for (; i < count; ++i) to[i] = from[i];
}

template <>
inline void narrow_row<c10::Half>(const float* from, c10::Half* to, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  for (; i < count; ++i) to[i] = static_cast<c10::Half>(from[i]);
}
#endif

}  // namespace warpwatch
