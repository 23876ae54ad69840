// The same choice on a CPU: a histogram of leading bits leaves few candidates, of which std::nth_element finds the threshold.
//
// The elements are cut into a fixed number of parts, which threads share. Where only some of equal magnitudes are kept, each part
// has the count of those before it, so the result does not depend on the number of threads.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "common/tensor.h"
#include "magnitude_prune/magnitude_prune.h"

namespace magnitude_prune {

template <class Key>
class OnCpu {
 public:
  OnCpu(const Choice& choice, const Key* w) : choice_(choice), w_(w), infinity_(static_cast<Key>(choice.infinity)) {
    if (choice.keep == 0 || choice.n == 0) return;
    find_bucket();
    gather();
    find_threshold();
  }

  void prune(Key* out, bool* mask) const {
    each_part([&](int64_t part, int64_t begin, int64_t end) {
      // Of its elements that equal the threshold a part keeps all, none, or the first few.
      const int64_t kept = std::clamp<int64_t>(kept_ties_ - ties_before_[part], 0, ties_before_[part + 1] - ties_before_[part]);
      const bool all = kept == ties_before_[part + 1] - ties_before_[part];
      const Key smallest = choice_.keep == 0 ? static_cast<Key>(~Key{0}) : static_cast<Key>(threshold_ + (all ? 0 : 1));
      for (int64_t i = begin; i < end; ++i) {
        const bool keep = magnitude(w_[i]) >= smallest;
        mask[i] = keep;
        out[i] = keep ? w_[i] : Key{0};
      }
      if (!all) keep_first(kept, begin, out, mask);
    });
  }

 private:
  static constexpr int kBits = 8 * sizeof(Key) - 1, kLeading = 12, kShift = kBits - kLeading;
  static constexpr int64_t kParts = 16;
  using Histogram = std::array<uint32_t, 1 << kLeading>;

  Key magnitude(Key bits) const {
    const Key key = bits & static_cast<Key>(static_cast<Key>(~Key{0}) >> 1);
    return std::min<Key>(key, infinity_ + 1);
  }

  template <class Body>
  void each_part(const Body& body) const {
    const int64_t n = choice_.n, grain = n < 65536 ? kParts : 1;
    warpwatch::parallel_for(kParts, grain, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) body(part, n * part / kParts, n * (part + 1) / kParts);
    });
  }

  // The leading bits of the threshold, and how many of those that begin with them are kept.
  void find_bucket() {
    histograms_.resize(kParts);
    each_part([&](int64_t part, int64_t begin, int64_t end) {
      // Two histograms, filled in turn: equal neighbours would otherwise wait for each other.
      Histogram even{}, odd{};
      int64_t i = begin;
      for (; i + 2 <= end; i += 2) ++even[magnitude(w_[i]) >> kShift], ++odd[magnitude(w_[i + 1]) >> kShift];
      if (i < end) ++even[magnitude(w_[i]) >> kShift];
      for (size_t b = 0; b < even.size(); ++b) histograms_[part][b] = even[b] + odd[b];
    });
    int64_t above = 0;
    for (bucket_ = (1 << kLeading) - 1;; --bucket_) {
      int64_t count = 0;
      for (const Histogram& histogram : histograms_) count += histogram[bucket_];
      if (above + count >= choice_.keep) break;
      above += count;
    }
    wanted_ = choice_.keep - above;
  }

  // All magnitudes that begin so, in order.
  void gather() {
    for (int64_t part = 0; part < kParts; ++part) starts_[part + 1] = starts_[part] + histograms_[part][bucket_];
    // One more: the loop writes before it knows whether to keep.
    candidates_.resize(starts_[kParts] + 1);
    each_part([&](int64_t part, int64_t begin, int64_t end) {
      std::vector<Key> own(starts_[part + 1] - starts_[part] + 1);
      Key* to = own.data();
      for (int64_t i = begin; i < end; ++i) {
        const Key key = magnitude(w_[i]);
        *to = key;
        to += static_cast<int64_t>(key >> kShift) == bucket_;
      }
      std::copy(own.data(), to, candidates_.begin() + starts_[part]);
    });
    candidates_.pop_back();
  }

  void find_threshold() {
    std::vector<Key> sorted = candidates_;
    std::nth_element(sorted.begin(), sorted.begin() + (wanted_ - 1), sorted.end(), std::greater<Key>());
    threshold_ = sorted[wanted_ - 1];
    const auto larger = [&](Key key) { return key > threshold_; };
    kept_ties_ = wanted_ - std::count_if(sorted.begin(), sorted.begin() + wanted_, larger);
    for (int64_t part = 0; part < kParts; ++part)
      ties_before_[part + 1] =
          ties_before_[part] + std::count(candidates_.begin() + starts_[part], candidates_.begin() + starts_[part + 1], threshold_);
  }

  void keep_first(int64_t count, int64_t i, Key* out, bool* mask) const {
    for (; count > 0; ++i) {
      if (magnitude(w_[i]) != threshold_) continue;
      mask[i] = true;
      out[i] = w_[i];
      --count;
    }
  }

  Choice choice_;
  const Key* w_;
  Key infinity_, threshold_ = 0;
  int64_t bucket_ = 0, wanted_ = 0, kept_ties_ = 0;
  std::vector<Histogram> histograms_;
  std::vector<Key> candidates_;
  std::array<int64_t, kParts + 1> starts_{}, ties_before_{};
};

}  // namespace magnitude_prune
