// All stages in one launch for factors of any size, when a batch row and all weights fit into one block's shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kron/kron.h"

namespace kron {

// Whether the current device can run this shape here, backward included.
bool rows_take(const Shape& shape, int element_bytes);

// How many partial sums of all weight gradients rows_backward writes, each of 2 * shape.weights elements.
int rows_parts(const Shape& shape);

template <class T>
void rows_forward(const Shape& shape, const Forward<T>& call, cudaStream_t stream);

// Writes the gradient of x, and to `partial` (2, parts, weights) the parts of the gradients of both layers' weights.
template <class T>
void rows_backward(const Shape& shape, const Backward<T>& call, T* partial, cudaStream_t stream);

}  // namespace kron
