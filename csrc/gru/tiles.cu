// A scan whose steps are one launch each: the product of the state on tensor cores with the accuracy of a float, and the cells, or their
// gradients, where the sums are, in registers.
//
// Forward, a warp has the three gates of eight units side by side: W's rows are put into that order beforehand.
#include "common/split_tiles.cuh"
#include "gru/gru.h"

namespace {

using gru::Backward;
using gru::Forward;
using gru::kGates;
using gru::kSaved;
using gru::Shape;
using split_tiles::Product;
using split_tiles::Products;
using warpwatch::ceil_div;

constexpr int kThreads = 256;
constexpr int kUnits = 8;  // Neighbours whose gates one warp has.

// Row (group, gate, unit) of `to` is row (gate, group * 8 + unit) of W.
__global__ void __launch_bounds__(kThreads) group_gates(const float* __restrict__ w, int64_t hidden, float* __restrict__ to) {
  const int64_t row = blockIdx.x, group = row / (kGates * kUnits), gate = row / kUnits % kGates;
  const float* from = w + (gate * hidden + group * kUnits + row % kUnits) * hidden;
  for (int64_t k = threadIdx.x; k < hidden; k += kThreads) to[row * hidden + k] = from[k];
}

// Ends a forward step: from the sums of its gates to the state of a unit. Column (group, gate, unit) of the product is W's grouped row.
struct Cells {
  Shape shape;
  Forward<float> call;
  int64_t t;

  __device__ void finish(int64_t row, int64_t unit, float r, float z, float n) const {
    const int64_t hidden = shape.hidden;
    if (row >= shape.batch || unit >= hidden) return;
    const float *input = call.input + (t * shape.batch + row) * kGates * hidden + unit, *bias = call.bias + unit;
    const gru_cell::Gates<float> gates = gru_cell::open(input[0], input[hidden], input[2 * hidden], r + bias[0], z + bias[hidden],
                                                        n + bias[2 * hidden]);
    call.out[(t * shape.batch + row) * hidden + unit] = gru_cell::next_state(gates, call.before(shape, t)[row * hidden + unit]);
    if (call.saved == nullptr) return;
    float* saved = call.saved + (t * shape.batch + row) * kSaved * hidden + unit;
    saved[0] = gates.r, saved[hidden] = gates.z, saved[2 * hidden] = gates.n, saved[3 * hidden] = gates.q;
  }

  template <class Plan>
  __device__ void part(const Product&, int64_t m, int64_t n, int lane, const typename Plan::Sums& sum) const {
    static_assert(Plan::kTilesN == kGates, "a warp has the gates of eight units");
#pragma unroll
    for (int i = 0; i < Plan::kTilesM; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        finish(m + i * 16 + e / 2 * 8 + lane / 4, n / kGates + lane % 4 * 2 + e % 2, sum[i][0][e], sum[i][1][e], sum[i][2][e]);
  }

  template <class Plan>
  __device__ void shared(const split_tiles::Place& place, const split_tiles::SharedSums<Plan>& sums) const {
    constexpr int units = Plan::kN / kGates;
    for (int u = threadIdx.x; u < sums.rows * units; u += Plan::kThreads) {
      const int row = sums.first + u / units, unit = u % units, column = unit / kUnits * (kGates * kUnits) + unit % kUnits;
      float r[1], z[1], n[1];
      sums.at(row, column, r);
      sums.at(row, column + kUnits, z);
      sums.at(row, column + 2 * kUnits, n);
      finish(place.m + row, place.n / kGates + unit, r[0], z[0], n[0]);
    }
  }
};

// Begins a backward step, with what the one after it sends back through W: slopes of the gates, or with t = -1 the gradient of h0.
struct CellSlopes : split_tiles::PairByPair<CellSlopes> {
  Shape shape;
  Backward<float> call;
  int64_t t;
  float* carry;

  __device__ void one(int64_t b, int64_t j, float recurrent) const {
    const int64_t n = shape.hidden, i = b * n + j;
    const float later = carry[i] + recurrent;
    if (t < 0) {
      call.d_h0[i] = later;
      return;
    }
    const int64_t row = t * shape.batch + b;
    const float* saved = call.saved + row * kSaved * n + j;
    const gru_cell::Gates<float> gates{saved[0], saved[n], saved[2 * n], saved[3 * n]};
    const gru_cell::Slopes<float> d =
        gru_cell::slopes(gates, call.before(shape, t)[i], call.gradient[t * shape.state() + i] + later);
    float *d_input = call.d_input + row * kGates * n + j, *d_hidden = call.d_hidden + row * kGates * n + j;
    d_input[0] = d_hidden[0] = d.r;
    d_input[n] = d_hidden[n] = d.z;
    d_input[2 * n] = d.n;
    d_hidden[2 * n] = d.q;
    carry[i] = d.h;
  }

  __device__ void pair(const Product& product, int64_t row, int64_t column, float first, float second) const {
    if (row >= product.m) return;
    if (column < product.n) one(row, column, first);
    if (column + 1 < product.n) one(row, column + 1, second);
  }
};

}  // namespace

const char* gru::tiled_scan_on(const Shape& shape, const Forward<float>& call, float* grouped, void* stream) {
  if (shape.hidden % kUnits != 0) return "the units must be a multiple of eight";
  const auto rows = static_cast<unsigned>(kGates * shape.hidden);
  group_gates<<<rows, kThreads, 0, warpwatch::as_stream(stream)>>>(call.w, shape.hidden, grouped);
  if (const char* error = warpwatch::launch_error()) return error;
  for (int64_t t = 0; t < shape.steps; ++t) {
    Products products{};
    Product& product = products.product[products.count++];
    product.segments[product.count++] = {{call.before(shape, t), shape.hidden, 1}, {grouped, shape.hidden, 1}, shape.hidden};
    product.m = shape.batch, product.n = kGates * shape.hidden;
    using Plan = split_tiles::Plan<64, 48, 2, 2, 4, true, true>;
    if (const char* error = split_tiles::launch_shared<Plan>(products, stream, Cells{shape, call, t})) return error;
  }
  return nullptr;
}

const char* gru::tiled_scan_back_on(const Shape& shape, const Backward<float>& call, float* carry, void* stream) {
  if (const char* error = cell_slopes_on(shape, call, shape.steps - 1, nullptr, carry, stream)) return error;
  for (int64_t t = shape.steps - 2; t >= -1; --t) {
    Products products{};
    Product& product = products.product[products.count++];
    const float* slopes = call.d_hidden + (t + 1) * kGates * shape.state();
    product.segments[product.count++] = {{slopes, kGates * shape.hidden, 1}, {call.w, 1, shape.hidden}, kGates * shape.hidden};
    product.m = shape.batch, product.n = shape.hidden;
    using Plan = split_tiles::Plan<64, 32, 2, 2, 4, true, false>;
    if (const char* error = split_tiles::launch_shared<Plan>(products, stream, CellSlopes{{}, shape, call, t, carry})) return error;
  }
  return nullptr;
}
