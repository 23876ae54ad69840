#include "common/decoder_step.cuh"

WARPWATCH_DECODER_STEP(float)
WARPWATCH_ROW_PRODUCTS(float)
