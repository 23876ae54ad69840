// Backward launchers for double on tensor cores, which compute in full double precision, twice as fast as CUDA cores.
#include "kron/fused.cuh"

template void kron::Fused<double, true>::backward(const Chain<double>&, int, int, cudaStream_t);
template void kron::Fused<double, true>::backward_slices(const Chain<double>&, cudaStream_t);
template void kron::Fused<double, true>::weights(const Weights<double>&, int, int, int, cudaStream_t);
