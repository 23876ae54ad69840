// double on tensor cores, which compute in full double precision, twice as fast as CUDA cores.
#include "kron/fused.cuh"

template struct kron::Fused<double, true>;
