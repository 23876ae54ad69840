// Codes and scales on a CPU: a band of rows is widened, measured and encoded while it lies in the cache.
#pragma once

#include <algorithm>
#include <vector>

#include "common/tensor.h"
#include "common/wide.h"
#include "quantize/quantize.h"

namespace quantize {

template <class T, Element E, bool kE8m0>
class OnCpu {
 public:
  OnCpu(const Shape& shape, const T* x, const Results& results) : shape_(shape), x_(x), to_(results) {}

  void run() const {
    // The transposed copy has blocks as high as those of the matrix are wide.
    const int64_t height = to_.codes_transposed ? shape_.width : shape_.height;
    const int64_t bands = (shape_.rows + height - 1) / height;
    warpwatch::parallel_for(bands, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, height * shape_.columns)),
                            [&](int64_t first, int64_t last) {
                              std::vector<float> band(height * shape_.columns);
                              for (int64_t b = first; b < last; ++b) quantize_band(b, height, band.data());
                            });
  }

 private:
  static constexpr int64_t kGrain = 16384;

  void quantize_band(int64_t number, int64_t height, float* band) const {
    const int64_t first = number * height, count = std::min(height, shape_.rows - first), columns = shape_.columns;
    for (int64_t r = 0; r < count; ++r) warpwatch::widen_row<T>(x_ + (first + r) * columns, band + r * columns, columns);
    const int64_t across = (columns + shape_.width - 1) / shape_.width;
    for (int64_t top = 0; top < count; top += shape_.height) {
      const int64_t rows = std::min(shape_.height, count - top), scales = (first + top) / shape_.height * across;
      for (int64_t left = 0; left < columns; left += shape_.width)
        quantize_block(band + top * columns + left, rows, std::min(shape_.width, columns - left), (first + top) * columns + left,
                       scales + left / shape_.width);
    }
    if (to_.codes_transposed) quantize_transposed(band, number, first, count);
  }

  // Codes of a block from `at` on, in elements.
  void quantize_block(const float* x, int64_t rows, int64_t width, int64_t at, int64_t scale_at) const {
    uint32_t largest = 0;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < width; ++c) largest = std::max(largest, magnitude(x[r * shape_.columns + c]));
    const Scale scale = scale_of<E, kE8m0>(largest);
    store_scale(to_.scales, scale_at, scale);
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = x + r * shape_.columns;
      const int64_t to = at + r * shape_.columns;
      if constexpr (is_packed(E)) {
        for (int64_t c = 0; c < width; c += 2)
          to_.codes[(to + c) / 2] = encode<E>(row[c] * scale.factor) | (encode<E>(row[c + 1] * scale.factor) << 4);
      } else {
        for (int64_t c = 0; c < width; ++c) to_.codes[to + c] = encode<E>(row[c] * scale.factor);
      }
    }
  }

  // Row by row, for as many columns at once as the codes of a band fit into the first-level cache.
  void quantize_transposed(const float* band, int64_t number, int64_t first, int64_t count) const {
    constexpr int64_t kColumns = 64, kHighest = 128;
    const int64_t columns = shape_.columns, across = (shape_.rows + shape_.width - 1) / shape_.width;
    for (int64_t left = 0; left < columns; left += kColumns) {
      const int64_t width = std::min(kColumns, columns - left);
      uint32_t largest[kColumns] = {};
      float factor[kColumns];
      uint8_t codes[kHighest][kColumns];
      for (int64_t r = 0; r < count; ++r)
        for (int64_t c = 0; c < width; ++c) largest[c] = std::max(largest[c], magnitude(band[r * columns + left + c]));
      for (int64_t c = 0; c < width; ++c) {
        const Scale scale = scale_of<E, kE8m0>(largest[c]);
        store_scale(to_.scales_transposed, (left + c) * across + number, scale);
        factor[c] = scale.factor;
      }
      for (int64_t r = 0; r < count; ++r)
        for (int64_t c = 0; c < width; ++c) codes[r][c] = encode<E>(band[r * columns + left + c] * factor[c]);
      for (int64_t c = 0; c < width; ++c) {
        uint8_t* to = to_.codes_transposed + (left + c) * shape_.rows + first;
        for (int64_t r = 0; r < count; ++r) to[r] = codes[r][c];
      }
    }
  }

  static void store_scale(void* scales, int64_t at, const Scale& scale) {
    if constexpr (kE8m0) {
      static_cast<uint8_t*>(scales)[at] = scale.code;
    } else {
      static_cast<float*>(scales)[at] = scale.value;
    }
  }

  Shape shape_;
  const T* x_;
  Results to_;
};

// The kinds of codes and scales that exist, each with its own code: run.template operator()<Element, e8m0>().
template <class Run>
void dispatch_form(Element element, bool e8m0, const Run& run) {
  switch (element) {
    case Element::e4m3: return e8m0 ? run.template operator()<Element::e4m3, true>() : run.template operator()<Element::e4m3, false>();
    case Element::e5m2: return e8m0 ? run.template operator()<Element::e5m2, true>() : run.template operator()<Element::e5m2, false>();
    case Element::e2m1: return run.template operator()<Element::e2m1, true>();
    case Element::i8: return run.template operator()<Element::i8, false>();
    case Element::i4: return run.template operator()<Element::i4, false>();
  }
}

}  // namespace quantize
