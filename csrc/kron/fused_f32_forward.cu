// Forward launchers for float on CUDA cores: full float precision.
#include "kron/fused.cuh"

template void kron::Fused<float, false>::forward(const Chain<float>&, int, int, cudaStream_t);
template void kron::Fused<float, false>::forward_slices(const Chain<float>&, cudaStream_t);
