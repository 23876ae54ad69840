// The seam between the binding (g++, torch) and the kernels (nvcc, no torch).
#pragma once

#include <cstdint>

namespace rope {

// Which thread takes what; the numbers are part of the torch operators' schema.
enum class Version : int64_t { flat = 3, table = 4, words = 5 };

// Queries and keys of `batch` sequences, a row of `dim` elements per position and head.
struct Shape {
  int64_t batch, length, dim;
  int64_t heads[2];  // Of queries and of keys, which grouped attention has fewer of.
  int64_t table;     // Rows of cos and sin.
  bool heads_first;  // Lies as (batch, heads, length, dim) and not as (batch, length, heads, dim).
  bool interleaved;  // Turns the pairs (2i, 2i + 1) and not (i, i + dim / 2).
  bool transposed;   // Turns the other way, which is the gradient.
};

// positions is null where row s of the tables belongs to position s, else it names the row for each of batch x length.
template <class T>
struct Call {
  const T* in[2];
  T* out[2];
  const T* cos;
  const T* sin;
  const int64_t* positions;
};

// Turns every row on `stream`. Returns null, or why the launch was refused. T: float, double, Bf16, F16.
template <class T>
const char* apply_on(Version version, const Shape& shape, const Call<T>& call, void* stream);

}  // namespace rope
