// y = x W' for many tokens on Hopper's sparse tensor cores: two warpgroups multiply 64 rows of compressed W each by 256 tokens,
// which a third one has copied to shared memory.
//
// Sparse tensor cores take tokens twice as fast as dense ones: 64 x 32 of W times 256 tokens take 128 cycles, and read 16 KB of
// tokens, all that shared memory delivers. So W goes by way of registers, in the order in which tensor cores take it. Two blocks of
// a cluster compute rows below each other. They have the tokens in common: each copies half of them to both.
#include "common/hopper.cuh"
#include "sparse24/sparse24.h"

using warpwatch::Bf16;
using warpwatch::ceil_div;
using warpwatch::F16;
using warpwatch::kSwizzleBytes;
using warpwatch::kSwizzleTile;
using warpwatch::kWarpgroup;

namespace {

constexpr int kRows = 128, kTokens = 256, kCluster = 2, kConsumers = 2, kWarps = kConsumers * 4;
constexpr int kThreads = (1 + kConsumers) * kWarpgroup, kStages = 6, kStage = kTokens * kSwizzleBytes;
// Columns of W in a stage; stages in whose time W is on its way to registers, of which the steps along k are a multiple.
constexpr int kColumns = static_cast<int>(sparse24::kStepColumns), kAhead = static_cast<int>(sparse24::kStepMultiple);
// Results leave by way of shared memory, 64 tokens x 64 rows of a warpgroup at a time, in two such places.
constexpr int kPart = 64 * kSwizzleBytes, kParts = 2;
constexpr int kOut = kStages * kStage, kBarriers = kOut + kConsumers * kParts * kPart;
constexpr int kSharedBytes = kBarriers + 2 * kStages * 8 + kSwizzleTile;

struct Maps {
  CUtensorMap x, y;
};

// Compressed W, ordered as sparse24.h describes it, and how many blocks of 16 rows it has.
struct Weights {
  const uint4* values;
  const uint32_t* positions;
  int blocks;
};

using Grid = warpwatch::TileGrid;  // Of tiles of a cluster.

#if defined(WARPWATCH_HOPPER)
using Ring = warpwatch::Ring<kStages, kStage>;

// First row and token of a tile of a cluster.
struct Place {
  int row, token;

  __device__ Place(const Grid& grid, int tile) {
    const warpwatch::TilePlace place(grid, tile);
    row = place.row * kCluster * kRows;
    token = place.column * kTokens;
  }
};

__device__ void copy_tokens(const CUtensorMap& map, const Grid& grid, Ring ring, uint32_t rank, int cluster, int clusters) {
  constexpr int each = kTokens / kCluster;
  for (int tile = cluster; tile < grid.tiles; tile += clusters) {
    const Place place(grid, tile);
    for (int step = 0; step < grid.steps; ++step, ring.advance()) {
      ring.await_empty();
      warpwatch::arrive_expecting(ring.full + ring.slot, kStage);
      warpwatch::load_tile_of_all(map, ring.tile() + rank * each * kSwizzleBytes, ring.full + ring.slot, step * kColumns,
                                  place.token + rank * each, 0, (1 << kCluster) - 1);
    }
  }
}

// A lane's part of 16 rows and 64 columns of W: operands of two products.
struct Fragment {
  uint32_t values[2][4], positions;

  __device__ void load(const Weights& weights, int64_t block_step) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(values[i][0]), "=r"(values[i][1]), "=r"(values[i][2]), "=r"(values[i][3])
                   : "l"(weights.values + (block_step * 2 + i) * 32 + lane)
                   : "memory");
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];"
                 : "=r"(positions)
                 : "l"(weights.positions + block_step * 32 + lane)
                 : "memory");
  }

  // Keeps the compiler from giving the registers to others while a product reads them.
  __device__ void pin() {
#pragma unroll
    for (int i = 0; i < 8; ++i) asm volatile("" : "+r"(values[i / 4][i % 4])::"memory");
    asm volatile("" : "+r"(positions)::"memory");
  }
};

// Stores sums of 64 rows by 256 tokens: transposed, since a row of y is a token.
template <class T>
__device__ void store(const CUtensorMap& map, const float (&sum)[kTokens / 2], unsigned char* parts, int group, int row, int token) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const bool leads = threadIdx.x % kWarpgroup == 0;
#pragma unroll
  for (int i = 0; i < kTokens / 64; ++i) {
    unsigned char* part = parts + i % kParts * kPart;
    if (leads) warpwatch::await_store_reads<kParts - 1>();
    warpwatch::sync_warpgroup(group);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float* at = sum + i * 32 + j * 8;
      const uint32_t packed[4] = {warpwatch::pack_pair<T>(at[0], at[1]), warpwatch::pack_pair<T>(at[2], at[3]),
                                  warpwatch::pack_pair<T>(at[4], at[5]), warpwatch::pack_pair<T>(at[6], at[7])};
      warpwatch::store_transposed(part + warpwatch::swizzled(j * 16 + lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2), packed);
    }
    warpwatch::publish_shared();
    warpwatch::sync_warpgroup(group);
    if (leads) {
      warpwatch::store_tile(map, part, row, token + i * 64, 0);
      warpwatch::close_stores();
    }
  }
}

template <class T>
__device__ void multiply_tiles(const CUtensorMap& map, const Weights& weights, const Grid& grid, Ring ring, unsigned char* parts,
                               uint32_t rank, int cluster, int clusters) {
  const int group = warpwatch::multiplying_group(), warp = threadIdx.x / 32 % 4;
  const int below = rank * kRows + group * 64;
  float sum[kTokens / 2];
  Fragment fragments[kAhead];
  // Rows that W does not have are computed as its last ones, and dropped when they are stored.
  const auto first_step = [&](int tile) {
    const int block = (Place(grid, tile).row + below) / 16 + warp;
    return static_cast<int64_t>(block < weights.blocks ? block : weights.blocks - 1) * grid.steps;
  };
  const auto begin = [&](int tile) {
    const int64_t at = first_step(tile);
#pragma unroll
    for (int i = 0; i < kAhead - 1; ++i) fragments[i].load(weights, at + i);
    return at;
  };
  int64_t at = begin(cluster);
  for (int tile = cluster; tile < grid.tiles; tile += clusters) {
    int last = -1;
    for (int step = 0; step < grid.steps; step += kAhead) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        ring.await_full();
        const uint64_t tokens = warpwatch::operand_of(ring.tile());
        warpwatch::pin(sum);
        fragments[i].pin();
        warpwatch::open_products();
        warpwatch::multiply_sparse<T, 0>(sum, fragments[i].values[0], tokens, fragments[i].positions, step + i > 0);
        // 32 columns are 64 bytes of a token.
        warpwatch::multiply_sparse<T, 1>(sum, fragments[i].values[1], tokens + 64 / 16, fragments[i].positions, true);
        warpwatch::close_products();
        warpwatch::pin(sum);
        // The products of the step before have ended when no more than this step's are under way, and need their registers no more.
        warpwatch::await_products<1>();
        Fragment& read = fragments[(i + kAhead - 1) % kAhead];
        read.pin();
        if (last >= 0) ring.release_in_cluster(last, kCluster);
        last = ring.slot;
        ring.advance();
        const int next = step + i + kAhead - 1;
        read.load(weights, at + (next < grid.steps ? next : grid.steps - 1));
      }
    }
    warpwatch::await_products<0>();
    warpwatch::pin(sum);
    fragments[kAhead - 1].pin();
    ring.release_in_cluster(last, kCluster);
    const Place place(grid, tile);
    // W of the next tile comes while this one is stored.
    if (tile + clusters < grid.tiles) at = begin(tile + clusters);
    store<T>(map, sum, parts + group * kParts * kPart, group, place.row + below, place.token);
  }
  if (threadIdx.x % kWarpgroup == 0) warpwatch::await_store_reads<0>();
}
#endif

template <class T>
__global__ __launch_bounds__(kThreads, 1) void linear_warpgroups(const __grid_constant__ Maps maps, const Weights weights,
                                                                 const __grid_constant__ Grid grid) {
#if defined(WARPWATCH_HOPPER)
  extern __shared__ __align__(16) unsigned char bytes[];
  unsigned char* memory = bytes + (kSwizzleTile - warpwatch::shared_address(bytes) % kSwizzleTile) % kSwizzleTile;
  const Ring ring(memory, reinterpret_cast<uint64_t*>(memory + kBarriers));
  const uint32_t rank = warpwatch::cluster_rank();
  const int cluster = blockIdx.x / kCluster, clusters = gridDim.x / kCluster;
  if (threadIdx.x == 0) {
    ring.init(kCluster * kWarps);
    warpwatch::publish_barriers();
    warpwatch::prefetch_map(maps.x), warpwatch::prefetch_map(maps.y);
  }
  __syncthreads();
  warpwatch::cluster_arrive();
  warpwatch::cluster_await();
  if (threadIdx.x < kWarpgroup) {
    warpwatch::give_up_registers<40>();
    if (threadIdx.x == 0) copy_tokens(maps.x, grid, ring, rank, cluster, clusters);
    __syncwarp();
  } else {
    warpwatch::take_registers<232>();
    multiply_tiles<T>(maps.y, weights, grid, ring, memory + kOut, rank, cluster, clusters);
    __syncwarp();
  }
  // No block may end while another one of the cluster copies to it or arrives at its barriers.
  warpwatch::cluster_arrive();
  warpwatch::cluster_await();
#endif
}

template <class T>
const char* launch(const sparse24::Ordered& w, const void* x, void* y, int64_t tokens, int64_t columns, cudaStream_t stream) {
  Maps maps;
  const bool mapped = warpwatch::make_tensor_map(maps.x, static_cast<const T*>(x),
                                                 {{columns, 1, kColumns}, {tokens, columns, kTokens / kCluster}, {1, 1, 1}}) &&
                      warpwatch::make_tensor_map(maps.y, static_cast<const T*>(y),
                                                 {{w.rows, 1, 64}, {tokens, w.rows, 64}, {1, 1, 1}});
  if (!mapped) return "the copy engine cannot take these tensors";
  const int64_t rows = ceil_div(w.rows, kCluster * kRows), across = ceil_div(tokens, kTokens);
  const Grid grid{static_cast<int>(rows), static_cast<int>(across), static_cast<int>(rows * across), static_cast<int>(w.steps)};
  const Weights weights{static_cast<const uint4*>(w.values), static_cast<const uint32_t*>(w.positions),
                        static_cast<int>(ceil_div(w.rows, sparse24::kBlockRows))};
  const int64_t blocks = std::min<int64_t>(grid.tiles, std::max(1, warpwatch::multiprocessors() / kCluster)) * kCluster;
  return warpwatch::launch_in_clusters(linear_warpgroups<T>, kCluster, blocks, kThreads, kSharedBytes, stream, maps, weights, grid);
}

}  // namespace

const char* sparse24::tensor_linear_on(Format format, const Ordered& w, const void* x, void* y, int64_t tokens, int64_t columns,
                                       void* stream) {
  if (!warpwatch::is_hopper()) return "its instructions exist on compute capability 9.0 alone";
  if (tokens * w.rows == 0) return nullptr;
  const cudaStream_t on = warpwatch::as_stream(stream);
  return format == Format::f16 ? launch<F16>(w, x, y, tokens, columns, on) : launch<Bf16>(w, x, y, tokens, columns, on);
}
