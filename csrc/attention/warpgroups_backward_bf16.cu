#include "attention/warpgroups_backward.cuh"

const char* attention::warpgroups_backward_on(const Shape& shape, const Backward<warpwatch::Bf16>& call, void* stream) {
  return warpgroups_backward_for(shape, call, stream);
}
