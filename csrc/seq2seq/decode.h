// The decode as a sequence of steps, the same on the CPU and on a GPU: a machine says what a step's parts run on.
#pragma once

#include <utility>
#include <vector>

#include "common/decoder_step_cpu.h"
#include "common/row_products_torch.h"
#include "seq2seq/seq2seq.h"

namespace seq2seq {

struct Host {
  template <class T>
  void cells(decoder_step::Cells<T> call) const {
    // Embeddings are looked up beforehand, so that the rows of the product are contiguous.
    std::vector<T> rows(call.tokens ? call.batch * call.inputs : 0);
    if (call.tokens) {
      for (int64_t b = 0; b < call.batch; ++b)
        std::copy_n(call.e + call.tokens[b * call.token_stride] * call.e_stride, call.inputs, &rows[b * call.inputs]);
      call.e = rows.data();
      call.e_stride = call.inputs;
    }
    decoder_step::cells_cpu(call);
  }

  template <class T>
  void product(const row_products::Forward<T>& call) const {
    row_products::forward_cpu(call);
  }

  template <class T>
  void come_to(const Call<T>& call, int64_t row, int64_t token) const {
    std::copy_n(call.target_table + token * call.embedding, call.embedding, call.e + row * call.embedding);
    call.current[row] = token;
  }

  template <class T>
  void begin(const Call<T>& call) const {
    for (int64_t b = 0; b < call.batch; ++b) come_to(call, b, call.start);
  }

  template <class T>
  void pick(const Call<T>& call, int64_t step) const {
    for (int64_t b = 0; b < call.batch; ++b) {
      const T* logits = call.logits + b * call.vocab;
      int64_t best = 0;
      for (int64_t v = 1; v < call.vocab; ++v)
        if (logits[v] > logits[best]) best = v;
      const int64_t token = call.current[b] == call.end ? call.end : best;
      call.tokens[b * call.steps + step] = token;
      come_to(call, b, token);
    }
  }
};

#if !defined(WARPWATCH_NO_CUDA)
// Every part is one launch, and nothing comes back to the host in between.
struct Device {
  void* stream;

  template <class T>
  void cells(const decoder_step::Cells<T>& call) const {
    warpwatch::check_launch(decoder_step::cells_on(call, stream));
  }

  template <class T>
  void product(const row_products::Forward<T>& call) const {
    warpwatch::check_launch(row_products::forward_on(call, stream));
  }

  template <class T>
  void begin(const Call<T>& call) const {
    warpwatch::check_launch(begin_on(call, stream));
  }

  template <class T>
  void pick(const Call<T>& call, int64_t step) const {
    warpwatch::check_launch(pick_on(call, step, stream));
  }
};
#endif

// y = x · wᵀ + added for one part of x, or for two.
template <class T, class Machine>
void multiply(const Machine& machine, const Call<T>& call, std::vector<std::pair<const T*, int64_t>> parts, const T* w, int64_t w_stride,
              const T* added, int64_t added_stride, T* y, int64_t outputs) {
  row_products::Forward<T> product{{}, call.batch, w, w_stride, added, added_stride, y, outputs};
  for (const auto& [data, width] : parts) {
    const int p = product.x.count++;
    product.x.data[p] = data;
    product.x.stride[p] = product.x.width[p] = width;
  }
  machine.product(product);
}

template <class T, class Machine>
void decode(const Call<T>& call, const Machine& machine) {
  const int64_t width = call.embedding, hidden = call.hidden, wide = width + hidden, fc = wide + hidden;
  T *h = call.states[0], *next = call.states[1];
  const Layer<T>&in = call.encoder, &out = call.decoder;
  for (int64_t t = 0; t < call.source_steps; ++t) {
    machine.cells(decoder_step::Cells<T>{call.batch, width, hidden, call.source_table, width, call.source + t * call.batch, 1, h, in.w_ih,
                                         width, in.w_hh, in.b_ih, 0, in.b_hh, next, nullptr});
    std::swap(h, next);
  }
  // The state is the context from here on, and what it contributes is computed once.
  multiply(machine, call, {{h, hidden}}, out.w_ih + width, wide, out.b_ih, 0, call.gates, 3 * hidden);
  multiply(machine, call, {{h, hidden}}, call.w_fc + wide, fc, call.b_fc, 0, call.context_logits, call.vocab);
  machine.begin(call);
  for (int64_t step = 0; step < call.steps; ++step) {
    machine.cells(decoder_step::Cells<T>{call.batch, width, hidden, call.e, width, nullptr, 0, h, out.w_ih, wide, out.w_hh, call.gates,
                                         3 * hidden, out.b_hh, next, nullptr});
    std::swap(h, next);
    multiply(machine, call, {{call.e, width}, {h, hidden}}, call.w_fc, fc, call.context_logits, call.vocab, call.logits, call.vocab);
    machine.pick(call, step);
  }
}

}  // namespace seq2seq
