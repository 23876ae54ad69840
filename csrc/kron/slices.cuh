// A layer of two factors of 128 when the batch is too small to fill the GPU with whole batch rows: four blocks share a row, and none
// needs anything of the others. Each reads the whole row and computes a fourth of the first stage's outputs, those that its fourth of
// the second stage's outputs depends on.
//
// A fourth is 4096 elements, and an 8 x 8 tile for each of 256 threads would be four times that. On CUDA cores the threads are
// therefore four teams that share out the sum.
#pragma once

#include "kron/chain.cuh"

namespace kron {

template <class Element, bool OnTensorCores>
struct SlicePlan : Plan<Element, 7, 12, 256, OnTensorCores> {
  using Base = Plan<Element, 7, 12, 256, OnTensorCores>;
  using typename Base::T;
  static constexpr int kSlices = 4, kSlice = Base::F / kSlices, kRow = Base::F * Base::F;
  // In float, the ring holds all weights of the layer.
  static constexpr int kDepth = sizeof(T) == 4 ? 64 : 16, kRing = sizeof(T) == 4 ? 4 : 3;
  static constexpr int kSharedBytes = (kRow + Base::kElements + kRing * kDepth * Base::F) * static_cast<int>(sizeof(T));

  template <int QN, int PN>
  static auto product() {
    if constexpr (OnTensorCores) {
      return static_cast<TensorCores<T, QN, PN, 256, 32, 16>*>(nullptr);
    } else {
      return static_cast<CudaCores<T, QN, PN, 256, 8, 8>*>(nullptr);
    }
  }
  using Narrow = std::remove_pointer_t<decltype(product<kSlice, Base::F>())>;  // A slice of q.
  using Wide = std::remove_pointer_t<decltype(product<Base::F, kSlice>())>;    // A slice of p.
};

template <class Plan>
struct SliceWorker {
  using T = typename Plan::T;
  static constexpr int V = Plan::V, kLogV = Plan::kLogV, kLogF = Plan::kLogF, kLogSlice = log2_of(Plan::kSlice);
  const Chain<T>& chain;
  T *row, *state, *ring_memory;
  int64_t first;  // Where the batch row begins.
  int before;     // Columns of the slices before this one.

  __device__ explicit SliceWorker(const Chain<T>& c)
      : chain(c), row(shared_memory<T>()), state(row + Plan::kRow), ring_memory(state + Plan::kElements) {
    first = int64_t{blockIdx.x / Plan::kSlices} * Plan::kRow;
    before = blockIdx.x % Plan::kSlices * Plan::kSlice;
  }

  template <class Key>
  __device__ void load_row(const Key& key) const {
    for (int u = threadIdx.x; u < Plan::kRow / V; u += Plan::kThreads)
      copy16(row + (u ^ key(u)) * V, chain.in + first + u * V, true);
    close_copies();
  }

  // D, computed from weights that arrive chunk by chunk: add(product, chunk, k) for each.
  template <class Product, class Ring, class Add>
  __device__ Product sum(Ring& ring, const Add& add) const {
    Product product(threadIdx.x);
    for (int k = 0; k < Plan::F; k += Plan::kDepth) add(product, ring.next(), k);
    __syncthreads();
    return product;
  }

  // The slice's own columns of the first stage's W, or rows of the second's, where backward begins.
  struct ForwardNeeds {
    int before;
    __device__ bool operator()(int stage, int, int column) const {
      return stage == 1 || (column >= before && column < before + Plan::kSlice);
    }
  };
  struct BackwardNeeds {
    int before;
    __device__ bool operator()(int stage, int row, int) const { return stage == 0 || (row >= before && row < before + Plan::kSlice); }
  };

  __device__ void forward() const {
    WeightRing<Plan, false, ForwardNeeds> ring(chain, ring_memory, {before});
    using Narrow = typename Plan::Narrow;
    using Wide = typename Plan::Wide;
    constexpr int log = kLogF - kLogV;
    const auto narrow = sum<Narrow>(ring, [&](Narrow& product, const T* w, int k) {
      product.template add<Plan::kDepth>(TileP<Narrow, log>{row, k}, TileQ<Narrow, log>{w, before});
    });
    each_settled(narrow, row, [&](int o, int r, auto pack) {
      const int local = (o << kLogF) + r;
      store(chain.kept, ((before + o) << kLogF) + r, pack);
      *reinterpret_cast<decltype(pack)*>(state + (local / V ^ Plan::p_key(o)) * V + local % V) = pack;
    });
    const auto wide = sum<Wide>(ring, [&](Wide& product, const T* w, int k) {
      product.template add<Plan::kDepth>(TileP<Wide, log>{state, k}, TileQ<Wide, log>{w});
    });
    each_settled(wide, row, [&](int o, int r, auto pack) { store(chain.out, (o << kLogF) + before + r, pack); });
  }

  __device__ void backward() const {
    WeightRing<Plan, true, BackwardNeeds> ring(chain, ring_memory, {before});
    using Narrow = typename Plan::Narrow;
    using Wide = typename Plan::Wide;
    using Turned = typename Worker<Plan>::Turned;
    constexpr int log = log2_of(Plan::kDepth) - kLogV;
    const auto wide = sum<Wide>(ring, [&](Wide& product, const T* w, int k) {
      product.template add<Plan::kDepth>(TileP<Wide, log>{w + before * Plan::kDepth}, Turned{row, k, kLogF});
    });
    each_settled(wide, row, [&](int r, int i, auto pack) {
      const int local = (r << kLogSlice) + i;
      store(chain.kept, (r << kLogF) + before + i, pack);
      *reinterpret_cast<decltype(pack)*>(state + (local / V ^ Plan::turned_key(local / V, kLogSlice)) * V + local % V) = pack;
    });
    const auto narrow = sum<Narrow>(ring, [&](Narrow& product, const T* w, int k) {
      product.template add<Plan::kDepth>(TileP<Narrow, log>{w}, Turned{state, k, kLogSlice});
    });
    each_settled(narrow, row, [&](int r, int i, auto pack) { store(chain.out, ((before + r) << kLogF) + i, pack); });
  }

  template <class Pack>
  __device__ void store(T* to, int n, const Pack& pack) const {
    if (to != nullptr) *reinterpret_cast<Pack*>(to + first + n) = pack;
  }
};

template <class Plan>
__global__ __launch_bounds__(Plan::kThreads, 1) void forward_slices(const __grid_constant__ Chain<typename Plan::T> chain) {
#if KRON_FUSED_HERE
  const SliceWorker<Plan> worker(chain);
  worker.load_row([](int unit) { return Plan::p_key(unit >> (Plan::kLogF - Plan::kLogV)); });
  worker.forward();
#endif
}

template <class Plan>
__global__ __launch_bounds__(Plan::kThreads, 1) void backward_slices(const __grid_constant__ Chain<typename Plan::T> chain) {
#if KRON_FUSED_HERE
  const SliceWorker<Plan> worker(chain);
  worker.load_row([](int unit) { return Plan::turned_key(unit, Plan::kLogF); });
  worker.backward();
#endif
}

}  // namespace kron
