// The whole scan of a layer in one launch: every block keeps the weights of its units in shared memory for all steps.
//
// Blocks form a grid of groups of units and groups of rows. A step's states go through global memory; blocks of one group of rows
// need each other's states and meet at a barrier after every step; groups of rows never wait for each other. The launch
// is cooperative and its grid no larger than what the chip holds at once, so that every block that another waits for is running.
#include <algorithm>

#include "common/gru_cell.h"
#include "common/launch.cuh"
#include "gru/gru.h"

namespace {

using gru::Backward;
using gru::Forward;
using gru::kGates;
using gru::kSaved;
using gru::Shape;
using warpwatch::ceil_div;

constexpr int kThreads = 256;
constexpr int kVector = 4;   // Floats of one access to shared memory.
constexpr int kFewRows = 2;  // Up to so many rows, a tile has one row and one unit.

// How the layer is cut. A tile is what one lane group computes: so many rows times so many units.
struct Cut {
  int units, rows;            // Of one block.
  int unit_groups, row_groups;
  int tile_rows, tile_units;
  int padded_units, padded_rows;  // Whole tiles.
  int stride;                 // Floats between rows in shared memory: whole vectors, and one more so that rows start in other banks.
  int depth;                  // hidden in whole vectors
  bool vectors;               // Whether states can be read 16 bytes at a time.

  __host__ __device__ int weight_floats() const { return static_cast<int>(kGates) * padded_units * stride; }
  __host__ __device__ int state_floats() const { return padded_rows * stride; }
};

// Reads past the first-level cache, which other blocks' writes do not reach.
__device__ inline float fresh(const float* from) { return __ldcg(from); }

__device__ inline unsigned acquire(const uint32_t* counter) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

// Every block of one group of rows arrives `target / blocks` times before any goes on; what they wrote is visible then.
__device__ void meet(uint32_t* counter, unsigned target) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(counter, 1u);
    while (acquire(counter) < target) {
    }
    __threadfence();
  }
  __syncthreads();
}

// `count` rows of `hidden` floats that lie `pitch` apart, from global into shared memory; rows and columns past the end become zero.
__device__ void load_rows(const Cut& cut, const float* from, int64_t pitch, int count, int hidden, float* to) {
  const int vectors = cut.stride / kVector;
  for (int i = threadIdx.x; i < cut.padded_rows * vectors; i += kThreads) {
    const int row = i / vectors, k = (i - row * vectors) * kVector;
    float4 value = make_float4(0, 0, 0, 0);
    if (row < count && k < hidden) {
      const float* at = from + row * pitch + k;
      if (cut.vectors) {
        value = __ldcg(reinterpret_cast<const float4*>(at));
      } else {
        value.x = fresh(at);
        if (k + 1 < hidden) value.y = fresh(at + 1);
        if (k + 2 < hidden) value.z = fresh(at + 2);
        if (k + 3 < hidden) value.w = fresh(at + 3);
      }
    }
    *reinterpret_cast<float4*>(to + row * cut.stride + k) = value;
  }
}

// sum[m][n] += row m of a times row n of w, over this lane's share of the depth.
template <int M, int N>
__device__ inline void multiply(const float* a, const float* w, int stride, int depth, int lane, int lanes, float (&sum)[M][N]) {
#pragma unroll 2
  for (int k = lane * kVector; k < depth; k += lanes * kVector) {
    float4 left[M];
#pragma unroll
    for (int m = 0; m < M; ++m) left[m] = *reinterpret_cast<const float4*>(a + m * stride + k);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const float4 right = *reinterpret_cast<const float4*>(w + n * stride + k);
#pragma unroll
      for (int m = 0; m < M; ++m)
        sum[m][n] += left[m].x * right.x + left[m].y * right.y + left[m].z * right.z + left[m].w * right.w;
    }
  }
}

// Adds up the shares of a group of lanes, which is a power of two and lies inside a warp; every lane gets the sums.
template <int M, int N>
__device__ inline void add_lanes(int lanes, float (&sum)[M][N]) {
  for (int step = lanes / 2; step > 0; step /= 2)
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int n = 0; n < N; ++n) sum[m][n] += __shfl_xor_sync(0xffffffffu, sum[m][n], step);
}

// A block's place in the grid and a thread's in the block.
struct Place {
  int unit, row;    // First of the block.
  int units, rows;  // That exist there.
  int lanes, lane;  // Of one tile.
  int first_tile, tiles, step;

  __device__ Place(const Cut& cut, const Shape& shape) {
    unit = blockIdx.x % cut.unit_groups * cut.units;
    row = blockIdx.x / cut.unit_groups * cut.rows;
    units = min(cut.units, static_cast<int>(shape.hidden) - unit);
    rows = min(cut.rows, static_cast<int>(shape.batch) - row);
    tiles = (cut.padded_rows / cut.tile_rows) * (cut.padded_units / cut.tile_units);
    lanes = 32;
    while (lanes > 1 && lanes * tiles > kThreads) lanes /= 2;
    lane = threadIdx.x % lanes;
    first_tile = threadIdx.x / lanes;
    step = kThreads / lanes;
  }
};

// w[(unit * 3 + gate)][k] for forward, w[(gate * units + unit)][k] for backward, with k over the other side of W; zeros around.
template <bool Turned>
__device__ void load_weights(const Cut& cut, const Place& place, const float* w, int hidden, float* to) {
  for (int i = threadIdx.x; i < cut.weight_floats(); i += kThreads) {
    int gate, unit, k, slot;
    if (Turned) {
      // Units lie side by side in memory, so they run fastest.
      unit = i % cut.padded_units;
      k = i / cut.padded_units % cut.stride;
      gate = i / (cut.padded_units * cut.stride);
      slot = gate * cut.padded_units + unit;
    } else {
      k = i % cut.stride;
      slot = i / cut.stride;
      unit = slot / static_cast<int>(kGates);
      gate = slot - unit * static_cast<int>(kGates);
    }
    const bool inside = unit < place.units && k < hidden;
    const int64_t own = int64_t{gate} * hidden + (Turned ? k : place.unit + unit), other = Turned ? place.unit + unit : k;
    to[slot * cut.stride + k] = inside ? w[own * hidden + other] : 0.0f;
  }
}

template <int M, int N>
__global__ void __launch_bounds__(kThreads, 1) scan(Shape shape, Forward<float> call, Cut cut) {
  extern __shared__ float4 shared[];
  float* weights = reinterpret_cast<float*>(shared);
  float* states = weights + cut.weight_floats();
  constexpr int kCells = M * N;
  const Place place(cut, shape);
  const int hidden = static_cast<int>(shape.hidden), across = cut.padded_units / N;
  load_weights<false>(cut, place, call.w, hidden, weights);
  for (int64_t t = 0; t < shape.steps; ++t) {
    load_rows(cut, call.before(shape, t) + place.row * shape.hidden, shape.hidden, place.rows, hidden, states);
    __syncthreads();
    for (int base = 0; base < place.tiles; base += place.step) {
      const int tile = min(base + place.first_tile, place.tiles - 1);
      const bool own = base + place.first_tile < place.tiles;
      const int m0 = tile / across * M, n0 = tile % across * N;
      // Asked for before the product, so that they have arrived after it.
      float input[kCells][kGates];
#pragma unroll
      for (int c = 0; c < kCells; ++c) {
        const int m = m0 + c / N, n = n0 + c % N;
        const bool mine = own && c % place.lanes == place.lane && m < place.rows && n < place.units;
        const float* at = call.input + ((t * shape.batch + place.row + m) * kGates * hidden + place.unit + n);
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) input[c][gate] = mine ? at[gate * hidden] : 0.0f;
      }
      float sum[M][N * kGates] = {};
      multiply<M, N * kGates>(states + m0 * cut.stride, weights + n0 * kGates * cut.stride, cut.stride, cut.depth, place.lane,
                              place.lanes, sum);
      add_lanes(place.lanes, sum);
#pragma unroll
      for (int c = 0; c < kCells; ++c) {
        const int m = m0 + c / N, n = n0 + c % N;
        if (!own || c % place.lanes != place.lane || m >= place.rows || n >= place.units) continue;
        const int unit = place.unit + n;
        const float(&product)[N * kGates] = sum[c / N];
        const int at = c % N * static_cast<int>(kGates);
        const gru_cell::Gates<float> gates =
            gru_cell::open(input[c][0], input[c][1], input[c][2], product[at] + call.bias[unit],
                           product[at + 1] + call.bias[hidden + unit], product[at + 2] + call.bias[2 * hidden + unit]);
        const int64_t row = t * shape.batch + place.row + m;
        call.out[row * hidden + unit] = gru_cell::next_state(gates, states[m * cut.stride + unit]);
        if (call.saved == nullptr) continue;
        float* saved = call.saved + row * kSaved * hidden + unit;
        saved[0] = gates.r;
        saved[hidden] = gates.z;
        saved[2 * hidden] = gates.n;
        saved[3 * hidden] = gates.q;
      }
    }
    if (t + 1 < shape.steps)
      meet(call.counters + blockIdx.x / cut.unit_groups, static_cast<unsigned>((t + 1) * cut.unit_groups));
  }
}

// One step's slopes for the block's own rows and units. `carry` and `later` are (rows, units), in shared memory.
__device__ void own_slopes(const Cut& cut, const Place& place, const Shape& shape, const Backward<float>& call, int64_t t,
                           const float* later, float* carry) {
  const int hidden = static_cast<int>(shape.hidden);
  for (int i = threadIdx.x; i < place.rows * place.units; i += kThreads) {
    const int m = i / place.units, n = i - m * place.units, slot = m * cut.padded_units + n, unit = place.unit + n;
    const int64_t row = t * shape.batch + place.row + m;
    const float* saved = call.saved + row * kSaved * hidden + unit;
    const gru_cell::Gates<float> gates{saved[0], saved[hidden], saved[2 * hidden], saved[3 * hidden]};
    const float before = call.before(shape, t)[(place.row + m) * shape.hidden + unit];
    const float g = call.gradient[row * hidden + unit] + (t + 1 < shape.steps ? carry[slot] + later[slot] : 0.0f);
    const gru_cell::Slopes<float> d = gru_cell::slopes(gates, before, g);
    float* d_input = call.d_input + row * kGates * hidden + unit;
    float* d_hidden = call.d_hidden + row * kGates * hidden + unit;
    d_input[0] = d_hidden[0] = d.r;
    d_input[hidden] = d_hidden[hidden] = d.z;
    d_input[2 * hidden] = d.n;
    d_hidden[2 * hidden] = d.q;
    carry[slot] = d.h;
  }
}

template <int M, int N>
__global__ void __launch_bounds__(kThreads, 1) scan_back(Shape shape, Backward<float> call, Cut cut) {
  extern __shared__ float4 shared[];
  float* weights = reinterpret_cast<float*>(shared);
  float* slopes = weights + cut.weight_floats();
  float* carry = slopes + cut.state_floats();
  float* later = carry + cut.padded_rows * cut.padded_units;
  const Place place(cut, shape);
  const int hidden = static_cast<int>(shape.hidden), across = cut.padded_units / N;
  load_weights<true>(cut, place, call.w, hidden, weights);
  for (int64_t t = shape.steps - 1; t >= 0; --t) {
    own_slopes(cut, place, shape, call, t, later, carry);
    meet(call.counters + blockIdx.x / cut.unit_groups, static_cast<unsigned>((shape.steps - t) * cut.unit_groups));
    for (int gate = 0; gate < kGates; ++gate) {
      const float* from = call.d_hidden + (t * shape.batch + place.row) * kGates * shape.hidden + int64_t{gate} * hidden;
      load_rows(cut, from, kGates * shape.hidden, place.rows, hidden, slopes);
      __syncthreads();
      for (int base = 0; base < place.tiles; base += place.step) {
        const int tile = min(base + place.first_tile, place.tiles - 1);
        const int m0 = tile / across * M, n0 = tile % across * N;
        float sum[M][N] = {};
        multiply<M, N>(slopes + m0 * cut.stride, weights + (gate * cut.padded_units + n0) * cut.stride, cut.stride, cut.depth,
                       place.lane, place.lanes, sum);
        add_lanes(place.lanes, sum);
#pragma unroll
        for (int c = 0; c < M * N; ++c) {
          if (base + place.first_tile >= place.tiles || c % place.lanes != place.lane) continue;
          float& to = later[(m0 + c / N) * cut.padded_units + n0 + c % N];
          to = gate == 0 ? sum[c / N][c % N] : to + sum[c / N][c % N];
        }
      }
      // The next gate's slopes take this one's place; after the last one, all sums are there.
      __syncthreads();
    }
  }
  for (int i = threadIdx.x; i < place.rows * place.units; i += kThreads) {
    const int m = i / place.units, n = i - m * place.units, slot = m * cut.padded_units + n;
    call.d_h0[(place.row + m) * shape.hidden + place.unit + n] = carry[slot] + later[slot];
  }
}

int padded(int count, int unit) { return static_cast<int>(ceil_div(count, unit)) * unit; }

Cut cut_into(const Shape& shape, int row_groups, int blocks, int most_units) {
  Cut cut{};
  cut.rows = static_cast<int>(ceil_div(shape.batch, row_groups));
  cut.row_groups = static_cast<int>(ceil_div(shape.batch, cut.rows));
  cut.units = static_cast<int>(ceil_div(shape.hidden, std::max(1, blocks / cut.row_groups)));
  cut.unit_groups = static_cast<int>(ceil_div(shape.hidden, cut.units));
  cut.tile_rows = cut.rows <= kFewRows ? 1 : 4;
  cut.tile_units = cut.rows <= kFewRows ? 1 : most_units;
  cut.padded_rows = padded(cut.rows, cut.tile_rows);
  cut.padded_units = padded(cut.units, cut.tile_units);
  cut.depth = padded(static_cast<int>(shape.hidden), kVector);
  cut.stride = cut.depth + kVector;
  return cut;
}

// The quickest cut that fits: clocks for the products, for the states that come from the second-level cache, and for the barrier.
bool choose(const Shape& shape, int blocks, int64_t shared_bytes, int most_units, bool back, Cut* best) {
  int64_t least = -1;
  for (int groups = 1; groups <= std::min<int64_t>(shape.batch, blocks); ++groups) {
    const Cut cut = cut_into(shape, groups, blocks, most_units);
    const int64_t kept = back ? 2 * int64_t{cut.padded_rows} * cut.padded_units : 0;
    const int64_t bytes = sizeof(float) * (int64_t{cut.weight_floats()} + cut.state_floats() + kept);
    if (bytes > shared_bytes || int64_t{cut.unit_groups} * cut.row_groups > blocks) continue;
    const int64_t cells = int64_t{cut.padded_rows} * cut.padded_units;
    const int64_t clocks = cells * kGates * cut.depth / 128 + int64_t{cut.padded_rows} * cut.depth * (back ? 3 : 1) * 4 / 32;
    if (least < 0 || clocks < least) {
      least = clocks;
      *best = cut;
    }
  }
  return least >= 0;
}

template <class Kernel, class Call>
const char* launch(Kernel* kernel, const Shape& shape, Call call, Cut cut, int64_t bytes, void* stream) {
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)) != cudaSuccess)
    return warpwatch::launch_error();
  const cudaError_t cleared =
      cudaMemsetAsync(call.counters, 0, gru::scan_counters(shape) * sizeof(uint32_t), warpwatch::as_stream(stream));
  if (cleared != cudaSuccess) return warpwatch::words_of(cleared);
  Shape given = shape;
  void* arguments[] = {&given, &call, &cut};
  // The runtime refuses a cooperative grid that is not resident as a whole; a plain launch would wait forever.
  const cudaError_t launched = cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(kernel), dim3(cut.unit_groups * cut.row_groups),
                                                           dim3(kThreads), arguments, bytes, warpwatch::as_stream(stream));
  return warpwatch::words_of(launched);
}

struct Chip {
  int blocks = 0;
  int64_t shared_bytes = 0;
};

const char* ask_chip(Chip* chip) {
  int device = 0, shared = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return "no CUDA device";
  chip->blocks = warpwatch::multiprocessors();
  cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  chip->shared_bytes = shared;
  return warpwatch::launch_error();
}

bool aligned(const void* a, const void* b, const Shape& shape) {
  return shape.hidden % kVector == 0 && warpwatch::aligned16(a) && warpwatch::aligned16(b);
}

constexpr const char* kTooLarge = "the recurrent weights do not fit on this chip";

}  // namespace

int64_t gru::scan_counters(const Shape& shape) { return std::max<int64_t>(1, shape.batch); }

const char* gru::scan_on(const Shape& shape, const Forward<float>& call, void* stream) {
  Chip chip;
  if (const char* error = ask_chip(&chip)) return error;
  Cut cut;
  if (!choose(shape, chip.blocks, chip.shared_bytes, 2, false, &cut)) return kTooLarge;
  cut.vectors = aligned(call.h0, call.out, shape);
  const int64_t bytes = sizeof(float) * (int64_t{cut.weight_floats()} + cut.state_floats());
  if (cut.tile_rows == 1) return launch(scan<1, 1>, shape, call, cut, bytes, stream);
  return launch(scan<4, 2>, shape, call, cut, bytes, stream);
}

const char* gru::scan_back_on(const Shape& shape, const Backward<float>& call, void* stream) {
  Chip chip;
  if (const char* error = ask_chip(&chip)) return error;
  Cut cut;
  if (!choose(shape, chip.blocks, chip.shared_bytes, 4, true, &cut)) return kTooLarge;
  cut.vectors = aligned(call.d_hidden, call.d_hidden, shape);
  const int64_t kept = 2 * int64_t{cut.padded_rows} * cut.padded_units;
  const int64_t bytes = sizeof(float) * (int64_t{cut.weight_floats()} + cut.state_floats() + kept);
  if (cut.tile_rows == 1) return launch(scan_back<1, 1>, shape, call, cut, bytes, stream);
  return launch(scan_back<4, 4>, shape, call, cut, bytes, stream);
}
