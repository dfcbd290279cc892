// A row of channels to codes and scales, exact to the bit: the cache writer and the fused attention share it.
//
// Maxima are taken of the bit patterns of magnitudes (integers order like the floats, and NaN lies above infinity).
// Divisions must round correctly: records are compared by bytes.
#pragma once
#include "convert.h"

enum ScaleKind : int32_t { SCALE_F32 = 0, SCALE_UE8M0 = 1, SCALE_E4M3 = 2 };

// Largest magnitude bits of each 8 channels.
__simd_vf__ inline void magnitudes(__ubuf__ uint8_t* row, int32_t type, uint32_t coded, __ubuf__ uint32_t* maxima) {
    const vector_bool all = asc_create_mask_b32(PAT_ALL), eight = asc_create_mask_b32(PAT_VL8);
    vector_s32 low, bits, best;
    asc_duplicate_scalar(low, 0x7FFFFFFF, all);
    for (uint16_t c = 0; c < uint16_t(coded / 64); ++c) {
        vector_float x;
        widen_row(x, row, c * 64u, type);
        asc_and(bits, AS(vector_s32, x), low, all);
        asc_reduce_max_datablock(best, bits, all);
        asc_storealign(maxima + c * 8, AS(vector_u32, best), eight);
    }
}
// Scale of every tile: its value in `scales` (-1 for a tile with NaN or inf), its stored form in `bytes`.
__simd_vf__ inline void scales_of(__ubuf__ uint32_t* maxima, int32_t tile_log, int32_t kind, float amax_floor, float divisor, float scale_floor, bool zero_to_one,
                                  __ubuf__ float* scales, __ubuf__ uint8_t* bytes) {
    const vector_bool all = asc_create_mask_b32(PAT_ALL);
    vector_s32 best = asc_loadalign((__ubuf__ int32_t*)maxima), even, odd;
    for (uint16_t i = 3; i < uint16_t(tile_log); ++i) {  // neighbours pairwise: lane t becomes tile t
        asc_deintlv(even, odd, best, best);
        asc_max(best, even, odd, all);
    }
    const vector_bool bad = asc_ge_scalar(AS(vector_u32, best), INFINITE_BITS, all);
    vector_float value, one, by;
    asc_duplicate_scalar(one, 1.0f, all);
    asc_duplicate_scalar(by, divisor, all);
    asc_select(value, one, AS(vector_float, best), bad);
    if (!zero_to_one) asc_max_scalar(value, value, amax_floor, all);
    asc_div(value, value, by, all);
    if (!zero_to_one) asc_max_scalar(value, value, scale_floor, all);
    else asc_select(value, one, value, asc_eq_scalar(value, 0.0f, all));
    vector_u32 stored, other;
    if (kind == SCALE_F32) {
        asc_duplicate_scalar(other, NAN_BITS, all);
        asc_select(stored, other, AS(vector_u32, value), bad);
        asc_storealign((__ubuf__ uint32_t*)bytes, stored, all);
    } else {
        if (kind == SCALE_E4M3) {
            vector_fp8_e4m3fn_t code;
            asc_float2e4m3_rn_sat(code, value, all);
            asc_e4m32float(value, code, all);
            stored = AS(vector_u32, code);
        } else {  // the exponent, one more if any bit stands below it
            vector_u32 rest, step;
            asc_duplicate_scalar(rest, 0x7FFFFFu, all);
            asc_and(rest, AS(vector_u32, value), rest, all);
            asc_shiftright_scalar(stored, AS(vector_u32, value), 23, all);
            asc_duplicate_scalar(step, 1u, asc_ne_scalar(rest, 0u, all));
            asc_add(stored, stored, step, all);
            asc_shiftleft_scalar(AS(vector_u32, value), stored, 23, all);
        }
        asc_duplicate_scalar(other, kind == SCALE_E4M3 ? 0x7Fu : 0xFFu, all);
        asc_select(stored, other, stored, bad);
        asc_storealign_pack_v2((__ubuf__ uint32_t*)bytes, stored, all);
    }
    asc_duplicate_scalar(by, -1.0f, all);
    asc_select(value, by, value, bad);
    asc_storealign(scales, value, all);
}
// Tile of each of the 64 lanes of register c.
__simd_callee__ inline void tile_of(vector_u32& tile, uint32_t channel, int32_t tile_log) {
    vector_s32 lane;
    asc_arange(lane, int32_t(channel));
    asc_shiftright_scalar(tile, AS(vector_u32, lane), int16_t(tile_log), asc_create_mask_b32(PAT_ALL));
}
// channel / scale, rounded once to e4m3 or e2m1 (ties to even).
__simd_vf__ inline void encode(__ubuf__ uint8_t* row, int32_t type, uint32_t coded, __ubuf__ float* scales, int32_t tile_log, bool fp4, __ubuf__ uint8_t* codes) {
    const vector_bool all = asc_create_mask_b32(PAT_ALL);
    vector_u32 tile, nan, zero, one, low;
    asc_duplicate_scalar(nan, NAN_BITS, all);
    asc_duplicate_scalar(zero, 0u, all);
    asc_duplicate_scalar(one, 1u, all);
    asc_duplicate_scalar(low, 0xFFFFu, all);
    for (uint16_t c = 0; c < uint16_t(coded / 64); ++c) {
        vector_float x, scale;
        widen_row(x, row, c * 64u, type);
        tile_of(tile, c * 64u, tile_log);
        asc_gather(scale, scales, tile, all);
        asc_div(x, x, scale, all);
        const vector_bool bad = asc_lt_scalar(scale, 0.0f, all);
        if (!fp4) {
            asc_min_scalar(x, x, 448.0f, all);
            asc_max_scalar(x, x, -448.0f, all);
            asc_select(x, AS(vector_float, nan), x, bad);
            vector_fp8_e4m3fn_t code;
            asc_float2e4m3_rn(code, x, all);
            asc_storealign_pack_v2((__ubuf__ uint32_t*)(codes + c * 64), AS(vector_u32, code), all);
            continue;
        }
        // To bf16 with the lost bits kept as one sticky bit: the second rounding then is the only one.
        vector_u32 bits = AS(vector_u32, x), sticky;
        asc_select(bits, zero, bits, bad);
        asc_and(sticky, bits, low, all);
        asc_select(sticky, one, zero, asc_ne_scalar(sticky, 0u, all));
        asc_shiftright_scalar(bits, bits, 16, all);
        asc_or(bits, bits, sticky, all);
        vector_u16 tight;
        asc_pack_to_low(tight, bits);
        vector_fp4x2_e2m1_t pair;
        asc_bfloat162e2m1x2_rn(pair, AS(vector_bfloat16_t, tight), asc_create_mask_b16(PAT_VL64));
        asc_storealign_pack_v2((__ubuf__ uint32_t*)(codes + c * 32), AS(vector_u32, pair), asc_create_mask_b32(PAT_VL32));
    }
}
