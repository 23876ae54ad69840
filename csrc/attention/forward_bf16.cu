#include "attention/forward.cuh"

const char* attention::forward_on(const Shape& shape, const Forward<warpwatch::Bf16>& call, void* stream) { return forward_for(shape, call, stream); }
