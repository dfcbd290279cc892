// Matrix stores that transpose on the way. PTX ISA "stmatrix" (sm_90).
#pragma once

#include "ptx/types.cuh"

namespace di {

// As store_matrix_x4 of ptx/warp.cuh with every 8x8 matrix transposed: what a lane holds of row r and columns 2c, 2c + 1 goes
// to place r of the rows at the addresses that lanes 8*i + 2c and 8*i + 2c + 1 give.
__device__ __forceinline__ void store_matrix_x4_transposed(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

}  // namespace di
