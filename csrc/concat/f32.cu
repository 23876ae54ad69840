#include "common/row_products.cuh"

WARPWATCH_ROW_PRODUCTS(float)
