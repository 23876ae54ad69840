// The bodies of Fused's launchers. Each .cu instantiates one direction for one arithmetic, so that they compile beside each other.
#pragma once

#include "common/launch.cuh"
#include "kron/launch.cuh"
#include "kron/slices.cuh"
#include "kron/weights.cuh"

namespace kron {

constexpr int kMoreThanHalf = 116 * 1024;  // Of a multiprocessor's shared memory.

// run.template operator()<Log>() for the factor's own Log.
template <class Kernels, class Run>
void with_factor(int log_factor, const Run& run) {
  const auto when_equal = [&]<int Log>() {
    if constexpr (Log >= Kernels::kSmallestLog) {
      if (Log == log_factor) run.template operator()<Log>();
    }
  };
  when_equal.template operator()<3>();
  when_equal.template operator()<4>();
  when_equal.template operator()<5>();
  when_equal.template operator()<6>();
  when_equal.template operator()<7>();
}

// run.template operator()<P>() for the plan of this factor and size.
template <class T, bool OnTensorCores, class Run>
void with_plan(int log_factor, int log_plan, const Run& run) {
  using Kernels = Fused<T, OnTensorCores>;
  with_factor<Kernels>(log_factor, [&]<int Log>() {
    if (log_plan == Kernels::kLargestPlan) run.template operator()<Plan<T, Log, Kernels::kLargestPlan, 256, OnTensorCores>>();
    if (log_plan == Kernels::kMiddlePlan) run.template operator()<Plan<T, Log, Kernels::kMiddlePlan, 256, OnTensorCores>>();
    if constexpr (Kernels::kSmallestPlan - Log >= log2_of(Kernels::kFewestRows)) {
      if (log_plan == Kernels::kSmallestPlan) run.template operator()<Plan<T, Log, Kernels::kSmallestPlan, 64, OnTensorCores>>();
    }
  });
}

template <class Plan, class Kernel>
void launch_chain(Kernel* kernel, const Chain<typename Plan::T>& chain, int bytes, cudaStream_t stream) {
  const int64_t blocks = (chain.elements + Plan::kElements - 1) / Plan::kElements;
  const int cluster = chain.stages > 1 ? 1 << chain.log_blocks : 1;
  // The scheduler puts two blocks of a cluster on one multiprocessor while others idle, unless they are too large for that.
  const bool alone = cluster > 1 && blocks <= warpwatch::multiprocessors();
  const int shared_bytes = alone && bytes < kMoreThanHalf ? kMoreThanHalf : bytes;
  launch_kernel(kernel, chain, dim3(static_cast<unsigned>(blocks)), Plan::kThreads, shared_bytes, cluster, stream);
}

template <class T, bool OnTensorCores>
void Fused<T, OnTensorCores>::forward(const Chain<T>& chain, int log_factor, int log_plan, cudaStream_t stream) {
  with_plan<T, OnTensorCores>(log_factor, log_plan, [&]<class P>() { launch_chain<P>(forward_chain<P>, chain, P::kSharedBytes, stream); });
}

template <class T, bool OnTensorCores>
void Fused<T, OnTensorCores>::backward(const Chain<T>& chain, int log_factor, int log_plan, cudaStream_t stream) {
  with_plan<T, OnTensorCores>(log_factor, log_plan, [&]<class P>() { launch_chain<P>(backward_chain<P>, chain, P::kBackwardBytes, stream); });
}

template <class Plan, class Kernel>
void launch_slices(Kernel* kernel, const Chain<typename Plan::T>& chain, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(chain.elements / Plan::kElements);
  launch_kernel(kernel, chain, dim3(blocks), Plan::kThreads, Plan::kSharedBytes, 1, stream);
}

template <class T, bool OnTensorCores>
void Fused<T, OnTensorCores>::forward_slices(const Chain<T>& chain, cudaStream_t stream) {
  using P = SlicePlan<T, OnTensorCores>;
  launch_slices<P>(kron::forward_slices<P>, chain, stream);
}

template <class T, bool OnTensorCores>
void Fused<T, OnTensorCores>::backward_slices(const Chain<T>& chain, cudaStream_t stream) {
  using P = SlicePlan<T, OnTensorCores>;
  launch_slices<P>(kron::backward_slices<P>, chain, stream);
}

template <class T, bool OnTensorCores>
void Fused<T, OnTensorCores>::weights(const Weights<T>& call, int log_factor, int parts, int stages, cudaStream_t stream) {
  with_factor<Fused>(log_factor, [&]<int Log>() {
    using P = WeightPlan<T, Log, OnTensorCores>;
    static_assert(P::kDepth == weight_depth(Log));
    launch_kernel(weight_parts_of<P>, call, dim3(parts, stages), P::kThreads, P::kSharedBytes, 1, stream);
  });
}

}  // namespace kron
