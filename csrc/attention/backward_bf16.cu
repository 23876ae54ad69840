#include "attention/backward.cuh"

const char* attention::backward_on(const Shape& shape, const Backward<warpwatch::Bf16>& call, void* stream) { return backward_for(shape, call, stream); }
