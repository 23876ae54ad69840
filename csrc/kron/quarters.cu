// A batch row is a matrix X of 128 x 128, and its two layers are four products with matrices of that size. The factors of a layer may
// be applied in any order, so the blocks of a cluster share a row such that they exchange what they computed once in forward and twice
// in backward:
//
//     H[o1, i2] = sum over i1 of X[i2, i1] * W1[i1, o1]      each block has 32 of the o1, and reads the whole of X
//     G[o1, o2] = sum over i2 of H[o1, i2] * W2[i2, o2]
//     Z[p2, o1] = sum over o2 of G[o1, o2] * V2[o2, p2]      here it gives up its 32 o1 for 32 of the p2
//     Y[p2, p1] = sum over o1 of Z[p2, o1] * V1[o1, p1]
//
// H, G and Z are what forward keeps. W and V are the first and the second layer's weights. Backward goes the same way back, and stores
// the gradients of the three such that each weight's gradient is a plain product of two matrices of 128 columns.
#include "kron/quarters.h"

#include <algorithm>

#include "common/launch.cuh"
#include "common/split_tiles.cuh"
#include "kron/device.cuh"
#include "kron/launch.cuh"

namespace kron::quarters {

constexpr int kFactor = 128, kSquare = kFactor * kFactor;
constexpr int kBlocks = 4, kQuarter = kFactor / kBlocks, kThreads = 256;

// Operands of 128 x 128 arrive in chunks of 32 steps of the sum, through a ring of slots.
constexpr int kDepth = 32, kChunk = kDepth * kFactor, kChunks = kFactor / kDepth, kSlots = 8;
constexpr int kQuarterElements = kQuarter * kFactor;
constexpr int kSharedBytes = (kSlots * kChunk + 4 * kQuarterElements) * static_cast<int>(sizeof(float));

// The matrices that one launch multiplies with, stage by stage, and where its results go.
struct Call {
  const float* large[4];  // 128 x 128 each; the first may depend on the batch row.
  const float* narrow;    // What the first of them is multiplied with.
  float* kept[3];         // Results of the first three stages, or null.
  float* out;
};

// What both directions have in common: this block's place, its memory, and the copies ahead.
struct Quarter {
  const Call& call;
  float* memory;
  int rank, lane, warp;
  int64_t row;  // Where the batch row begins.

  __device__ explicit Quarter(const Call& c)
      : call(c),
        memory(kron::shared_memory<float>()),
        rank(static_cast<int>(warpwatch::cluster_rank())),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        row(int64_t{blockIdx.x / kBlocks} * kSquare) {}

  __device__ float* slot(int chunk) const { return memory + chunk % kSlots * kChunk; }
  // 32 x 128 elements each: the narrow operand of the first stage, and three results.
  __device__ float* narrow() const { return memory + kSlots * kChunk; }
  __device__ Tile<kFactor> result(int i) const { return {narrow() + (1 + i) * kQuarterElements}; }

  // Of a product of 32 x 128, each warp has 32 x 16 elements; of one of 128 x 32, too.
  __device__ int wide() const { return warp * 16; }
  __device__ int tall_m() const { return warp / 2 * 32; }
  __device__ int tall_n() const { return warp % 2 * 16; }

  // Weights may lie in memory that no cache holds: all blocks together fetch those of later stages at once.
  __device__ void prefetch_later() const {
    constexpr int line = 32, lines = kSquare / line;
    const int i = blockIdx.x * kThreads + threadIdx.x;
    if (i < 2 * lines) kron::prefetch(call.large[2 + i / lines] + i % lines * line);
  }
};

// Runs one launch: `Direction` says how chunks are copied, those of the first stage by copy_first(c, to), later ones by copy(s, c, to).
template <class Direction>
struct Ring : Quarter {
  using Quarter::Quarter;
  static_assert(kChunks < kSlots);

  __device__ void begin() {
    for (int c = 0; c < kChunks; ++c) {
      static_cast<Direction*>(this)->copy_first(c, slot(c));
      warpwatch::close_copies();
    }
    for (int chunk = kChunks; chunk + 1 < kSlots; ++chunk) start(chunk);
    prefetch_later();
  }

  // `chunk` counts those of all stages.
  __device__ __forceinline__ void start(int chunk) {
    if (chunk < 4 * kChunks) static_cast<Direction*>(this)->copy(chunk / kChunks, chunk % kChunks, slot(chunk));
    warpwatch::close_copies();
  }

  // sum += what add(chunk's memory, k) adds for each chunk of a stage.
  template <class Add>
  __device__ __forceinline__ void stage(int s, const Add& add) {
#pragma unroll 1
    for (int c = 0; c < kChunks; ++c) {
      warpwatch::await_copies<kSlots - 2>();
      __syncthreads();
      start(s * kChunks + c + kSlots - 1);
      add(slot(s * kChunks + c), c * kDepth);
    }
  }
};

// What a chunk adds to a warp's sums.
template <Arithmetic How, class A, class B>
__device__ __forceinline__ void add_chunk(PairSums<32, 16>& sum, const A& a, const B& b) {
  kron::multiply<How, kDepth / 8, 4, 2, 32, 16>(sum, a, b);
}

// Sums of 32 x 128 or 128 x 32 elements into a block's own matrix and, unless it is null, to global memory.
template <class To>
__device__ __forceinline__ void put(const PairSums<32, 16>& sum, int lane, int m, int n, const To& to) {
  kron::each_pair<32, 16>(sum, lane, [&](int i, int j, float2 pair) { to(m + i, n + j, pair); });
}

template <Arithmetic How>
struct Forward : Ring<Forward<How>> {
  using Base = Ring<Forward<How>>;
  using Base::Base;
  using Base::call, Base::lane, Base::rank, Base::row;

  // X comes by columns, with as many rows of this block's columns of W1; all later weights by rows.
  __device__ __forceinline__ void copy_first(int c, float* to) const {
    Tile<kDepth>{to}.copy<kThreads, kFactor, kDepth>(call.large[0] + row + c * kDepth, kFactor, threadIdx.x);
    const float* w = call.narrow + c * kChunk + rank * kQuarter;
    Tile<kQuarter>{this->narrow() + c * kDepth * kQuarter}.copy<kThreads, kDepth, kQuarter>(w, kFactor, threadIdx.x);
  }

  __device__ __forceinline__ void copy(int s, int c, float* to) const {
    Tile<kFactor>{to}.copy<kThreads, kDepth, kFactor>(call.large[s] + c * kChunk, kFactor, threadIdx.x);
  }

  __device__ void keep(int stage, int64_t at, float2 pair) const {
    if (call.kept[stage] != nullptr) kron::store(call.kept[stage] + row + at, pair);
  }

  __device__ void run() {
    const int first = rank * kQuarter, wide = this->wide(), tall_m = this->tall_m(), tall_n = this->tall_n();
    const Tile<kFactor> h = this->result(0), g = this->result(1), z = this->result(2);
    warpwatch::cluster_arrive();
    this->begin();
    {
      PairSums<32, 16> sum = {};
      this->stage(0, [&](float* x, int k) {
        add_chunk<How>(sum, Down<kQuarter>({this->narrow()}, k, 0, lane), Across<kDepth>({x}, wide, 0, lane));
      });
      put(sum, lane, 0, wide, [&](int o1, int i2, float2 pair) {
        kron::store(h.at(o1, i2), pair);
        keep(0, (first + o1) * kFactor + i2, pair);
      });
    }
    {
      PairSums<32, 16> sum = {};
      this->stage(1, [&](float* w, int k) {
        add_chunk<How>(sum, Across<kFactor>(h, 0, k, lane), Down<kFactor>({w}, 0, wide, lane));
      });
      put(sum, lane, 0, wide, [&](int o1, int o2, float2 pair) {
        kron::store(g.at(o1, o2), pair);
        keep(1, (first + o1) * kFactor + o2, pair);
      });
    }
    {
      PairSums<32, 16> sum = {};
      this->stage(2, [&](float* w, int k) {
        add_chunk<How>(sum, Down<kFactor>({w}, 0, tall_m, lane), Across<kFactor>(g, tall_n, k, lane));
      });
      warpwatch::cluster_await();  // The other blocks have begun.
      put(sum, lane, tall_m, tall_n, [&](int p2, int o1, float2 pair) {
        kron::store(warpwatch::of_block(z.at(p2 % kQuarter, first + o1), tall_m / kQuarter), pair);
        keep(2, p2 * kFactor + first + o1, pair);
      });
      warpwatch::cluster_arrive();
      warpwatch::cluster_await();
    }
    PairSums<32, 16> sum = {};
    this->stage(3, [&](float* w, int k) {
      add_chunk<How>(sum, Across<kFactor>(z, 0, k, lane), Down<kFactor>({w}, 0, wide, lane));
    });
    put(sum, lane, 0, wide, [&](int p2, int p1, float2 pair) { kron::store(call.out + row + (first + p2) * kFactor + p1, pair); });
  }
};

// With D for the gradients: DZ[o1, p2], for 32 of the p2, from DY and V1; DG[o1, o2] from DZ and V2, for 32 of the o1; DH[i2, o1] from
// DG and W2; and DX[i2, i1] from DH and W1, for 32 of the i2. Every sum runs along the rows of both its operands.
template <Arithmetic How>
struct Backward : Ring<Backward<How>> {
  using Base = Ring<Backward<How>>;
  using Base::Base;
  using Base::call, Base::lane, Base::rank, Base::row;

  __device__ __forceinline__ void copy_first(int c, float* to) const {
    copy(0, c, to);
    const float* dy = call.narrow + row + rank * kQuarterElements + c * kDepth;
    Tile<kDepth>{this->narrow() + c * kDepth * kQuarter}.copy<kThreads, kQuarter, kDepth>(dy, kFactor, threadIdx.x);
  }

  __device__ __forceinline__ void copy(int s, int c, float* to) const {
    Tile<kDepth>{to}.copy<kThreads, kFactor, kDepth>(call.large[s] + c * kDepth, kFactor, threadIdx.x);
  }

  __device__ void run() {
    const int first = rank * kQuarter, wide = this->wide(), tall_m = this->tall_m(), tall_n = this->tall_n();
    const Tile<kFactor> dz = this->result(0), dg = this->result(1), dh = this->result(2);
    warpwatch::cluster_arrive();
    this->begin();
    {
      PairSums<32, 16> sum = {};
      this->stage(0, [&](float* v, int k) {
        const Tile<kDepth> dy{this->narrow() + k * kQuarter};
        add_chunk<How>(sum, Across<kDepth>({v}, tall_m, 0, lane), Across<kDepth>(dy, tall_n, 0, lane));
      });
      warpwatch::cluster_await();  // The other blocks have begun.
      exchange(0, dz, sum);
    }
    {
      PairSums<32, 16> sum = {};
      this->stage(1, [&](float* v, int k) {
        add_chunk<How>(sum, Across<kFactor>(dz, 0, k, lane), Across<kDepth>({v}, wide, 0, lane));
      });
      put(sum, lane, 0, wide, [&](int o1, int o2, float2 pair) {
        kron::store(dg.at(o1, o2), pair);
        kron::store(call.kept[1] + row + (first + o1) * kFactor + o2, pair);
      });
    }
    {
      PairSums<32, 16> sum = {};
      this->stage(2, [&](float* w, int k) {
        add_chunk<How>(sum, Across<kDepth>({w}, tall_m, 0, lane), Across<kFactor>(dg, tall_n, k, lane));
      });
      exchange(2, dh, sum);
    }
    PairSums<32, 16> sum = {};
    this->stage(3, [&](float* w, int k) {
      add_chunk<How>(sum, Across<kFactor>(dh, 0, k, lane), Across<kDepth>({w}, wide, 0, lane));
    });
    put(sum, lane, 0, wide, [&](int i2, int i1, float2 pair) { kron::store(call.out + row + (first + i2) * kFactor + i1, pair); });
  }

  // Each block has all rows of 32 columns, and gets all columns of 32 rows.
  __device__ void exchange(int stage, const Tile<kFactor>& to, const PairSums<32, 16>& sum) const {
    const int first = rank * kQuarter, m = this->tall_m();
    put(sum, lane, m, this->tall_n(), [&](int i, int j, float2 pair) {
      kron::store(warpwatch::of_block(to.at(i % kQuarter, first + j), m / kQuarter), pair);
      kron::store(call.kept[stage] + row + i * kFactor + first + j, pair);
    });
    warpwatch::cluster_arrive();
    warpwatch::cluster_await();
  }
};

template <class Direction>
__global__ __launch_bounds__(kThreads, 1) void run_quarters(const __grid_constant__ Call call) {
#if KRON_PAIRS_HERE
  Direction(call).run();
#endif
}

template <class Direction>
void launch(const kron::Shape& shape, const Call& call, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(shape.batch * kBlocks));
  kron::launch_kernel(run_quarters<Direction>, call, blocks, kThreads, kSharedBytes, kBlocks, stream);
}

// Batch rows that the current device computes at once, forward or backward: both have as many threads and as much shared memory. They must
// not disagree, as backward takes what forward kept.
int64_t rows_at_once() {
  static kron::DeviceCounts counts;
  return kron::clusters_at_once(counts, run_quarters<Forward<Arithmetic::three_terms>>, kThreads, kSharedBytes, kBlocks);
}

// A weight's gradient, the sum over all rows of a of a(row, i) * b(row, o).
split_tiles::Product weight_product(const float* a, const float* b, int64_t rows, float* gradient) {
  split_tiles::Product product{};
  product.segments[product.count++] = {{a, 1, kFactor}, {b, 1, kFactor}, rows};
  product.m = product.n = product.c_stride = kFactor;
  product.c = gradient;
  return product;
}

}  // namespace kron::quarters

namespace kron {

bool quarters_take(const Shape& shape) {
  const auto fits = [](int f) { return f == quarters::kFactor; };
  return shape.stages == 4 && std::all_of(shape.factor, shape.factor + 4, fits) && shape.batch <= quarters::rows_at_once();
}

template <Arithmetic How>
void quarters_forward(const Shape& shape, const Forward<float>& call, cudaStream_t stream) {
  const int64_t elements = shape.batch * quarters::kSquare;
  const auto kept = [&](int s) { return call.states ? call.states + s * elements : nullptr; };
  const float *w1 = call.w[0], *w2 = w1 + quarters::kSquare, *v1 = call.w[1], *v2 = v1 + quarters::kSquare;
  const quarters::Call operands{{call.x, w2, v2, v1}, w1, {kept(0), kept(1), kept(2)}, call.y};
  quarters::launch<quarters::Forward<How>>(shape, operands, stream);
}

int64_t quarters_scratch(const Shape& shape) { return 3 * shape.batch * quarters::kSquare; }

template <Arithmetic How>
const char* quarters_backward(const Shape& shape, const Backward<float>& call, cudaStream_t stream) {
  const int64_t elements = shape.batch * quarters::kSquare, rows = shape.batch * quarters::kFactor;
  const float *h = call.states, *g = h + elements, *z = g + elements;
  float *dz = call.scratch, *dg = dz + elements, *dh = dg + elements;
  const float *w1 = call.w[0], *w2 = w1 + quarters::kSquare, *v1 = call.w[1], *v2 = v1 + quarters::kSquare;
  const quarters::Call operands{{v1, v2, w2, w1}, call.gradient, {dz, dg, dh}, call.x_gradient};
  quarters::launch<quarters::Backward<How>>(shape, operands, stream);
  const split_tiles::Products products{{quarters::weight_product(z, call.gradient, rows, call.w_gradient[1]),
                                        quarters::weight_product(g, dz, rows, call.w_gradient[1] + quarters::kSquare),
                                        quarters::weight_product(h, dg, rows, call.w_gradient[0] + quarters::kSquare),
                                        quarters::weight_product(call.x, dh, rows, call.w_gradient[0])},
                                       4};
  return split_tiles::launch_shared<split_tiles::Plan<64, 64, 2, 2, 3, false, false>>(products, stream);
}

template void quarters_forward<Arithmetic::three_terms>(const Shape&, const Forward<float>&, cudaStream_t);
template const char* quarters_backward<Arithmetic::three_terms>(const Shape&, const Backward<float>&, cudaStream_t);

}  // namespace kron
