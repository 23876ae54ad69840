// Forward of large batches on tensor cores, both layers in one launch: two factors of 64, or three of 32.
#pragma once

#include <cuda_runtime.h>

#include "kron/kron.h"
#include "kron/pairs.cuh"

namespace kron {

// Whether this is the faster way on the current device, a Hopper GPU.
bool planes_take(const Shape& shape);

// Keeps no states.
template <Arithmetic How>
void planes_forward(const Shape& shape, const Forward<float>& call, cudaStream_t stream);

}  // namespace kron
