// Hopper's copy engine and its tensor cores: barriers in shared memory, tensor maps, bulk copies, wgmma.
//
// The device code assembles for sm_90a alone. A kernel that uses it wraps its body in `#if defined(WARPWATCH_HOPPER)`, so that it is
// empty for every other architecture, and its launcher asks `is_hopper` first.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>

#include "common/launch.cuh"
#include "common/machine.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WARPWATCH_HOPPER
#endif

namespace warpwatch {

constexpr int kWarpgroup = 128;      // Threads that issue a wgmma together.
constexpr int kSwizzleBytes = 128;   // Length of a row of a tile: what the copy engine permutes so that no banks conflict.
constexpr int kSwizzleTile = 1024;   // Tiles begin at multiples of eight such rows.

// Whether the current device runs code for sm_90a.
inline bool is_hopper() { return compute_capability() == 90; }

// The driver's function for tensor maps, found at run time so that a library loads without a driver; null where there is none.
inline auto tensor_map_encoder() {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(function) : nullptr;
  }();
  return encode;
}

// An axis of a tensor: its length, the distance between neighbours in elements, and how many of them a tile has.
struct TensorAxis {
  int64_t length, stride;
  uint32_t tile;
};

// What the copy engine calls elements of 16 bits, or codes of eight.
template <class T>
constexpr CUtensorMapDataType tensor_map_type() {
  if constexpr (sizeof(T) == 1) {
    return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  } else {
    return T::kIsBf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  }
}

// Describes a tensor of elements of 16 or eight bits, whose first axis has stride 1, for tiles of rows of kSwizzleBytes. Returns false if
// the copy engine cannot take it: it wants rows and the first element at multiples of 16 bytes.
template <class T, int Rank>
bool make_tensor_map(CUtensorMap& map, const T* data, const TensorAxis (&axes)[Rank]) {
  cuuint64_t lengths[Rank], strides[Rank - 1];
  cuuint32_t tile[Rank], steps[Rank];
  for (int i = 0; i < Rank; ++i) {
    lengths[i] = static_cast<cuuint64_t>(axes[i].length), tile[i] = axes[i].tile, steps[i] = 1;
    if (axes[i].length < 1 || axes[i].length > UINT32_MAX) return false;
    // The stride of an axis of length 1 is never used, and may be anything.
    const int64_t bytes = axes[i].length == 1 ? 16 : axes[i].stride * static_cast<int64_t>(sizeof(T));
    if (i > 0) strides[i - 1] = static_cast<cuuint64_t>(bytes);
    if (i > 0 && (bytes % 16 != 0 || bytes < 0 || bytes >= int64_t{1} << 40)) return false;
  }
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0) return false;
  // The driver's function wants a context in the calling thread. A new one, such as autograd's, has none before its first call of the
  // runtime that makes one, which cudaSetDevice does.
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || cudaSetDevice(device) != cudaSuccess) return false;
  const auto encode = tensor_map_encoder();
  return encode != nullptr &&
         encode(&map, tensor_map_type<T>(), Rank, const_cast<T*>(data), lengths, strides, tile, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Launches blocks in clusters, with `bytes` of shared memory each. Returns null, or why the launch was refused.
template <class... Parameters>
const char* launch_in_clusters(void (*kernel)(Parameters...), int cluster, int64_t blocks, int threads, int bytes, cudaStream_t stream,
                               const Parameters&... parameters) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(blocks);
  config.blockDim = static_cast<unsigned>(threads);
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return words_of(cudaLaunchKernelEx(&config, kernel, parameters...));
}

// A barrier in shared memory: a phase ends when all arrivals have come and all announced bytes are there.
__device__ inline void init_barrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Makes new barriers visible to the copy engine and to the cluster; a block or cluster barrier has to follow.
__device__ inline void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives at the same barrier of another block of the cluster.
__device__ inline void arrive_at(uint64_t* barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}

// Arrives, and announces bytes that the copy engine will write.
__device__ inline void arrive_expecting(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// Waits for the end of the phase of that parity. A new barrier is in phase 0: waiting for parity 1 returns at once.
__device__ inline void await(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  do {
    asm volatile(
        "{\n.reg .pred done;\nmbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\nselp.b32 %0, 1, 0, done;\n}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  } while (!done);
}

// Starts a copy of one tile, whose first element has these coordinates, to shared memory; what lies outside the tensor is zero.
__device__ inline void load_tile(const CUtensorMap& map, void* tile, uint64_t* barrier, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
                   shared_address(tile)),
               "l"(&map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
               : "memory");
}

__device__ inline void load_tile(const CUtensorMap& map, void* tile, uint64_t* barrier, int x, int y, int z, int w) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(
                   shared_address(tile)),
               "l"(&map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}

// Starts a copy of neighbouring bytes, a multiple of 16 from a multiple of 16 on, to shared memory.
__device__ inline void load_bytes(const void* from, void* to, uint64_t* barrier, int bytes) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// The same to the same place of every block of the cluster in `blocks`, one bit each, and to its barrier there.
__device__ inline void load_tile_of_all(const CUtensorMap& map, void* tile, uint64_t* barrier, int x, int y, int z, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], "
      "%6;" ::"r"(shared_address(tile)),
      "l"(&map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "h"(blocks)
      : "memory");
}

// Starts a copy of one tile from shared memory; what lies outside the tensor is left out.
__device__ inline void store_tile(const CUtensorMap& map, const void* tile, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map), "r"(shared_address(tile)),
               "r"(x), "r"(y), "r"(z)
               : "memory");
}

__device__ inline void store_tile(const CUtensorMap& map, const void* tile, int x, int y, int z, int w) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(shared_address(tile)), "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}

__device__ inline void close_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until at most Open of this thread's latest groups of stores still read shared memory.
template <int Open>
__device__ void await_store_reads() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Open) : "memory");
}

// Makes this thread's writes to shared memory visible to the copy engine and to wgmma; a barrier has to follow.
__device__ inline void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ inline void prefetch_map(const CUtensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

// Changes the registers of each thread of this warpgroup.
template <int Registers>
__device__ void give_up_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

template <int Registers>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

// Which of the multiplying warpgroups, which follow the one that copies, this thread is in; by way of a shuffle, so that the compiler
// sees that it is the same for a warp.
__device__ inline int multiplying_group() { return __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0) - 1; }

// The tiles of a product, over all batches, and the steps along k.
struct TileGrid {
  int rows, columns, tiles, steps;
};

// Where a tile lies, in tiles. Kept in an order in which what is at work at once needs few different operands: eight rows of tiles are
// computed column by column.
struct TilePlace {
  int row, column, batch;

  __device__ TilePlace(const TileGrid& grid, int tile) {
    constexpr int kGroup = 8;
    const int each = grid.rows * grid.columns, within = tile % each, first = within / (kGroup * grid.columns) * kGroup;
    const int tall = grid.rows - first < kGroup ? grid.rows - first : kGroup, left = within - first * grid.columns;
    batch = tile / each;
    row = first + left % tall;
    column = left / tall;
  }
};

// A ring of tiles: `full` ends a phase when a tile has come, `empty` when all that read it have.
template <int Stages, int Bytes>
struct Ring {
  unsigned char* tiles;
  uint64_t *full, *empty;
  int slot = 0;
  uint32_t phase = 0;

  __device__ Ring(unsigned char* memory, uint64_t* barriers) : tiles(memory), full(barriers), empty(barriers + Stages) {}

  // By one thread; readers: arrivals that end a phase of `empty`.
  __device__ void init(int readers) const {
    for (int i = 0; i < Stages; ++i) init_barrier(full + i, 1), init_barrier(empty + i, readers);
  }

  __device__ unsigned char* tile() const { return tiles + slot * Bytes; }
  __device__ void advance() {
    if (++slot == Stages) slot = 0, phase ^= 1;
  }
  __device__ void await_empty() const { await(empty + slot, phase ^ 1); }
  __device__ void await_full() const { await(full + slot, phase); }

  // Tells each of `blocks` blocks of the cluster, to which the tile went, that this warp has read it.
  __device__ void release_in_cluster(int of, int blocks) const {
    const int lane = threadIdx.x % 32;
    if (lane < blocks) arrive_at(empty + of, lane);
  }
};

// Four 8 x 8 matrices of 16-bit elements to shared memory, as load_matrices reads them.
__device__ inline void store_matrices(void* row, const uint32_t (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)), "r"(from[0]), "r"(from[1]),
               "r"(from[2]), "r"(from[3])
               : "memory");
}

// The same with each matrix transposed.
__device__ inline void store_transposed(void* row, const uint32_t (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)), "r"(from[0]),
               "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}

// Where the 16 bytes `unit` of row `row` lie in a tile that the copy engine permutes, in bytes.
__device__ inline int swizzled(int row, int unit) { return row * kSwizzleBytes + (unit ^ row % 8) * 16; }

// Stores 16 x N results of a warp, which a wgmma left in `sum`, at row m and column n of a matrix of rows. They go by way of `parts`: two
// places of 16 rows of 64 results each, which the copy engine may still read when this returns.
constexpr int kResultPart = 16 * kSwizzleBytes, kResultParts = 2;

template <class T, int N>
__device__ void store_results(const CUtensorMap& map, const float (&sum)[N / 2], unsigned char* parts, int m, int n, int batch) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < N / 64; ++i) {
    unsigned char* part = parts + i % kResultParts * kResultPart;
    if (lane == 0) await_store_reads<kResultParts - 1>();
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float* at = sum + i * 32 + j * 8;
      const uint32_t packed[4] = {pack_pair<T>(at[0], at[1]), pack_pair<T>(at[2], at[3]), pack_pair<T>(at[4], at[5]),
                                  pack_pair<T>(at[6], at[7])};
      store_matrices(part + swizzled(lane % 16, j * 2 + lane / 16), packed);
    }
    publish_shared();
    __syncwarp();
    if (lane == 0) {
      store_tile(map, part, n + i * 64, m, batch);
      close_stores();
    }
  }
}

// How a wgmma finds an operand in shared memory. Rows of kSwizzleBytes, eight of them `along_rows` bytes before the next eight. Where
// k runs down the rows, more than 64 outer indices lie in further tiles, `along_tiles` bytes apart.
__device__ inline uint64_t operand_of(const void* tile, int along_rows = kSwizzleTile, int along_tiles = 16) {
  return (shared_address(tile) & 0x3ffff) >> 4 | uint64_t(along_tiles >> 4) << 16 | uint64_t(along_rows >> 4) << 32 | uint64_t{1} << 62;
}

// Before the first wgmma, and after registers that one uses were written.
__device__ inline void open_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most Open of the latest groups are under way.
template <int Open>
__device__ void await_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Open) : "memory");
}

// Keeps the compiler from moving accesses to registers of a wgmma across this point.
template <int N>
__device__ void pin(float (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

// A barrier of one multiplying warpgroup.
__device__ inline void sync_warpgroup(int group) { asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(kWarpgroup) : "memory"); }

// Keeps the assembler from moving what computes `value`, which is never negative, beyond a wait for products that follows: it knows
// nothing of the wait's purpose and would place it first.
__device__ inline void sync_after(float value) { __syncwarp(value < 0 ? 1 : ~0u); }

// sum (64 x N) = a * b, plus sum if `add`, by one warpgroup, 16 deep. Warp w of it has rows 16 * w and on, and each lane of them, in
// sum[4 * j] and on, the elements that tensor_step gives it of columns 8 * j and on. `Columns` says that k runs down a tile's rows.
template <class T, int N, bool ColumnsA, bool ColumnsB>
__device__ void multiply_shared(float (&sum)[N / 2], uint64_t a, uint64_t b, bool add);

// The same for codes in e4m3, 32 deep: k runs along the rows of both, as it has to. Sums keep about 14 bits.
template <int N>
__device__ void multiply_codes(float (&sum)[N / 2], uint64_t a, uint64_t b, bool add);

// The same with a from registers, as tensor_step takes it, and k running down the rows of b.
template <class T, int N>
__device__ void multiply_registers(float (&sum)[N / 2], const uint32_t (&a)[4], uint64_t b);

// sum (64 x 256) = a * b, plus sum if `add`, 32 deep, where of each four of a row of a two are there: as if they were dense in `a`, with
// their positions as sparse24.h describes them. Two neighbouring lanes of four hold those of rows lane / 4 (lower half) and lane / 4 + 8,
// the even one of columns 0 to 15; Pair says which two. k runs along b's rows.
template <class T, int Pair>
__device__ void multiply_sparse(float (&sum)[128], const uint32_t (&a)[4], uint64_t b, uint32_t positions, bool add);

#define WARPWATCH_LIST_32                                                            \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WARPWATCH_LIST_64                                                            \
  WARPWATCH_LIST_32                                                                  \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WARPWATCH_LIST_128                                                           \
  WARPWATCH_LIST_64                                                                  \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define WARPWATCH_SUM_8(i) \
  "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3]), "+f"(sum[i + 4]), "+f"(sum[i + 5]), "+f"(sum[i + 6]), "+f"(sum[i + 7])
#define WARPWATCH_SUM_32(i) WARPWATCH_SUM_8(i), WARPWATCH_SUM_8(i + 8), WARPWATCH_SUM_8(i + 16), WARPWATCH_SUM_8(i + 24)
#define WARPWATCH_SUM_64(i) WARPWATCH_SUM_32(i), WARPWATCH_SUM_32(i + 32)
#define WARPWATCH_SUM_128(i) WARPWATCH_SUM_64(i), WARPWATCH_SUM_64(i + 64)

// The numbers are those of the operands that follow the sums: two descriptors, `add` and two layouts; four registers and a descriptor.
#define WARPWATCH_SHARED(TYPE, N, SUMS, O0, O1, O2, O3, O4)                                                                       \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " O2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE    \
               " {" WARPWATCH_LIST_##SUMS "}, " O0 ", " O1 ", add, 1, 1, " O3 ", " O4 ";\n}"                                       \
               : WARPWATCH_SUM_##SUMS(0)                                                                                          \
               : "l"(a), "l"(b), "r"(int{add}), "n"(int{ColumnsA}), "n"(int{ColumnsB}))
#define WARPWATCH_CODES(TYPE, N, SUMS, O0, O1, O2, O3, O4)                                                                         \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " O2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k32.f32." TYPE "." TYPE    \
               " {" WARPWATCH_LIST_##SUMS "}, " O0 ", " O1 ", add, 1, 1;\n}"                                                       \
               : WARPWATCH_SUM_##SUMS(0)                                                                                          \
               : "l"(a), "l"(b), "r"(int{add}))
#define WARPWATCH_REGISTERS(TYPE, N, SUMS, O0, O1, O2, O3, O4)                                                                     \
  asm volatile("{\n.reg .pred add;\nsetp.eq.b32 add, 0, 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE         \
               " {" WARPWATCH_LIST_##SUMS "}, {" O0 ", " O1 ", " O2 ", " O3 "}, " O4 ", add, 1, 1, 1;\n}"                          \
               : WARPWATCH_SUM_##SUMS(0)                                                                                          \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define WARPWATCH_BY_SIZE(KIND, TYPE)                                     \
  if constexpr (N == 64) {                                                \
    KIND(TYPE, 64, 32, "%32", "%33", "%34", "%35", "%36");                \
  } else if constexpr (N == 128) {                                        \
    KIND(TYPE, 128, 64, "%64", "%65", "%66", "%67", "%68");               \
  } else {                                                                \
    static_assert(N == 256);                                              \
    KIND(TYPE, 256, 128, "%128", "%129", "%130", "%131", "%132");         \
  }

template <class T, int N, bool ColumnsA, bool ColumnsB>
__device__ void multiply_shared(float (&sum)[N / 2], uint64_t a, uint64_t b, bool add) {
  if constexpr (T::kIsBf16) {
    WARPWATCH_BY_SIZE(WARPWATCH_SHARED, "bf16")
  } else {
    WARPWATCH_BY_SIZE(WARPWATCH_SHARED, "f16")
  }
}

template <int N>
__device__ void multiply_codes(float (&sum)[N / 2], uint64_t a, uint64_t b, bool add) {
  WARPWATCH_BY_SIZE(WARPWATCH_CODES, "e4m3")
}

template <class T, int N>
__device__ void multiply_registers(float (&sum)[N / 2], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (T::kIsBf16) {
    WARPWATCH_BY_SIZE(WARPWATCH_REGISTERS, "bf16")
  } else {
    WARPWATCH_BY_SIZE(WARPWATCH_REGISTERS, "f16")
  }
}

#define WARPWATCH_SPARSE(TYPE)                                                                                                     \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %135, 0;\nwgmma.mma_async.sp.sync.aligned.m64n256k32.f32." TYPE "." TYPE       \
               " {" WARPWATCH_LIST_128 "}, {%128, %129, %130, %131}, %132, %133, %134, add, 1, 1, 0;\n}"                            \
               : WARPWATCH_SUM_128(0)                                                                                             \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(positions), "n"(Pair), "r"(int{add}))

template <class T, int Pair>
__device__ void multiply_sparse(float (&sum)[128], const uint32_t (&a)[4], uint64_t b, uint32_t positions, bool add) {
  if constexpr (T::kIsBf16) {
    WARPWATCH_SPARSE("bf16");
  } else {
    WARPWATCH_SPARSE("f16");
  }
}

#undef WARPWATCH_LIST_32
#undef WARPWATCH_LIST_64
#undef WARPWATCH_LIST_128
#undef WARPWATCH_SUM_8
#undef WARPWATCH_SUM_32
#undef WARPWATCH_SUM_64
#undef WARPWATCH_SUM_128
#undef WARPWATCH_SHARED
#undef WARPWATCH_CODES
#undef WARPWATCH_REGISTERS
#undef WARPWATCH_BY_SIZE
#undef WARPWATCH_SPARSE

}  // namespace warpwatch
