// Vector functions of the latent attention: rows to fractals, softmax of a block, output accumulation, the end.
// T is the element type that the cube multiplies: bfloat16_t or float.
#pragma once
#include "mla_args.h"

constexpr uint32_t O_PITCH = 512, S_PITCH = 64;  // floats
constexpr float GROWTH = 6.0f;                   // a block's logits may pass the base by this much before the base moves

// Between two column blocks of fractals in UB: one row more than used, so that stores spread over banks.
template <class T>
__aicore__ constexpr uint32_t nz_rows() { return uint32_t(Jobs<T>::KEYS / 2 + 1); }

// 128 bf16 channels of row r, from column block `block` on, into fractals.
#define STORE_NZ(dst, r, block, value, mask) \
    asc_storealign((dst) + ((block) * nz_rows<bfloat16_t>() + (r)) * 16, value, uint16_t(nz_rows<bfloat16_t>()), uint16_t(0), mask)

__simd_vf__ inline void zero_bytes(__ubuf__ uint8_t* at, uint32_t bytes) {
    vector_u8 zero;
    asc_duplicate_scalar(zero, 0, asc_create_mask_b8(PAT_ALL));
    uint32_t left = bytes;
    for (uint16_t i = 0; i < uint16_t((bytes + 255) / 256); ++i) asc_storealign(at + i * 256, zero, asc_update_mask_b8(left));
}

__simd_vf__ inline void rows_bf16(__ubuf__ uint8_t* raw, uint32_t pitch, __ubuf__ bfloat16_t* nz, uint32_t first_block, uint32_t width) {
    vector_bfloat16_t zero;
    asc_duplicate_scalar(AS(vector_u16, zero), 0, asc_create_mask_b16(PAT_ALL));
    for (uint16_t r = 0; r < 32; ++r) {
        uint32_t left = width, whole = (width + 15) / 16 * 16;
        for (uint16_t c = 0; c < uint16_t((width + 127) / 128); ++c) {
            vector_bool m = asc_update_mask_b16(left), blocks = asc_update_mask_b16(whole);
            vector_bfloat16_t x = asc_loadalign((__ubuf__ bfloat16_t*)(raw + r * pitch) + c * 128);
            asc_select(x, x, zero, m);
            STORE_NZ(nz, r, first_block + c * 8, x, blocks);
        }
    }
}
__simd_vf__ inline void rows_f32(__ubuf__ uint8_t* raw, uint32_t pitch, __ubuf__ float* nz, uint32_t width) {
    vector_float zero;
    asc_duplicate_scalar(zero, 0.0f, asc_create_mask_b32(PAT_ALL));
    for (uint16_t r = 0; r < 16; ++r) {
        uint32_t left = width, whole = (width + 15) / 16 * 16;
        for (uint16_t c = 0; c < uint16_t((width + 63) / 64); ++c) {
            vector_bool m = asc_update_mask_b32(left), blocks = asc_update_mask_b32(whole);
            vector_float x = asc_loadalign((__ubuf__ float*)(raw + r * pitch) + c * 64);
            asc_select(x, x, zero, m);
            asc_storealign(nz + (c * 8 * nz_rows<float>() + r) * 8, x, uint16_t(nz_rows<float>()), uint16_t(0), blocks);
        }
    }
}
// Scales of 32 quantised rows as floats, each repeated once per 16 channels that it covers: 32 floats per row.
constexpr uint32_t SCALES = 32;
__simd_vf__ inline void expand_scales(__ubuf__ uint8_t* raw, uint32_t pitch, int32_t kind, int32_t tile_log, __ubuf__ float* table) {
    const vector_bool all = asc_create_mask_b32(PAT_ALL), some = asc_create_mask_b32(PAT_VL32);
    vector_u32 nan, least;
    asc_duplicate_scalar(nan, 0x7FC00000u, all);
    asc_duplicate_scalar(least, 0x00400000u, all);  // 2^-127, the value of code 0
    for (uint16_t r = 0; r < 32; ++r) {
        vector_float x, again;
        if (kind == SCALE_F32) {
            x = asc_loadalign((__ubuf__ float*)(raw + r * pitch));
        } else if (kind == SCALE_E4M3) {
            vector_fp8_e4m3fn_t code;
            asc_loadalign_unpack4(code, (__ubuf__ fp8_e4m3fn_t*)(raw + r * pitch));
            asc_e4m32float(x, code, all);
        } else {
            vector_u8 code;
            vector_u32 bits;
            asc_loadalign_unpack4(code, raw + r * pitch);
            asc_shiftleft_scalar(bits, AS(vector_u32, code), 23, all);
            asc_select(bits, nan, bits, asc_eq_scalar(AS(vector_u32, code), 255u, all));
            asc_select(bits, least, bits, asc_eq_scalar(AS(vector_u32, code), 0u, all));
            x = AS(vector_float, bits);
        }
        for (uint16_t i = 4; i < uint16_t(tile_log); ++i) {
            vector_float twice;
            asc_intlv(twice, again, x, x);
            x = twice;
        }
        asc_storealign(table + r * SCALES, x, some);
    }
}

// 128 codes of e4m3 at `from` as floats: even channels, odd channels.
#define LOAD_E4M3(even, odd, from)                                   \
    do {                                                             \
        vector_fp8_e4m3fn_t codes;                                   \
        asc_loadalign_unpack(codes, (__ubuf__ fp8_e4m3fn_t*)(from)); \
        asc_e4m32float(even, codes, all);                            \
        asc_e4m32float_v3(odd, codes, all);                          \
    } while (0)
// Both halves rounded to bf16, in channel order, to column block c of row r.
#define STORE_HALVES(nz, r, c, even, odd, mask)                                            \
    do {                                                                                   \
        vector_bfloat16_t low, high;                                                       \
        asc_float2bfloat16_rn(low, even, all);                                             \
        asc_float2bfloat16_rn_v2(high, odd, all);                                          \
        asc_or(AS(vector_u16, low), AS(vector_u16, low), AS(vector_u16, high), all16);     \
        STORE_NZ(nz, r, c, low, mask);                                                     \
    } while (0)

// Quantised channels of 32 rows, multiplied by their scales; `fp4` picks the code width.
__simd_vf__ inline void rows_coded(__ubuf__ uint8_t* raw, uint32_t pitch, __ubuf__ bfloat16_t* nz, uint32_t coded, __ubuf__ float* table, bool fp4) {
    const vector_bool all = asc_create_mask_b32(PAT_ALL), all16 = asc_create_mask_b16(PAT_ALL);
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
                LOAD_E4M3(even, odd, row + c * 128);
            }
            asc_loadalign_brc_elem2datablock(scale, table + r * SCALES + c * 8);  // 8 lanes, 16 channels, per float
            asc_mul(even, even, scale, all);
            asc_mul(odd, odd, scale, all);
            STORE_HALVES(nz, r, c * 8, even, odd, m);
        }
    }
}
// The codes themselves of 32 rows: bf16 holds every e4m3 value.
__simd_vf__ inline void rows_codes(__ubuf__ uint8_t* raw, uint32_t pitch, __ubuf__ bfloat16_t* nz, uint32_t coded) {
    const vector_bool all = asc_create_mask_b32(PAT_ALL), all16 = asc_create_mask_b16(PAT_ALL);
    for (uint16_t r = 0; r < 32; ++r) {
        for (uint16_t c = 0; c < uint16_t(coded / 128); ++c) {
            vector_float even, odd;
            LOAD_E4M3(even, odd, raw + r * pitch + c * 128);
            STORE_HALVES(nz, r, c * 8, even, odd, all16);
        }
    }
}

// Whether `rows` rows from row `first` on hold a NaN or an infinity in `blocks` column blocks: what comes out is their
// largest magnitude, as the bits of a T.
template <class T> struct BitsOf;
template <> struct BitsOf<bfloat16_t> {
    using Word = uint16_t;
    using Register = vector_u16;
};
template <> struct BitsOf<float> {
    using Word = uint32_t;
    using Register = vector_u32;
};
template <class T>
__simd_vf__ inline void largest(__ubuf__ T* nz, uint32_t block, uint32_t blocks, uint32_t first, uint32_t rows, __ubuf__ typename BitsOf<T>::Word* out) {
    using Bits = typename BitsOf<T>::Word;
    constexpr uint32_t C0 = 32 / sizeof(T), LANES = 256 / sizeof(T);
    const vector_bool all = sizeof(T) == 2 ? asc_create_mask_b16(PAT_ALL) : asc_create_mask_b32(PAT_ALL);
    typename BitsOf<T>::Register low, top, x;
    asc_duplicate_scalar(low, Bits(Bits(~Bits(0)) >> 1), all);
    asc_duplicate_scalar(top, Bits(0), all);
    for (uint16_t b = 0; b < uint16_t(blocks); ++b) {
        uint32_t left = rows * C0;
        for (uint16_t i = 0; i < uint16_t((rows * C0 + LANES - 1) / LANES); ++i) {
            const vector_bool m = sizeof(T) == 2 ? asc_update_mask_b16(left) : asc_update_mask_b32(left);
            x = asc_loadalign((__ubuf__ Bits*)nz + ((block + b) * nz_rows<T>() + first) * C0 + i * LANES);
            asc_and(x, x, low, m);
            asc_max(top, top, x, all);
        }
    }
    asc_reduce_max(top, top, all);
    asc_storealign_1st(out, top);
}

// Row statistics of a job lie in `stats`: base (what exponents are taken relative to), sum, true maximum, 32 floats each.
constexpr uint32_t BASE = 0, SUM = 32, TOP = 64, STATS = 96;

__simd_vf__ inline void start_rows(__ubuf__ float* stats) {
    const vector_bool m = asc_create_mask_b32(PAT_VL32);
    vector_float x;
    vector_u32 inf;
    asc_duplicate_scalar(x, 0.0f, m);
    asc_duplicate_scalar(inf, 0xFF800000u, m);
    asc_storealign(stats + SUM, x, m);
    asc_storealign(stats + BASE, AS(vector_float, inf), m);
    asc_storealign(stats + TOP, AS(vector_float, inf), m);
}
__simd_callee__ inline void lanes_of(vector_bool& seen, uint32_t low, uint32_t high) {  // lane k: bit k of low | high << 32
    const vector_bool all = asc_create_mask_b32(PAT_ALL);
    vector_s32 lane;
    vector_u32 word, word_high, place;
    asc_arange(lane, 0);
    asc_duplicate_scalar(word, low, all);
    asc_duplicate_scalar(word_high, high, all);
    asc_select(word, word, word_high, asc_create_mask_b32(PAT_VL32));
    asc_duplicate_scalar(place, 31u, all);
    asc_and(place, AS(vector_u32, lane), place, all);
    asc_shiftright(word, word, AS(vector_s32, place), all);
    asc_duplicate_scalar(place, 1u, all);
    asc_and(word, word, place, all);
    seen = asc_ne_scalar(word, 0u, all);
}
// The float32 scales of 64 keys, lane by lane: key k has that of its first tile at table[8 * k], those of three more behind.
#define LOAD_SCALES(a, b, c, d, table, four)                    \
    do {                                                        \
        vector_s32 keys;                                        \
        vector_u32 at;                                          \
        asc_arange(keys, 0);                                    \
        asc_shiftleft_scalar(at, AS(vector_u32, keys), 3, all); \
        asc_gather(a, table, at, all);                          \
        if (!(four)) break;                                     \
        asc_gather(b, (table) + 1, at, all);                    \
        asc_gather(c, (table) + 2, at, all);                    \
        asc_gather(d, (table) + 3, at, all);                    \
    } while (0)
constexpr uint32_t S_STEP = 32 * S_PITCH, P_STEP = 32 * S_PITCH;  // elements between tiles of S and of P

// An infinite scale becomes NaN: times 128 codes of both signs or 0 it gives NaN.
#define NAN_IF_INFINITE(x)        \
    do {                          \
        vector_float nothing;     \
        asc_sub(nothing, x, x, all); \
        asc_add(x, x, nothing, all); \
    } while (0)
// First tile of S = scale * (sum of one or four tiles times their scales + products of the plain channels, if there are).
__simd_vf__ inline void add_tiles(__ubuf__ float* s, __ubuf__ float* table, uint16_t rows, float scale, bool four, bool plain) {
    const vector_bool all = asc_create_mask_b32(PAT_ALL);
    vector_float a, b, c, d;
    LOAD_SCALES(a, b, c, d, table, four);
    NAN_IF_INFINITE(a);
    asc_mul_scalar(a, a, scale, all);
    if (four) {
        NAN_IF_INFINITE(b);
        NAN_IF_INFINITE(c);
        NAN_IF_INFINITE(d);
        asc_mul_scalar(b, b, scale, all);
        asc_mul_scalar(c, c, scale, all);
        asc_mul_scalar(d, d, scale, all);
    }
    for (uint16_t r = 0; r < rows; ++r) {
        __ubuf__ float* at = s + r * S_PITCH;
        vector_float x = asc_loadalign(at), y;
        asc_mul(x, x, a, all);
        if (four) {
            y = asc_loadalign(at + S_STEP);
            asc_mula(x, y, b, all);
            y = asc_loadalign(at + 2 * S_STEP);
            asc_mula(x, y, c, all);
            y = asc_loadalign(at + 3 * S_STEP);
            asc_mula(x, y, d, all);
        }
        if (plain) {
            y = asc_loadalign(at + (four ? 4 : 1) * S_STEP);
            asc_axpy(x, y, scale, all);
        }
        asc_storealign(at, x, all);
    }
}
// S = scale * S, or -inf where a key does not count; the row's maximum goes to best[row]. Token i of the rows sees the
// keys below limit + step * i of the block.
__simd_vf__ inline void scale_block(__ubuf__ float* s, __ubuf__ float* best, uint16_t tokens, uint16_t heads, float scale, uint32_t low, uint32_t high, int32_t limit,
                                    int32_t step) {
    const vector_bool all = asc_create_mask_b32(PAT_ALL);
    vector_bool seen, counts;
    vector_s32 lane;
    vector_u32 none;
    lanes_of(seen, low, high);
    asc_arange(lane, 0);
    asc_duplicate_scalar(none, 0xFF800000u, all);
    for (uint16_t t = 0; t < tokens; ++t) {
        counts = asc_lt_scalar(lane, limit + step * int32_t(t), seen);
        for (uint16_t h = 0; h < heads; ++h) {
            vector_float x = asc_loadalign(s + (t * heads + h) * S_PITCH), top;
            asc_mul_scalar(x, x, scale, all);
            asc_select(x, x, AS(vector_float, none), counts);
            asc_storealign(s + (t * heads + h) * S_PITCH, x, all);
            asc_reduce_max(top, x, all);
            asc_storealign_1st(best + t * heads + h, top);
        }
    }
}
// Moves the base of all rows if some row's logits pass it by more than GROWTH (grew[0] = 1, else 0), and shrinks sums by
// the factor that old results shrink by.
__simd_vf__ inline void move_base(__ubuf__ float* best, __ubuf__ float* stats, __ubuf__ float* shrink, __ubuf__ int32_t* grew, uint32_t rows) {
    uint32_t left = rows;
    const vector_bool m = asc_update_mask_b32(left);
    vector_float b = asc_loadalign(best), base = asc_loadalign(stats + BASE), sum = asc_loadalign(stats + SUM), top = asc_loadalign(stats + TOP), edge, moved, from, zero, keep;
    vector_u32 none_bits;
    asc_duplicate_scalar(zero, 0.0f, m);
    asc_duplicate_scalar(none_bits, 0xFF800000u, m);
    asc_max(top, top, b, m);
    asc_storealign(stats + TOP, top, m);
    asc_add_scalar(edge, base, GROWTH, m);
    const vector_bool over = asc_gt(b, edge, m);
    vector_s32 one, flag;
    asc_duplicate_scalar(one, 1, over);
    asc_reduce_max(flag, one, m);
    asc_storealign_1st(grew, flag);
    asc_duplicate(flag, flag, m);
    asc_max(moved, base, b, m);
    asc_select(moved, moved, base, asc_ne_scalar(flag, 0, m));
    asc_select(from, zero, moved, asc_eq(moved, AS(vector_float, none_bits), m));
    asc_exp_sub(keep, base, from, m);
    asc_mul(sum, sum, keep, m);
    asc_storealign(stats + BASE, moved, m);
    asc_storealign(stats + SUM, sum, m);
    asc_storealign(shrink, keep, m);
}
// Tile i of a row's P, in exponents_tiled.
#define STORE_WEIGHTS(i, scales)                                                                                                        \
    do {                                                                                                                                \
        vector_float y;                                                                                                                 \
        vector_bfloat16_t wide;                                                                                                         \
        vector_u16 tight;                                                                                                               \
        asc_mul(y, x, scales, counts);                                                                                                  \
        asc_float2bfloat16_rn(wide, y, all);                                                                                            \
        asc_pack_to_low(tight, AS(vector_u32, wide));                                                                                   \
        asc_storealign(probs + (i) * P_STEP + r * 16, AS(vector_bfloat16_t, tight), uint16_t(HALF), uint16_t(0), half);                  \
    } while (0)
// P = exp(S - base) as fractals of T; sums grow by the rows' sums.
template <class T>
__simd_vf__ inline void exponents(__ubuf__ float* s, __ubuf__ T* probs, __ubuf__ float* part, __ubuf__ float* stats, uint16_t rows) {
    const vector_bool all = asc_create_mask_b32(PAT_ALL), keys = sizeof(T) == 2 ? all : asc_create_mask_b32(PAT_VL32), m = asc_create_mask_b32(PAT_VL32);
    vector_u32 none_bits;
    vector_float zero;
    asc_duplicate_scalar(zero, 0.0f, all);
    asc_duplicate_scalar(none_bits, 0xFF800000u, all);
    for (uint16_t r = 0; r < rows; ++r) {
        vector_float x = asc_loadalign(s + r * S_PITCH), base, sum;
        asc_loadalign_brc(base, stats + BASE + r);
        asc_select(base, zero, base, asc_eq(base, AS(vector_float, none_bits), all));
        asc_exp_sub(x, x, base, keys);
        asc_reduce_sum(sum, x, keys);
        asc_storealign_1st(part + r, sum);
        if constexpr (sizeof(T) == 4) {
            asc_storealign(probs + r * 8, x, uint16_t(HALF), uint16_t(0), keys);
        } else {
            vector_bfloat16_t wide;
            vector_u16 tight;
            asc_float2bfloat16_rn(wide, x, all);
            asc_pack_to_low(tight, AS(vector_u32, wide));
            asc_storealign(probs + r * 16, AS(vector_bfloat16_t, tight), uint16_t(HALF), uint16_t(0), asc_create_mask_b16(PAT_VL64));
        }
    }
    asc_mem_bar(VST_VLD);
    vector_float sum = asc_loadalign(stats + SUM), more = asc_loadalign(part);
    asc_add(sum, sum, more, m);
    asc_storealign(stats + SUM, sum, m);
}

// The same with a P for every tile of values: P times the scales, 0 where a token does not see a key, whatever the scale.
__simd_vf__ inline void exponents_tiled(__ubuf__ float* s, __ubuf__ bfloat16_t* probs, __ubuf__ float* part, __ubuf__ float* stats, __ubuf__ float* table, uint16_t tokens, uint16_t heads,
                                        uint32_t low, uint32_t high, int32_t limit, int32_t step, bool four) {
    const vector_bool all = asc_create_mask_b32(PAT_ALL), half = asc_create_mask_b16(PAT_VL64), m = asc_create_mask_b32(PAT_VL32);
    vector_bool seen, counts;
    vector_s32 lane;
    vector_u32 none_bits;
    vector_float zero, a, b, c, d;
    lanes_of(seen, low, high);
    asc_arange(lane, 0);
    asc_duplicate_scalar(zero, 0.0f, all);
    asc_duplicate_scalar(none_bits, 0xFF800000u, all);
    LOAD_SCALES(a, b, c, d, table, four);
    for (uint16_t t = 0; t < tokens; ++t) {
        counts = asc_lt_scalar(lane, limit + step * int32_t(t), seen);
        for (uint16_t h = 0; h < heads; ++h) {
            const uint32_t r = t * heads + h;
            vector_float x = asc_loadalign(s + r * S_PITCH), base, sum;
            asc_loadalign_brc(base, stats + BASE + r);
            asc_select(base, zero, base, asc_eq(base, AS(vector_float, none_bits), all));
            asc_exp_sub(x, x, base, all);
            asc_reduce_sum(sum, x, all);
            asc_storealign_1st(part + r, sum);
            STORE_WEIGHTS(0, a);
            if (!four) continue;
            STORE_WEIGHTS(1, b);
            STORE_WEIGHTS(2, c);
            STORE_WEIGHTS(3, d);
        }
    }
    asc_mem_bar(VST_VLD);
    vector_float sum = asc_loadalign(stats + SUM), more = asc_loadalign(part);
    asc_add(sum, sum, more, m);
    asc_storealign(stats + SUM, sum, m);
}

// O = O * shrink + piece, or O = piece for what a job's first base gave.
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
__simd_vf__ inline void copy_rows(__ubuf__ float* to, __ubuf__ float* from) {
    const vector_bool m = asc_create_mask_b32(PAT_VL32);
    vector_float x = asc_loadalign(from);
    asc_storealign(to, x, m);
}

// What a row's O is multiplied by at the end, 1 / sum dimmed by the sink, or 0 for a row without keys; lse and maximum go to
// one 32-byte block per row. Row r has head r % heads.
__simd_vf__ inline void row_factors(__ubuf__ float* stats, __ubuf__ float* sink, bool has_sink, __ubuf__ float* factors, __ubuf__ float* lse_out, __ubuf__ float* top_out, uint16_t tokens,
                                    uint32_t heads) {
    uint32_t left = tokens * heads;
    const vector_bool all = asc_create_mask_b32(PAT_ALL), m = asc_update_mask_b32(left);
    vector_float base = asc_loadalign(stats + BASE), top = asc_loadalign(stats + TOP), sum = asc_loadalign(stats + SUM), one, zero, lse, whole, factor;
    vector_s32 lane;
    vector_u32 at;
    asc_duplicate_scalar(one, 1.0f, all);
    asc_duplicate_scalar(zero, 0.0f, all);
    asc_arange(lane, 0);
    asc_shiftleft_scalar(at, AS(vector_u32, lane), 3, all);
    asc_ln(lse, sum, m);
    asc_add(lse, lse, base, m);
    asc_scatter(lse_out, lse, at, m);
    asc_scatter(top_out, top, at, m);
    whole = sum;
    if (has_sink) {
        vector_float dim;
        vector_s32 next;
        for (uint16_t t = 1; t < tokens; ++t) {
            asc_add_scalar(next, lane, -int32_t(heads), all);
            asc_select(lane, next, lane, asc_ge_scalar(lane, int32_t(heads), all));
        }
        asc_gather(dim, sink, AS(vector_u32, lane), m);
        asc_exp_sub(dim, dim, lse, m);
        asc_add(dim, dim, one, m);
        asc_mul(whole, whole, dim, m);
    }
    asc_div(factor, one, whole, m);
    asc_select(factor, zero, factor, asc_eq(sum, zero, all));
    asc_storealign(factors, factor, m);
}
// Columns [first, first + cols) of the result from the last piece of O, onto O (bf16 rows keep the pitch of O: a chunk is
// stored where columns before it were read).
__simd_vf__ inline void finish_piece(__ubuf__ float* o, __ubuf__ float* piece, __ubuf__ float* shrink, __ubuf__ float* factors, bool fresh, bool wide, uint16_t rows, uint32_t first, uint32_t cols) {
    const vector_bool all = asc_create_mask_b32(PAT_ALL);
    for (uint16_t r = 0; r < rows; ++r) {
        uint32_t left = cols;
        __ubuf__ float* row = o + r * O_PITCH;
        vector_float factor, k;
        asc_loadalign_brc(factor, factors + r);
        if (!fresh) asc_loadalign_brc(k, shrink + r);
        for (uint16_t c = 0; c < uint16_t((cols + 63) / 64); ++c) {
            vector_bool m = asc_update_mask_b32(left);
            vector_float y = asc_loadalign(piece + r * cols + c * 64);
            if (!fresh) {
                vector_float x = asc_loadalign(row + first + c * 64);
                asc_madd(x, k, y, all);
                y = x;
            }
            asc_mul(y, y, factor, all);
            if (wide) {
                asc_storealign(row + first + c * 64, y, m);
                continue;
            }
            vector_bfloat16_t b;
            asc_float2bfloat16_rn(b, y, all);
            asc_storealign_pack((__ubuf__ uint32_t*)((__ubuf__ bfloat16_t*)row + first + c * 64), AS(vector_u32, b), m);
        }
    }
}
