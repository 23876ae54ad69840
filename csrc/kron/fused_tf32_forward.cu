// Forward launchers for float on tensor cores: operands rounded to tf32, sums in float.
#include "kron/fused.cuh"

template void kron::Fused<float, true>::forward(const Chain<float>&, int, int, cudaStream_t);
template void kron::Fused<float, true>::forward_slices(const Chain<float>&, cudaStream_t);
