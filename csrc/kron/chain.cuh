// Several stages in one launch: the state stays in shared memory from the first to the last and goes through each of them in place.
//
// A block holds kElements of the state: several batch rows, or one, or an equal share of one, whose blocks then form a cluster.
// Weights stream through a ring of chunks, loaded ahead across stages. All stages of a launch have the same factor, a power of two
// from 8 to 128.
//
// In a cluster each block has the elements in whose index a certain field of bits, at `split`, equals its rank. A stage moves all axes
// by one place, and the field with them. As long as the field lies outside the axis that is summed over, a block needs no other block's
// elements; before it does, the blocks exchange theirs through each other's shared memory and begin with the field in another place.
#pragma once

#include "kron/fused.h"
#include "kron/multiply.cuh"

// Fused kernels are built for Hopper only: they need its clusters and its shared memory, and every further architecture would cost as
// much compile time again. Other cards take the path of general.cuh.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
#define KRON_FUSED_HERE 1
#endif

namespace kron {



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
  // Small blocks are there for small batches, where nothing but chunks under way hides the time that they take.
  static constexpr int kRing = kStates == 1 ? 3 : 8;
  static constexpr int kSharedBytes = (kStates * kElements + kRing * kDepth * F) * static_cast<int>(sizeof(T));
  // Backward has 4 x 4 sums of weight gradients in each thread besides, and adds those of the teams up behind the ring.
  static constexpr bool kSumsWeights = Fused<T, OnTensorCores>::sums_weights(kLogF, kLog);
  static constexpr int kBackwardBytes = kSharedBytes + (kSumsWeights ? Threads * 16 * static_cast<int>(sizeof(T)) : 0);
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

  static auto weight_product() {
    if constexpr (kSumsWeights) return static_cast<CudaCores<T, F, F, Threads, 4, 4>*>(nullptr);
  }

  using ForwardProduct = std::remove_pointer_t<decltype(forward_product())>;
  using BackwardProduct = std::remove_pointer_t<decltype(backward_product())>;
  using WeightProduct = std::remove_pointer_t<decltype(weight_product())>;

  static __device__ int p_key(int row) { return OnTensorCores ? (sizeof(T) == 4 ? row & 7 : (row & 3) << 1) : (row / V) & 7; }
  static __device__ int q_key(int k) { return OnTensorCores ? (k & 3) << 1 : (k / V) & 7; }
  // Key of a unit of the state read as Q, in rows of 1 << log_row elements. On CUDA cores reading needs none; writing does where
  // rows of few units would all begin in the same bank.
  static __device__ int turned_key(int unit, int log_row) {
    if (OnTensorCores) return (unit >> (log_row - kLogV) & 3) << 1;
    return kLogF <= 4 ? unit >> kLogF & 7 : 0;
  }
};

struct AllWeights {
  __device__ bool operator()(int, int, int) const { return true; }
};

// The ring of weight chunks. `Turned` chunks are columns of W, for the backward pass, others rows. Of a stage's W, only what
// needs(stage, row, column) says is loaded.
template <class Plan, bool Turned, class Needs = AllWeights>
struct WeightRing {
  using T = typename Plan::T;
  static constexpr int kLogRow = Turned ? log2_of(Plan::kDepth) : Plan::kLogF;  // Of a chunk.
  const Chain<T>& chain;
  T* base;
  int stage, part = 0, slot = 0;
  Needs needs;

  __device__ WeightRing(const Chain<T>& c, T* memory, Needs n = {})
      : chain(c), base(memory), stage(Turned ? c.stages - 1 : 0), needs(n) {
    for (int i = 0; i + 1 < Plan::kRing; ++i) load(i);
  }

  __device__ T* at(int index) const { return base + index * (Plan::kDepth * Plan::F); }

  // Starts loading the next chunk of the chain; past its end, closes an empty group so that groups and chunks stay in step.
  __device__ void load(int into) {
    if (stage >= 0 && stage < chain.stages) {
      const T* w = chain.weight[stage] + part * Plan::kDepth * (Turned ? 1 : Plan::F);
      for (int u = threadIdx.x; u < Plan::kDepth * Plan::F / Plan::V; u += Plan::kThreads) {
        const int row = u >> (kLogRow - Plan::kLogV), column = (u * Plan::V) & ((1 << kLogRow) - 1);
        const int key = Turned ? Plan::p_key(row) : Plan::q_key(row);
        if (needs(stage, row, column)) copy16(at(into) + (u ^ key) * Plan::V, w + row * Plan::F + column, true);
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
    await_copies<Plan::kRing - 2>();
    __syncthreads();
    const T* chunk = at(slot);
    load(slot == 0 ? Plan::kRing - 1 : slot - 1);
    slot = slot + 1 == Plan::kRing ? 0 : slot + 1;
    return chunk;
  }
};

// One block's part in a chain.
template <class Plan>
struct Worker {
  using T = typename Plan::T;
  static constexpr int V = Plan::V, kLogV = Plan::kLogV, kLogF = Plan::kLogF;
  const Chain<T>& chain;
  T* states;
  int current = 0;
  int64_t first;  // Where the block's batch row, or its several, begin in the whole batch.
  int rank, split = 0;
  bool met = false;  // The blocks of the cluster have waited for each other since they last read the other state.

  __device__ explicit Worker(const Chain<T>& c)
      : chain(c), states(shared_memory<T>()), rank(blockIdx.x & ((1 << c.log_blocks) - 1)) {
    first = int64_t{blockIdx.x} << Plan::kLog;
    if (c.log_blocks > 0) first = first >> c.log_size << c.log_size;
  }

  __device__ T* ring_memory() const { return states + Plan::kStates * Plan::kElements; }
  __device__ T* state() const { return states + current * Plan::kElements; }
  __device__ T* next_state() const { return Plan::kStates == 2 ? states + (1 - current) * Plan::kElements : states; }
  __device__ int log_rows() const { return chain.log_size - kLogF; }  // Of a batch row.
  __device__ int log_row() const { return smaller(chain.log_size, Plan::kLog) - kLogF; }  // Of a batch row in this block.

  // The index with this block's rank put in at bit `at`, and an index with that field taken out.
  __device__ int with_rank(int index, int at) const {
    return (index >> at << (at + chain.log_blocks)) | (rank << at) | (index & ((1 << at) - 1));
  }
  __device__ int without_rank(int index, int at) const {
    return (index >> (at + chain.log_blocks) << at) | (index & ((1 << at) - 1));
  }

  // Weights may lie in memory that no cache holds. All blocks together fetch all of them at once, not chunk after chunk.
  __device__ void prefetch_weights() const {
    constexpr int line = 128 / sizeof(T), lines = Plan::F * Plan::F / line;
    for (int64_t i = int64_t{blockIdx.x} * Plan::kThreads + threadIdx.x; i < chain.stages * lines;
         i += int64_t{gridDim.x} * Plan::kThreads)
      prefetch(chain.weight[i / lines] + i % lines * line);
  }

  // Starts copying the state in, its units at the places that key(unit) says.
  template <class Key>
  __device__ void load(const Key& key) {
    for (int u = threadIdx.x; u < Plan::kElements / V; u += Plan::kThreads) {
      const int64_t from = first + with_rank(u * V, split);
      copy16(state() + (u ^ key(u)) * V, chain.in + from, from < chain.elements);
    }
    close_copies();
  }

  __device__ void load_rows() {
    split = chain.log_size - chain.log_blocks;
    load([](int unit) { return Plan::p_key(unit >> (kLogF - kLogV)); });
  }

  // Backward, the field begins low, so that it is long on its way, but not so low that rows in memory are cut into small pieces.
  __device__ int lowest_split() const {
    const int high = log_rows() - chain.log_blocks;
    return chain.stages == 1 ? high : smaller(2 * kLogF - chain.log_blocks, high);
  }

  __device__ void load_turned() {
    split = lowest_split();
    load([&](int unit) { return Plan::turned_key(unit, log_row()); });
  }

  // out[o, r] = sum over i of in[r, i] * w[i, o]: P is the state, Q is w.
  __device__ void forward(int s, WeightRing<Plan, false>& ring) {
    using Product = typename Plan::ForwardProduct;
    Product product(threadIdx.x);
    for (int k = 0; k < Plan::F; k += Plan::kDepth) {
      const T* w = ring.next();
      product.template add<Plan::kDepth>(TileP<Product, kLogF - kLogV>{state(), k}, TileQ<Product, kLogF - kLogV>{w});
    }
    const bool last = s + 1 == chain.stages;
    const int rows = log_rows(), row = log_row(), at = split - kLogF;
    const auto index = [&](int o, int m) {
      return (m >> rows << chain.log_size) + (o << rows) + (with_rank(m, at) & ((1 << rows) - 1));
    };
    store_global(product, last ? chain.out : chain.kept ? chain.kept + s * chain.elements : nullptr, index);
    if (last) return;
    const auto place = [](int local) {
      const int unit = local / V;
      return (unit ^ Plan::p_key(unit >> (kLogF - kLogV))) * V + local % V;
    };
    // The next stage must find its own axis whole, and the vectors of r that it writes as well.
    if (chain.log_blocks > 0 && at < kLogF + kLogV) {
      exchange(product, [&](int o, int m) {
        const int n = index(o, m);
        return Place{place(n & (Plan::kElements - 1)), n >> Plan::kLog};
      });
      split = chain.log_size - chain.log_blocks;
    } else {
      store_state(product, [&](int o, int m) { return place((m >> row << (row + kLogF)) + (o << row) + (m & ((1 << row) - 1))); });
      split = at;
    }
  }

  // in_gradient[r, i] = sum over o of gradient[o, r] * w[i, o]: P is w, Q is the state.
  __device__ void backward(int s, WeightRing<Plan, true>& ring) {
    using Product = typename Plan::BackwardProduct;
    Product product(threadIdx.x);
    for (int k = 0; k < Plan::F; k += Plan::kDepth) {
      const T* w = ring.next();
      if (k == 0) before_stage(s);
      product.template add<Plan::kDepth>(TileP<Product, log2_of(Plan::kDepth) - kLogV>{w}, Turned{state(), k, log_row()});
    }
    const auto index = [&](int m, int i) { return (with_rank(m, split) << kLogF) + i; };
    const auto place = [&](int local) {
      const int unit = local / V;
      return (unit ^ Plan::turned_key(unit, log_row())) * V + local % V;
    };
    const auto place_here = [&](int m, int i) { return place(m * Plan::F + i); };
    if (s == 0 && kLogF > 4) return store_global(product, chain.out, index);
    if (s > 0 && chain.log_blocks > 0 && split + kLogF + chain.log_blocks > log_rows()) {
      const int next_split = lowest_split();
      exchange(product, [&](int m, int i) {
        const int n = index(m, i);
        return Place{place(without_rank(n, next_split)), n >> next_split & ((1 << chain.log_blocks) - 1)};
      });
      split = next_split;
    } else {
      store_state(product, place_here);
      split += kLogF;
    }
    if (s > 0) return;
    // Rows this short would be stored in pieces of 16 or 32 bytes each from registers.
    __syncthreads();
    copy_state(chain.out);
  }

  // What has to happen to the gradient of a stage's output while it is the state.
  __device__ void before_stage(int s) const {
    if constexpr (Plan::kSumsWeights) {
      if (chain.partial) return sum_weights(s);
    }
    if (chain.kept && s + 1 < chain.stages) copy_state(chain.kept + s * chain.elements);
  }

  // dW[i, o] = sum over r of in[r, i] * gradient[o, r], over this block's rows: P is the state, Q is in global memory.
  __device__ void sum_weights(int s) const {
    using Product = typename Plan::WeightProduct;
    Product product(threadIdx.x);
    const T* in = s == 0 ? chain.first_in : chain.later_in + (s - 1) * chain.elements;
    product.template add<Plan::kRows>(TurnedP{{state(), 0, log_row()}}, Inputs{*this, in});
    T* out = chain.partial + (int64_t{s} * gridDim.x + blockIdx.x) * (Plan::F * Plan::F);
    each_settled(product, ring_memory() + Plan::kRing * Plan::kDepth * Plan::F,
                 [&](int i, int o, auto pack) { *reinterpret_cast<decltype(pack)*>(out + i * Plan::F + o) = pack; });
  }

  template <class Product, class Index>
  __device__ void store_global(const Product& product, T* to, const Index& index) const {
    if (to == nullptr) return;
    const int inside = static_cast<int>(chain.elements - first < (1 << 30) ? chain.elements - first : 1 << 30);
    product.each([&](int q, int p, auto pack) {
      const int n = index(q, p);
      if (n < inside) *reinterpret_cast<decltype(pack)*>(to + first + n) = pack;
    });
  }

  // The whole state from shared to global memory, backward only.
  __device__ void copy_state(T* to) const {
    const auto* units = reinterpret_cast<const Pack<T, V>*>(state());
#pragma unroll 4
    for (int u = threadIdx.x; u < Plan::kElements / V; u += Plan::kThreads) {
      const int64_t n = first + with_rank(u * V, split);
      if (n < chain.elements) *reinterpret_cast<Pack<T, V>*>(to + n) = units[u ^ Plan::turned_key(u, log_row())];
    }
  }

  // A stage's results become this block's next state, which the ring's barrier makes visible to all threads.
  template <class Product, class Find>
  __device__ void store_state(const Product& product, const Find& find) {
    if (Plan::kStates == 1) __syncthreads();
    T* next = next_state();
    product.each([&](int q, int p, auto pack) { *reinterpret_cast<decltype(pack)*>(next + find(q, p)) = pack; });
    if (Plan::kStates == 2) current = 1 - current;
    met = false;
  }

  // Where an element of the next state lies: its place in the state of a block of the cluster.
  struct Place {
    int at, block;
  };

  // A stage's results become the next state of whichever block needs them.
  template <class Product, class Find>
  __device__ void exchange(const Product& product, const Find& find) {
    if (Plan::kStates == 1 || !met) cluster_barrier();
    T* next = next_state();
    product.each([&](int q, int p, auto pack) {
      const Place place = find(q, p);
      *reinterpret_cast<decltype(pack)*>(of_block(next + place.at, place.block)) = pack;
    });
    cluster_barrier();
    if (Plan::kStates == 2) current = 1 - current;
    met = true;
  }

  __device__ void cluster_barrier() const {
    cluster_arrive();
    cluster_await();
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

  // The same state read as P: rows are o, columns are the block's rows r.
  struct TurnedP {
    Turned turned;
    __device__ Pack<T, V> unit(int o, int j, int u) const {
      const int at = turned.index(o + j, u * V) / V;
      return reinterpret_cast<const Pack<T, V>*>(turned.base)[at ^ Plan::turned_key(at, turned.log_row)];
    }
  };

  // What the stage had as its input, read as Q: row k is r, columns are i. Rows past the end of the batch are zero.
  struct Inputs {
    const Worker& worker;
    const T* in;
    __device__ Pack<T, V> unit(int u, int j, int i) const {
      const int64_t at = worker.first + (worker.with_rank(u * V, worker.split) + j) * Plan::F + i;
      return at < worker.chain.elements ? *reinterpret_cast<const Pack<T, V>*>(in + at) : Pack<T, V>{};
    }
  };
};

template <class Plan>
__global__ __launch_bounds__(Plan::kThreads, 2) void forward_chain(const __grid_constant__ Chain<typename Plan::T> chain) {
#if KRON_FUSED_HERE
  Worker<Plan> worker(chain);
  worker.load_rows();
  WeightRing<Plan, false> ring(chain, worker.ring_memory());
  worker.prefetch_weights();
  for (int s = 0; s < chain.stages; ++s) worker.forward(s, ring);
#endif
}

template <class Plan>
__global__ __launch_bounds__(Plan::kThreads, 2) void backward_chain(const __grid_constant__ Chain<typename Plan::T> chain) {
#if KRON_FUSED_HERE
  Worker<Plan> worker(chain);
  worker.load_turned();
  WeightRing<Plan, true> ring(chain, worker.ring_memory());
  worker.prefetch_weights();
  for (int s = chain.stages - 1; s >= 0; --s) worker.backward(s, ring);
#endif
}

}  // namespace kron
