#include "common/row_products.cuh"

WARPWATCH_ROW_PRODUCTS(warpwatch::Bf16)
