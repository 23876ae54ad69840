// Weight gradients of all stages with one factor in one launch: dW[i, o] = sum over b, r of in[b, r, i] * gradient[b, o, r].
//
// The sum runs over the whole batch, so every block takes a part of it and keeps its f x f sums in registers until the end; the
// parts are added up by a second kernel, always in the same order. Factors must be powers of two from 8 to 128.
#pragma once

#include "kron/chain.cuh"

namespace kron {

constexpr int kRing = 3;
constexpr int kChunkBytes = 16384;  // Of each operand in the ring.

template <class Element, int LogFactor, bool OnTensorCores>
struct WeightPlan {
  using T = Element;
  static constexpr int V = kVector<T>, kLogV = log2_of(V);
  static constexpr int kLog = LogFactor, F = 1 << kLog;
  static constexpr int kThreads = F == 8 ? 128 : 256;
  static constexpr int kDepth = kChunkBytes / static_cast<int>(sizeof(T)) / F;  // Rows of a chunk.
  static constexpr int kChunk = kDepth * F;

  static auto product() {
    if constexpr (OnTensorCores) {
      return static_cast<TensorCores<T, F, F, kThreads, smaller(F, 64), smaller(F, 32)>*>(nullptr);
    } else {
      return static_cast<CudaCores<T, F, F, kThreads, 8, 8>*>(nullptr);
    }
  }
  using Product = std::remove_pointer_t<decltype(product())>;

  static constexpr int kRingBytes = kRing * 2 * kChunk * static_cast<int>(sizeof(T));
  static constexpr int kSumBytes = kSettling<Product> * static_cast<int>(sizeof(T));
  static constexpr int kSharedBytes = kRingBytes > kSumBytes ? kRingBytes : kSumBytes;
  static constexpr int kBlocks = sizeof(T) == 4 && kSharedBytes <= 113 * 1024 ? 2 : 1;  // Per multiprocessor.
};

template <class Plan>
struct WeightWorker {
  using T = typename Plan::T;
  static constexpr int V = Plan::V, kLogDepth = log2_of(Plan::kDepth);
  const Weights<T>& call;
  int64_t next_row, end;

  __device__ explicit WeightWorker(const Weights<T>& c) : call(c), next_row(int64_t{blockIdx.x} * c.rows_of_part) {
    end = next_row + c.rows_of_part < c.rows ? next_row + c.rows_of_part : c.rows;
  }

  __device__ T* chunk(int slot) const { return shared_memory<T>() + slot * 2 * Plan::kChunk; }

  // The next kDepth rows: of `in` as Q, (row, i), and of the gradient as P, (o, row).
  __device__ void load(int slot) {
    if (next_row < end) {
      using Product = typename Plan::Product;
      const T *in = call.in[blockIdx.y], *gradient = call.gradient[blockIdx.y];
      const int log_rows = call.log_size - Plan::kLog;
      for (int u = threadIdx.x; u < Plan::kChunk / V; u += Plan::kThreads) {
        const int row = u >> (Plan::kLog - Plan::kLogV), o = u >> (kLogDepth - Plan::kLogV);
        copy16(chunk(slot) + (u ^ Product::q_key(row)) * V, in + (next_row << Plan::kLog) + u * V, next_row + row < end);
        const int64_t at = next_row + (u * V & (Plan::kDepth - 1));
        const int64_t from = (at >> log_rows << call.log_size) + (int64_t{o} << log_rows) + (at & ((1 << log_rows) - 1));
        copy16(chunk(slot) + Plan::kChunk + (u ^ Product::p_key(o)) * V, gradient + from, at < end);
      }
      next_row += Plan::kDepth;
    }
    close_copies();
  }

  template <class Product>
  __device__ void store(const Product& product) const {
    T* out = call.partial + (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * (Plan::F * Plan::F);
    await_copies<0>();
    __syncthreads();
    each_settled(product, shared_memory<T>(),
                 [&](int i, int o, auto pack) { *reinterpret_cast<decltype(pack)*>(out + i * Plan::F + o) = pack; });
  }
};

template <class Plan>
__global__ __launch_bounds__(Plan::kThreads, Plan::kBlocks) void weight_parts_of(const __grid_constant__ Weights<typename Plan::T> call) {
#if KRON_FUSED_HERE
  using T = typename Plan::T;
  using Product = typename Plan::Product;
  WeightWorker<Plan> worker(call);
  const int64_t rows = worker.end - worker.next_row;
  Product product(threadIdx.x);
  for (int i = 0; i + 1 < kRing; ++i) worker.load(i);
  int slot = 0;
  for (int64_t done = 0; done < rows; done += Plan::kDepth) {
    await_copies<kRing - 2>();
    __syncthreads();
    worker.load(slot == 0 ? kRing - 1 : slot - 1);
    const T* chunk = worker.chunk(slot);
    product.template add<Plan::kDepth>(TileP<Product, log2_of(Plan::kDepth) - Plan::kLogV>{chunk + Plan::kChunk},
                                       TileQ<Product, Plan::kLog - Plan::kLogV>{chunk});
    slot = slot + 1 == kRing ? 0 : slot + 1;
  }
  worker.store(product);
#endif
}

}  // namespace kron
