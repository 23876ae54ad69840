// Several stages in one launch: the state stays in shared memory from the first to the last and goes through each of them in place.
//
// A block holds kElements of the state: several batch rows, or one, or an equal share of one, whose blocks then form a cluster and
// write what they compute into each other's shared memory. Weights stream through a ring of chunks, loaded ahead across stages.
// All stages of a launch have the same factor, a power of two from 8 to 128.
#pragma once

#include "kron/fused.h"
#include "kron/multiply.cuh"

// Fused kernels are built for Hopper only: they need its clusters and its shared memory, and every further architecture would cost as
// much compile time again. Other cards take the path of general.cuh.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
#define KRON_FUSED_HERE 1
#endif

namespace kron {

constexpr int kRing = 3;


// How a block is cut up for a factor of 1 << LogFactor. A thread computes 64, 32 or 16 elements of every stage.
template <class Element, int LogFactor, int LogElements, int Threads, bool OnTensorCores>
struct Plan {
  using T = Element;
  static constexpr int V = kVector<T>, kLogV = log2_of(V);
  static constexpr int kLogF = LogFactor, F = 1 << kLogF;
  static constexpr int kLog = LogElements, kElements = 1 << kLog, kRows = kElements / F, kThreads = Threads;
  // A state that is small enough is kept twice, which saves the barrier between reading and writing it.
  static constexpr int kStates = kElements * sizeof(T) <= 32768 ? 2 : 1;
  static constexpr int kDepth = smaller(F, 128 / sizeof(T));  // Steps along k of a chunk of weights.
  static constexpr int kSharedBytes = kStates * kElements * sizeof(T) + kRing * kDepth * F * sizeof(T);
  static constexpr int kEach = kElements / kThreads, kWide = kEach >= 32 ? 8 : 4, kNarrow = kEach / kWide;
  static constexpr int kWarp = kEach * 32;  // Elements of a warp.
  static constexpr int kWarpO = kWarp >= 2048 ? 64 : 32;  // Of these, along the factor's axis on tensor cores.

  static auto forward_product() {
    if constexpr (OnTensorCores) {
      constexpr int rows = smaller(kRows, kWarp / smaller(F, kWarpO));
      return static_cast<TensorCores<T, F, kRows, Threads, kWarp / rows, rows>*>(nullptr);
    } else {
      return static_cast<CudaCores<T, F, kRows, Threads, kWide, kNarrow>*>(nullptr);
    }
  }

  static auto backward_product() {
    if constexpr (OnTensorCores) {
      constexpr int rows = smaller(kRows, kWarp / smaller(F, kWarpO / 2));
      return static_cast<TensorCores<T, kRows, F, Threads, rows, kWarp / rows>*>(nullptr);
    } else {
      return static_cast<CudaCores<T, kRows, F, Threads, kWide, kNarrow>*>(nullptr);
    }
  }

  using ForwardProduct = std::remove_pointer_t<decltype(forward_product())>;
  using BackwardProduct = std::remove_pointer_t<decltype(backward_product())>;

  static __device__ int p_key(int row) { return OnTensorCores ? (sizeof(T) == 4 ? row & 7 : (row & 3) << 1) : (row / V) & 7; }
  static __device__ int q_key(int k) { return OnTensorCores ? (k & 3) << 1 : (k / V) & 7; }
  // Key of a unit of the state read as Q, in rows of 1 << log_row elements. On CUDA cores reading needs none; writing does where
  // rows of few units would all begin in the same bank.
  static __device__ int turned_key(int unit, int log_row) {
    if (OnTensorCores) return (unit >> (log_row - kLogV) & 3) << 1;
    return kLogF <= 4 ? unit >> kLogF & 7 : 0;
  }
};

// The ring of weight chunks. `Turned` chunks are columns of W, for the backward pass, others rows.
template <class Plan, bool Turned>
struct WeightRing {
  using T = typename Plan::T;
  static constexpr int kLogRow = Turned ? log2_of(Plan::kDepth) : Plan::kLogF;  // Of a chunk.
  const Chain<T>& chain;
  T* base;
  int stage, part = 0, slot = 0;

  __device__ WeightRing(const Chain<T>& c, T* memory) : chain(c), base(memory), stage(Turned ? c.stages - 1 : 0) {
    for (int i = 0; i + 1 < kRing; ++i) load(i);
  }

  __device__ T* at(int index) const { return base + index * (Plan::kDepth * Plan::F); }

  // Starts loading the next chunk of the chain; past its end, closes an empty group so that groups and chunks stay in step.
  __device__ void load(int into) {
    if (stage >= 0 && stage < chain.stages) {
      const T* w = chain.weight[stage] + part * Plan::kDepth * (Turned ? 1 : Plan::F);
      for (int u = threadIdx.x; u < Plan::kDepth * Plan::F / Plan::V; u += Plan::kThreads) {
        const int row = u >> (kLogRow - Plan::kLogV), column = (u * Plan::V) & ((1 << kLogRow) - 1);
        const int key = Turned ? Plan::p_key(row) : Plan::q_key(row);
        copy16(at(into) + (u ^ key) * Plan::V, w + row * Plan::F + column, true);
      }
      if (++part == Plan::F / Plan::kDepth) {
        part = 0;
        stage += Turned ? -1 : 1;
      }
    }
    close_copies();
  }

  // The next chunk, once it has arrived for all threads. Everything a thread wrote to shared memory before is seen by all after.
  __device__ const T* next() {
    await_copies<kRing - 2>();
    __syncthreads();
    const T* chunk = at(slot);
    load(slot == 0 ? kRing - 1 : slot - 1);
    slot = slot + 1 == kRing ? 0 : slot + 1;
    return chunk;
  }
};

// One block's part in a chain.
template <class Plan>
struct Worker {
  using T = typename Plan::T;
  static constexpr int V = Plan::V, kLogV = Plan::kLogV;
  const Chain<T>& chain;
  T* states;
  int current = 0;
  int64_t first;  // Where the block's share of the whole batch begins; blocks of one batch row follow each other.
  int rank;

  __device__ explicit Worker(const Chain<T>& c)
      : chain(c), states(shared_memory<T>()), first(int64_t{blockIdx.x} << Plan::kLog), rank(blockIdx.x & ((1 << c.log_blocks) - 1)) {}

  __device__ T* ring_memory() const { return states + Plan::kStates * Plan::kElements; }
  __device__ T* state() const { return states + current * Plan::kElements; }
  __device__ T* next_state() const { return Plan::kStates == 2 ? states + (1 - current) * Plan::kElements : states; }
  __device__ bool clustered() const { return chain.log_blocks > 0 && chain.stages > 1; }

  __device__ void barrier() const {
    if (clustered()) {
      cluster_arrive();
      cluster_await();
    } else {
      __syncthreads();
    }
  }

  // Before a stage's results are written: nobody reads their place any more.
  __device__ void before_writing(bool first_stage) const {
    if (Plan::kStates == 1 || (first_stage && clustered())) barrier();
  }

  // After: the other blocks' results are here. Within a block the ring's own barrier sees to that.
  __device__ void after_writing() {
    if (clustered()) barrier();
    if (Plan::kStates == 2) current = 1 - current;
  }

  __device__ int log_rows() const { return chain.log_size - Plan::kLogF; }  // Rows of the whole batch row.
  __device__ int log_row() const { return smaller(chain.log_size, Plan::kLog) - Plan::kLogF; }  // Its rows in this block.
  __device__ int64_t batch_row() const { return chain.log_blocks > 0 ? first >> chain.log_size << chain.log_size : first; }

  __device__ void load_rows() {
    for (int u = threadIdx.x; u < Plan::kElements / V; u += Plan::kThreads) {
      const int key = Plan::p_key(u >> (Plan::kLogF - kLogV));
      const int64_t from = first + u * V;
      copy16(state() + (u ^ key) * V, chain.in + from, from < chain.elements);
    }
    close_copies();
  }

  __device__ void load_turned() {
    const int row = log_row();
    for (int u = threadIdx.x; u < Plan::kElements / V; u += Plan::kThreads) {
      const int e = u * V, o = e >> row, r = e & ((1 << row) - 1);
      const int64_t from = batch_row() + (chain.log_blocks > 0 ? (o << log_rows()) + (rank << row) + r : e);
      copy16(state() + (u ^ Plan::turned_key(u, row)) * V, chain.in + from, from < chain.elements);
    }
    close_copies();
  }

  // out[o, r] = sum over i of in[r, i] * w[i, o]: P is the state, Q is w.
  __device__ void forward(int s, WeightRing<Plan, false>& ring) {
    using Product = typename Plan::ForwardProduct;
    Product product(threadIdx.x);
    for (int k = 0; k < Plan::F; k += Plan::kDepth) {
      const T* w = ring.next();
      product.template add<Plan::kDepth>(TileP<Product, Plan::kLogF - kLogV>{state(), k}, TileQ<Product, Plan::kLogF - kLogV>{w});
    }
    const bool last = s + 1 == chain.stages;
    if (!last) before_writing(s == 0);
    const int rows = log_rows(), rows_mask = (1 << rows) - 1, r0 = rank * Plan::kRows;
    const auto index = [&](int o, int m) { return (m >> rows << chain.log_size) + (o << rows) + ((r0 + m) & rows_mask); };
    store_global(product, last ? chain.out : chain.kept ? chain.kept + s * chain.elements : nullptr, batch_row(), index);
    if (last) return;
    store_state(product, index, [](int n) {
      const int local = n & (Plan::kElements - 1), unit = local / V;
      return Place{(unit ^ Plan::p_key(unit >> (Plan::kLogF - kLogV))) * V + local % V, n >> Plan::kLog};
    });
  }

  // in_gradient[r, i] = sum over o of gradient[o, r] * w[i, o]: P is w, Q is the state.
  __device__ void backward(int s, WeightRing<Plan, true>& ring) {
    using Product = typename Plan::BackwardProduct;
    Product product(threadIdx.x);
    for (int k = 0; k < Plan::F; k += Plan::kDepth) {
      const T* w = ring.next();
      product.template add<Plan::kDepth>(TileP<Product, log2_of(Plan::kDepth) - kLogV>{w}, Turned{state(), k, log_row()});
    }
    const bool last = s == 0;
    if (!last) before_writing(s + 1 == chain.stages);
    const auto index = [](int m, int i) { return m * Plan::F + i; };
    store_global(product, last ? chain.out : chain.kept ? chain.kept + (s - 1) * chain.elements : nullptr, first, index);
    if (last) return;
    const int row = log_row(), rows = log_rows(), before = rank << Plan::kLog;
    store_state(product, index, [&](int e) {
      // In a cluster, each block has its share of r for all of o.
      const int n = before + e, r = n & ((1 << rows) - 1);
      const int local = clustered() ? (n >> rows << row) + (r & ((1 << row) - 1)) : e, unit = local / V;
      return Place{(unit ^ Plan::turned_key(unit, row)) * V + local % V, r >> row};
    });
  }

  // Where an element of the next state lies: its place in the state of a block of the cluster.
  struct Place {
    int at, block;
  };

  template <class Product, class Index>
  __device__ void store_global(const Product& product, T* to, int64_t base, const Index& index) const {
    if (to == nullptr) return;
    const int inside = static_cast<int>(chain.elements - base < (1 << 30) ? chain.elements - base : 1 << 30);
    product.each([&](int q, int p, auto pack) {
      const int n = index(q, p);
      if (n < inside) *reinterpret_cast<decltype(pack)*>(to + base + n) = pack;
    });
  }

  template <class Product, class Index, class Find>
  __device__ void store_state(const Product& product, const Index& index, const Find& find) {
    T* next = next_state();
    if (clustered()) {
      product.each([&](int q, int p, auto pack) {
        const Place place = find(index(q, p));
        *reinterpret_cast<decltype(pack)*>(of_block(next + place.at, place.block)) = pack;
      });
    } else {
      product.each([&](int q, int p, auto pack) { *reinterpret_cast<decltype(pack)*>(next + find(index(q, p)).at) = pack; });
    }
    after_writing();
  }

  // The state read as Q: row k is o, columns are the block's rows r, batch row by batch row.
  struct Turned {
    const T* base;
    int first_row, log_row;

    __device__ int index(int k, int q) const {
      return (q >> log_row << (log_row + Plan::kLogF)) + (q & ((1 << log_row) - 1)) + ((k + first_row) << log_row);
    }
    __device__ Pack<T, V> unit(int u, int j, int q) const {
      const int at = index(u * V, q) / V + (j << (log_row - kLogV));
      return reinterpret_cast<const Pack<T, V>*>(base)[at ^ Plan::turned_key(at, log_row)];
    }
    __device__ T element(int k, int t, int q, int g) const {
      return base[(index(k + t, q) / V + g / V ^ Plan::q_key(t)) * V + g % V];
    }
  };
};

template <class Plan>
__global__ __launch_bounds__(Plan::kThreads, 2) void forward_chain(const __grid_constant__ Chain<typename Plan::T> chain) {
#if KRON_FUSED_HERE
  Worker<Plan> worker(chain);
  worker.load_rows();
  WeightRing<Plan, false> ring(chain, worker.ring_memory());
  for (int s = 0; s < chain.stages; ++s) worker.forward(s, ring);
#endif
}

template <class Plan>
__global__ __launch_bounds__(Plan::kThreads, 2) void backward_chain(const __grid_constant__ Chain<typename Plan::T> chain) {
#if KRON_FUSED_HERE
  Worker<Plan> worker(chain);
  worker.load_turned();
  WeightRing<Plan, true> ring(chain, worker.ring_memory());
  for (int s = chain.stages - 1; s >= 0; --s) worker.backward(s, ring);
#endif
}

}  // namespace kron
