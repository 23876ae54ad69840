// The seam between the binding (g++, torch) and the kernels (nvcc, no torch). Functions return null, or why the launch was refused.
#pragma once

#include <cstdint>

namespace launch {

// A kernel that does nothing.
const char* empty_on(void* stream);

// y = x + 1 over n elements.
const char* add_on(const float* x, float* y, int64_t n, void* stream);

// y = x over n bytes, by a kernel or by the runtime's own copy.
const char* copy_on(const void* x, void* y, int64_t n, void* stream);
const char* memcpy_on(const void* x, void* y, int64_t n, void* stream);

// Ways to get memory, numbered as in kernels/launch.py: from the device, from its pool in the order of the stream, from the host with
// its pages locked.
enum Memory : int64_t { kDevice = 0, kPool = 1, kPinned = 2 };

// Allocates n bytes and frees them again.
const char* allocate_on(int64_t n, int64_t memory, void* stream);

// y = a + b over n elements, all three in the host's memory: memory for each on the device, two copies there, a kernel, a copy back, and
// the memory freed. kPool allocates in the order of the stream and waits once, at the end.
const char* add_from_host_on(const int32_t* a, const int32_t* b, int32_t* y, int64_t n, int64_t memory, void* stream);

}  // namespace launch
