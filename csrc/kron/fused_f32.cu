// float on CUDA cores: full float precision.
#include "kron/fused.cuh"

template struct kron::Fused<float, false>;
