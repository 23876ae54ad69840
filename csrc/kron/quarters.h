// Both layers of two factors of 128 in one launch per direction, four blocks to a batch row, on tensor cores.
#pragma once

#include <cuda_runtime.h>

#include "kron/kron.h"
#include "kron/pairs.cuh"

namespace kron {

// Whether this is the faster way on the current device, a Hopper GPU: it is while all clusters of a batch run at once, 30 on an H200.
// There, 1 and 16 rows were measured faster forward, and 32 slower; 1 row faster backward, and 32 slower.
bool quarters_take(const Shape& shape);

// The states are those of the order in which quarters.cu applies the factors, so they are for quarters_backward alone. Both directions are
// built in three terms alone: tf32 was not measured with as few rows as it would take.
template <Arithmetic How>
void quarters_forward(const Shape& shape, const Forward<float>& call, cudaStream_t stream);

// Elements of scratch: three gradients of states.
int64_t quarters_scratch(const Shape& shape);

// Returns null or why a launch was refused.
template <Arithmetic How>
const char* quarters_backward(const Shape& shape, const Backward<float>& call, cudaStream_t stream);

}  // namespace kron
