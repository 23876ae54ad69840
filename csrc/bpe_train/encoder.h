// Tokens of one string: of all neighbours that were merged in training, the pair that was merged first is replaced, from left to right,
// until no neighbours were.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

namespace bpe_train {

// The number of the merge that joins two tokens.
class Ranks {
 public:
  // Row r of `pairs` is the pair (left, right) that becomes token merged[r].
  Ranks(const int32_t* pairs, const int32_t* merged, int64_t merges) : merged_(merged) {
    rank_.reserve(merges);
    for (int64_t r = 0; r < merges; ++r) rank_.emplace(key(pairs[2 * r], pairs[2 * r + 1]), static_cast<int32_t>(r));
  }

  // -1 where training did not join them.
  int32_t of(int32_t left, int32_t right) const {
    const auto at = rank_.find(key(left, right));
    return at == rank_.end() ? -1 : at->second;
  }

  int32_t merged(int32_t rank) const { return merged_[rank]; }

 private:
  static uint64_t key(int32_t left, int32_t right) { return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right); }

  std::unordered_map<uint64_t, int32_t> rank_;
  const int32_t* merged_;
};

class Encoder {
 public:
  explicit Encoder(const Ranks& ranks) : ranks_(ranks) {}

  // Replaces the `count` tokens at `tokens`; returns how many remain.
  int64_t run(int32_t* tokens, int64_t count) {
    before_.resize(count);
    behind_.resize(count);
    for (int64_t i = 0; i < count; ++i) {
      before_[i] = static_cast<int32_t>(i - 1);
      behind_[i] = static_cast<int32_t>(i + 1);
      if (i + 1 < count) add(tokens, i, i + 1);
    }
    const int64_t end = count;
    while (!candidates_.empty()) {
      const auto [rank, at] = candidates_.top();
      candidates_.pop();
      const int64_t right = behind_[at];
      // An outdated candidate: one of its tokens is part of a longer one by now.
      if (tokens[at] < 0 || right >= end || ranks_.of(tokens[at], tokens[right]) != rank) continue;
      tokens[at] = ranks_.merged(rank);
      tokens[right] = -1;
      behind_[at] = behind_[right];
      if (behind_[at] < end) {
        before_[behind_[at]] = at;
        add(tokens, at, behind_[at]);
      }
      if (before_[at] >= 0) add(tokens, before_[at], at);
    }
    return std::remove(tokens, tokens + count, -1) - tokens;
  }

 private:
  void add(const int32_t* tokens, int64_t left, int64_t right) {
    const int32_t rank = ranks_.of(tokens[left], tokens[right]);
    if (rank >= 0) candidates_.emplace(rank, static_cast<int32_t>(left));
  }

  using Candidate = std::pair<int32_t, int32_t>;  // (rank, place): the smallest comes first.
  const Ranks& ranks_;
  std::vector<int32_t> before_, behind_;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<Candidate>> candidates_;
};

}  // namespace bpe_train
