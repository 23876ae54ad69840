// Blocks that hold the weights of both layers and go from batch row to batch row. The factors of a layer may be applied in any order,
// so they are in the one in which a warp can go through several stages with what it has in registers: a plane of 32 x 64 or 32 x 32
// elements, whose rows stay while its columns are multiplied with one matrix after another. Shared memory turns the planes in between.
//
// Two factors of 64, two warps for each row:
//     A[o1, i2] = sum over i1 of X[i2, i1] * W1[i1, o1]        each warp has 32 of the o1
//     B[o1, o2] = sum over i2 of A[o1, i2] * W2[i2, o2]
//     C[o1, p2] = sum over o2 of B[o1, o2] * V2[o2, p2]        through shared memory: from here, each warp has 32 of the p2
//     Y[p2, p1] = sum over o1 of C[o1, p2] * V1[o1, p1]
// Three factors of 32, where a warp takes a plane, and then others:
//     A[o1, i2], B[o1, o2] with W1 and W2, for each i3         through shared memory
//     C[o3, o2], D[p2, o3], E[p3, p2] with W3, V2 and V3, for each o1    through shared memory
//     Y[p2, p1] with V1, for each p3
#include "kron/planes.h"

#include <algorithm>

#include "common/launch.cuh"
#include "kron/device.cuh"
#include "kron/launch.cuh"

namespace kron::planes {

struct Call {
  const float* x;
  const float* w[2];  // Packed, factor 1 first.
  float* y;
  int64_t batch;
};

// A barrier of the threads that share a batch row.
template <int Threads>
__device__ __forceinline__ void team_barrier(int team) {
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(Threads) : "memory");
}

// Two factors of 64. A warp has 32 rows of a plane of 64, and a team of two warps the whole.
struct Two {
  static constexpr int kFactor = 64, kSquare = kFactor * kFactor, kRows = 32;
  // As many batch rows a block has at hand at once.
  static constexpr int kTeams = 4, kTeam = kFactor / kRows * 32, kThreads = kTeams * kTeam;
  // All weights, and for each team the batch row at hand and the next one.
  static constexpr int kSharedBytes = (4 + 2 * kTeams) * kSquare * static_cast<int>(sizeof(float));
  using Plane = Tile<kFactor>;
  using PlaneSums = PairSums<kRows, kFactor>;

  template <Arithmetic How, class A, class B>
  static __device__ __forceinline__ void multiply(PlaneSums& sum, const A& a, const B& b) {
    kron::multiply<How, 8, 4, 4, kRows, 64>(sum, a, b);
  }

  template <Arithmetic How>
  static __device__ void run(const Call& call) {
    float* memory = kron::shared_memory<float>();
    const int thread = threadIdx.x, lane = thread % 32, team = thread / kTeam, mine = thread % kTeam / 32 * kRows;
    const auto weight = [&](int i) { return Plane{memory + i * kSquare}; };
    const auto buffer = [&](int i) { return Plane{memory + (4 + 2 * team + i) * kSquare}; };
    const int64_t first = blockIdx.x + int64_t{gridDim.x} * team, hop = int64_t{gridDim.x} * kTeams;
    const auto start = [&](int64_t b, int to) {
      if (b < call.batch) buffer(to).template copy<kTeam, kFactor, kFactor>(call.x + b * kSquare, kFactor, thread % kTeam);
      warpwatch::close_copies();
    };
    for (int i = 0; i < 4; ++i)
      weight(i).template copy<kThreads, kFactor, kFactor>(call.w[i / 2] + i % 2 * kSquare, kFactor, thread);
    start(first, 0);
    warpwatch::await_copies<0>();
    __syncthreads();

    int now = 0;
    for (int64_t b = first; b < call.batch; b += hop) {
      start(b + hop, 1 - now);
      warpwatch::await_copies<1>();
      team_barrier<kTeam>(team);
      const Plane plane = buffer(now);
      PlaneSums sum = {};
      multiply<How>(sum, Down<kFactor>(weight(0), 0, mine, lane), Across<kFactor>(plane, 0, 0, lane));
      // W2, then V2: not unrolled, so that their code fits into the instruction cache.
#pragma unroll 1
      for (int i = 1; i < 4; i += 2) {
        PlaneSums next = {};
        multiply<How>(next, Held<kRows, 64>{sum}, Down<kFactor>(weight(i), 0, 0, lane));
        take(sum, next);
      }
      team_barrier<kTeam>(team);  // All have read X.
      kron::each_pair<kRows, 64>(sum, lane, [&](int o1, int p2, float2 pair) { kron::store(plane.at(mine + o1, p2), pair); });
      team_barrier<kTeam>(team);
      PlaneSums last = {};
      multiply<How>(last, Down<kFactor>(plane, 0, mine, lane), Down<kFactor>(weight(2), 0, 0, lane));
      float* y = call.y + b * kSquare;
      kron::each_pair<kRows, 64>(last, lane, [&](int p2, int p1, float2 pair) { kron::store(y + (mine + p2) * kFactor + p1, pair); });
      team_barrier<kTeam>(team);  // All have read the plane, and its place is free.
      now = 1 - now;
    }
    warpwatch::await_copies<0>();
  }

  static __device__ void take(PlaneSums& to, const PlaneSums& from) {
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) to[i][j][e] = from[i][j][e];
  }
};

// Three factors of 32, all warps of a block being one team.
struct Three {
  static constexpr int kFactor = 32, kSquare = kFactor * kFactor, kCube = kSquare * kFactor;
  static constexpr int kTeams = 1, kWarps = 8, kThreads = kWarps * 32;
  static constexpr int kAhead = 2;  // Planes of X that each warp has on their way or at hand.
  // All weights, a batch row between its phases, and the planes of X.
  static constexpr int kSharedBytes = (6 * kSquare + kCube + kWarps * kAhead * kSquare) * static_cast<int>(sizeof(float));
  using Plane = Tile<kFactor>;

  // The cube of a batch row between two phases, (o1, b, c): planes whose rows are permuted by the plane's number as well, so that
  // pairs of one row of several planes lie in different banks, too.
  struct Cube {
    float* base;
    __device__ int turn(int a, int b) const { return Plane::turn(a) ^ Plane::turn(b); }
    __device__ float* at(int a, int b, int c) const { return base + a * kSquare + b * kFactor + (c ^ turn(a, b)); }
  };

  // Plane `a` of the cube as an operand: row b is summed over, c stays.
  struct Within {
    const float* plane;
    int turn[2];

    __device__ Within(const Cube& cube, int a, int lane_of_warp)
        : plane(cube.base + a * kSquare + lane_of_warp % 4 * 2 * kFactor + lane_of_warp / 4),
          turn{cube.turn(a, lane_of_warp % 4 * 2), cube.turn(a, lane_of_warp % 4 * 2 + 1)} {}
    __device__ float2 pair(int block, int step) const {
      const float* at = plane + step * 8 * kFactor;
      return {at[(block * 8) ^ turn[0]], at[kFactor + ((block * 8) ^ turn[1])]};
    }
  };

  // Row `b` of all planes as an operand: the plane a is summed over, c stays.
  struct Through {
    const float* row;
    int turn[2];

    __device__ Through(const Cube& cube, int b, int lane)
        : row(cube.base + lane % 4 * 2 * kSquare + b * kFactor + lane / 4),
          turn{cube.turn(lane % 4 * 2, b), cube.turn(lane % 4 * 2 + 1, b)} {}
    __device__ float2 pair(int block, int step) const {
      const float* at = row + step * 8 * kSquare;
      return {at[(block * 8) ^ turn[0]], at[kSquare + ((block * 8) ^ turn[1])]};
    }
  };

  template <Arithmetic How, class A, class B>
  static __device__ __forceinline__ void multiply(PairSums<32, 32>& sum, const A& a, const B& b) {
    kron::multiply<How, 4, 2, 2, 32, 32>(sum, a, b);
  }

  template <Arithmetic How>
  static __device__ void run(const Call& call) {
    float* memory = kron::shared_memory<float>();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const auto weight = [&](int i) { return Down<kFactor>(Plane{memory + i * kSquare}, 0, 0, lane); };
    const Cube cube{memory + 6 * kSquare};
    float* planes = memory + 6 * kSquare + kCube + warp * kAhead * kSquare;
    // Every thread is below kThreads, but the machine code that was measured comes with the condition.
    for (int i = 0; i < 6 && threadIdx.x < kThreads; ++i)
      Plane{memory + i * kSquare}.template copy<kThreads, kFactor, kFactor>(call.w[i / 3] + i % 3 * kSquare, kFactor, threadIdx.x);

    // The planes that this warp takes of each batch row, one batch row after the other.
    int64_t next_row = blockIdx.x;
    int next_plane = warp, slot = 0;
    const auto start = [&](int to) {
      if (next_row < call.batch) {
        const float* from = call.x + next_row * kCube + next_plane * kSquare;
        Plane{planes + to * kSquare}.template copy<32, kFactor, kFactor>(from, kFactor, lane);
      }
      warpwatch::close_copies();
      next_plane += kWarps;
      if (next_plane >= kFactor) next_plane = warp, next_row += gridDim.x;
    };
    for (int i = 0; i < kAhead; ++i) start(i);
    warpwatch::await_copies<0>();
    __syncthreads();

    for (int64_t b = blockIdx.x; b < call.batch; b += gridDim.x) {
#pragma unroll 1
      for (int i3 = warp; i3 < kFactor; i3 += kWarps) {
        warpwatch::await_copies<kAhead - 1>();
        __syncwarp();
        PairSums<32, 32> a = {}, product = {};
        multiply<How>(a, weight(0), Across<kFactor>(Plane{planes + slot * kSquare}, 0, 0, lane));
        __syncwarp();
        start(slot);
        slot = slot + 1 == kAhead ? 0 : slot + 1;
        multiply<How>(product, Held<32, 32>{a}, weight(1));
        kron::each_pair<32, 32>(product, lane, [&](int o1, int o2, float2 values) { kron::store(cube.at(o1, i3, o2), values); });
      }
      __syncthreads();
#pragma unroll 1
      for (int o1 = warp; o1 < kFactor; o1 += kWarps) {
        PairSums<32, 32> c = {}, d = {}, e = {};
        multiply<How>(c, weight(2), Within(cube, o1, lane));
        multiply<How>(d, weight(4), Held<32, 32>{c});
        multiply<How>(e, weight(5), Held<32, 32>{d});
        __syncwarp();  // All lanes have read the plane.
        kron::each_pair<32, 32>(e, lane, [&](int p3, int p2, float2 values) { kron::store(cube.at(o1, p3, p2), values); });
      }
      __syncthreads();
#pragma unroll 1
      for (int p3 = warp; p3 < kFactor; p3 += kWarps) {
        PairSums<32, 32> sum = {};
        multiply<How>(sum, Through(cube, p3, lane), weight(3));
        float* y = call.y + b * kCube + p3 * kSquare;
        kron::each_pair<32, 32>(sum, lane, [&](int p2, int p1, float2 values) { kron::store(y + p2 * kFactor + p1, values); });
      }
      __syncthreads();
    }
    warpwatch::await_copies<0>();
  }
};

template <class Planes, Arithmetic How>
__global__ __launch_bounds__(Planes::kThreads, 1) void run_planes(const __grid_constant__ Call call) {
#if KRON_PAIRS_HERE
  Planes::template run<How>(call);
#endif
}

template <class Planes, Arithmetic How>
void launch(const Call& call, cudaStream_t stream) {
  const int64_t wanted = std::min(warpwatch::ceil_div(call.batch, Planes::kTeams), int64_t{warpwatch::multiprocessors()});
  const dim3 blocks(static_cast<unsigned>(wanted));
  kron::launch_kernel(run_planes<Planes, How>, call, blocks, Planes::kThreads, Planes::kSharedBytes, 1, stream);
}

// Whether the batch is large enough. Each of a block's teams takes a batch row at a time, and a round in which some have none takes as
// long as a full one. On an H200, batches of 1024 were measured faster than without planes: they fill 97 % of two rounds of two factors,
// and of eight of three. 64 rows of two factors and 32 of three were slower. The crossover was not measured, so this asks for two rounds
// at least, as full as those.
bool fills_rounds(int64_t batch, int teams) {
  const int64_t round = int64_t{teams} * warpwatch::multiprocessors(), rounds = warpwatch::ceil_div(batch, round);
  return rounds >= 2 && 16 * batch >= 15 * rounds * round;
}

}  // namespace kron::planes

namespace kron {

bool planes_take(const Shape& shape) {
  const auto all = [&](int stages, int factor) {
    return shape.stages == stages && std::all_of(shape.factor, shape.factor + stages, [=](int f) { return f == factor; });
  };
  if (all(4, 64)) return planes::fills_rounds(shape.batch, planes::Two::kTeams);
  return all(6, 32) && planes::fills_rounds(shape.batch, planes::Three::kTeams);
}

template <Arithmetic How>
void planes_forward(const Shape& shape, const Forward<float>& call, cudaStream_t stream) {
  const planes::Call operands{call.x, {call.w[0], call.w[1]}, call.y, shape.batch};
  if (shape.stages == 4) return planes::launch<planes::Two, How>(operands, stream);
  planes::launch<planes::Three, How>(operands, stream);
}

template void planes_forward<Arithmetic::three_terms>(const Shape&, const Forward<float>&, cudaStream_t);
template void planes_forward<Arithmetic::tf32>(const Shape&, const Forward<float>&, cudaStream_t);

}  // namespace kron
