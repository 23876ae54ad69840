#include "common/row_tiles.cuh"
