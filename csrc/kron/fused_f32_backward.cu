// Backward launchers for float on CUDA cores: full float precision.
#include "kron/fused.cuh"

template void kron::Fused<float, false>::backward(const Chain<float>&, int, int, cudaStream_t);
template void kron::Fused<float, false>::backward_slices(const Chain<float>&, cudaStream_t);
template void kron::Fused<float, false>::weights(const Weights<float>&, int, int, int, cudaStream_t);
