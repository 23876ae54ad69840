#include "attention/forward.cuh"

const char* attention::forward_on(const Shape& shape, const Forward<float>& call, void* stream) { return forward_for(shape, call, stream); }
