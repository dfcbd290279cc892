// Vector functions of the latent attention: rows to fractals, softmax of a block, output accumulation, the end.
#pragma once
#include "mla_args.h"

constexpr uint32_t NZ_ROWS = 33;  // rows between two column blocks in UB: one more than used, so that stores spread over banks
constexpr int32_t O_PITCH = 512;  // floats

// 128 bf16 channels of row r, from column block `block` on, into fractals.
#define STORE_NZ(dst, r, block, value, mask) \
    asc_storealign((dst) + ((block) * NZ_ROWS + (r)) * 16, value, uint16_t(NZ_ROWS), uint16_t(0), mask)

__simd_vf__ inline void zero_row(__ubuf__ uint8_t* row, uint32_t bytes) {
    vector_u8 zero;
    asc_duplicate_scalar(zero, 0, asc_create_mask_b8(PAT_ALL));
    for (uint16_t i = 0; i < uint16_t((bytes + 255) / 256); ++i) {
        uint32_t left = bytes - i * 256u;
        asc_storealign(row + i * 256, zero, asc_update_mask_b8(left));
    }
}

__simd_vf__ inline void rows_bf16(__ubuf__ uint8_t* raw, uint32_t pitch, __ubuf__ bfloat16_t* nz, uint32_t first_block, uint32_t width) {
    for (uint16_t r = 0; r < 32; ++r) {
        uint32_t left = width;
        for (uint16_t c = 0; c < uint16_t((width + 127) / 128); ++c) {
            vector_bool m = asc_update_mask_b16(left);
            vector_bfloat16_t x = asc_loadalign((__ubuf__ bfloat16_t*)(raw + r * pitch) + c * 128);
            STORE_NZ(nz, r, first_block + c * 8, x, m);
        }
    }
}

// Scale of each 32-bit lane l, which stands for channels 2l and 2l + 1 of a chunk of 128.
__simd_callee__ inline void lane_scale(vector_float& out, __ubuf__ uint8_t* scales, uint32_t chunk, int32_t kind, int32_t tile_log, const vector_u16& tile_of) {
    const vector_bool all = asc_create_mask_b32(PAT_ALL);
    if (kind == SCALE_F32) {
        asc_loadalign_brc(out, (__ubuf__ float*)scales + chunk);
        return;
    }
    vector_u16 codes;  // a 32-bit lane mask on 16-bit lanes: odd ones become 0, so each 32-bit lane holds its byte
    asc_gather(codes, scales + (chunk << (7 - tile_log)), tile_of, all);
    if (kind == SCALE_E4M3) {
        asc_e4m32float(out, AS(vector_fp8_e4m3fn_t, codes), all);
        return;
    }
    vector_u32 bits, nan;
    asc_shiftleft_scalar(bits, AS(vector_u32, codes), 23, all);
    asc_duplicate_scalar(nan, 0x7FC00000u, all);
    vector_bool bad = asc_eq_scalar(AS(vector_u32, codes), 255u, all);
    asc_select(bits, nan, bits, bad);
    out = AS(vector_float, bits);
}

// Quantised channels of 32 rows; `fp4` picks the code width, `rest` what rounding to bf16 leaves instead of the values.
__simd_vf__ inline void rows_coded(__ubuf__ uint8_t* raw, uint32_t pitch, __ubuf__ bfloat16_t* nz, uint32_t coded, uint32_t scale_at, int32_t scale_kind,
                                   int32_t tile_log, bool fp4, bool rest) {
    const vector_bool all = asc_create_mask_b32(PAT_ALL), all16 = asc_create_mask_b16(PAT_ALL);
    vector_s16 lane;
    vector_u16 tile_of;
    asc_arange(lane, 0);
    asc_shiftright_scalar(tile_of, AS(vector_u16, lane), int16_t(tile_log), all16);
    for (uint16_t r = 0; r < 32; ++r) {
        uint32_t left = coded;
        for (uint16_t c = 0; c < uint16_t((coded + 127) / 128); ++c) {
            __ubuf__ uint8_t* row = raw + r * pitch;
            vector_bool m = asc_update_mask_b16(left);
            vector_float even, odd, scale;
            if (fp4) {
                vector_fp4x2_e2m1_t x;
                vector_bfloat16_t w;
                asc_loadalign_unpack4(x, (__ubuf__ fp4x2_e2m1_t*)row + c * 64);
                asc_e2m1x22bfloat16(w, x, all16);
                asc_bfloat162float(even, w, all);
                asc_bfloat162float_v2(odd, w, all);
            } else {
                vector_fp8_e4m3fn_t x;
                asc_loadalign_unpack(x, (__ubuf__ fp8_e4m3fn_t*)row + c * 128);
                asc_e4m32float(even, x, all);
                asc_e4m32float_v3(odd, x, all);
            }
            lane_scale(scale, row + scale_at, c, scale_kind, tile_log, tile_of);
            asc_mul(even, even, scale, all);
            asc_mul(odd, odd, scale, all);
            vector_bfloat16_t low, high;
            asc_float2bfloat16_rn(low, even, all);
            asc_float2bfloat16_rn_v2(high, odd, all);
            if (rest) {
                vector_float rounded;
                asc_bfloat162float(rounded, low, all);
                asc_sub(even, even, rounded, all);
                asc_bfloat162float_v2(rounded, high, all);
                asc_sub(odd, odd, rounded, all);
                asc_float2bfloat16_rn(low, even, all);
                asc_float2bfloat16_rn_v2(high, odd, all);
            }
            asc_or(AS(vector_u16, low), AS(vector_u16, low), AS(vector_u16, high), all16);
            STORE_NZ(nz, r, c * 8, low, m);
        }
    }
}

__simd_vf__ inline void start_rows(__ubuf__ float* top, __ubuf__ float* sum) {
    const vector_bool m = asc_create_mask_b32(PAT_VL32);
    vector_float x;
    asc_duplicate_scalar(x, 0.0f, m);
    asc_storealign(sum, x, m);
    vector_u32 inf;
    asc_duplicate_scalar(inf, 0xFF800000u, m);
    asc_storealign(top, AS(vector_float, inf), m);
}

// P = exp(scale * S - new maximum) as bf16 fractals, with running maximum, sum, and the factor old results shrink by.
// Key k counts if bit k of low | high << 32 is set.
__simd_vf__ inline void softmax_block(__ubuf__ float* s, __ubuf__ bfloat16_t* probs, __ubuf__ float* top, __ubuf__ float* sum, __ubuf__ float* shrink,
                                      uint16_t rows, float scale, uint32_t low, uint32_t high) {
    const vector_bool all = asc_create_mask_b32(PAT_ALL);
    vector_s32 lane;
    vector_u32 word, word_high, none_bits, place;
    asc_arange(lane, 0);
    asc_duplicate_scalar(word, low, all);
    asc_duplicate_scalar(word_high, high, all);
    asc_select(word, word, word_high, asc_create_mask_b32(PAT_VL32));
    asc_duplicate_scalar(place, 31u, all);
    asc_and(place, AS(vector_u32, lane), place, all);
    asc_shiftright(word, word, AS(vector_s32, place), all);
    asc_duplicate_scalar(place, 1u, all);
    asc_and(word, word, place, all);
    const vector_bool seen = asc_ne_scalar(word, 0u, all);
    asc_duplicate_scalar(none_bits, 0xFF800000u, all);
    vector_float none = AS(vector_float, none_bits), zero;
    asc_duplicate_scalar(zero, 0.0f, all);
    for (uint16_t r = 0; r < rows; ++r) {
        vector_float x = asc_loadalign(s + r * KEYS), old, before, base, p, keep, part, best;
        asc_mul_scalar(x, x, scale, all);
        asc_select(x, x, none, seen);
        asc_reduce_max(best, x, all);
        asc_duplicate(best, best, all);
        asc_loadalign_brc(old, top + r);
        asc_loadalign_brc(before, sum + r);
        asc_max(best, best, old, all);
        asc_select(base, zero, best, asc_eq(best, none, all));
        asc_exp_sub(p, x, base, all);
        asc_exp_sub(keep, old, base, all);
        asc_reduce_sum(part, p, all);
        asc_duplicate(part, part, all);
        asc_madd(before, keep, part, all);
        asc_storealign_1st(top + r, best);
        asc_storealign_1st(sum + r, before);
        asc_storealign_1st(shrink + r, keep);
        vector_bfloat16_t wide;
        vector_u16 tight;
        asc_float2bfloat16_rn(wide, p, all);
        asc_pack_to_low(tight, AS(vector_u32, wide));
        asc_storealign(probs + r * 16, AS(vector_bfloat16_t, tight), uint16_t(32), uint16_t(0), asc_create_mask_b16(PAT_VL64));
    }
}

// O = O * shrink + piece, or O = piece for the first block of a job.
__simd_vf__ inline void take_first(__ubuf__ float* o, __ubuf__ float* piece, uint16_t rows, uint32_t cols, uint32_t pitch) {
    for (uint16_t r = 0; r < rows; ++r) {
        uint32_t left = cols;
        for (uint16_t c = 0; c < uint16_t((cols + 63) / 64); ++c) {
            vector_bool m = asc_update_mask_b32(left);
            vector_float x = asc_loadalign(piece + r * pitch + c * 64);
            asc_storealign(o + r * O_PITCH + c * 64, x, m);
        }
    }
}
__simd_vf__ inline void take_next(__ubuf__ float* o, __ubuf__ float* piece, __ubuf__ float* shrink, uint16_t rows, uint32_t cols, uint32_t pitch) {
    const vector_bool all = asc_create_mask_b32(PAT_ALL);
    for (uint16_t r = 0; r < rows; ++r) {
        uint32_t left = cols;
        vector_float k;
        asc_loadalign_brc(k, shrink + r);
        for (uint16_t c = 0; c < uint16_t((cols + 63) / 64); ++c) {
            vector_bool m = asc_update_mask_b32(left);
            vector_float x = asc_loadalign(o + r * O_PITCH + c * 64), y = asc_loadalign(piece + r * pitch + c * 64);
            asc_madd(x, k, y, all);
            asc_storealign(o + r * O_PITCH + c * 64, x, m);
        }
    }
}
__simd_vf__ inline void zero_output(__ubuf__ float* o, uint16_t registers) {
    const vector_bool all = asc_create_mask_b32(PAT_ALL);
    vector_float x;
    asc_duplicate_scalar(x, 0.0f, all);
    for (uint16_t i = 0; i < registers; ++i) asc_storealign(o + i * 64, x, all);
}

// out = O / sum, dimmed by the sink; lse and maximum go to one 32-byte block per row.
__simd_vf__ inline void finish_rows(__ubuf__ float* o, __ubuf__ float* top, __ubuf__ float* sum, __ubuf__ float* sink, bool has_sink, __ubuf__ bfloat16_t* out,
                                    __ubuf__ float* lse_out, __ubuf__ float* top_out, uint16_t rows, uint32_t cols) {
    const vector_bool all = asc_create_mask_b32(PAT_ALL);
    vector_float one, zero;
    asc_duplicate_scalar(one, 1.0f, all);
    asc_duplicate_scalar(zero, 0.0f, all);
    for (uint16_t r = 0; r < rows; ++r) {
        vector_float t, l, lse, factor;
        asc_loadalign_brc(t, top + r);
        asc_loadalign_brc(l, sum + r);
        asc_ln(lse, l, all);
        asc_add(lse, lse, t, all);
        asc_storealign_1st(lse_out + r * 8, lse);
        asc_storealign_1st(top_out + r * 8, t);
        vector_float whole = l;
        if (has_sink) {
            vector_float dim;
            asc_loadalign_brc(dim, sink + r);
            asc_exp_sub(dim, dim, lse, all);
            asc_add(dim, dim, one, all);
            asc_mul(whole, whole, dim, all);
        }
        asc_div(factor, one, whole, all);
        asc_select(factor, zero, factor, asc_eq(l, zero, all));
        uint32_t left = cols;
        for (uint16_t c = 0; c < uint16_t((cols + 63) / 64); ++c) {
            vector_bool m = asc_update_mask_b32(left);
            vector_float x = asc_loadalign(o + r * O_PITCH + c * 64);
            vector_bfloat16_t b;
            asc_mul(x, x, factor, all);
            asc_float2bfloat16_rn(b, x, all);
            asc_storealign_pack((__ubuf__ uint32_t*)(out + r * O_PITCH + c * 64), AS(vector_u32, b), m);
        }
    }
}
