// Binds byte-pair training to torch; it is work for CPUs alone.
#include "bpe_train/encoder.h"
#include "bpe_train/trainer.h"
#include "common/tensor.h"

namespace {

using bpe_train::Chunk;
using bpe_train::Counts;
using bpe_train::Pair;
using bpe_train::Places;
using bpe_train::Token;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kSymbols = 256;
constexpr int64_t kStringsWorthThreads = 64;
constexpr int64_t kPlacesWorthThreads = 32768;  // About a third of a millisecond; on busy cores a thread takes as long to arrive.

// Tokens of the symbols that occur, in ascending order; `id` gets each symbol's.
size_t find_alphabet(const uint8_t* symbols, int64_t count, Token* id) {
  bool occurs[kSymbols] = {};
  for (int64_t i = 0; i < count; ++i) occurs[symbols[i]] = true;
  size_t alphabet = 0;
  for (int64_t symbol = 0; symbol < kSymbols; ++symbol)
    if (occurs[symbol]) id[symbol] = static_cast<Token>(alphabet++);
  return alphabet;
}

// Where each of `chunks` parts of about as many symbols begins, in strings.
std::vector<int64_t> split(const int64_t* offsets, int64_t strings, int64_t chunks) {
  std::vector<int64_t> first(chunks + 1, strings);
  first[0] = 0;
  for (int64_t c = 1; c < chunks; ++c)
    first[c] = std::lower_bound(offsets, offsets + strings, offsets[strings] * c / chunks) - offsets;
  return first;
}

// Runs run(chunk) for each chunk, on as many threads as there are chunks where `places` of a pair are worth waking them.
template <class Run>
void each(std::vector<Chunk>& chunks, int64_t places, const Run& run) {
  if (places < kPlacesWorthThreads) {
    for (Chunk& chunk : chunks) run(chunk);
    return;
  }
  warpwatch::parallel_for(static_cast<int64_t>(chunks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) run(chunks[c]);
  });
}

template <class Value>
int64_t total(const std::vector<Chunk>& chunks, const Value& value) {
  int64_t sum = 0;
  for (const Chunk& chunk : chunks) sum += value(chunk);
  return sum;
}

// Takes over what merging `old` into `merged` changed in every chunk.
void settle(std::vector<Chunk>& chunks, Counts& counts, Pair old, Token merged) {
  for (size_t t = 0; t <= merged; ++t) {
    const Token token = static_cast<Token>(t);
    counts.lose({token, old.left}, total(chunks, [=](const Chunk& c) { return c.changes.lost_before[t]; }));
    counts.lose({old.right, token}, total(chunks, [=](const Chunk& c) { return c.changes.lost_after[t]; }));
    const int64_t before = total(chunks, [=](const Chunk& c) { return c.changes.gained_before[t]; });
    const int64_t after = total(chunks, [=](const Chunk& c) { return c.changes.gained_after[t]; });
    if (before > 0) {
      const size_t number = counts.add({token, merged}, before);
      for (Chunk& chunk : chunks) chunk.keep(number, chunk.changes.before[t]);
    }
    if (after > 0) {
      const size_t number = counts.add({merged, token}, after);
      for (Chunk& chunk : chunks) chunk.keep(number, chunk.changes.after[t]);
    }
    for (Chunk& chunk : chunks) {
      chunk.changes.before[t].clear();
      chunk.changes.after[t].clear();
    }
  }
}

// Writes left and right token of each merge to `out`, which holds -1 where the pairs run out.
void train(std::vector<Chunk>& chunks, size_t alphabet, int64_t symbols, int64_t merges, int32_t* out) {
  each(chunks, symbols, [=](Chunk& chunk) { chunk.find_pairs(alphabet); });
  Counts counts;
  for (size_t pair = 0; pair < alphabet * alphabet; ++pair)
    counts.add({static_cast<Token>(pair / alphabet), static_cast<Token>(pair % alphabet)},
               total(chunks, [=](const Chunk& chunk) { return chunk.places_of(pair); }));
  std::vector<int32_t> length(alphabet, 1);
  for (int64_t i = 0; i < merges; ++i) {
    const int64_t number = counts.most_frequent();
    if (number < 0) return;
    const Pair pair = counts.pair(number);
    const Token merged = static_cast<Token>(alphabet + i);
    length.push_back(length[pair.left] + length[pair.right]);
    const int64_t places = total(chunks, [=](const Chunk& chunk) { return chunk.places_of(number); });
    each(chunks, places, [&](Chunk& chunk) { chunk.merge(number, pair, merged, length); });
    settle(chunks, counts, pair, merged);
    counts.forget(number);
    out[2 * i] = pair.left;
    out[2 * i + 1] = pair.right;
  }
}

void check_offsets(const Tensor& offsets, int64_t symbols) {
  const int64_t* at = offsets.const_data_ptr<int64_t>();
  const int64_t strings = offsets.numel() - 1;
  STD_TORCH_CHECK(at[0] == 0 && at[strings] == symbols, "offsets must begin with 0 and end with the number of symbols");
  for (int64_t s = 0; s < strings; ++s) STD_TORCH_CHECK(at[s] <= at[s + 1], "offsets must not fall");
}

Tensor bpe_train_cpu(const Tensor& symbols_given, const Tensor& offsets_given, int64_t merges, int64_t threads) {
  STD_TORCH_CHECK(symbols_given.scalar_type() == ScalarType::Byte && symbols_given.dim() == 1, "symbols must be a vector of uint8");
  STD_TORCH_CHECK(offsets_given.scalar_type() == ScalarType::Long && offsets_given.dim() == 1 && offsets_given.numel() > 0,
                  "offsets must be a vector of int64, one longer than there are strings");
  STD_TORCH_CHECK(merges >= 0 && merges + kSymbols < bpe_train::kMostTokens, "more merges than 16-bit tokens can number");
  const Tensor symbols = warpwatch::contiguous(symbols_given), offsets = warpwatch::contiguous(offsets_given);
  const int64_t count = symbols.numel(), strings = offsets.numel() - 1;
  STD_TORCH_CHECK(count + strings < INT32_MAX, "places are counted in 32 bits");
  check_offsets(offsets, count);
  Token id[kSymbols] = {};
  const uint8_t* text = symbols.const_data_ptr<uint8_t>();
  const int64_t* at = offsets.const_data_ptr<int64_t>();
  const size_t alphabet = find_alphabet(text, count, id);
  const int64_t parts =
      std::clamp<int64_t>(threads > 0 ? threads : torch::stable::get_num_threads(), 1, std::max<int64_t>(strings, 1));
  const std::vector<int64_t> first = split(at, strings, parts);
  std::vector<Chunk> chunks(parts);
  for (int64_t c = 0; c < parts; ++c) chunks[c].read(text, at, first[c], first[c + 1], id);
  const int64_t size[] = {merges, 2};
  Tensor out = torch::stable::new_empty(symbols, {size, 2}, ScalarType::Int);
  torch::stable::fill_(out, -1);
  train(chunks, alphabet, count, merges, out.mutable_data_ptr<int32_t>());
  return out;
}

// The tokens of strings after all merges, one string behind the other, and where each begins and ends among them.
std::tuple<Tensor, Tensor> bpe_encode_cpu(const Tensor& tokens_given, const Tensor& offsets_given, const Tensor& merges_given,
                                          const Tensor& merged_given) {
  STD_TORCH_CHECK(tokens_given.scalar_type() == ScalarType::Int && tokens_given.dim() == 1, "tokens must be a vector of int32");
  STD_TORCH_CHECK(offsets_given.scalar_type() == ScalarType::Long && offsets_given.dim() == 1 && offsets_given.numel() > 0,
                  "offsets must be a vector of int64, one longer than there are strings");
  STD_TORCH_CHECK(merges_given.scalar_type() == ScalarType::Int && merges_given.dim() == 2 && merges_given.size(1) == 2,
                  "merges must be int32 with two columns");
  STD_TORCH_CHECK(merged_given.scalar_type() == ScalarType::Int && merged_given.dim() == 1 &&
                      merged_given.size(0) == merges_given.size(0),
                  "merged must be a vector of int32, a number for each merge");
  STD_TORCH_CHECK(tokens_given.numel() < INT32_MAX, "places are counted in 32 bits");
  const Tensor offsets = warpwatch::contiguous(offsets_given), merges = warpwatch::contiguous(merges_given);
  const Tensor given = warpwatch::contiguous(tokens_given), merged = warpwatch::contiguous(merged_given);
  check_offsets(offsets, given.numel());
  Tensor tokens = torch::stable::clone(given), ends = torch::stable::empty_like(offsets);
  const int64_t strings = offsets.numel() - 1, *at = offsets.const_data_ptr<int64_t>();
  int32_t* out = tokens.mutable_data_ptr<int32_t>();
  const int32_t* becomes = merged.const_data_ptr<int32_t>();
  const auto is_token = [](int32_t token) { return token >= 0; };
  STD_TORCH_CHECK(std::all_of(out, out + tokens.numel(), is_token) && std::all_of(becomes, becomes + merged.numel(), is_token),
                  "tokens must not be negative");
  const bpe_train::Ranks ranks(merges.const_data_ptr<int32_t>(), becomes, merges.size(0));
  std::vector<int64_t> length(strings);
  warpwatch::parallel_for(strings, kStringsWorthThreads, [&](int64_t begin, int64_t end) {
    bpe_train::Encoder encoder(ranks);
    for (int64_t s = begin; s < end; ++s) length[s] = encoder.run(out + at[s], at[s + 1] - at[s]);
  });
  int64_t* end = ends.mutable_data_ptr<int64_t>();
  end[0] = 0;
  for (int64_t s = 0; s < strings; ++s) {
    std::copy_n(out + at[s], length[s], out + end[s]);
    end[s + 1] = end[s] + length[s];
  }
  return {tokens, ends};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def("bpe_train(Tensor symbols, Tensor offsets, int merges, int threads) -> Tensor");
  m.def("bpe_encode(Tensor tokens, Tensor offsets, Tensor merges, Tensor merged) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) {
  m.impl("bpe_train", TORCH_BOX(&bpe_train_cpu));
  m.impl("bpe_encode", TORCH_BOX(&bpe_encode_cpu));
}
