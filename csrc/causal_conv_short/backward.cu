// Launches the gradients: those of x and the shares of taps and bias in one pass, then the sums over batch rows.
#include "causal_conv_short/kernels.cuh"

template <class T, class S>
const char* causal_conv_short::backward_on(const Shape& shape, const Backward<T, S>& call, void* stream) {
  const cudaStream_t on = warpwatch::as_stream(stream);
  const bool packs = in_packs(shape, call.x, call.g, call.dx);
  const Launch launch(shape, packs ? kPack<T> : 1);
  const auto kernel = packs ? backward<T, kPack<T>, S> : backward<T, 1, S>;
  kernel<<<launch.grid, launch.threads, 0, on>>>(shape, call);
  const auto blocks = static_cast<unsigned>(ceil_div(shape.channels * (kWidest + 1), kThreads));
  finish<T, S><<<blocks, kThreads, 0, on>>>(shape, call, shape.batch * launch.grid.y);
  return warpwatch::launch_error();
}

namespace causal_conv_short {
template const char* backward_on(const Shape&, const Backward<float, float>&, void*);
template const char* backward_on(const Shape&, const Backward<double, double>&, void*);
template const char* backward_on(const Shape&, const Backward<warpwatch::Bf16, float>&, void*);
template const char* backward_on(const Shape&, const Backward<warpwatch::F16, float>&, void*);
}  // namespace causal_conv_short
