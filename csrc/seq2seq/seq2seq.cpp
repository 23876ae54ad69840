// Binds the greedy decode of an encoder-decoder to torch for CPU and CUDA.
#include "seq2seq/decode.h"

namespace {

using row_products::mutable_pointer;
using row_products::pointer;
using seq2seq::Call;
using torch::stable::Tensor;
using warpwatch::check_like;

constexpr int64_t kLayer = 4;

std::vector<Tensor> contiguous_layer(const std::vector<Tensor>& given, const Tensor& like, int64_t width, int64_t hidden) {
  STD_TORCH_CHECK(given.size() == kLayer, "a layer has four weights");
  check_like(given[0], like, {3 * hidden, width}, "w_ih");
  check_like(given[1], like, {3 * hidden, hidden}, "w_hh");
  std::vector<Tensor> result;
  for (size_t i = 0; i < kLayer; ++i) {
    if (i >= 2) check_like(given[i], like, {3 * hidden}, "bias");
    result.push_back(warpwatch::contiguous(given[i]));
  }
  return result;
}

template <class T>
seq2seq::Layer<T> layer_of(const std::vector<Tensor>& weights) {
  return {pointer<T>(weights[0]), pointer<T>(weights[1]), pointer<T>(weights[2]), pointer<T>(weights[3])};
}

template <class T>
void run(const Call<T>& call, const Tensor& like) {
#if !defined(WARPWATCH_NO_CUDA)
  if (like.is_cuda()) return seq2seq::decode(call, seq2seq::Device{warpwatch::current_stream(like)});
#endif
  seq2seq::decode(call, seq2seq::Host{});
}

Tensor seq2seq_decode(const Tensor& source_given, const Tensor& source_table_given, const Tensor& target_table_given,
                      std::vector<Tensor> encoder_given, std::vector<Tensor> decoder_given, const Tensor& w_fc_given,
                      const Tensor& b_fc_given, int64_t start, int64_t end, int64_t steps) {
  STD_TORCH_CHECK(source_given.dim() == 2 && source_given.scalar_type() == warpwatch::ScalarType::Long, "source must be (steps, batch)");
  STD_TORCH_CHECK(source_table_given.dim() == 2 && target_table_given.dim() == 2, "embeddings must be matrices");
  STD_TORCH_CHECK(encoder_given.size() == kLayer && encoder_given[1].dim() == 2, "a layer has four weights");
  const int64_t batch = source_given.size(1), width = target_table_given.size(1), hidden = encoder_given[1].size(1);
  const int64_t vocab = target_table_given.size(0);
  STD_TORCH_CHECK(0 <= start && start < vocab && 0 <= end && end < vocab, "start and end must be tokens");
  check_like(source_table_given, target_table_given, {source_table_given.size(0), width}, "source embeddings");
  check_like(w_fc_given, target_table_given, {vocab, width + 2 * hidden}, "w_fc");
  check_like(b_fc_given, target_table_given, {vocab}, "b_fc");
  const Tensor source = warpwatch::contiguous(source_given), w_fc = warpwatch::contiguous(w_fc_given);
  const Tensor b_fc = warpwatch::contiguous(b_fc_given), source_table = warpwatch::contiguous(source_table_given);
  const Tensor target_table = warpwatch::contiguous(target_table_given);
  const std::vector<Tensor> encoder = contiguous_layer(encoder_given, target_table, width, hidden);
  const std::vector<Tensor> decoder = contiguous_layer(decoder_given, target_table, width + hidden, hidden);
  const auto matrix = [&](int64_t columns) { return row_products::empty_matrix(target_table, batch, columns); };
  Tensor tokens = row_products::empty_matrix(source, batch, steps), current = row_products::empty_matrix(source, batch, 1);
  if (tokens.numel() == 0) return tokens;
  Tensor h = matrix(hidden);
  torch::stable::fill_(h, 0);
  const Tensor e = matrix(width), next = matrix(hidden), gates = matrix(3 * hidden), added = matrix(vocab), logits = matrix(vocab);
#if !defined(WARPWATCH_NO_CUDA)
  std::optional<warpwatch::DeviceGuard> guard;
  if (source.is_cuda()) guard.emplace(source.get_device_index());
#endif
  warpwatch::dispatch<float, double>(target_table.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    run(Call<T>{batch, source.size(0), steps, width, hidden, vocab, start, end, pointer<int64_t>(source), pointer<T>(source_table),
                pointer<T>(target_table), layer_of<T>(encoder), layer_of<T>(decoder), pointer<T>(w_fc), pointer<T>(b_fc),
                mutable_pointer<int64_t>(tokens), mutable_pointer<int64_t>(current), mutable_pointer<T>(e),
                {mutable_pointer<T>(h), mutable_pointer<T>(next)}, mutable_pointer<T>(gates), mutable_pointer<T>(added),
                mutable_pointer<T>(logits)},
        target_table);
  });
  return tokens;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def(
      "seq2seq_decode(Tensor source, Tensor source_table, Tensor target_table, Tensor[] encoder, Tensor[] decoder, Tensor w_fc, Tensor "
      "b_fc, int start, int end, int steps) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) { m.impl("seq2seq_decode", TORCH_BOX(&seq2seq_decode)); }

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) { m.impl("seq2seq_decode", TORCH_BOX(&seq2seq_decode)); }
#endif
