#include "attention/warpgroups_forward.cuh"

const char* attention::warpgroups_forward_on(const Shape& shape, const Forward<warpwatch::F16>& call, void* stream) {
  return warpgroups_forward_for(shape, call, stream);
}
