// The seam between the binding (g++, torch) and the kernels (nvcc, no torch).
//
// Magnitudes are compared as whole numbers: the bits of |w| grow with it, in every floating-point format. So all code is written
// for elements of 2, 4 or 8 bytes and needs no more of their format than the bits of its infinity; whatever lies above is NaN, and
// all NaN count as one magnitude, the largest.
#pragma once

#include <cstdint>

namespace magnitude_prune {

// The `keep` largest of n elements; of equal ones those that come first.
struct Choice {
  int bytes;  // Of an element.
  uint64_t infinity;
  int64_t n, keep;
};

// Bytes of scratch memory that prune_on needs, aligned to 16.
int64_t scratch_bytes(const Choice& choice);

// out = w where it is kept, and zero elsewhere; mask is true where it is kept. Returns null, or why a launch was refused.
const char* prune_on(const Choice& choice, const void* w, void* out, bool* mask, void* scratch, void* stream);

// out = g where mask says so, and zero elsewhere.
const char* select_on(int bytes, int64_t n, const void* g, const bool* mask, void* out, void* stream);

}  // namespace magnitude_prune
