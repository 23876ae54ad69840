// Decides which kernels a call is made of, and in which memory they leave what they compute.
#include "kron/kron.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "common/launch.cuh"
#include "kron/fused.h"
#include "kron/general.cuh"

namespace {

using kron::Backward;
using kron::Chain;
using kron::Forward;
using kron::Fused;
using kron::Shape;
using kron::Stage;
using kron::Version;
using warpwatch::ceil_div;

constexpr const char* kTooLarge = "kron takes at most 2^31 - 1 rows of one stage";
constexpr int kLogLargestCluster = 3;

Stage stage_of(const Shape& shape, int s) {
  return {static_cast<uint32_t>(shape.batch), static_cast<uint32_t>(shape.size / shape.factor[s]),
          static_cast<uint32_t>(shape.factor[s])};
}

bool too_large(const Shape& shape) {
  return std::any_of(shape.factor, shape.factor + shape.stages,
                     [&](int f) { return shape.batch * (shape.size / f) > int64_t{INT32_MAX}; });
}

int log_of(int64_t value) { return std::countr_zero(static_cast<uint64_t>(value)); }

template <class T>
const T* weight_of(const Shape& shape, const T* const (&w)[2], int s) {
  return w[2 * s >= shape.stages] + shape.weight[s];
}

template <class T>
T* weight_gradient_of(const Shape& shape, const Backward<T>& call, int s) {
  return call.w_gradient[2 * s >= shape.stages] + shape.weight[s];
}

int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, attribute, device);
  return value;
}

// Whether the fused kernels take this shape on this device. With a single factor a state has one row, too few for a vector.
template <class Kernels>
bool fuses(const Shape& shape) {
  if (device_attribute(cudaDevAttrComputeCapabilityMajor) != 9 || shape.stages < 4 || shape.size > INT32_MAX / 2) return false;
  return std::all_of(shape.factor, shape.factor + shape.stages, [](int f) {
    return std::has_single_bit(static_cast<unsigned>(f)) && log_of(f) >= Kernels::kSmallestLog && log_of(f) <= Kernels::kLargestLog;
  });
}

// How the stages are spread over launches: `span` stages each, blocks of 1 << log_plan elements.
struct Launches {
  int log_plan, span;
};

// The largest blocks that keep every multiprocessor busy, else the smallest that can hold a batch row in one cluster. Where no
// cluster can, or factors differ, every stage has a launch of its own.
template <class Kernels>
Launches launches_of(const Shape& shape, Version version) {
  const int log_size = log_of(shape.size), span = version == Version::layer ? shape.stages / 2 : shape.stages;
  const auto [least, most] = std::minmax_element(shape.factor, shape.factor + shape.stages);
  if (*least != *most || log_size - Kernels::kLargestPlan > kLogLargestCluster) return {Kernels::kLargestPlan, 1};
  const int64_t elements = shape.batch * shape.size, busy = device_attribute(cudaDevAttrMultiProcessorCount);
  int chosen = Kernels::kLargestPlan;
  for (int log_plan : Kernels::kPlans) {
    if (log_size - log_plan > kLogLargestCluster || 1 << log_plan < *most * Kernels::kFewestRows) break;
    chosen = log_plan;
    if (ceil_div(elements, int64_t{1} << log_plan) >= busy) break;
  }
  return {chosen, span};
}

template <class T>
Chain<T> chain_of(const Shape& shape, const T* const (&w)[2], int begin, int end, int log_plan) {
  Chain<T> chain{};
  chain.stages = end - begin;
  for (int s = begin; s < end; ++s) chain.weight[s - begin] = weight_of(shape, w, s);
  chain.log_size = log_of(shape.size);
  chain.log_blocks = std::max(0, chain.log_size - log_plan);
  chain.elements = shape.batch * shape.size;
  return chain;
}

template <class Kernels, class T>
void forward_fused(const Shape& shape, Version version, const Forward<T>& call, cudaStream_t stream) {
  const auto [log_plan, span] = launches_of<Kernels>(shape, version);
  const int64_t elements = shape.batch * shape.size;
  const T* in = call.x;
  for (int begin = 0; begin < shape.stages; begin += span) {
    const int end = begin + span;
    Chain<T> chain = chain_of(shape, call.w, begin, end, log_plan);
    chain.in = in;
    chain.kept = call.states ? call.states + begin * elements : nullptr;
    T* between = call.states ? call.states + (end - 1) * elements : call.scratch + (begin / span % 2) * elements;
    chain.out = end == shape.stages ? call.y : between;
    Kernels::forward(chain, log_of(shape.factor[begin]), log_plan, stream);
    in = chain.out;
  }
}

// One launch per stage; states go to the caller's memory or to and fro between two halves of the scratch.
template <class T>
void forward_general(const Shape& shape, const Forward<T>& call, cudaStream_t stream) {
  const int64_t elements = shape.batch * shape.size;
  const T* in = call.x;
  for (int s = 0; s < shape.stages; ++s) {
    T* kept = call.states ? call.states + s * elements : call.scratch + (s % 2) * elements;
    T* out = s + 1 == shape.stages ? call.y : kept;
    kron::stage_forward(stage_of(shape, s), in, weight_of(shape, call.w, s), out, stream);
    in = out;
  }
}

template <class T>
void backward_general(const Shape& shape, const Backward<T>& call, cudaStream_t stream) {
  const int64_t elements = shape.batch * shape.size;
  T* partial = call.scratch + 2 * elements;
  const T* incoming = call.gradient;
  for (int s = shape.stages - 1; s >= 0; --s) {
    const Stage stage = stage_of(shape, s);
    kron::stage_weight(stage, incoming, s == 0 ? call.x : call.states + (s - 1) * elements, partial, stream);
    const int64_t square = int64_t{stage.factor} * stage.factor;
    kron::sum_parts(kron::Sums<T>{partial, {weight_gradient_of(shape, call, s)}, 1, kron::weight_parts(stage), square}, stream);
    T* outgoing = s == 0 ? call.x_gradient : call.scratch + (s % 2) * elements;
    kron::stage_backward(stage, incoming, weight_of(shape, call.w, s), outgoing, stream);
    incoming = outgoing;
  }
}

// run.template operator()<Kernels>() with the fused kernels that take this call; false when there are none.
template <class T, class Run>
bool with_fused(const Shape& shape, const Run& run) {
  if constexpr (sizeof(T) == 4) {
    if (!fuses<Fused<float, false>>(shape)) return false;
    run.template operator()<Fused<float, false>>();
    return true;
  }
  return false;
}

bool aligned(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(), warpwatch::aligned16);
}

template <class T>
const char* forward(const Shape& shape, Version version, const Forward<T>& call, cudaStream_t stream) {
  if (too_large(shape)) return kTooLarge;
  const bool fused = aligned({call.x, call.w[0], call.w[1], call.y, call.states, call.scratch}) &&
                     with_fused<T>(shape, [&]<class Kernels>() { forward_fused<Kernels>(shape, version, call, stream); });
  if (!fused) forward_general(shape, call, stream);
  return warpwatch::launch_error();
}

template <class T>
const char* backward(const Shape& shape, const Backward<T>& call, cudaStream_t stream) {
  if (too_large(shape)) return kTooLarge;
  backward_general(shape, call, stream);
  return warpwatch::launch_error();
}

int64_t scratch_of_backward(const Shape& shape) {
  int64_t partial = 0;
  for (int s = 0; s < shape.stages; ++s) {
    const Stage stage = stage_of(shape, s);
    partial = std::max(partial, int64_t{kron::weight_parts(stage)} * stage.factor * stage.factor);
  }
  return 2 * shape.batch * shape.size + partial;
}

}  // namespace

int64_t kron::forward_scratch(const Shape& shape, Version, bool keep, int) { return keep ? 0 : 2 * shape.batch * shape.size; }

int64_t kron::backward_scratch(const Shape& shape, Version, int) { return scratch_of_backward(shape); }

const char* kron::forward_on(const Shape& shape, Version version, const Forward<float>& call, void* stream) {
  return forward(shape, version, call, warpwatch::as_stream(stream));
}

const char* kron::forward_on(const Shape& shape, Version version, const Forward<double>& call, void* stream) {
  return forward(shape, version, call, warpwatch::as_stream(stream));
}

const char* kron::backward_on(const Shape& shape, Version, const Backward<float>& call, void* stream) {
  return backward(shape, call, warpwatch::as_stream(stream));
}

const char* kron::backward_on(const Shape& shape, Version, const Backward<double>& call, void* stream) {
  return backward(shape, call, warpwatch::as_stream(stream));
}
