// Binds the training of a small network to torch for CPU and CUDA.
#include "lottery/lottery.h"

#include <tuple>

#include "common/tensor.h"
#include "lottery/cpu.h"

namespace {

using lottery::kClasses;
using lottery::Shape;
using lottery::Training;
using torch::stable::Tensor;

Tensor checked(const Tensor& tensor, const Tensor& like, int64_t rows, int64_t columns, const char* what) {
  warpwatch::check_like(tensor, like, {rows, columns}, what);
  return warpwatch::contiguous(tensor);
}

template <class T>
void run(const Shape& shape, const Training<T>& training, const Tensor& like) {
#if !defined(WARPWATCH_NO_CUDA)
  if (like.is_cuda()) {
    const warpwatch::DeviceGuard guard(like.get_device_index());
    return warpwatch::check_launch(lottery::train_on(shape, training, warpwatch::current_stream(like)));
  }
#endif
  lottery::OnCpu<T>(shape, training).train();
}

std::tuple<Tensor, Tensor> lottery_train(const Tensor& x_given, const Tensor& target_given, const Tensor& w1_given, const Tensor& w2_given,
                                         const Tensor& mask1_given, const Tensor& mask2_given, double speed, int64_t steps) {
  STD_TORCH_CHECK(x_given.dim() == 2 && x_given.size(0) > 0, "x must be (samples, features)");
  STD_TORCH_CHECK(w1_given.dim() == 2, "w1 must be (features, hidden)");
  STD_TORCH_CHECK(w1_given.numel() > 0, "there must be features and hidden values");
  STD_TORCH_CHECK(steps >= 0, "steps must not be negative");
  const Shape shape{x_given.size(0), x_given.size(1), w1_given.size(1)};
  const Tensor x = checked(x_given, x_given, shape.samples, shape.features, "x");
  const Tensor target = checked(target_given, x, shape.samples, kClasses, "target");
  const Tensor w1 = checked(w1_given, x, shape.features, shape.hidden, "w1"), w2 = checked(w2_given, x, shape.hidden, kClasses, "w2");
  const Tensor mask1 = checked(mask1_given, x, shape.features, shape.hidden, "mask1");
  const Tensor mask2 = checked(mask2_given, x, shape.hidden, kClasses, "mask2");
  Tensor out1 = torch::stable::empty_like(w1), out2 = torch::stable::empty_like(w2);
  warpwatch::dispatch<float, double>(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const auto at = [](const Tensor& tensor) { return static_cast<const T*>(tensor.const_data_ptr()); };
    run(shape,
        Training<T>{at(x), at(target), at(w1), at(w2), at(mask1), at(mask2), static_cast<T*>(out1.mutable_data_ptr()),
                    static_cast<T*>(out2.mutable_data_ptr()), steps, static_cast<T>(speed)},
        x);
  });
  return {out1, out2};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(warpwatch, m) {
  m.def(
      "lottery_train(Tensor x, Tensor target, Tensor w1, Tensor w2, Tensor mask1, Tensor mask2, float speed, int steps) -> (Tensor, "
      "Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(warpwatch, CPU, m) { m.impl("lottery_train", TORCH_BOX(&lottery_train)); }

#if !defined(WARPWATCH_NO_CUDA)
STABLE_TORCH_LIBRARY_IMPL(warpwatch, CUDA, m) { m.impl("lottery_train", TORCH_BOX(&lottery_train)); }
#endif
