// Training on the CPU: four samples at a time, so that weights are loaded once for them, and as many hidden values as a vector holds.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/gru_cell.h"
#include "common/lanes.h"
#include "common/tensor.h"
#include "lottery/lottery.h"

namespace lottery {

typedef double Doubles __attribute__((vector_size(32)));

template <class T>
struct LanesOf {
  using type = Doubles;
};
template <>
struct LanesOf<float> {
  using type = gru_cell::Lanes;
};

inline gru_cell::Lanes hyperbolic(gru_cell::Lanes x) { return gru_cell::hyperbolic(x); }
inline Doubles hyperbolic(Doubles x) {
  for (int i = 0; i < 4; ++i) x[i] = std::tanh(x[i]);
  return x;
}

template <class T>
class OnCpu {
 public:
  OnCpu(const Shape& shape, const Training<T>& training)
      : shape_(shape),
        training_(training),
        columns_((shape.hidden + kLanes - 1) / kLanes * kLanes),
        size_((shape.features + kClasses) * columns_),
        parts_(std::clamp<int64_t>(shape.samples * shape.features * shape.hidden / kWork, 1, kMostParts)),
        weights_(size_),
        masks_(size_),
        gradients_(parts_ * size_),
        hidden_(parts_ * kRows * columns_) {}

  void train() {
    over_weights([this](int64_t at, const T& w, const T& mask, T&) { weights_[at] = w, masks_[at] = mask; });
    for (int64_t step = 0; step < training_.steps; ++step) {
      // A second thread is worth its start only where a part is long enough; how many parts there are depends on the shape alone, so that
      // sums come out the same on any number of threads.
      warpwatch::parallel_for(parts_, 1, [this](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; ++part) follow(part);
      });
      for (int64_t i = 0; i < size_; ++i) {
        T sum = 0;
        for (int64_t part = 0; part < parts_; ++part) sum += gradients_[part * size_ + i];
        weights_[i] -= training_.speed * sum * masks_[i];
      }
    }
    over_weights([this](int64_t at, const T&, const T&, T& out) { out = weights_[at]; });
  }

 private:
  using Lanes = typename LanesOf<T>::type;
  static constexpr int64_t kLanes = sizeof(Lanes) / sizeof(T);
  static constexpr int64_t kRows = 4;
  static constexpr int64_t kWork = 1 << 16;
  static constexpr int64_t kMostParts = 16;

  static Lanes load(const T* from) { return warpwatch::load<Lanes>(from); }

  static T total(Lanes value) {
    T sum = 0;
    for (int64_t i = 0; i < kLanes; ++i) sum += value[i];
    return sum;
  }

  // Calls visit(index in our matrix, weight, mask, trained weight) for every weight.
  template <class Visit>
  void over_weights(const Visit& visit) {
    const auto& [x, target, w1, w2, mask1, mask2, out1, out2, steps, speed] = training_;
    for (int64_t j = 0; j < shape_.hidden; ++j) {
      for (int64_t f = 0; f < shape_.features; ++f)
        visit(f * columns_ + j, w1[f * shape_.hidden + j], mask1[f * shape_.hidden + j], out1[f * shape_.hidden + j]);
      for (int64_t c = 0; c < kClasses; ++c)
        visit((shape_.features + c) * columns_ + j, w2[j * kClasses + c], mask2[j * kClasses + c], out2[j * kClasses + c]);
    }
  }

  // The gradient of a part of the samples.
  void follow(int64_t part) {
    T *gradient = gradients_.data() + part * size_, *hidden = hidden_.data() + part * kRows * columns_;
    std::fill(gradient, gradient + size_, T{0});
    const int64_t end = shape_.samples * (part + 1) / parts_;
    int64_t sample = shape_.samples * part / parts_;
    for (; sample + kRows <= end; sample += kRows) follow_rows<kRows>(sample, hidden, gradient);
    for (; sample < end; ++sample) follow_rows<1>(sample, hidden, gradient);
  }

  template <int64_t Rows>
  void follow_rows(int64_t sample, T* hidden, T* gradient) const {
    const T* x = training_.x + sample * shape_.features;
    const T *first = weights_.data() + shape_.features * columns_, *second = first + columns_;
    Lanes ahead[Rows] = {};
    for (int64_t j = 0; j < columns_; j += kLanes) {
      Lanes value[Rows] = {};
      for (int64_t f = 0; f < shape_.features; ++f) {
        const Lanes weight = load(weights_.data() + f * columns_ + j);
        for (int64_t r = 0; r < Rows; ++r) value[r] += x[r * shape_.features + f] * weight;
      }
      const Lanes difference = load(first + j) - load(second + j);
      for (int64_t r = 0; r < Rows; ++r) {
        value[r] = hyperbolic(value[r]);
        ahead[r] += value[r] * difference;
        warpwatch::store(hidden + r * columns_ + j, value[r]);
      }
    }
    T slope[Rows][kClasses];
    const T share = T{1} / static_cast<T>(shape_.samples);
    for (int64_t r = 0; r < Rows; ++r) {
      const T by = total(ahead[r]), *target = training_.target + (sample + r) * kClasses;
      slope[r][0] = (1 / (1 + std::exp(-by)) - target[0]) * share;
      slope[r][1] = (1 / (1 + std::exp(by)) - target[1]) * share;
    }
    T *to_first = gradient + shape_.features * columns_, *to_second = to_first + columns_;
    for (int64_t j = 0; j < columns_; j += kLanes) {
      Lanes down[Rows], of_first = load(to_first + j), of_second = load(to_second + j);
      for (int64_t r = 0; r < Rows; ++r) {
        const Lanes value = load(hidden + r * columns_ + j);
        of_first += slope[r][0] * value;
        of_second += slope[r][1] * value;
        down[r] = (slope[r][0] * load(first + j) + slope[r][1] * load(second + j)) * (1 - value * value);
      }
      warpwatch::store(to_first + j, of_first);
      warpwatch::store(to_second + j, of_second);
      for (int64_t f = 0; f < shape_.features; ++f) {
        Lanes sum = load(gradient + f * columns_ + j);
        for (int64_t r = 0; r < Rows; ++r) sum += x[r * shape_.features + f] * down[r];
        warpwatch::store(gradient + f * columns_ + j, sum);
      }
    }
  }

  const Shape shape_;
  const Training<T> training_;
  const int64_t columns_, size_, parts_;
  std::vector<T> weights_, masks_, gradients_, hidden_;
};

}  // namespace lottery
