// Stores rows of a swizzled shared-memory tile one by one, where TMA would also write rows of another group.
#pragma once

#include "ptx/types.cuh"

namespace di {

// The first `rows` rows of a tile of 128-byte rows with 128-byte swizzle (64 columns of two bytes) to `first`, `row_bytes`
// apart, cut to `cols` columns. kThreads threads take 16 bytes each in turn; `thread` counts from 0.
template <uint32_t kThreads>
__device__ __forceinline__ void store_rows(const uint8_t* tile, uint8_t* first, int64_t row_bytes, uint32_t rows,
                                           uint32_t cols, uint32_t thread) {
    for (uint32_t i = thread; i < rows * 8; i += kThreads) {
        const uint32_t r = i / 8, chunk = i % 8;
        const uint8_t* src = tile + r * 128 + (chunk ^ (r % 8)) * 16;
        uint8_t* dst = first + r * row_bytes + chunk * 16;
        if (chunk * 8 + 8 <= cols) {
            *reinterpret_cast<uint4*>(dst) = *reinterpret_cast<const uint4*>(src);
        } else {
            for (uint32_t c = chunk * 8; c < cols; ++c)
                reinterpret_cast<uint16_t*>(dst)[c % 8] = reinterpret_cast<const uint16_t*>(src)[c % 8];
        }
    }
}

}  // namespace di
