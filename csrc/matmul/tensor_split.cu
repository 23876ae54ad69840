#include "matmul/tensor.cuh"

const char* matmul::split_tensor_cores_on(const Product<float>& call, void* stream) { return on_tensor_cores<float, true>(call, stream); }
