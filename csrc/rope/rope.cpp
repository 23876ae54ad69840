// Binds the rotation of queries and keys, and its gradient, to torch for CPU and CUDA.
#include "rope/rope.h"

#include <optional>
#include <tuple>
#include <vector>

#include "common/wide.h"

namespace {

using rope::Shape;
using torch::stable::Tensor;

using Positions = std::optional<Tensor>;

constexpr int64_t kGrain = 16384;  // Elements below which a second thread costs more than it saves.

void check_like(const Tensor& q, const Tensor& other, const char* name) {
  STD_TORCH_CHECK(other.scalar_type() == q.scalar_type(), name, " must have the dtype of q");
  STD_TORCH_CHECK(other.is_cuda() == q.is_cuda() && other.get_device_index() == q.get_device_index(), name, " must be where q is");
}

Shape shape_of(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin, const Positions& positions, bool heads_first,
               bool interleaved, bool transposed) {
  STD_TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && cos.dim() == 2, "q and k have four dimensions, cos and sin two");
  check_like(q, k, "k");
  check_like(q, cos, "cos");
  warpwatch::check_same_shape(cos, sin);
  const int head = heads_first ? 1 : 2, position = heads_first ? 2 : 1;
  const int64_t batch = q.size(0), length = q.size(position), dim = q.size(3);
  STD_TORCH_CHECK(k.size(0) == batch && k.size(position) == length && k.size(3) == dim, "q and k may differ in heads alone");
  STD_TORCH_CHECK(dim % 2 == 0 && cos.size(1) == dim, "rows of q, cos and sin have the same even number of elements");
  if (positions.has_value()) {
    STD_TORCH_CHECK(positions->scalar_type() == torch::headeronly::ScalarType::Long, "positions must be int64");
    STD_TORCH_CHECK(positions->dim() == 2 && positions->size(0) == batch && positions->size(1) == length,
                    "positions must be (batch, length)");
    STD_TORCH_CHECK(positions->is_cuda() == q.is_cuda(), "positions must be where q is");
  } else {
    STD_TORCH_CHECK(cos.size(0) >= length, "cos and sin have too few rows");
  }
  STD_TORCH_CHECK(batch * length < (int64_t{1} << 31), "rope takes fewer than 2^31 positions");
  return {batch, length, dim, {q.size(head), k.size(head)}, cos.size(0), heads_first, interleaved, transposed};
}

// run(shape, call) with the operands in the C++ type of q; returns the results.
template <class Run>
std::tuple<Tensor, Tensor> apply(const Tensor& q_given, const Tensor& k_given, const Tensor& cos_given, const Tensor& sin_given,
                                 const Positions& positions_given, bool heads_first, bool interleaved, bool transposed,
                                 const Run& run) {
  const Shape shape = shape_of(q_given, k_given, cos_given, sin_given, positions_given, heads_first, interleaved, transposed);
  const Tensor q = warpwatch::contiguous(q_given), k = warpwatch::contiguous(k_given);
  const Tensor cos = warpwatch::contiguous(cos_given), sin = warpwatch::contiguous(sin_given);
  Positions positions;
  if (positions_given.has_value()) positions = warpwatch::contiguous(*positions_given);
  Tensor y_q = torch::stable::empty_like(q), y_k = torch::stable::empty_like(k);
  if (q.numel() + k.numel() == 0) return {y_q, y_k};
  warpwatch::dispatch<float, double, c10::BFloat16, c10::Half>(q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    using K = warpwatch::KernelType<T>;
    const auto in = [](const Tensor& tensor) { return reinterpret_cast<const K*>(tensor.const_data_ptr<T>()); };
    const auto out = [](Tensor& tensor) { return reinterpret_cast<K*>(tensor.mutable_data_ptr<T>()); };
    run(shape, rope::Call<K>{{in(q), in(k)},
                             {out(y_q), out(y_k)},
                             in(cos),
                             in(sin),
                             positions.has_value() ? positions->const_data_ptr<int64_t>() : nullptr},
        zero);
  });
  return {y_q, y_k};
}

// One row: pairs of x turned by the matrices in cos and sin, which lie as x does.
template <class W>
void turn_row(const Shape& shape, const W* x, const W* cos, const W* sin, W* y) {
  const int64_t half = shape.dim / 2, step = shape.interleaved ? 2 : 1, gap = shape.interleaved ? 1 : half;
  const auto loop = [=](auto a_step, auto b_at) {
    for (int64_t i = 0; i < half; ++i) {
      const int64_t a = i * a_step, b = a + b_at;
      y[a] = cos[a] * x[a] - sin[a] * x[b];
      y[b] = cos[b] * x[b] + sin[b] * x[a];
    }
  };
  // With a constant step the compiler uses whole vectors.
  if (step == 1) {
    loop(std::integral_constant<int64_t, 1>{}, gap);
  } else {
    loop(std::integral_constant<int64_t, 2>{}, std::integral_constant<int64_t, 1>{});
  }
}

// A row's cos and sin as floats; for the gradient the sines of each pair change places and sign.
template <class T>
struct Tables {
  using W = warpwatch::WideType<T>;
  std::vector<W> cos, sin;
  int64_t row = -1;

  explicit Tables(int64_t dim) : cos(dim), sin(dim) {}

  void take(const Shape& shape, const T* cos_from, const T* sin_from, int64_t wanted) {
    if (wanted == row) return;
    row = wanted;
    warpwatch::widen_row(cos_from + row * shape.dim, cos.data(), shape.dim);
    warpwatch::widen_row(sin_from + row * shape.dim, sin.data(), shape.dim);
    if (!shape.transposed) return;
    const int64_t half = shape.dim / 2;
    for (int64_t i = 0; i < half; ++i) {
      W& first = sin[shape.interleaved ? 2 * i : i];
      W& second = sin[shape.interleaved ? 2 * i + 1 : i + half];
      const W kept = first;
      first = -second;
      second = -kept;
    }
  }
};

// The position of row `row` of x, counted over all of batch x length.
int64_t place_of(const Shape& shape, int64_t row, int64_t heads) {
  if (!shape.heads_first) return row / heads;
  return row / (heads * shape.length) * shape.length + row % shape.length;
}

template <class T>
void rows_on_cpu(const Shape& shape, const T* x, T* y, int64_t heads, const T* cos, const T* sin, const int64_t* positions) {
  using W = warpwatch::WideType<T>;
  const int64_t dim = shape.dim, grain = std::max<int64_t>(1, kGrain / dim);
  warpwatch::parallel_for(shape.batch * shape.length * heads, grain, [=](int64_t begin, int64_t end) {
    Tables<T> tables(dim);
    std::vector<W> wide_x(dim), wide_y(dim);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t place = place_of(shape, row, heads);
      tables.take(shape, cos, sin, positions ? positions[place] : place % shape.length);
      if constexpr (std::is_same_v<T, W>) {
        turn_row(shape, x + row * dim, tables.cos.data(), tables.sin.data(), y + row * dim);
      } else {
        warpwatch::widen_row(x + row * dim, wide_x.data(), dim);
        turn_row(shape, wide_x.data(), tables.cos.data(), tables.sin.data(), wide_y.data());
        warpwatch::narrow_row(wide_y.data(), y + row * dim, dim);
      }
    }
  });
}

std::tuple<Tensor, Tensor> on_cpu(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin, const Positions& positions,
                                  bool heads_first, bool interleaved, bool transposed) {
  return apply(q, k, cos, sin, positions, heads_first, interleaved, transposed, [](const Shape& shape, const auto& call, auto zero) {
    using T = decltype(zero);
    // Looked at beforehand, because what a thread of the loop throws loses its message.
    for (int64_t place = 0; call.positions && place < shape.batch * shape.length; ++place)
      STD_TORCH_CHECK(call.positions[place] >= 0 && call.positions[place] < shape.table, "a position lies outside cos and sin");
    const auto own = [](auto* pointer) { return reinterpret_cast<const T*>(pointer); };
    for (int i = 0; i < 2; ++i)
      rows_on_cpu(shape, own(call.in[i]), reinterpret_cast<T*>(call.out[i]), shape.heads[i], own(call.cos), own(call.sin),
                  call.positions);
  });
}

std::tuple<Tensor, Tensor> rope_cpu(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin, Positions positions,
                                    bool heads_first, bool interleaved, int64_t) {
  return on_cpu(q, k, cos, sin, positions, heads_first, interleaved, false);
}

std::tuple<Tensor, Tensor> rope_backward_cpu(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
                                             Positions positions, bool heads_first, bool interleaved, int64_t) {
  return on_cpu(q, k, cos, sin, positions, heads_first, interleaved, true);
}

#if !defined(WARPWATCH_NO_CUDA)
std::tuple<Tensor, Tensor> on_cuda(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin, const Positions& positions,
                                   bool heads_first, bool interleaved, bool transposed, int64_t version) {
  const warpwatch::DeviceGuard guard(q.get_device_index());
  return apply(q, k, cos, sin, positions, heads_first, interleaved, transposed, [&](const Shape& shape, const auto& call, auto) {
    warpwatch::check_launch(rope::apply_on(static_cast<rope::Version>(version), shape, call, warpwatch::current_stream(q)));
  });
}

std::tuple<Tensor, Tensor> rope_cuda(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin, Positions positions,
                                     bool heads_first, bool interleaved, int64_t version) {
  return on_cuda(q, k, cos, sin, positions, heads_first, interleaved, false, version);
}

std::tuple<Tensor, Tensor> rope_backward_cuda(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
                                              Positions positions, bool heads_first, bool interleaved, int64_t version) {
  return on_cuda(q, k, cos, sin, positions, heads_first, interleaved, true, version);
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def(
      "rope(Tensor q, Tensor k, Tensor cos, Tensor sin, Tensor? positions=None, bool heads_first=False, bool interleaved=False, "
      "int version=3) -> (Tensor, Tensor)");
  m.def(
      "rope_backward(Tensor q_gradient, Tensor k_gradient, Tensor cos, Tensor sin, Tensor? positions=None, bool heads_first=False, "
      "bool interleaved=False, int version=3) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) {
  m.impl("rope", TORCH_BOX(&rope_cpu));
  m.impl("rope_backward", TORCH_BOX(&rope_backward_cpu));
}

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) {
  m.impl("rope", TORCH_BOX(&rope_cuda));
  m.impl("rope_backward", TORCH_BOX(&rope_backward_cuda));
}
#endif
