// The seam between the binding (torch), the CPU layer (g++) and the CUDA kernels (nvcc, no torch).
//
// A scan runs one layer over time. The products of the inputs are computed before, for all steps at once, and passed as `input`.
#pragma once

#include <cstdint>

#include "common/gru_cell.h"

namespace gru {

// How a scan runs on a GPU; the numbers are part of the torch operators' schema.
enum class Version : int64_t { cell = 3, persistent = 4, tiles = 5 };

constexpr int64_t kGates = 3;
constexpr int64_t kSaved = 4;  // r, z, n and q of every step and unit.

struct Shape {
  int64_t steps, batch, hidden;

  WARPWATCH_CELL int64_t state() const { return batch * hidden; }
};

template <class T>
struct Forward {
  const T* input;   // (steps, batch, 3 hidden): products of the inputs, with their bias
  const T* h0;      // (batch, hidden)
  const T* w;       // (3 hidden, hidden)
  const T* bias;    // (3 hidden), of the hidden side
  T* out;           // (steps, batch, hidden)
  T* saved;         // (steps, batch, 4 hidden) or null
  uint32_t* counters;  // One per group of rows, on a GPU: see scan_counters.

  // The state that step t begins with.
  WARPWATCH_CELL const T* before(const Shape& shape, int64_t t) const { return t == 0 ? h0 : out + (t - 1) * shape.state(); }
};

template <class T>
struct Backward {
  const T* gradient;  // (steps, batch, hidden)
  const T* h0;
  const T* w;
  const T* out;
  const T* saved;
  T* d_input;         // (steps, batch, 3 hidden): slopes of r, z, n
  T* d_hidden;        // (steps, batch, 3 hidden): slopes of r, z, q
  T* d_h0;            // (batch, hidden)
  uint32_t* counters;

  WARPWATCH_CELL const T* before(const Shape& shape, int64_t t) const { return t == 0 ? h0 : out + (t - 1) * shape.state(); }
};

void forward_cpu(const Shape& shape, const Forward<float>& call);
void forward_cpu(const Shape& shape, const Forward<double>& call);
void backward_cpu(const Shape& shape, const Backward<float>& call);
void backward_cpu(const Shape& shape, const Backward<double>& call);

// The launches return null, or why they were refused.

// One step's cells: `hidden` is (batch, 3 hidden), the product of the state without its bias.
const char* cells_on(const Shape& shape, const Forward<float>& call, int64_t t, const float* hidden, void* stream);
const char* cells_on(const Shape& shape, const Forward<double>& call, int64_t t, const double* hidden, void* stream);

// The same backwards: `recurrent` is (batch, hidden), what the step after t sends back through W, null for the last step. `carry`,
// (batch, hidden), takes what passes the gates. With t = -1 the sum of both becomes d_h0.
const char* cell_slopes_on(const Shape& shape, const Backward<float>& call, int64_t t, const float* recurrent, float* carry, void* stream);
const char* cell_slopes_on(const Shape& shape, const Backward<double>& call, int64_t t, const double* recurrent, double* carry,
                           void* stream);

// The whole scan in one launch, W on chip.
int64_t scan_counters(const Shape& shape);
const char* scan_on(const Shape& shape, const Forward<float>& call, void* stream);
const char* scan_back_on(const Shape& shape, const Backward<float>& call, void* stream);

// A launch per step, of product and cells in one. `grouped`, as large as W, takes its rows in another order; `carry` is (batch, hidden).
// Forward, the units must be a multiple of eight.
const char* tiled_scan_on(const Shape& shape, const Forward<float>& call, float* grouped, void* stream);
const char* tiled_scan_back_on(const Shape& shape, const Backward<float>& call, float* carry, void* stream);

}  // namespace gru
