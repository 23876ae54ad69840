// The step of decoder_step.h on the CPU: threads share the hidden units.
#pragma once

#include <vector>

#include "common/decoder_step.h"
#include "common/gru_cell.h"
#include "common/products.h"
#include "common/tensor.h"

namespace decoder_step {

// e lies row by row here: tokens are looked up by the caller.
template <class T>
void cells_cpu(const Cells<T>& call) {
  constexpr int64_t kGrain = 32768;  // Multiply-adds below which a second thread costs more than it saves.
  const int64_t n = call.hidden, batch = call.batch;
  std::vector<T> input(batch * 3 * n), hidden(batch * 3 * n);
  const int64_t work = std::max<int64_t>(1, 3 * batch * (call.inputs + n));
  warpwatch::parallel_for(n, kGrain / work + 1, [&](int64_t from, int64_t to) {
    for (int64_t gate = 0; gate < 3; ++gate) {
      const int64_t begin = gate * n + from, end = gate * n + to;
      warpwatch::dot_rows<T>({call.e, call.e_stride}, batch, {call.w_e, call.w_stride}, begin, end, call.inputs,
                             [&](int64_t b, int64_t j, T sum) { input[b * 3 * n + j] = sum + call.added[b * call.added_stride + j]; });
      warpwatch::dot_rows<T>({call.h, n}, batch, {call.w_h, n}, begin, end, n,
                             [&](int64_t b, int64_t j, T sum) { hidden[b * 3 * n + j] = sum + call.bias[j]; });
    }
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t j = from; j < to; ++j) {
        const T *x = &input[b * 3 * n + j], *s = &hidden[b * 3 * n + j];
        const gru_cell::Gates<T> gates = gru_cell::open<T>(x[0], x[n], x[2 * n], s[0], s[n], s[2 * n]);
        call.out[b * n + j] = gru_cell::next_state(gates, call.h[b * n + j]);
        if (call.saved == nullptr) continue;
        T* saved = call.saved + b * 4 * n + j;
        saved[0] = gates.r;
        saved[n] = gates.z;
        saved[2 * n] = gates.n;
        saved[3 * n] = gates.q;
      }
  });
}

}  // namespace decoder_step
