#include "matmul/tensor.cuh"

const char* matmul::tensor_cores_on(const Product<Bf16>& call, void* stream) { return on_tensor_cores<Bf16, false>(call, stream); }
