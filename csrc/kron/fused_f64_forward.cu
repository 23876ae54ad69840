// Forward launchers for double on tensor cores, which compute in full double precision, twice as fast as CUDA cores.
#include "kron/fused.cuh"

template void kron::Fused<double, true>::forward(const Chain<double>&, int, int, cudaStream_t);
template void kron::Fused<double, true>::forward_slices(const Chain<double>&, cudaStream_t);
