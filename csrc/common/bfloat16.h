// bfloat16 as 16 plain bits, for code that sees neither torch's headers nor the CUDA toolkit's, which cost more to compile than a kernel.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define WARPWATCH_BOTH __host__ __device__
#else
#define WARPWATCH_BOTH
#endif

namespace warpwatch {

struct Bf16 {
  uint16_t bits;

  Bf16() = default;

  // Rounds to nearest, ties to even; NaN stays NaN.
  WARPWATCH_BOTH explicit Bf16(float value) {
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    const bool nan = (word & 0x7fffffffu) > 0x7f800000u;
    bits = nan ? 0x7fc0u : static_cast<uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
  }

  WARPWATCH_BOTH explicit operator float() const {
    const uint32_t word = static_cast<uint32_t>(bits) << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
  }
};

// What numbers of type T are multiplied and summed in.
template <class T>
struct Wider {
  using type = T;
};
template <>
struct Wider<Bf16> {
  using type = float;
};

}  // namespace warpwatch
