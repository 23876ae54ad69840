// Decides which kernels a call is made of, and in which memory they leave what they compute.
#include "kron/kron.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "common/launch.cuh"
#include "kron/fused.h"
#include "kron/general.cuh"
#include "kron/planes.h"
#include "kron/quarters.h"
#include "kron/rows.cuh"

namespace {

using kron::Arithmetic;
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

// Whether the fused kernels take this shape on this device. With a single factor a state has one row, too few for a vector.
template <class Kernels>
bool fuses(const Shape& shape) {
  if (warpwatch::compute_capability() / 10 != 9 || shape.stages < 4 || shape.size > INT32_MAX / 2) return false;
  return std::all_of(shape.factor, shape.factor + shape.stages, [](int f) {
    return std::has_single_bit(static_cast<unsigned>(f)) && log_of(f) >= Kernels::kSmallestLog && log_of(f) <= Kernels::kLargestLog;
  });
}

// How the stages are spread over launches: `span` stages each, blocks of 1 << log_plan elements, or slices.
struct Launches {
  int log_plan, span;
  bool slices = false;
};

// The largest blocks that keep every multiprocessor busy, else smaller ones. Cutting a batch row into pieces for that only pays
// where there is much to compute for each element. Where not even a cluster can hold a row, or factors differ, every stage has a launch
// of its own.
template <class Kernels>
Launches launches_of(const Shape& shape, Version version) {
  const int log_size = log_of(shape.size), span = version == Version::layer ? shape.stages / 2 : shape.stages;
  const auto [least, most] = std::minmax_element(shape.factor, shape.factor + shape.stages);
  if (*least != *most || log_size - Kernels::kLargestPlan > kLogLargestCluster) return {Kernels::kLargestPlan, 1};
  const int64_t elements = shape.batch * shape.size, busy = warpwatch::multiprocessors();
  if (*most == 128 && shape.stages == 4 && shape.batch < busy) return {Kernels::kMiddlePlan, 2, true};
  int chosen = Kernels::kLargestPlan;
  for (int log_plan : Kernels::kPlans) {
    const int log_blocks = log_size - log_plan;
    if (log_blocks > kLogLargestCluster || (log_blocks > 0 && *most < 32) || 1 << log_plan < *most * Kernels::kFewestRows) break;
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

// Where the state behind stage s goes: to the caller, who may keep it, or to and fro between scratch and y, such that the last of the
// launches, of which `left` are still to come, ends in y.
template <class T>
T* state_behind(const Shape& shape, const Forward<T>& call, int s, int left) {
  if (left > 0 && call.states) return call.states + s * shape.batch * shape.size;
  return left % 2 == 0 ? call.y : call.scratch;
}

template <class Kernels, class T>
void forward_fused(const Shape& shape, Version version, const Forward<T>& call, cudaStream_t stream) {
  const auto [log_plan, span, slices] = launches_of<Kernels>(shape, version);
  const int64_t elements = shape.batch * shape.size;
  const T* in = call.x;
  for (int begin = 0; begin < shape.stages; begin += span) {
    const int end = begin + span;
    Chain<T> chain = chain_of(shape, call.w, begin, end, log_plan);
    chain.in = in;
    chain.kept = call.states ? call.states + begin * elements : nullptr;
    chain.out = state_behind(shape, call, end - 1, (shape.stages - end) / span);
    if (slices) {
      Kernels::forward_slices(chain, stream);
    } else {
      Kernels::forward(chain, log_of(shape.factor[begin]), log_plan, stream);
    }
    in = chain.out;
  }
}

// How the sum of a weight's gradient is cut into parts.
struct Parts {
  int count;
  int64_t rows;
};

template <class Kernels>
Parts parts_of(const Shape& shape, int factor) {
  const auto stages = std::count(shape.factor, shape.factor + shape.stages, factor);
  const int64_t depth = Kernels::weight_depth(log_of(factor)), chunks = ceil_div(shape.batch * (shape.size / factor), depth);
  // Two blocks for every multiprocessor, unless they would add up fewer rows than the sum has.
  const int64_t wanted = std::max<int64_t>(1, 2 * warpwatch::multiprocessors() / stages);
  const int64_t each = std::max(std::min(ceil_div(factor, depth), chunks), ceil_div(chunks, wanted));
  return {static_cast<int>(ceil_div(chunks, each)), each * depth};
}

// Gradients of all weights; `gradients` holds those of every stage's output but the last, one after the other.
template <class Kernels, class T>
void weights_fused(const Shape& shape, const Backward<T>& call, const T* gradients, T* partial, cudaStream_t stream) {
  const int64_t elements = shape.batch * shape.size;
  for (int factor = 1 << Kernels::kSmallestLog; factor <= 1 << Kernels::kLargestLog; factor *= 2) {
    if (std::count(shape.factor, shape.factor + shape.stages, factor) == 0) continue;
    const Parts parts = parts_of<Kernels>(shape, factor);
    kron::Weights<T> weights{};
    kron::Sums<T> sums{partial, {}, 0, parts.count, int64_t{factor} * factor};
    for (int s = 0; s < shape.stages; ++s) {
      if (shape.factor[s] != factor) continue;
      weights.in[sums.stages] = s == 0 ? call.x : call.states + (s - 1) * elements;
      weights.gradient[sums.stages] = s + 1 == shape.stages ? call.gradient : gradients + s * elements;
      sums.out[sums.stages++] = weight_gradient_of(shape, call, s);
    }
    weights.partial = partial;
    weights.log_size = log_of(shape.size);
    weights.rows = elements / factor;
    weights.rows_of_part = parts.rows;
    Kernels::weights(weights, log_of(factor), parts.count, sums.stages, stream);
    kron::sum_parts(sums, stream);
  }
}

// Whether the chain sums all weight gradients on its way.
template <class Kernels>
bool sums_weights(const Shape& shape, int log_plan) {
  return std::all_of(shape.factor, shape.factor + shape.stages,
                     [&](int f) { return f == shape.factor[0] && Kernels::sums_weights(log_of(f), log_plan); });
}

// Blocks of a chain's launch.
int64_t blocks_of(const Shape& shape, int log_plan) { return ceil_div(shape.batch * shape.size, int64_t{1} << log_plan); }

template <class Kernels, class T>
void backward_fused(const Shape& shape, Version version, const Backward<T>& call, cudaStream_t stream) {
  const auto [log_plan, span, slices] = launches_of<Kernels>(shape, version);
  const int64_t elements = shape.batch * shape.size, square = int64_t{shape.factor[0]} * shape.factor[0];
  const bool sums = sums_weights<Kernels>(shape, log_plan);
  // Gradients of states that some other launch needs: all of them, or those between two chains.
  const int unit = sums ? span : 1;
  T* gradients = call.scratch;
  T* partial = gradients + (shape.stages / unit - 1) * elements;
  for (int end = shape.stages; end > 0; end -= span) {
    const int begin = end - span;
    Chain<T> chain = chain_of(shape, call.w, begin, end, log_plan);
    chain.in = end == shape.stages ? call.gradient : gradients + (end / unit - 1) * elements;
    chain.out = begin == 0 ? call.x_gradient : gradients + (begin / unit - 1) * elements;
    chain.kept = sums ? nullptr : gradients + begin * elements;
    chain.first_in = begin == 0 ? call.x : call.states + (begin - 1) * elements;
    chain.later_in = call.states + begin * elements;
    chain.partial = sums ? partial + begin * blocks_of(shape, log_plan) * square : nullptr;
    if (slices) {
      Kernels::backward_slices(chain, stream);
    } else {
      Kernels::backward(chain, log_of(shape.factor[begin]), log_plan, stream);
    }
  }
  if (!sums) return weights_fused<Kernels>(shape, call, gradients, partial, stream);
  kron::Sums<T> all{partial, {}, shape.stages, static_cast<int>(blocks_of(shape, log_plan)), square};
  for (int s = 0; s < shape.stages; ++s) all.out[s] = weight_gradient_of(shape, call, s);
  kron::sum_parts(all, stream);
}

// Elements of scratch that backward_fused needs.
template <class Kernels>
int64_t scratch_of_fused(const Shape& shape, Version version) {
  const int64_t elements = shape.batch * shape.size;
  const auto launches = launches_of<Kernels>(shape, version);
  if (sums_weights<Kernels>(shape, launches.log_plan)) {
    const int64_t partial = blocks_of(shape, launches.log_plan) * shape.factor[0] * shape.factor[0];
    return (shape.stages / launches.span - 1) * elements + shape.stages * partial;
  }
  int64_t partial = 0;
  for (int s = 0; s < shape.stages; ++s) {
    const auto stages = std::count(shape.factor, shape.factor + shape.stages, shape.factor[s]);
    partial = std::max(partial, stages * parts_of<Kernels>(shape, shape.factor[s]).count * shape.factor[s] * shape.factor[s]);
  }
  return (shape.stages - 1) * elements + partial;
}

// One launch per stage.
template <class T>
void forward_general(const Shape& shape, const Forward<T>& call, cudaStream_t stream) {
  const T* in = call.x;
  for (int s = 0; s < shape.stages; ++s) {
    T* out = state_behind(shape, call, s, shape.stages - 1 - s);
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

template <class T>
void backward_rows(const Shape& shape, const Backward<T>& call, cudaStream_t stream) {
  kron::rows_backward(shape, call, call.scratch, stream);
  kron::sum_parts(kron::Sums<T>{call.scratch, {call.w_gradient[0], call.w_gradient[1]}, 2, kron::rows_parts(shape), shape.weights},
                  stream);
}

// run.template operator()<Kernels>() with the fused kernels that take this call; false when there are none.
template <class T, class Run>
bool with_fused(const Shape& shape, Version version, const Run& run) {
  using CudaCores = Fused<float, false>;
  using TensorCores = Fused<T, true>;
  if (sizeof(T) == 4 && version != Version::tensor) {
    if constexpr (sizeof(T) == 4) {
      if (!fuses<CudaCores>(shape)) return false;
      run.template operator()<CudaCores>();
    }
    return true;
  }
  if (!fuses<TensorCores>(shape)) return false;
  run.template operator()<TensorCores>();
  return true;
}

bool aligned(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(), warpwatch::aligned16);
}

// Only version 4 stands for as few launches as possible.
template <class T>
bool takes_rows(const Shape& shape, Version version) {
  return version == Version::both && kron::rows_take(shape, sizeof(T));
}

constexpr const char* kNoTensorCores = "versions 5 and 7 need a Hopper GPU and factors of 16, 32, 64 or 128";

template <class T>
const char* forward(const Shape& shape, Version version, const Forward<T>& call, cudaStream_t stream) {
  if (too_large(shape)) return kTooLarge;
  const bool fused = aligned({call.x, call.w[0], call.w[1], call.y, call.states, call.scratch}) &&
                     with_fused<T>(shape, version, [&]<class Kernels>() { forward_fused<Kernels>(shape, version, call, stream); });
  if (!fused && version == Version::tensor) return kNoTensorCores;
  if (!fused && takes_rows<T>(shape, version)) {
    kron::rows_forward(shape, call, stream);
  } else if (!fused) {
    forward_general(shape, call, stream);
  }
  return warpwatch::launch_error();
}

template <class T>
const char* backward(const Shape& shape, Version version, const Backward<T>& call, cudaStream_t stream) {
  if (too_large(shape)) return kTooLarge;
  const bool fused =
      aligned({call.x, call.gradient, call.states, call.w[0], call.w[1], call.x_gradient, call.scratch}) &&
      with_fused<T>(shape, version, [&]<class Kernels>() { backward_fused<Kernels>(shape, version, call, stream); });
  if (!fused && version == Version::tensor) return kNoTensorCores;
  if (!fused && takes_rows<T>(shape, version)) {
    backward_rows(shape, call, stream);
  } else if (!fused) {
    backward_general(shape, call, stream);
  }
  return warpwatch::launch_error();
}

// Which path it will be depends on the operands' alignment as well, so there is room for any.
template <class T>
int64_t scratch_of_backward(const Shape& shape, Version version) {
  const int64_t elements = shape.batch * shape.size;
  int64_t partial = 0, most = 0;
  for (int s = 0; s < shape.stages; ++s) {
    const Stage stage = stage_of(shape, s);
    partial = std::max(partial, int64_t{kron::weight_parts(stage)} * stage.factor * stage.factor);
  }
  with_fused<T>(shape, version, [&]<class Kernels>() { most = scratch_of_fused<Kernels>(shape, version); });
  if (takes_rows<T>(shape, version)) most = std::max(most, 2 * kron::rows_parts(shape) * shape.weights);
  return std::max(most, 2 * elements + partial);
}

// What versions 6 and 7 compute in another way than the versions before.
bool in_pairs(Version version) { return version == Version::three_terms || version == Version::one_term; }

// Both directions or neither, because backward takes the states of this forward.
bool in_quarters(const Shape& shape, Version version) {
  return version == Version::three_terms && warpwatch::compute_capability() / 10 == 9 && kron::quarters_take(shape);
}

// Planes keep no states.
bool in_planes(const Shape& shape, Version version, bool keep) {
  return in_pairs(version) && !keep && warpwatch::compute_capability() / 10 == 9 && kron::planes_take(shape);
}

// The version that computes what is neither in quarters nor in planes.
Version without_pairs(Version version) {
  if (version == Version::three_terms) return Version::both;
  return version == Version::one_term ? Version::tensor : version;
}

}  // namespace

int64_t kron::forward_scratch(const Shape& shape, Version version, bool keep, int element_bytes) {
  const bool none = keep || (element_bytes == 4 && (in_quarters(shape, version) || in_planes(shape, version, keep)));
  return none ? 0 : shape.batch * shape.size;
}

int64_t kron::backward_scratch(const Shape& shape, Version version, int element_bytes) {
  if (element_bytes == 8) return scratch_of_backward<double>(shape, without_pairs(version));
  return in_quarters(shape, version) ? quarters_scratch(shape) : scratch_of_backward<float>(shape, without_pairs(version));
}

const char* kron::forward_on(const Shape& shape, Version version, const Forward<float>& call, void* stream) {
  const cudaStream_t on = warpwatch::as_stream(stream);
  if (in_quarters(shape, version)) {
    quarters_forward<Arithmetic::three_terms>(shape, call, on);
  } else if (!in_planes(shape, version, call.states != nullptr)) {
    return forward(shape, without_pairs(version), call, on);
  } else if (version == Version::three_terms) {
    planes_forward<Arithmetic::three_terms>(shape, call, on);
  } else {
    planes_forward<Arithmetic::tf32>(shape, call, on);
  }
  return warpwatch::launch_error();
}

const char* kron::forward_on(const Shape& shape, Version version, const Forward<double>& call, void* stream) {
  return forward(shape, without_pairs(version), call, warpwatch::as_stream(stream));
}

const char* kron::backward_on(const Shape& shape, Version version, const Backward<float>& call, void* stream) {
  const cudaStream_t on = warpwatch::as_stream(stream);
  if (!in_quarters(shape, version)) return backward(shape, without_pairs(version), call, on);
  const char* error = quarters_backward<Arithmetic::three_terms>(shape, call, on);
  return error ? error : warpwatch::launch_error();
}

const char* kron::backward_on(const Shape& shape, Version version, const Backward<double>& call, void* stream) {
  return backward(shape, without_pairs(version), call, warpwatch::as_stream(stream));
}
