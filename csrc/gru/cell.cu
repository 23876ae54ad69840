// One step's cells, forward and backward: a thread per unit and row, between two products of a library.
#include "common/gru_cell.h"
#include "common/launch.cuh"
#include "gru/gru.h"

namespace {

using gru::Backward;
using gru::Forward;
using gru::kGates;
using gru::kSaved;
using gru::Shape;

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) cells(Shape shape, Forward<T> call, int64_t t, const T* __restrict__ products) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x, n = shape.hidden;
  if (i >= shape.state()) return;
  const int64_t b = i / n, j = i - b * n;
  const T* input = call.input + (t * shape.batch + b) * kGates * n + j;
  const T* hidden = products + b * kGates * n + j;
  const T* bias = call.bias + j;
  const gru_cell::Gates<T> gates =
      gru_cell::open(input[0], input[n], input[2 * n], hidden[0] + bias[0], hidden[n] + bias[n], hidden[2 * n] + bias[2 * n]);
  call.out[t * shape.state() + i] = gru_cell::next_state(gates, call.before(shape, t)[i]);
  if (call.saved == nullptr) return;
  T* saved = call.saved + (t * shape.batch + b) * kSaved * n + j;
  saved[0] = gates.r;
  saved[n] = gates.z;
  saved[2 * n] = gates.n;
  saved[3 * n] = gates.q;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    cell_slopes(Shape shape, Backward<T> call, int64_t t, const T* __restrict__ recurrent, T* __restrict__ carry) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x, n = shape.hidden;
  if (i >= shape.state()) return;
  const T later = recurrent == nullptr ? T{0} : carry[i] + recurrent[i];
  if (t < 0) {
    call.d_h0[i] = later;
    return;
  }
  const int64_t b = i / n, j = i - b * n, row = t * shape.batch + b;
  const T* saved = call.saved + row * kSaved * n + j;
  const gru_cell::Gates<T> gates{saved[0], saved[n], saved[2 * n], saved[3 * n]};
  const gru_cell::Slopes<T> d = gru_cell::slopes(gates, call.before(shape, t)[i], call.gradient[t * shape.state() + i] + later);
  T* d_input = call.d_input + row * kGates * n + j;
  T* d_hidden = call.d_hidden + row * kGates * n + j;
  d_input[0] = d_hidden[0] = d.r;
  d_input[n] = d_hidden[n] = d.z;
  d_input[2 * n] = d.n;
  d_hidden[2 * n] = d.q;
  carry[i] = d.h;
}

template <class T>
const char* launch_cells(const Shape& shape, const Forward<T>& call, int64_t t, const T* hidden, void* stream) {
  const int64_t blocks = warpwatch::ceil_div(shape.state(), kThreads);
  cells<T><<<blocks, kThreads, 0, warpwatch::as_stream(stream)>>>(shape, call, t, hidden);
  return warpwatch::launch_error();
}

template <class T>
const char* launch_slopes(const Shape& shape, const Backward<T>& call, int64_t t, const T* recurrent, T* carry, void* stream) {
  const int64_t blocks = warpwatch::ceil_div(shape.state(), kThreads);
  cell_slopes<T><<<blocks, kThreads, 0, warpwatch::as_stream(stream)>>>(shape, call, t, recurrent, carry);
  return warpwatch::launch_error();
}

}  // namespace

const char* gru::cells_on(const Shape& shape, const Forward<float>& call, int64_t t, const float* hidden, void* stream) {
  return launch_cells(shape, call, t, hidden, stream);
}
const char* gru::cells_on(const Shape& shape, const Forward<double>& call, int64_t t, const double* hidden, void* stream) {
  return launch_cells(shape, call, t, hidden, stream);
}
const char* gru::cell_slopes_on(const Shape& shape, const Backward<float>& call, int64_t t, const float* recurrent, float* carry,
                                void* stream) {
  return launch_slopes(shape, call, t, recurrent, carry, stream);
}
const char* gru::cell_slopes_on(const Shape& shape, const Backward<double>& call, int64_t t, const double* recurrent, double* carry,
                                void* stream) {
  return launch_slopes(shape, call, t, recurrent, carry, stream);
}
