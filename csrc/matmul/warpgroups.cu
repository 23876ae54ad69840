// The rung for Hopper: one warpgroup starts copies of tiles into a ring, two others multiply them with wgmma, each 64 rows of 256
// columns, or of 128.
//
// Two blocks of a cluster compute tiles below each other. They have the columns of B in common: each copies half of them to both.
// Blocks go on from tile to tile, so that the next tiles are on their way while one is stored.
#include "common/hopper.cuh"
#include "matmul/tiles.cuh"

namespace matmul {

using warpwatch::kSwizzleTile;
using warpwatch::kWarpgroup;

constexpr int kM = 128, kK = 64, kCluster = 2, kConsumers = 2;
constexpr int kThreads = (1 + kConsumers) * kWarpgroup, kWarps = kConsumers * 4;
// A tile of 64 x 64 elements, of which all others are made.
constexpr int kSquare = 64 * 64 * 2;
// Of shared memory through which the results of a warp leave.
constexpr int kPartsBytes = warpwatch::kResultParts * warpwatch::kResultPart;

template <int Columns, bool ByRowsA, bool ByRowsB>
struct WarpgroupPlan {
  static constexpr bool kRowsA = ByRowsA, kRowsB = ByRowsB;  // Whether k is the contiguous axis.
  static constexpr int kN = Columns, kStages = kN == 256 ? 4 : 6;
  static constexpr int kBytesA = kM / 64 * kSquare, kBytesB = kN / 64 * kSquare, kStage = kBytesA + kBytesB;
  static constexpr int kOut = kStages * kStage, kBarriers = kOut + kWarps * kPartsBytes;
  static constexpr int kSharedBytes = kBarriers + 2 * kStages * 8 + kSwizzleTile;
};

}  // namespace matmul

namespace {

using namespace matmul;

struct Maps {
  CUtensorMap a, b, c;
};

using Grid = warpwatch::TileGrid;  // Of tiles of a cluster.

#if defined(WARPWATCH_HOPPER)
template <class P>
struct Place {
  int m, n, batch;

  __device__ Place(const Grid& grid, int tile) {
    const warpwatch::TilePlace place(grid, tile);
    m = place.row * kCluster * kM;
    n = place.column * P::kN;
    batch = place.batch;
  }
};

template <class P>
using Ring = warpwatch::Ring<P::kStages, P::kStage>;

template <class P>
__device__ void copy_tiles(const Maps& maps, const Grid& grid, Ring<P> ring, uint32_t rank, int cluster, int clusters) {
  for (int tile = cluster; tile < grid.tiles; tile += clusters) {
    const Place<P> place(grid, tile);
    const int m = place.m + rank * kM, n = place.n + rank * (P::kN / kCluster);
    for (int step = 0; step < grid.steps; ++step, ring.advance()) {
      uint64_t* full = ring.full + ring.slot;
      const int k = step * kK;
      ring.await_empty();
      warpwatch::arrive_expecting(full, P::kStage);
      if constexpr (P::kRowsA) {
        warpwatch::load_tile(maps.a, ring.tile(), full, k, m, place.batch);
      } else {
        for (int i = 0; i < kM / 64; ++i) warpwatch::load_tile(maps.a, ring.tile() + i * kSquare, full, m + i * 64, k, place.batch);
      }
      unsigned char* b = ring.tile() + P::kBytesA + rank * (P::kBytesB / kCluster);
      constexpr uint16_t all = (1 << kCluster) - 1;
      if constexpr (P::kRowsB) {
        warpwatch::load_tile_of_all(maps.b, b, full, k, n, place.batch, all);
      } else {
        for (int i = 0; i < P::kN / kCluster / 64; ++i)
          warpwatch::load_tile_of_all(maps.b, b + i * kSquare, full, n + i * 64, k, place.batch, all);
      }
    }
  }
}

template <class P>
__device__ void multiply_tiles(const Maps& maps, const Grid& grid, Ring<P> ring, unsigned char* parts, uint32_t rank, int cluster,
                               int clusters) {
  const int group = warpwatch::multiplying_group(), warp = threadIdx.x / 32 % 4;
  float sum[P::kN / 2];
  for (int tile = cluster; tile < grid.tiles; tile += clusters) {
    int last = -1;
    for (int step = 0; step < grid.steps; ++step) {
      ring.await_full();
      const uint64_t a = warpwatch::operand_of(ring.tile() + group * kSquare);
      const uint64_t b = warpwatch::operand_of(ring.tile() + P::kBytesA, kSwizzleTile, P::kRowsB ? 16 : kSquare);
      warpwatch::pin(sum);
      warpwatch::open_products();
#pragma unroll
      for (int k = 0; k < kK / 16; ++k) {
        // Along a row 16 elements are 32 bytes; down the rows they are two times eight rows.
        const int along_a = k * (P::kRowsA ? 32 : 2 * kSwizzleTile), along_b = k * (P::kRowsB ? 32 : 2 * kSwizzleTile);
        warpwatch::multiply_shared<Bf16, P::kN, !P::kRowsA, !P::kRowsB>(sum, a + along_a / 16, b + along_b / 16, step > 0 || k > 0);
      }
      warpwatch::close_products();
      warpwatch::pin(sum);
      // The products of the step before have ended when no more than this step's are under way.
      warpwatch::await_products<1>();
      if (last >= 0) ring.release_in_cluster(last, kCluster);
      last = ring.slot;
      ring.advance();
    }
    warpwatch::await_products<0>();
    warpwatch::pin(sum);
    ring.release_in_cluster(last, kCluster);
    const Place<P> place(grid, tile);
    const int row = place.m + rank * kM + group * 64 + warp * 16;
    warpwatch::store_results<Bf16, P::kN>(maps.c, sum, parts + (group * 4 + warp) * kPartsBytes, row, place.n, place.batch);
  }
  if (threadIdx.x % 32 == 0) warpwatch::await_store_reads<0>();
}
#endif

template <class P>
__global__ __launch_bounds__(kThreads, 1) void warpgroups(const __grid_constant__ Maps maps, const __grid_constant__ Grid grid) {
#if defined(WARPWATCH_HOPPER)
  extern __shared__ __align__(16) unsigned char bytes[];
  unsigned char* memory = bytes + (kSwizzleTile - warpwatch::shared_address(bytes) % kSwizzleTile) % kSwizzleTile;
  uint64_t* barriers = reinterpret_cast<uint64_t*>(memory + P::kBarriers);
  const Ring<P> ring(memory, barriers);
  const uint32_t rank = warpwatch::cluster_rank();
  const int cluster = blockIdx.x / kCluster, clusters = gridDim.x / kCluster;
  if (threadIdx.x == 0) {
    ring.init(kCluster * kWarps);
    warpwatch::publish_barriers();
    warpwatch::prefetch_map(maps.a), warpwatch::prefetch_map(maps.b), warpwatch::prefetch_map(maps.c);
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
    multiply_tiles<P>(maps, grid, ring, memory + P::kOut, rank, cluster, clusters);
    __syncwarp();
  }
  // No block may end while another one of the cluster copies to it or arrives at its barriers.
  warpwatch::cluster_arrive();
  warpwatch::cluster_await();
#endif
}

// The map of an operand for tiles of `rows` x 64, or of 64 x 64 where k is not the contiguous axis.
bool make_map(CUtensorMap& map, const Operand<Bf16>& p, int64_t outers, int64_t ks, int64_t batches, uint32_t rows) {
  if (p.k == 1) return warpwatch::make_tensor_map(map, p.data, {{ks, 1, kK}, {outers, p.outer, rows}, {batches, p.batch, 1}});
  return warpwatch::make_tensor_map(map, p.data, {{outers, 1, 64}, {ks, p.k, kK}, {batches, p.batch, 1}});
}

// Tiles of a cluster, over all batches.
int64_t cluster_tiles(const Product<Bf16>& call, int columns) {
  return call.batches * ceil_div(call.m, kCluster * kM) * ceil_div(call.n, columns);
}

// Clusters that run at once.
int64_t clusters_at_once() { return std::max(1, warpwatch::multiprocessors() / kCluster); }

template <class P>
const char* launch(const Maps& maps, const Product<Bf16>& call, void* stream) {
  const Grid grid{static_cast<int>(ceil_div(call.m, kCluster * kM)), static_cast<int>(ceil_div(call.n, P::kN)),
                  static_cast<int>(cluster_tiles(call, P::kN)), static_cast<int>(ceil_div(call.k, kK))};
  const int64_t blocks = std::min<int64_t>(grid.tiles, clusters_at_once()) * kCluster;
  return warpwatch::launch_in_clusters(warpgroups<P>, kCluster, blocks, kThreads, P::kSharedBytes, warpwatch::as_stream(stream), maps,
                                       grid);
}

template <int N>
const char* launch_for(const Product<Bf16>& call, void* stream) {
  const bool rows_a = call.a.k == 1, rows_b = call.b.k == 1;
  Maps maps;
  const bool mapped = make_map(maps.a, call.a, call.m, call.k, call.batches, kM) &&
                      make_map(maps.b, call.b, call.n, call.k, call.batches, N / kCluster) &&
                      make_map(maps.c, {call.c, call.m * call.n, call.n, 1}, call.m, call.n, call.batches, 16);
  if (mapped && rows_a && rows_b) return launch<WarpgroupPlan<N, true, true>>(maps, call, stream);
  if (mapped && rows_a) return launch<WarpgroupPlan<N, true, false>>(maps, call, stream);
  if (mapped && !rows_b) return launch<WarpgroupPlan<N, false, false>>(maps, call, stream);
  return tensor_cores_on(call, stream);
}

// How long it takes in tiles of so many columns, in the time that one tile of one column takes.
int64_t time_of(const Product<Bf16>& call, int columns) {
  return ceil_div(cluster_tiles(call, columns), clusters_at_once()) * columns;
}

}  // namespace

// Other GPUs, operands that the copy engine cannot take and both operands transposed are left to the rung on older tensor cores.
const char* matmul::warpgroups_on(const Product<Bf16>& call, void* stream) {
  if (!warpwatch::is_hopper() || std::max({call.m, call.n, call.k, cluster_tiles(call, 128)}) > INT32_MAX / 2)
    return tensor_cores_on(call, stream);
  // Narrow tiles read more of A for each product: they pay where wide ones leave multiprocessors idle.
  return time_of(call, 128) * 10 < time_of(call, 256) * 9 ? launch_for<128>(call, stream) : launch_for<256>(call, stream);
}
