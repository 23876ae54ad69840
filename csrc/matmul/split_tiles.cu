// The rung that reads fragments one step ahead, and whose blocks go on from tile to tile without a gap between them; where tiles are
// few, the blocks of a cluster share the sum of one. Floats keep their accuracy, as in tensor_split.cu.
#include "common/split_tiles.cuh"
#include "matmul/matmul.h"

namespace {

using split_tiles::Products;
using warpwatch::ceil_div;

template <bool RowsA, bool RowsB>
const char* launch(const Products& products, void* stream) {
  using Large = split_tiles::Plan<128, 128, 2, 4, 4, RowsA, RowsB>;
  using Small = split_tiles::Plan<64, 64, 2, 2, 3, RowsA, RowsB>;
  if (split_tiles::tiles_of<Large>(products) >= warpwatch::multiprocessors()) return split_tiles::launch<Large>(products, 1, stream);
  return split_tiles::launch_shared<Small>(products, stream);
}

}  // namespace

const char* matmul::split_tiles_on(const Product<float>& call, void* stream) {
  const auto operand = [](const Operand<float>& from, int64_t batch) {
    return split_tiles::Operand{from.data + batch * from.batch, from.outer, from.k};
  };
  const bool rows_a = call.a.k == 1, rows_b = call.b.k == 1;
  for (int64_t first = 0; first < call.batches; first += split_tiles::kMostProducts) {
    Products products{};
    for (int64_t batch = first; batch < call.batches && products.count < split_tiles::kMostProducts; ++batch) {
      split_tiles::Product& product = products.product[products.count++];
      product.segments[product.count++] = {operand(call.a, batch), operand(call.b, batch), call.k};
      product.m = call.m, product.n = call.n, product.c = call.c + batch * call.m * call.n, product.c_stride = call.n;
    }
    const char* error = rows_a && rows_b ? launch<true, true>(products, stream)
                        : rows_a         ? launch<true, false>(products, stream)
                                         : launch<false, false>(products, stream);
    if (error) return error;
  }
  return nullptr;
}
