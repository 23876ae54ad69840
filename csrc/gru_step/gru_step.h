// What a step does element by element, between products: its cell, the cell's gradient, and sums of gradients.
//
// The seam between the binding (torch) and the kernels (nvcc, no torch). The CPU runs the same functions of one element in a loop.
#pragma once

#include <cstdint>

#include "common/gru_cell.h"

namespace gru_step {

// The cell of rows whose products are there: both (batch, 3 hidden), with all that is added to them.
template <class T>
struct Cell {
  int64_t batch, hidden;
  const T* input;
  const T* recurrent;
  const T* h;  // (batch, hidden)
  T* out;      // (batch, hidden)
  T* saved;    // (batch, 4 hidden): r, z, n, q; or null
};

// The gradients of both sides' sums, (batch, 3 hidden), and what passes the gates, (batch, hidden).
template <class T>
struct CellGradient {
  int64_t batch, hidden;
  const T* after;  // Of h' from outside, (batch, hidden).
  const T* logits;  // Of h' through the logits; rows `stride` apart.
  int64_t stride;
  const T* saved;
  const T* h;
  T* input;
  T* recurrent;
  T* carry;
};

// Gradients that reach an input on two ways: through the logits and through the gates, or past them.
template <class T>
struct Sums {
  int64_t batch, embedding, hidden;
  const T* logits;  // (batch, embedding + 2 hidden): of e, h' and c
  const T* gates;   // (batch, embedding + hidden): of e and c
  const T* carry;   // (batch, hidden)
  T* e;
  T* c;
  T* h;             // (batch, hidden), to which carry is added
};

template <class T>
WARPWATCH_CELL void compute(const Cell<T>& call, int64_t i) {
  const int64_t n = call.hidden, b = i / n, j = i - b * n;
  const T *x = call.input + b * 3 * n + j, *s = call.recurrent + b * 3 * n + j;
  const gru_cell::Gates<T> gates = gru_cell::open<T>(x[0], x[n], x[2 * n], s[0], s[n], s[2 * n]);
  call.out[i] = gru_cell::next_state(gates, call.h[i]);
  if (call.saved == nullptr) return;
  T* saved = call.saved + b * 4 * n + j;
  saved[0] = gates.r, saved[n] = gates.z, saved[2 * n] = gates.n, saved[3 * n] = gates.q;
}

template <class T>
WARPWATCH_CELL void compute(const CellGradient<T>& call, int64_t i) {
  const int64_t n = call.hidden, b = i / n, j = i - b * n;
  const T* saved = call.saved + b * 4 * n + j;
  const gru_cell::Gates<T> gates{saved[0], saved[n], saved[2 * n], saved[3 * n]};
  const gru_cell::Slopes<T> d = gru_cell::slopes<T>(gates, call.h[i], call.after[i] + call.logits[b * call.stride + j]);
  T *input = call.input + b * 3 * n + j, *recurrent = call.recurrent + b * 3 * n + j;
  input[0] = recurrent[0] = d.r;
  input[n] = recurrent[n] = d.z;
  input[2 * n] = d.n;
  recurrent[2 * n] = d.q;
  call.carry[i] = d.h;
}

template <class T>
WARPWATCH_CELL void compute(const Sums<T>& call, int64_t i) {
  const int64_t width = call.embedding + call.hidden, b = i / width, j = i - b * width;
  const T* logits = call.logits + b * (width + call.hidden);
  if (j < call.embedding) {
    call.e[b * call.embedding + j] = logits[j] + call.gates[i];
    return;
  }
  const int64_t unit = b * call.hidden + j - call.embedding;
  call.c[unit] = logits[j + call.hidden] + call.gates[i];
  call.h[unit] += call.carry[unit];
}

// Every element. Returns null, or why the launch was refused.
template <class Call>
const char* compute_on(const Call& call, int64_t elements, void* stream);

}  // namespace gru_step
