// Binds the choice of the largest magnitudes, and the gradient of the elements kept, to torch for CPU and CUDA.
#include "magnitude_prune/magnitude_prune.h"

#include <tuple>
#include <vector>

#include "common/tensor.h"
#include "magnitude_prune/cpu.h"

namespace {

using magnitude_prune::Choice;
using torch::stable::Tensor;
using warpwatch::ScalarType;

uint64_t infinity_of(ScalarType type) {
  switch (type) {
    case ScalarType::Half: return 0x7c00;
    case ScalarType::BFloat16: return 0x7f80;
    case ScalarType::Float: return 0x7f800000;
    case ScalarType::Double: return 0x7ff0000000000000;
    default: STD_TORCH_CHECK(false, "magnitude_prune has no implementation for dtype ", torch::headeronly::toString(type));
  }
}

Choice choice_of(const Tensor& w, int64_t keep) {
  STD_TORCH_CHECK(keep >= 0 && keep <= w.numel(), "cannot keep ", keep, " of ", w.numel(), " elements");
  return {static_cast<int>(w.element_size()), infinity_of(w.scalar_type()), w.numel(), keep};
}

Tensor new_mask(const Tensor& w) {
  const std::vector<int64_t> shape(w.sizes().begin(), w.sizes().end());
  return torch::stable::new_empty(w, shape, ScalarType::Bool);
}

void check_mask(const Tensor& g, const Tensor& mask) {
  const bool fits = mask.scalar_type() == ScalarType::Bool && mask.numel() == g.numel();
  STD_TORCH_CHECK(fits, "the mask must have a bool for each element");
  STD_TORCH_CHECK(g.get_device_index() == mask.get_device_index(), "gradient and mask must be on one device");
}

// run(Key{}) with the unsigned type that is as wide as an element.
template <class Run>
void dispatch_width(int64_t bytes, const Run& run) {
  if (bytes == 2) run(uint16_t{});
  if (bytes == 4) run(uint32_t{});
  if (bytes == 8) run(uint64_t{});
}

std::tuple<Tensor, Tensor> prune_cpu(const Tensor& w_given, int64_t keep) {
  const Choice choice = choice_of(w_given, keep);
  const Tensor w = warpwatch::contiguous(w_given);
  Tensor out = torch::stable::empty_like(w), mask = new_mask(w);
  dispatch_width(choice.bytes, [&](auto zero) {
    using Key = decltype(zero);
    magnitude_prune::OnCpu<Key>(choice, static_cast<const Key*>(w.const_data_ptr()))
        .prune(static_cast<Key*>(out.mutable_data_ptr()), static_cast<bool*>(mask.mutable_data_ptr()));
  });
  return {out, mask};
}

Tensor backward_cpu(const Tensor& g_given, const Tensor& mask_given) {
  check_mask(g_given, mask_given);
  const Tensor g = warpwatch::contiguous(g_given), mask = warpwatch::contiguous(mask_given);
  Tensor out = torch::stable::empty_like(g);
  dispatch_width(g.element_size(), [&](auto zero) {
    using Key = decltype(zero);
    const Key* in = static_cast<const Key*>(g.const_data_ptr());
    const bool* kept = static_cast<const bool*>(mask.const_data_ptr());
    Key* to = static_cast<Key*>(out.mutable_data_ptr());
    warpwatch::parallel_for(g.numel(), 16384, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = kept[i] ? in[i] : Key{0};
    });
  });
  return out;
}

#if !defined(WARPWATCH_NO_CUDA)
std::tuple<Tensor, Tensor> prune_cuda(const Tensor& w_given, int64_t keep) {
  const warpwatch::DeviceGuard guard(w_given.get_device_index());
  const Choice choice = choice_of(w_given, keep);
  const Tensor w = warpwatch::contiguous(w_given);
  Tensor out = torch::stable::empty_like(w), mask = new_mask(w);
  const std::vector<int64_t> size{magnitude_prune::scratch_bytes(choice)};
  Tensor scratch = torch::stable::new_empty(w, size, ScalarType::Byte);
  warpwatch::check_launch(magnitude_prune::prune_on(choice, w.const_data_ptr(), out.mutable_data_ptr(),
                                                    static_cast<bool*>(mask.mutable_data_ptr()), scratch.mutable_data_ptr(),
                                                    warpwatch::current_stream(w)));
  return {out, mask};
}

Tensor backward_cuda(const Tensor& g_given, const Tensor& mask_given) {
  const warpwatch::DeviceGuard guard(g_given.get_device_index());
  check_mask(g_given, mask_given);
  const Tensor g = warpwatch::contiguous(g_given), mask = warpwatch::contiguous(mask_given);
  Tensor out = torch::stable::empty_like(g);
  warpwatch::check_launch(magnitude_prune::select_on(static_cast<int>(g.element_size()), g.numel(), g.const_data_ptr(),
                                                     static_cast<const bool*>(mask.const_data_ptr()), out.mutable_data_ptr(),
                                                     warpwatch::current_stream(g)));
  return out;
}
#endif

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def("magnitude_prune(Tensor w, int keep) -> (Tensor, Tensor)");
  m.def("magnitude_prune_backward(Tensor gradient, Tensor mask) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) {
  m.impl("magnitude_prune", TORCH_BOX(&prune_cpu));
  m.impl("magnitude_prune_backward", TORCH_BOX(&backward_cpu));
}

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) {
  m.impl("magnitude_prune", TORCH_BOX(&prune_cuda));
  m.impl("magnitude_prune_backward", TORCH_BOX(&backward_cuda));
}
#endif
