// The launches of gru_step.h: a thread per element.
#include "common/launch.cuh"
#include "gru_step/gru_step.h"

namespace {

constexpr int kThreads = 256;

template <class Call>
__global__ void __launch_bounds__(kThreads) elements_of(const __grid_constant__ Call call, int64_t elements) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < elements) gru_step::compute(call, i);
}

}  // namespace

template <class Call>
const char* gru_step::compute_on(const Call& call, int64_t elements, void* stream) {
  const auto blocks = static_cast<unsigned>(warpwatch::ceil_div(elements, kThreads));
  elements_of<Call><<<blocks, kThreads, 0, warpwatch::as_stream(stream)>>>(call, elements);
  return warpwatch::launch_error();
}

template const char* gru_step::compute_on(const Cell<float>&, int64_t, void*);
template const char* gru_step::compute_on(const CellGradient<float>&, int64_t, void*);
template const char* gru_step::compute_on(const CellGradient<double>&, int64_t, void*);
template const char* gru_step::compute_on(const Sums<float>&, int64_t, void*);
template const char* gru_step::compute_on(const Sums<double>&, int64_t, void*);
