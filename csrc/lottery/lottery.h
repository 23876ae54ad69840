// The seam between the binding (g++, torch) and the kernels (nvcc, no torch).
//
// A network y = tanh(x W1) W2 with two classes is trained by plain gradient descent on the mean cross-entropy. Sums of the classes are
// kept as two more rows below W1, so that one matrix of (features + classes) x hidden holds all weights and their gradient.
#pragma once

#include <cstdint>

namespace lottery {

constexpr int kClasses = 2;

struct Shape {
  int64_t samples, features, hidden;
};

// x (samples, features), target (samples, classes), w1 and mask1 (features, hidden), w2 and mask2 (hidden, classes), all contiguous;
// the trained weights go to out1 and out2. Weights move by -speed times their gradient times their mask.
template <class T>
struct Training {
  const T *x, *target, *w1, *w2, *mask1, *mask2;
  T *out1, *out2;
  int64_t steps;
  T speed;
};

// Returns null, or why the launch was refused. T: float, double.
template <class T>
const char* train_on(const Shape& shape, const Training<T>& training, void* stream);

}  // namespace lottery
