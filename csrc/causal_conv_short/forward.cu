// Launches the convolution.
#include "causal_conv_short/kernels.cuh"

template <class T>
const char* causal_conv_short::forward_on(const Shape& shape, const Forward<T>& call, void* stream) {
  const bool packs = in_packs(shape, call.x, call.y, call.y);
  const Launch launch(shape, packs ? kPack<T> : 1);
  const auto kernel = packs ? forward<T, kPack<T>> : forward<T, 1>;
  kernel<<<launch.grid, launch.threads, 0, warpwatch::as_stream(stream)>>>(shape, call);
  return warpwatch::launch_error();
}

namespace causal_conv_short {
template const char* forward_on(const Shape&, const Forward<float>&, void*);
template const char* forward_on(const Shape&, const Forward<double>&, void*);
template const char* forward_on(const Shape&, const Forward<warpwatch::Bf16>&, void*);
template const char* forward_on(const Shape&, const Forward<warpwatch::F16>&, void*);
}  // namespace causal_conv_short
