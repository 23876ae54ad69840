// float on tensor cores: operands rounded to tf32, sums in float.
#include "kron/fused.cuh"

template struct kron::Fused<float, true>;
