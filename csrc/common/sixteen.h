// The two 16-bit formats as kernels know them: their bits, without the toolkit's headers, which cost more compile time than a kernel.
#pragma once

#include <cstdint>

namespace warpwatch {

struct Bf16 {
  static constexpr bool kIsBf16 = true;
  uint16_t bits;
};

struct F16 {
  static constexpr bool kIsBf16 = false;
  uint16_t bits;
};

}  // namespace warpwatch
