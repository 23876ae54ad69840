// What the kernels on CUDA cores and on tensor cores have in common.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace causal_conv {

// Where time `t` lies in a row: at its own place, or, when time runs backwards, as far from the end.
__device__ inline int64_t place(bool turned, int64_t t, int64_t length) { return turned ? length - 1 - t : t; }

}  // namespace causal_conv
