#include "common/decoder_step.cuh"

WARPWATCH_DECODER_STEP(double)
WARPWATCH_ROW_PRODUCTS(double)
