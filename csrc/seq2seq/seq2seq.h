// The seam between the binding (torch), the CPU's decode and the CUDA kernels (nvcc, no torch).
//
// An encoder walks the source's embeddings; its last state is the context of a decoder, which begins with the same state and the
// token `start` and takes the likeliest token of each step as the next step's input. A row that has emitted `end` repeats it.
#pragma once

#include <cstdint>

namespace seq2seq {

template <class T>
struct Layer {
  const T* w_ih;  // (3 hidden, width): of the decoder, width = embedding + hidden
  const T* w_hh;
  const T* b_ih;
  const T* b_hh;
};

template <class T>
struct Call {
  int64_t batch, source_steps, steps, embedding, hidden, vocab, start, end;
  const int64_t* source;  // (source_steps, batch)
  const T* source_table;  // (source vocabulary, embedding)
  const T* target_table;  // (vocab, embedding)
  Layer<T> encoder, decoder;
  const T* w_fc;          // (vocab, embedding + 2 hidden)
  const T* b_fc;
  int64_t* tokens;        // (batch, steps)
  // Scratch: the token that each row has come to and its embedding, two states of which the first holds zeros, what the context adds to
  // gates and logits, and the logits.
  int64_t* current;   // (batch)
  T* e;               // (batch, embedding)
  T* states[2];       // (batch, hidden)
  T* gates;           // (batch, 3 hidden)
  T* context_logits;  // (batch, vocab)
  T* logits;          // (batch, vocab)
};

// Return null, or why a launch was refused.

// Every row comes to the token `start`.
const char* begin_on(const Call<float>& call, void* stream);
const char* begin_on(const Call<double>& call, void* stream);

// Every row comes to its likeliest token, the first of equal ones, which is also column `step` of the tokens.
const char* pick_on(const Call<float>& call, int64_t step, void* stream);
const char* pick_on(const Call<double>& call, int64_t step, void* stream);

}  // namespace seq2seq
