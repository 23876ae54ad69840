// Byte-pair training that counts once and then only repairs the counts around each merge.
//
// The corpus is one array of tokens. A token that spans several symbols stands at its first and at its last place, so that both
// neighbours of any token are found from its ends and its length: a linked list without links. Places are kept per pair, in
// ascending order; an entry whose place no longer begins that pair is skipped when it comes up, and so are outdated counts in the
// heap.
#pragma once

#include <algorithm>
#include <cstdint>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

namespace bpe_train {

using Token = uint16_t;
constexpr Token kBorder = 0xffff;    // Between two strings.
constexpr Token kInterior = 0xfffe;  // Where a token began that is part of a longer one now.
constexpr int64_t kMostTokens = kInterior;

using Places = std::vector<int32_t>;

struct Pair {
  Token left, right;
};

// What merging one pair did to the pairs beside it. `before[x]` is about (x, new), `after[y]` about (new, y).
struct Changes {
  std::vector<Places> before, after;
  std::vector<int64_t> gained_before, gained_after;  // How often these pairs stand there now.
  std::vector<int64_t> lost_before, lost_after;      // How many of (x, left) and (right, y) are gone.

  void reset(size_t tokens) {
    before.resize(tokens);
    after.resize(tokens);
    for (auto* counts : {&gained_before, &gained_after, &lost_before, &lost_after}) counts->assign(tokens, 0);
  }
};

// A run of whole strings with the places of all its pairs; one thread works on it at a time.
class Chunk {
 public:
  Changes changes;

  // symbols[offsets[first] .. offsets[last]) as tokens, `id` mapping a symbol to its token.
  void read(const uint8_t* symbols, const int64_t* offsets, int64_t first, int64_t last, const Token* id) {
    tokens_.reserve(offsets[last] - offsets[first] + (last - first) + 1);
    tokens_.push_back(kBorder);
    for (int64_t s = first; s < last; ++s) {
      for (int64_t i = offsets[s]; i < offsets[s + 1]; ++i) tokens_.push_back(id[symbols[i]]);
      tokens_.push_back(kBorder);
    }
  }

  // Finds the places of every pair of the alphabet; pair (l, r) gets number l * alphabet + r.
  void find_pairs(size_t alphabet) {
    std::vector<int64_t> counts(alphabet * alphabet);
    each_pair([&](size_t pair, int32_t) { ++counts[pair]; }, alphabet);
    places_.resize(counts.size());
    for (size_t pair = 0; pair < counts.size(); ++pair) places_[pair].reserve(counts[pair]);
    each_pair([&](size_t pair, int32_t place) { places_[pair].push_back(place); }, alphabet);
  }

  int64_t places_of(size_t pair) const { return pair < places_.size() ? static_cast<int64_t>(places_[pair].size()) : 0; }

  // Replaces the pair wherever it stands, from left to right, and notes what that changes.
  void merge(size_t number, Pair pair, Token merged, const std::vector<int32_t>& length) {
    changes.reset(merged + 1);
    Token* tokens = tokens_.data();
    const Places places = std::exchange(places_[number], {});
    const int32_t left_length = length[pair.left], right_length = length[pair.right];
    for (const int32_t place : places) {
      const int32_t middle = place + left_length, last = middle + right_length - 1;
      if (tokens[place] != pair.left || tokens[middle] != pair.right) continue;
      const Token x = tokens[place - 1], y = tokens[last + 1];
      tokens[middle] = kInterior;
      tokens[last] = tokens[place] = merged;
      if (x != kBorder) {
        // Where x is the token just made, (x, left) is a pair that this very merge gained.
        if (x == merged)
          --changes.gained_after[pair.left];
        else
          ++changes.lost_before[x];
        ++changes.gained_before[x];
        changes.before[x].push_back(place - length[x]);
      }
      if (y != kBorder) {
        ++changes.lost_after[y];
        ++changes.gained_after[y];
        changes.after[y].push_back(place);
      }
    }
  }

  // Keeps the places of a pair that the last merge made.
  void keep(size_t number, Places& places) {
    if (places_.size() <= number) places_.resize(number + 1);
    places_[number] = std::exchange(places, {});
  }

 private:
  std::vector<Token> tokens_;
  std::vector<Places> places_;

  template <class Run>
  void each_pair(const Run& run, size_t alphabet) const {
    for (size_t i = 1; i + 1 < tokens_.size(); ++i)
      if (tokens_[i] != kBorder && tokens_[i + 1] != kBorder) run(tokens_[i] * alphabet + tokens_[i + 1], static_cast<int32_t>(i));
  }
};

// Counts of all pairs over all chunks, the largest first; of equal ones the pair with the smaller tokens.
class Counts {
 public:
  size_t add(Pair pair, int64_t count) {
    const size_t number = pairs_.size();
    pairs_.push_back(pair);
    counts_.push_back(count);
    numbers_[key(pair)] = number;
    if (count > 0) heap_.push({count, pair, number});
    return number;
  }

  void lose(Pair pair, int64_t count) {
    if (count != 0) counts_[numbers_.at(key(pair))] -= count;
  }

  void forget(size_t number) { counts_[number] = 0; }

  // Number of the most frequent pair, or -1 when none is left. Counts only fall after a pair was made, so an outdated one is put
  // back where it belongs.
  int64_t most_frequent() {
    while (!heap_.empty()) {
      Entry entry = heap_.top();
      heap_.pop();
      const int64_t now = counts_[entry.number];
      if (now == entry.count) return static_cast<int64_t>(entry.number);
      entry.count = now;
      if (now > 0) heap_.push(entry);
    }
    return -1;
  }

  Pair pair(size_t number) const { return pairs_[number]; }

 private:
  struct Entry {
    int64_t count;
    Pair pair;
    size_t number;
    bool operator<(const Entry& other) const { return count != other.count ? count < other.count : key(pair) > key(other.pair); }
  };

  static uint32_t key(Pair pair) { return uint32_t{pair.left} << 16 | pair.right; }

  std::vector<Pair> pairs_;
  std::vector<int64_t> counts_;
  std::unordered_map<uint32_t, size_t> numbers_;
  std::priority_queue<Entry> heap_;
};

}  // namespace bpe_train
