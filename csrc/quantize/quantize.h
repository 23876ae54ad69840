// The seam between the binding (g++, torch) and the kernels (nvcc, no torch), and what both know of codes and scales.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define QUANTIZE_BOTH_SIDES __host__ __device__
#else
#define QUANTIZE_BOTH_SIDES
#endif

namespace quantize {

// The numbers are part of the torch operators' schema.
enum class Element : int { e4m3 = 0, e5m2 = 1, e2m1 = 2, i8 = 3, i4 = 4 };

QUANTIZE_BOTH_SIDES constexpr bool is_packed(Element element) { return element == Element::e2m1 || element == Element::i4; }

// Bits of the fraction, the bias, the largest code and number of an element; whole numbers have no bias.
struct Form {
  int fraction, bias, largest_code;
  float largest;
};

QUANTIZE_BOTH_SIDES constexpr Form form_of(Element element) {
  return element == Element::e4m3   ? Form{3, 7, 0x7e, 448.0f}
         : element == Element::e5m2 ? Form{2, 15, 0x7b, 57344.0f}
         : element == Element::e2m1 ? Form{1, 1, 0x7, 6.0f}
         : element == Element::i8   ? Form{0, 0, 127, 127.0f}
                                    : Form{0, 0, 7, 7.0f};
}

// rows x columns of x, in blocks of height x width that share a scale. e8m0: scales are powers of two in a byte each, and not floats.
struct Shape {
  int64_t rows, columns, height, width;
  Element element;
  bool e8m0;
};

constexpr uint32_t kInfinity = 0x7f800000u;
constexpr float kSmallestMaximum = 1e-12f;

// The scale of a block, and what its numbers are multiplied with.
struct Scale {
  float value, factor;
  uint8_t code;  // In e8m0.
};

QUANTIZE_BOTH_SIDES inline float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

QUANTIZE_BOTH_SIDES inline uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// The bits of |x|: they grow with it, and those of NaN are the largest, so that their maximum forgets none.
QUANTIZE_BOTH_SIDES inline uint32_t magnitude(float x) { return bits_of(x) & 0x7fffffffu; }

// From the largest magnitude of a block; not finite where that is not.
template <Element E, bool kE8m0>
QUANTIZE_BOTH_SIDES Scale scale_of(uint32_t largest) {
  if (largest >= kInfinity) return {from_bits(0x7fc00000u), from_bits(0x7fc00000u), 255};
  if constexpr (kE8m0) {
    constexpr int kAbove = E == Element::e4m3 ? 8 : E == Element::e5m2 ? 15 : 2;
    const int exponent = static_cast<int>(largest >> 23) - kAbove;
    const uint32_t code = exponent > 0 ? exponent : 0;
    return {0.0f, from_bits((254 - code) << 23), static_cast<uint8_t>(code)};
  } else {
    const float maximum = from_bits(largest);
    const float value = (maximum > kSmallestMaximum ? maximum : kSmallestMaximum) / form_of(E).largest;
    return {value, 1.0f / value, 0};
  }
}

// The code of the nearest number, of two equally near the even one; what is larger saturates.
template <Element E>
QUANTIZE_BOTH_SIDES inline uint8_t encode(float x) {
  constexpr Form form = form_of(E);
  if constexpr (E == Element::i8 || E == Element::i4) {
    const float low = -form.largest - 1.0f;
    const float inside = x < low ? low : x > form.largest ? form.largest : x;
    // Adding 1.5 * 2^23 rounds to a whole number, whose lowest bits are those of the sum.
    return static_cast<uint8_t>(bits_of(inside + 12582912.0f) & (E == Element::i8 ? 0xff : 0xf));
  } else {
    constexpr int kShift = 23 - form.fraction;
    constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(128 - form.bias) << 23;
    const uint32_t size = magnitude(x);
    const uint32_t sign = (bits_of(x) >> 31) << (E == Element::e2m1 ? 3 : 7);
    // A number whose last bit is worth as much as that of a denormal code: the sum rounds, and its lowest bits are the code.
    constexpr uint32_t kMagic = static_cast<uint32_t>(127 + 23 + 1 - form.bias - form.fraction) << 23;
    const uint32_t denormal = bits_of(from_bits(size) + from_bits(kMagic)) - kMagic;
    const uint32_t rounded = size + ((1u << (kShift - 1)) - 1) + ((size >> kShift) & 1);
    const uint32_t above = (rounded >> kShift) - (static_cast<uint32_t>(127 - form.bias) << form.fraction);
    const uint32_t normal = above > static_cast<uint32_t>(form.largest_code) ? form.largest_code : above;
    // No branches, so that compilers for CPUs encode many numbers at once.
    const uint32_t code = size < kSmallestNormal ? denormal : normal;
    constexpr uint32_t kNaN = E == Element::e2m1 ? 0 : 0x7f;
    return static_cast<uint8_t>((size > kInfinity ? kNaN : code) | sign);
  }
}

// Codes and scales of x. transposed: null, or where the codes of the transposed matrix go, and their scales. Returns null, or why a
// launch was refused.
struct Results {
  uint8_t* codes;
  void* scales;
  uint8_t* codes_transposed;
  void* scales_transposed;
};

template <class T>
const char* quantize_on(const Shape& shape, const T* x, const Results& results, void* stream);

}  // namespace quantize
