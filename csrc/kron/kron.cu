// Decides which kernels a call is made of, and in which memory they leave what they compute.
#include "kron/kron.h"

#include <algorithm>

#include "common/launch.cuh"
#include "kron/general.cuh"

namespace {

using kron::Backward;
using kron::Forward;
using kron::Shape;
using kron::Stage;
using kron::Version;

constexpr const char* kTooLarge = "kron takes at most 2^31 - 1 rows of one stage";

Stage stage_of(const Shape& shape, int s) {
  return {static_cast<uint32_t>(shape.batch), static_cast<uint32_t>(shape.size / shape.factor[s]),
          static_cast<uint32_t>(shape.factor[s])};
}

bool too_large(const Shape& shape) {
  return std::any_of(shape.factor, shape.factor + shape.stages,
                     [&](int f) { return shape.batch * (shape.size / f) > int64_t{INT32_MAX}; });
}

template <class T>
const T* weight_of(const Shape& shape, const T* const (&w)[2], int s) {
  return w[2 * s >= shape.stages] + shape.weight[s];
}

// One launch per stage; states go to the caller's memory or to and fro between two halves of the scratch.
template <class T>
const char* forward(const Shape& shape, const Forward<T>& call, cudaStream_t stream) {
  if (too_large(shape)) return kTooLarge;
  const int64_t elements = shape.batch * shape.size;
  const T* in = call.x;
  for (int s = 0; s < shape.stages; ++s) {
    T* kept = call.states ? call.states + s * elements : call.scratch + (s % 2) * elements;
    T* out = s + 1 == shape.stages ? call.y : kept;
    kron::stage_forward(stage_of(shape, s), in, weight_of(shape, call.w, s), out, stream);
    in = out;
  }
  return warpwatch::launch_error();
}

template <class T>
const char* backward(const Shape& shape, const Backward<T>& call, cudaStream_t stream) {
  if (too_large(shape)) return kTooLarge;
  const int64_t elements = shape.batch * shape.size;
  T* partial = call.scratch + 2 * elements;
  const T* incoming = call.gradient;
  for (int s = shape.stages - 1; s >= 0; --s) {
    const Stage stage = stage_of(shape, s);
    const T* in = s == 0 ? call.x : call.states + (s - 1) * elements;
    const int64_t square = int64_t{stage.factor} * stage.factor;
    kron::stage_weight(stage, incoming, in, partial, stream);
    T* w_gradient = call.w_gradient[2 * s >= shape.stages] + shape.weight[s];
    kron::sum_parts(partial, square, kron::weight_parts(stage), square, w_gradient, stream);
    T* outgoing = s == 0 ? call.x_gradient : call.scratch + (s % 2) * elements;
    kron::stage_backward(stage, incoming, weight_of(shape, call.w, s), outgoing, stream);
    incoming = outgoing;
  }
  return warpwatch::launch_error();
}

}  // namespace

int64_t kron::forward_scratch(const Shape& shape, Version, bool keep, int) { return keep ? 0 : 2 * shape.batch * shape.size; }

int64_t kron::backward_scratch(const Shape& shape, Version, int) {
  int64_t partial = 0;
  for (int s = 0; s < shape.stages; ++s) {
    const Stage stage = stage_of(shape, s);
    partial = std::max(partial, int64_t{weight_parts(stage)} * stage.factor * stage.factor);
  }
  return 2 * shape.batch * shape.size + partial;
}

const char* kron::forward_on(const Shape& shape, Version, const Forward<float>& call, void* stream) {
  return forward(shape, call, warpwatch::as_stream(stream));
}

const char* kron::forward_on(const Shape& shape, Version, const Forward<double>& call, void* stream) {
  return forward(shape, call, warpwatch::as_stream(stream));
}

const char* kron::backward_on(const Shape& shape, Version, const Backward<float>& call, void* stream) {
  return backward(shape, call, warpwatch::as_stream(stream));
}

const char* kron::backward_on(const Shape& shape, Version, const Backward<double>& call, void* stream) {
  return backward(shape, call, warpwatch::as_stream(stream));
}
