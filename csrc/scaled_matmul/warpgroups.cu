// The product on Hopper: one warpgroup starts copies of tiles into a ring, two others multiply them with wgmma.
//
// Scales of rows are multiplied with the results, whose sums stay in the tensor cores. Scales of blocks belong to the sum of each 128
// codes, which leaves the tensor cores and is added in f32. That takes more registers, so 128 columns are computed at a time, not 256.
//
// Two blocks of a cluster compute neighbouring tiles. They have the rows of one operand in common: each copies half of them to both.
// Blocks go on from tile to tile, so that the next tiles are on their way while one is stored.
#include "common/hopper.cuh"
#include "scaled_matmul/scaled_matmul.h"

namespace {

using scaled_matmul::kBlock;
using scaled_matmul::Product;
using warpwatch::Bf16;
using warpwatch::ceil_div;
using warpwatch::kSwizzleBytes;
using warpwatch::kSwizzleTile;
using warpwatch::kWarpgroup;

constexpr int kCluster = 2, kConsumers = 2, kWarps = kConsumers * 4, kThreads = (1 + kConsumers) * kWarpgroup;
// Codes of k in a stage, which are a row of a tile, and in one wgmma.
constexpr int kDepth = kSwizzleBytes, kStepDepth = 32;
static_assert(kDepth == kBlock);
// 64 rows of a tile, which a warpgroup multiplies at once: a wave.
constexpr int kWaveRows = 64, kWaveBytes = kWaveRows * kSwizzleBytes;
constexpr int kRingBytes = 192 * 1024;
// Of shared memory through which the results of a warp leave.
constexpr int kPartsBytes = warpwatch::kResultParts * warpwatch::kResultPart;

// A tile of kM x kN results, of which each warpgroup computes `Waves` waves.
template <int Waves, int Columns, bool ByBlock>
struct Plan {
  static constexpr bool kByBlock = ByBlock;  // Whether blocks have scales, and not rows.
  static constexpr int kWaves = Waves, kM = kConsumers * Waves * kWaveRows, kN = Columns;
  static constexpr int kBytesA = kM * kDepth, kStage = kBytesA + kN * kDepth, kStages = kRingBytes / kStage;
  static constexpr int kOut = kStages * kStage, kBarriers = kOut + kWarps * kPartsBytes;
  static constexpr int kSharedBytes = kBarriers + 2 * kStages * 8 + kSwizzleTile;
  // Tiles of a cluster lie beside each other and share rows of A, or below each other and share rows of B.
  static constexpr bool kSharesA = kM >= kN;
  static constexpr int kClusterM = kSharesA ? kM : kCluster * kM, kClusterN = kSharesA ? kCluster * kN : kN;
  // Rows of A and of B that a copy brings.
  static constexpr int kCopiedA = kSharesA ? kM / kCluster : kM, kCopiedB = kSharesA ? kN : kN / kCluster;
};

struct Maps {
  CUtensorMap a, b, y;
};

// As in Product, with the last indices that there are.
struct Scaling {
  const float *a, *b;
  int a_step, b_step, last_row, last_column;
};

using Grid = warpwatch::TileGrid;  // Of tiles of a cluster.

#if defined(WARPWATCH_HOPPER)
template <class P>
using Ring = warpwatch::Ring<P::kStages, P::kStage>;

template <class P>
using Sums = float[P::kWaves][P::kN / 2];

// First row and column of a tile of this block.
template <class P>
struct Place {
  int m, n;

  __device__ Place(const Grid& grid, int tile, int rank) {
    const warpwatch::TilePlace place(grid, tile);
    m = place.row * P::kClusterM + (P::kSharesA ? 0 : rank * P::kM);
    n = place.column * P::kClusterN + (P::kSharesA ? rank * P::kN : 0);
  }
};

template <class P>
__device__ void copy_tiles(const Maps& maps, const Grid& grid, Ring<P> ring, int rank, int cluster, int clusters) {
  constexpr uint16_t all = (1 << kCluster) - 1;
  for (int tile = cluster; tile < grid.tiles; tile += clusters) {
    const Place<P> place(grid, tile, rank);
    for (int step = 0; step < grid.steps; ++step, ring.advance()) {
      uint64_t* full = ring.full + ring.slot;
      unsigned char *a = ring.tile(), *b = a + P::kBytesA;
      const int k = step * kDepth;
      ring.await_empty();
      warpwatch::arrive_expecting(full, P::kStage);
      if constexpr (P::kSharesA) {
        const int first = rank * P::kCopiedA;
        warpwatch::load_tile_of_all(maps.a, a + first * kDepth, full, k, place.m + first, 0, all);
        warpwatch::load_tile(maps.b, b, full, k, place.n, 0);
      } else {
        const int first = rank * P::kCopiedB;
        warpwatch::load_tile(maps.a, a, full, k, place.m, 0);
        warpwatch::load_tile_of_all(maps.b, b + first * kDepth, full, k, place.n + first, 0, all);
      }
    }
  }
}

// A read that the compiler leaves where it stands, long before its result is used.
__device__ inline float read_ahead(const float* from) {
  float value;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(from) : "memory");
  return value;
}

// Products of the scales of this lane's rows and of 128 columns, for four blocks of k: of four lanes, which have the same rows, each
// has one of the blocks. Those of the next four are on their way.
template <class P>
struct BlockScales {
  float product[P::kWaves][2], a[P::kWaves][2], b;

  __device__ void read(const Scaling& scaling, const Place<P>& place, int lane_row, int first_step, int steps) {
    const int step = min(first_step + static_cast<int>(threadIdx.x % 4), steps - 1);
    b = read_ahead(scaling.b + min(place.n, scaling.last_column) / kBlock * scaling.b_step + step);
#pragma unroll
    for (int i = 0; i < 2 * P::kWaves; ++i) {
      const int row = place.m + lane_row + i / 2 * kWaveRows + i % 2 * 8;
      a[i / 2][i % 2] = read_ahead(scaling.a + min(row, scaling.last_row) * scaling.a_step + step);
    }
  }

  __device__ void take() {
#pragma unroll
    for (int i = 0; i < 2 * P::kWaves; ++i) product[i / 2][i % 2] = a[i / 2][i % 2] * b;
  }

  __device__ float of(int wave, int half, int step) const { return __shfl_sync(~0u, product[wave][half], step % 4, 4); }
};

// Scales of this lane's rows, and of some of the columns: of eight lanes, which have the same columns, each has an eighth.
template <class P>
struct RowScales {
  static constexpr int kEach = P::kN / 64;  // Pairs of columns of a lane.
  float a[2], b[kEach][2];

  __device__ void read(const Scaling& scaling, const Place<P>& place, int lane_row) {
    const int lane = threadIdx.x % 32, first = place.n + lane / 4 * kEach * 8 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) a[i] = read_ahead(scaling.a + min(place.m + lane_row + i * 8, scaling.last_row) * scaling.a_step);
#pragma unroll
    for (int i = 0; i < 2 * kEach; ++i)
      b[i / 2][i % 2] = read_ahead(scaling.b + min(first + i / 2 * 8 + i % 2, scaling.last_column) * scaling.b_step);
  }

  __device__ void apply(float (&sum)[P::kN / 2]) const {
#pragma unroll
    for (int j = 0; j < P::kN / 8; ++j) {
      const int lane = j / kEach * 4 + threadIdx.x % 4;
      const float left = __shfl_sync(~0u, b[j % kEach][0], lane), right = __shfl_sync(~0u, b[j % kEach][1], lane);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        sum[j * 4 + i * 2] *= a[i] * left;
        sum[j * 4 + i * 2 + 1] *= a[i] * right;
      }
    }
  }
};

// Starts the products of a wave in one stage.
template <int N>
__device__ void multiply_stage(float (&sum)[N], const unsigned char* a, const unsigned char* b, bool add) {
  const uint64_t left = warpwatch::operand_of(a), right = warpwatch::operand_of(b);
  warpwatch::pin(sum);
  warpwatch::open_products();
#pragma unroll
  for (int k = 0; k < kDepth / kStepDepth; ++k) {
    const int along = k * kStepDepth / 16;
    warpwatch::multiply_codes<2 * N>(sum, left + along, right + along, add || k > 0);
  }
  warpwatch::close_products();
  warpwatch::pin(sum);
}

// Sums of a tile that stay in the tensor cores.
template <class P>
__device__ void sum_in_cores(float (&sum)[P::kN / 2], const Grid& grid, Ring<P>& ring, int group) {
  static_assert(P::kWaves == 1);
  int last = -1;
  for (int step = 0; step < grid.steps; ++step) {
    ring.await_full();
    multiply_stage(sum, ring.tile() + group * kWaveBytes, ring.tile() + P::kBytesA, step > 0);
    // The products of the step before have ended when no more than this step's are under way.
    warpwatch::await_products<1>();
    if (last >= 0) ring.release_in_cluster(last, kCluster);
    last = ring.slot;
    ring.advance();
  }
  warpwatch::await_products<0>();
  warpwatch::pin(sum);
  ring.release_in_cluster(last, kCluster);
}

// Sums of a tile of which each part of 128 codes is scaled and added in f32. While a warpgroup adds, the other one multiplies.
template <class P>
__device__ void sum_by_block(Sums<P>& sum, BlockScales<P>& scales, const Scaling& scaling, const Place<P>& place, const Grid& grid,
                             Ring<P>& ring, int group, int lane_row) {
  constexpr int each = P::kN / 2;
#pragma unroll
  for (int i = 0; i < P::kWaves * each; ++i) sum[i / each][i % each] = 0;
  float part[each];
  for (int step = 0; step < grid.steps; ++step, ring.advance()) {
    if (step % 4 == 0) {
      scales.take();
      if (step + 4 < grid.steps) scales.read(scaling, place, lane_row, step + 4, grid.steps);
    }
    ring.await_full();
    const unsigned char* a = ring.tile() + group * P::kWaves * kWaveBytes;
#pragma unroll
    for (int wave = 0; wave < P::kWaves; ++wave) {
      multiply_stage(part, a + wave * kWaveBytes, ring.tile() + P::kBytesA, false);
      const float upper = scales.of(wave, 0, step), lower = scales.of(wave, 1, step);
      warpwatch::await_products<0>();
      warpwatch::pin(part);
      if (wave == P::kWaves - 1) ring.release_in_cluster(ring.slot, kCluster);
#pragma unroll
      for (int i = 0; i < each; ++i) sum[wave][i] += part[i] * (i % 4 < 2 ? upper : lower);
    }
  }
}

template <class P>
__device__ void multiply_tiles(const Maps& maps, const Scaling& scaling, const Grid& grid, Ring<P> ring, unsigned char* parts, int rank,
                               int cluster, int clusters) {
  const int group = warpwatch::multiplying_group(), warp = threadIdx.x / 32 % 4;
  const int warp_row = group * P::kWaves * kWaveRows + warp * 16, lane_row = warp_row + threadIdx.x % 32 / 4;
  Sums<P> sum;
  BlockScales<P> of_blocks;
  if constexpr (P::kByBlock) of_blocks.read(scaling, Place<P>(grid, cluster, rank), lane_row, 0, grid.steps);
  for (int tile = cluster; tile < grid.tiles; tile += clusters) {
    const Place<P> place(grid, tile, rank);
    if constexpr (P::kByBlock) {
      sum_by_block<P>(sum, of_blocks, scaling, place, grid, ring, group, lane_row);
      // The first scales of the next tile come while this one is stored.
      if (tile + clusters < grid.tiles) of_blocks.read(scaling, Place<P>(grid, tile + clusters, rank), lane_row, 0, grid.steps);
    } else {
      RowScales<P> of_rows;
      of_rows.read(scaling, place, lane_row);
      sum_in_cores<P>(sum[0], grid, ring, group);
      of_rows.apply(sum[0]);
    }
#pragma unroll
    for (int wave = 0; wave < P::kWaves; ++wave) {
      const int row = place.m + warp_row + wave * kWaveRows;
      warpwatch::store_results<Bf16, P::kN>(maps.y, sum[wave], parts + (group * 4 + warp) * kPartsBytes, row, place.n, 0);
    }
  }
  if (threadIdx.x % 32 == 0) warpwatch::await_store_reads<0>();
}
#endif

template <class P>
__global__ __launch_bounds__(kThreads, 1) void scaled_warpgroups(const __grid_constant__ Maps maps, const __grid_constant__ Scaling scaling,
                                                                 const __grid_constant__ Grid grid) {
#if defined(WARPWATCH_HOPPER)
  extern __shared__ __align__(16) unsigned char bytes[];
  unsigned char* memory = bytes + (kSwizzleTile - warpwatch::shared_address(bytes) % kSwizzleTile) % kSwizzleTile;
  const Ring<P> ring(memory, reinterpret_cast<uint64_t*>(memory + P::kBarriers));
  const int rank = static_cast<int>(warpwatch::cluster_rank());
  const int cluster = blockIdx.x / kCluster, clusters = gridDim.x / kCluster;
  if (threadIdx.x == 0) {
    ring.init(kCluster * kWarps);
    warpwatch::publish_barriers();
    warpwatch::prefetch_map(maps.a), warpwatch::prefetch_map(maps.b), warpwatch::prefetch_map(maps.y);
  }
  __syncthreads();
  warpwatch::cluster_arrive();
  warpwatch::cluster_await();
  if (threadIdx.x < kWarpgroup) {
    warpwatch::give_up_registers<40>();
    if (threadIdx.x == 0) copy_tiles<P>(maps, grid, ring, rank, cluster, clusters);
    __syncwarp();
  } else {
    warpwatch::take_registers<232>();
    multiply_tiles<P>(maps, scaling, grid, ring, memory + P::kOut, rank, cluster, clusters);
    __syncwarp();
  }
  // No block may end while another one of the cluster copies to it or arrives at its barriers.
  warpwatch::cluster_arrive();
  warpwatch::cluster_await();
#endif
}

// The map of a matrix of rows for tiles of `rows` rows of kSwizzleBytes.
template <class T>
bool make_map(CUtensorMap& map, const T* data, int64_t height, int64_t width, uint32_t rows) {
  return warpwatch::make_tensor_map(map, data, {{width, 1, kSwizzleBytes / sizeof(T)}, {height, width, rows}, {1, 1, 1}});
}

template <class P>
int64_t cluster_tiles(const Product& call) {
  return ceil_div(call.m, P::kClusterM) * ceil_div(call.n, P::kClusterN);
}

// Clusters that run at once.
int64_t clusters_at_once() { return std::max(1, warpwatch::multiprocessors() / kCluster); }

template <class P>
const char* launch(const Product& call, void* stream) {
  Maps maps;
  const bool mapped = make_map(maps.a, call.a, call.m, call.k, P::kCopiedA) && make_map(maps.b, call.b, call.n, call.k, P::kCopiedB) &&
                      make_map(maps.y, call.y, call.m, call.n, 16);
  if (!mapped) return "the copy engine cannot take these tensors";
  const Scaling scaling{call.a_scale, call.b_scale, call.a_step, call.b_step, static_cast<int>(call.m - 1), static_cast<int>(call.n - 1)};
  const Grid grid{static_cast<int>(ceil_div(call.m, P::kClusterM)), static_cast<int>(ceil_div(call.n, P::kClusterN)),
                  static_cast<int>(cluster_tiles<P>(call)), static_cast<int>(ceil_div(call.k, kDepth))};
  const int64_t blocks = std::min<int64_t>(grid.tiles, clusters_at_once()) * kCluster;
  return warpwatch::launch_in_clusters(scaled_warpgroups<P>, kCluster, blocks, kThreads, P::kSharedBytes, warpwatch::as_stream(stream),
                                       maps, scaling, grid);
}

// How long it takes, in the time that one result of a tile takes.
template <class P>
int64_t time_of(const Product& call) {
  return ceil_div(cluster_tiles<P>(call), clusters_at_once()) * P::kM * P::kN;
}

template <class Large, class Small>
const char* launch_best(const Product& call, void* stream) {
  // Small tiles read more for each product: they pay where large ones leave multiprocessors idle.
  return time_of<Small>(call) * 10 < time_of<Large>(call) * 9 ? launch<Small>(call, stream) : launch<Large>(call, stream);
}

}  // namespace

const char* scaled_matmul::warpgroups_on(const Product& call, void* stream) {
  if (!warpwatch::is_hopper()) return "its instructions exist on compute capability 9.0 alone";
  if (call.by_block) return launch_best<Plan<2, 128, true>, Plan<1, 128, true>>(call, stream);
  return launch_best<Plan<1, 256, false>, Plan<1, 128, false>>(call, stream);
}
