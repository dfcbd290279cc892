// Rows of channels between memory types: 64 at a time through float registers. Used by vector kernels.
#pragma once
#include "deepinfer.h"

enum RowType : int32_t { ROW_F32 = 0, ROW_BF16 = 1 };
constexpr uint32_t NAN_BITS = 0x7FC00000u, INFINITE_BITS = 0x7F800000u;

// Channels [channel, channel + 64) of a row as float.
__simd_callee__ inline void widen_row(vector_float& x, __ubuf__ uint8_t* row, uint32_t channel, int32_t type) {
    if (type == ROW_F32) {
        x = asc_loadalign((__ubuf__ float*)row + channel);
        return;
    }
    vector_bfloat16_t h;
    asc_loadalign_unpack(h, (__ubuf__ bfloat16_t*)row + channel);
    asc_bfloat162float(x, h, asc_create_mask_b32(PAT_ALL));
}
// 64 floats into a row, rounded once; in bf16 every NaN becomes the one quiet NaN.
__simd_callee__ inline void narrow_row(__ubuf__ uint8_t* row, uint32_t channel, int32_t type, vector_float& x, vector_bool mask) {
    if (type == ROW_F32) {
        asc_storealign((__ubuf__ float*)row + channel, x, mask);
        return;
    }
    const vector_bool all = asc_create_mask_b32(PAT_ALL);
    vector_u32 magnitude, nan, low;
    asc_duplicate_scalar(low, 0x7FFFFFFFu, all);
    asc_and(magnitude, AS(vector_u32, x), low, all);
    asc_duplicate_scalar(nan, NAN_BITS, all);
    asc_select(x, AS(vector_float, nan), x, asc_gt_scalar(magnitude, INFINITE_BITS, all));
    vector_bfloat16_t h;
    asc_float2bfloat16_rn(h, x, all);
    asc_storealign_pack((__ubuf__ uint32_t*)((__ubuf__ bfloat16_t*)row + channel), AS(vector_u32, h), mask);
}
