// Backward launchers for float on tensor cores: operands rounded to tf32, sums in float.
#include "kron/fused.cuh"

template void kron::Fused<float, true>::backward(const Chain<float>&, int, int, cudaStream_t);
template void kron::Fused<float, true>::backward_slices(const Chain<float>&, cudaStream_t);
template void kron::Fused<float, true>::weights(const Weights<float>&, int, int, int, cudaStream_t);
