// The functions of row_products.h for many rows: products on tensor cores by split_tiles.cuh. One .cu of a library includes this.
#pragma once

#include "common/row_products.h"
#include "common/split_tiles.cuh"

namespace row_products {

using split_tiles::Operand;
using split_tiles::Product;
using split_tiles::Products;
using warpwatch::ceil_div;

constexpr int kSumThreads = 64, kSumRows = 16;

// db[v] = sum over rows of gradient[b][v], if sums are wanted, and the gradient once more in rows that begin at multiples of 16 bytes, if
// they do not already. Neighbours in a row are for the threads along x, rows in turn for those along y.
__global__ void __launch_bounds__(kSumThreads* kSumRows) sums_and_copy(const float* __restrict__ gradient, int64_t rows, int64_t columns,
                                                                       float* __restrict__ sums, float* __restrict__ copy, int64_t stride) {
  __shared__ float parts[kSumRows][kSumThreads];
  const int64_t column = int64_t{blockIdx.x} * kSumThreads + threadIdx.x;
  float sum = 0;
  if (column < columns) {
#pragma unroll 8
    for (int64_t row = threadIdx.y; row < rows; row += kSumRows) {
      const float value = gradient[row * columns + column];
      if (copy != nullptr) copy[row * stride + column] = value;
      sum += value;
    }
  }
  if (sums == nullptr) return;
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  for (int y = 1; y < kSumRows; ++y) sum += parts[y][threadIdx.x];
  sums[column] = sum;
}

inline int64_t aligned_stride(int64_t columns) { return ceil_div(columns, 4) * 4; }

// y = x · Wᵀ + bias, a segment of the sum for each part of x.
inline Product forward_product(const Forward<float>& call) {
  Product product{};
  product.m = call.batch, product.n = call.outputs, product.c = call.y, product.c_stride = call.outputs;
  product.added = call.bias, product.added_stride = call.bias_stride;
  const float* w = call.w;
  for (int p = 0; p < call.x.count; ++p) {
    const int64_t width = call.x.width[p];
    if (width > 0) product.segments[product.count++] = {{call.x.data[p], call.x.stride[p], 1}, {w, call.w_stride, 1}, width};
    w += width;
  }
  return product;
}

using ForwardPlan = split_tiles::Plan<64, 64, 2, 2, 3, true, true>;
using InputPlan = split_tiles::Plan<64, 64, 2, 2, 3, true, false>;
using WeightPlan = split_tiles::Plan<64, 64, 2, 2, 3, false, false>;

const char* forward_tiles_on(const Forward<float>* calls, int count, void* stream) {
  Products products{};
  for (int i = 0; i < count; ++i) products.product[products.count++] = forward_product(calls[i]);
  return split_tiles::launch_shared<ForwardPlan>(products, stream);
}

int64_t tiles_scratch_bytes(const Backward<float>& call) {
  return call.outputs % 4 == 0 ? 0 : call.batch * aligned_stride(call.outputs) * static_cast<int64_t>(sizeof(float));
}

const char* backward_tiles_on(const Backward<float>& call, void* stream) {
  const bool copies = tiles_scratch_bytes(call) > 0;
  const int64_t stride = copies ? aligned_stride(call.outputs) : call.outputs;
  auto* copy = copies ? static_cast<float*>(call.scratch) : nullptr;
  if (copies || call.b_gradient != nullptr) {
    const dim3 threads(kSumThreads, kSumRows);
    sums_and_copy<<<static_cast<unsigned>(ceil_div(call.outputs, kSumThreads)), threads, 0, warpwatch::as_stream(stream)>>>(
        call.gradient, call.batch, call.outputs, call.b_gradient, copy, stride);
    if (const char* error = warpwatch::launch_error()) return error;
  }
  const float* gradient = copies ? copy : call.gradient;
  Products inputs{}, weights{};
  Product& dx = inputs.product[inputs.count++];
  dx.segments[dx.count++] = {{gradient, stride, 1}, {call.w, 1, call.depth}, call.outputs};
  dx.m = call.batch, dx.n = call.depth, dx.c = call.x_gradient, dx.c_stride = call.depth;
  int64_t column = 0;
  for (int p = 0; p < call.x.count; ++p) {
    if (call.x.width[p] > 0) {
      Product& dw = weights.product[weights.count++];
      dw.segments[dw.count++] = {{gradient, 1, stride}, {call.x.data[p], 1, call.x.stride[p]}, call.batch};
      dw.m = call.outputs, dw.n = call.x.width[p], dw.c = call.w_gradient + column, dw.c_stride = call.depth;
    }
    column += call.x.width[p];
  }
  if (const char* error = split_tiles::launch_shared<InputPlan>(inputs, stream)) return error;
  return split_tiles::launch<WeightPlan>(weights, 1, stream);
}

}  // namespace row_products
