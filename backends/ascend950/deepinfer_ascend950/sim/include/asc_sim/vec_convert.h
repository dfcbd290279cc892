// Conversions between element types. A cast that changes the width uses one part of the wider register's lanes:
//   2:1  even (part 0) or odd (part 1) lanes of the narrow register,
//   4:1  lanes 4*i + part of the narrow register.
// A narrowing cast writes its part and zeroes the others, so parts are merged by an or/add of registers. Masks follow
// the wide side's lanes. Names end in the rounding mode (_rn ties to even, _rna ties away, _rd/_ru/_rz directed) and
// _sat; the older spelling selects the part by _v2.._v4, the newer one by a position tag.
#pragma once
#include "vec_arith.h"

namespace asc_sim {

template <class T>
struct FormatOf;
template <>
struct FormatOf<bfloat16_t> {
    static constexpr Format f = kBf16;
};
template <>
struct FormatOf<half> {
    static constexpr Format f = kHalf;
};
template <>
struct FormatOf<fp8_e4m3fn_t> {
    static constexpr Format f = kE4m3;
};
template <>
struct FormatOf<fp8_e5m2_t> {
    static constexpr Format f = kE5m2;
};

template <class D>
inline D from_float(float x, Round r, bool sat) {
    D d;
    if constexpr (std::is_same_v<D, hifloat8_t>) d.bits = hif8_encode(x, false, sat);
    else d.bits = static_cast<decltype(d.bits)>(encode(x, FormatOf<D>::f, r, sat));
    return d;
}
template <class D>
inline D int_from_float(float x, Round r) {
    double y = x;
    if (std::isnan(y)) return D(0);
    switch (r) {
        case Round::rn: y = std::nearbyint(y); break;
        case Round::rna: y = std::round(y); break;
        case Round::rd: y = std::floor(y); break;
        case Round::ru: y = std::ceil(y); break;
        default: y = std::trunc(y);
    }
    constexpr double lo = static_cast<double>(std::is_signed_v<D> ? -(1ll << (8 * sizeof(D) - 1)) : 0);
    constexpr double hi = static_cast<double>(std::is_signed_v<D> ? (1ll << (8 * sizeof(D) - 1)) - 1 : (1ll << (8 * sizeof(D))) - 1);
    return static_cast<D>(y < lo ? lo : y > hi ? hi : y);
}
inline float float_from_int(int32_t x, Round r) {
    const bool neg = x < 0;
    const uint64_t a = neg ? uint64_t{0} - static_cast<uint64_t>(int64_t{x}) : static_cast<uint64_t>(x);
    int shift = 0;
    while ((a >> shift) >> 24) ++shift;
    const double y = std::ldexp(static_cast<double>(round_shift(a, shift, r, neg)), shift);
    return static_cast<float>(neg ? -y : y);
}
template <class W, class N, class F>
inline void widen(asc_vector<W>& dst, const asc_vector<N>& src, const vector_bool& m, int part, F f) {
    constexpr int step = static_cast<int>(sizeof(W) / sizeof(N));
    each(dst, m, [&](int i) { return f(src.v[step * i + part]); });
}
template <class N, class W, class F>
inline void narrow(asc_vector<N>& dst, const asc_vector<W>& src, const vector_bool& m, int part, F f) {
    constexpr int step = static_cast<int>(sizeof(W) / sizeof(N));
    asc_vector<N> r;
    alu_op();
    std::memset(r.v, 0, 256);
    for (int i = 0; i < asc_vector<W>::lanes; ++i)
        if (lane(m, i, sizeof(W))) r.v[step * i + part] = f(src.v[i]);
    dst = r;
}
// 4-bit floats: a byte holds two, so part p of a register is the pair at byte 4*i + p and gives lanes 2i, 2i+1 of bf16.
template <class N>
inline void widen4(vector_bfloat16_t& dst, const asc_vector<N>& src, const vector_bool& m, int part, Format f) {
    each(dst, m, [&](int i) {
        const uint8_t b = src.v[4 * (i / 2) + part].bits;
        return bfloat16_t(decode(i % 2 ? b >> 4 : b & 15, f));
    });
}
template <class N>
inline void narrow4(asc_vector<N>& dst, const vector_bfloat16_t& src, const vector_bool& m, int part, Format f, Round r) {
    asc_vector<N> out;
    alu_op();
    std::memset(out.v, 0, 256);
    for (int i = 0; i < 128; ++i) {
        if (!lane(m, i, 2)) continue;
        const uint32_t c = encode(src.v[i], f, r, true);
        out.v[4 * (i / 2) + part].bits |= static_cast<uint8_t>(i % 2 ? c << 4 : c);
    }
    dst = out;
}

}  // namespace asc_sim

#define ASC_PARTS2(name, D, S, call)                                                            \
    inline void name(D& dst, S src, vector_bool mask) { asc_sim::call(0); }                     \
    inline void name##_v2(D& dst, S src, vector_bool mask) { asc_sim::call(1); }                \
    template <asc_position_mode P>                                                              \
    inline void name(D& dst, S src, vector_bool mask, asc_position<P>) {                        \
        asc_sim::call(static_cast<int>(P));                                                     \
    }
#define ASC_PARTS4(name, D, S, call)                                                            \
    inline void name(D& dst, S src, vector_bool mask) { asc_sim::call(0); }                     \
    inline void name##_v2(D& dst, S src, vector_bool mask) { asc_sim::call(1); }                \
    inline void name##_v3(D& dst, S src, vector_bool mask) { asc_sim::call(2); }                \
    inline void name##_v4(D& dst, S src, vector_bool mask) { asc_sim::call(3); }                \
    template <asc_position_quarter_mode P>                                                      \
    inline void name(D& dst, S src, vector_bool mask, asc_quarter<P>) {                         \
        asc_sim::call(static_cast<int>(P));                                                     \
    }

// Widening: exact.
#define ASC_W(part) widen(dst, src, mask, part, [](auto x) { return static_cast<float>(x); })
ASC_PARTS2(asc_bfloat162float, vector_float, vector_bfloat16_t, ASC_W)
ASC_PARTS2(asc_half2float, vector_float, vector_half, ASC_W)
ASC_PARTS2(asc_int162float, vector_float, vector_int16_t, ASC_W)
ASC_PARTS4(asc_e4m32float, vector_float, vector_fp8_e4m3fn_t, ASC_W)
ASC_PARTS4(asc_e5m22float, vector_float, vector_fp8_e5m2_t, ASC_W)
ASC_PARTS4(asc_hif82float, vector_float, vector_hifloat8_t, ASC_W)
#undef ASC_W
#define ASC_I(part) widen(dst, src, mask, part, [](auto x) { return x; })
ASC_PARTS2(asc_int162int32, vector_int32_t, vector_int16_t, ASC_I)
ASC_PARTS2(asc_uint162uint32, vector_uint32_t, vector_uint16_t, ASC_I)
ASC_PARTS2(asc_uint82uint16, vector_uint16_t, vector_uint8_t, ASC_I)
ASC_PARTS2(asc_int82int16, vector_int16_t, vector_int8_t, ASC_I)
ASC_PARTS4(asc_uint82uint32, vector_uint32_t, vector_uint8_t, ASC_I)
ASC_PARTS4(asc_int82int32, vector_int32_t, vector_int8_t, ASC_I)
#undef ASC_I
#define ASC_E21(part) widen4(dst, src, mask, part, asc_sim::kE2m1)
ASC_PARTS4(asc_e2m1x22bfloat16, vector_bfloat16_t, vector_fp4x2_e2m1_t, ASC_E21)
#undef ASC_E21
#define ASC_E12(part) widen4(dst, src, mask, part, asc_sim::kE1m2)
ASC_PARTS4(asc_e1m2x22bfloat16, vector_bfloat16_t, vector_fp4x2_e1m2_t, ASC_E12)
#undef ASC_E12

// Narrowing from float, per rounding mode and saturation.
#define ASC_N(part, mode, sat, type)                                                            \
    narrow(dst, src, mask, part, [=](float x) { return asc_sim::from_float<type>(x, asc_sim::Round::mode, sat); })
#define ASC_N2(mode)                                                                            \
    inline void narrow_asc_float2bfloat16_##mode(vector_bfloat16_t& dst, vector_float src, vector_bool mask, int p, bool s) { \
        ASC_N(p, mode, s, bfloat16_t);                                                          \
    }                                                                                           \
    inline void narrow_asc_float2half_##mode(vector_half& dst, vector_float src, vector_bool mask, int p, bool s) { \
        ASC_N(p, mode, s, half);                                                                \
    }
namespace asc_sim {
ASC_N2(rn) ASC_N2(rna) ASC_N2(rd) ASC_N2(ru) ASC_N2(rz)
}  // namespace asc_sim
#undef ASC_N2
#define ASC_NARROW2(base, D, mode)                                                              \
    inline void base##_##mode(D& d, vector_float s, vector_bool m) { asc_sim::narrow_##base##_##mode(d, s, m, 0, false); }          \
    inline void base##_##mode##_v2(D& d, vector_float s, vector_bool m) { asc_sim::narrow_##base##_##mode(d, s, m, 1, false); }     \
    inline void base##_##mode##_v2_impl(D& d, vector_float s, vector_bool m) { asc_sim::narrow_##base##_##mode(d, s, m, 1, false); } \
    inline void base##_##mode##_sat(D& d, vector_float s, vector_bool m) { asc_sim::narrow_##base##_##mode(d, s, m, 0, true); }     \
    inline void base##_##mode##_sat_v2(D& d, vector_float s, vector_bool m) { asc_sim::narrow_##base##_##mode(d, s, m, 1, true); }  \
    template <asc_position_mode P>                                                              \
    inline void base##_##mode(D& d, vector_float s, vector_bool m, asc_position<P>) {           \
        asc_sim::narrow_##base##_##mode(d, s, m, static_cast<int>(P), false);                                \
    }                                                                                           \
    template <asc_position_mode P>                                                              \
    inline void base##_##mode##_sat(D& d, vector_float s, vector_bool m, asc_position<P>) {     \
        asc_sim::narrow_##base##_##mode(d, s, m, static_cast<int>(P), true);                                 \
    }
#define ASC_NARROW2_ALL(base, D) \
    ASC_NARROW2(base, D, rn) ASC_NARROW2(base, D, rna) ASC_NARROW2(base, D, rd) ASC_NARROW2(base, D, ru) ASC_NARROW2(base, D, rz)
ASC_NARROW2_ALL(asc_float2bfloat16, vector_bfloat16_t)
ASC_NARROW2_ALL(asc_float2half, vector_half)
#undef ASC_NARROW2_ALL
#undef ASC_NARROW2
#define ASC_E43(part) ASC_N(part, rn, false, fp8_e4m3fn_t)
#define ASC_E43S(part) ASC_N(part, rn, true, fp8_e4m3fn_t)
#define ASC_E52(part) ASC_N(part, rn, false, fp8_e5m2_t)
#define ASC_E52S(part) ASC_N(part, rn, true, fp8_e5m2_t)
#define ASC_H8(part) ASC_N(part, rna, false, hifloat8_t)
#define ASC_H8S(part) ASC_N(part, rna, true, hifloat8_t)
ASC_PARTS4(asc_float2e4m3_rn, vector_fp8_e4m3fn_t, vector_float, ASC_E43)
ASC_PARTS4(asc_float2e4m3_rn_sat, vector_fp8_e4m3fn_t, vector_float, ASC_E43S)
ASC_PARTS4(asc_float2e5m2_rn, vector_fp8_e5m2_t, vector_float, ASC_E52)
ASC_PARTS4(asc_float2e5m2_rn_sat, vector_fp8_e5m2_t, vector_float, ASC_E52S)
ASC_PARTS4(asc_float2hif8_rna, vector_hifloat8_t, vector_float, ASC_H8)
ASC_PARTS4(asc_float2hif8_rna_sat, vector_hifloat8_t, vector_float, ASC_H8S)
#undef ASC_E43
#undef ASC_E43S
#undef ASC_E52
#undef ASC_E52S
#undef ASC_H8
#undef ASC_H8S
#undef ASC_N
#define ASC_B4(name, mode, type, fmt)                                                           \
    namespace asc_sim {                                                                         \
    inline void narrow_##name##_##mode(vector_##type& dst, vector_bfloat16_t src, vector_bool mask, int p) { \
        narrow4(dst, src, mask, p, fmt, Round::mode);                                           \
    }                                                                                           \
    }                                                                                           \
    inline void name##_##mode(vector_##type& d, vector_bfloat16_t s, vector_bool m) { asc_sim::narrow_##name##_##mode(d, s, m, 0); }      \
    inline void name##_##mode##_v2(vector_##type& d, vector_bfloat16_t s, vector_bool m) { asc_sim::narrow_##name##_##mode(d, s, m, 1); } \
    inline void name##_##mode##_v3(vector_##type& d, vector_bfloat16_t s, vector_bool m) { asc_sim::narrow_##name##_##mode(d, s, m, 2); } \
    inline void name##_##mode##_v4(vector_##type& d, vector_bfloat16_t s, vector_bool m) { asc_sim::narrow_##name##_##mode(d, s, m, 3); } \
    template <asc_position_quarter_mode P>                                                      \
    inline void name##_##mode(vector_##type& d, vector_bfloat16_t s, vector_bool m, asc_quarter<P>) { \
        asc_sim::narrow_##name##_##mode(d, s, m, static_cast<int>(P));                                       \
    }
ASC_B4(asc_bfloat162e2m1x2, rn, fp4x2_e2m1_t, kE2m1)
ASC_B4(asc_bfloat162e2m1x2, rna, fp4x2_e2m1_t, kE2m1)
ASC_B4(asc_bfloat162e2m1x2, rz, fp4x2_e2m1_t, kE2m1)
ASC_B4(asc_bfloat162e1m2x2, rn, fp4x2_e1m2_t, kE1m2)
ASC_B4(asc_bfloat162e1m2x2, rna, fp4x2_e1m2_t, kE1m2)
ASC_B4(asc_bfloat162e1m2x2, rz, fp4x2_e1m2_t, kE1m2)
#undef ASC_B4

// Same width and integers.
#define ASC_F2I(mode)                                                                           \
    inline void asc_float2int32_##mode(vector_int32_t& dst, vector_float src, vector_bool mask) { \
        asc_sim::each(dst, mask, [&](int i) { return asc_sim::int_from_float<int32_t>(src.v[i], asc_sim::Round::mode); }); \
    }                                                                                           \
    inline void asc_float2int32_##mode##_sat(vector_int32_t& dst, vector_float src, vector_bool mask) { \
        asc_float2int32_##mode(dst, src, mask);                                                 \
    }
ASC_F2I(rn) ASC_F2I(rna) ASC_F2I(rd) ASC_F2I(ru) ASC_F2I(rz)
#undef ASC_F2I
#define ASC_I2F(mode, pick)                                                                     \
    inline void asc_int322float_##mode(vector_float& dst, vector_int32_t src, vector_bool mask) { \
        asc_sim::each(dst, mask, [&](int i) { return pick; });                                  \
    }
ASC_I2F(rn, asc_sim::float_from_int(src.v[i], asc_sim::Round::rn))
ASC_I2F(rna, asc_sim::float_from_int(src.v[i], asc_sim::Round::rna))
ASC_I2F(rd, asc_sim::float_from_int(src.v[i], asc_sim::Round::rd))
ASC_I2F(ru, asc_sim::float_from_int(src.v[i], asc_sim::Round::ru))
ASC_I2F(rz, asc_sim::float_from_int(src.v[i], asc_sim::Round::rz))
#undef ASC_I2F
// Out-of-range values saturate with and without _sat: the plain form leaves the choice to a control bit.
#define ASC_S16_MODE(mode) [](float x) { return asc_sim::int_from_float<int16_t>(x, asc_sim::Round::mode); }
#define ASC_S16_RN(part) narrow(dst, src, mask, part, ASC_S16_MODE(rn))
#define ASC_S16_RNA(part) narrow(dst, src, mask, part, ASC_S16_MODE(rna))
#define ASC_S16_RD(part) narrow(dst, src, mask, part, ASC_S16_MODE(rd))
#define ASC_S16_RU(part) narrow(dst, src, mask, part, ASC_S16_MODE(ru))
#define ASC_S16_RZ(part) narrow(dst, src, mask, part, ASC_S16_MODE(rz))
ASC_PARTS2(asc_float2int16_rn, vector_int16_t, vector_float, ASC_S16_RN)
ASC_PARTS2(asc_float2int16_rna, vector_int16_t, vector_float, ASC_S16_RNA)
ASC_PARTS2(asc_float2int16_rd, vector_int16_t, vector_float, ASC_S16_RD)
ASC_PARTS2(asc_float2int16_ru, vector_int16_t, vector_float, ASC_S16_RU)
ASC_PARTS2(asc_float2int16_rz, vector_int16_t, vector_float, ASC_S16_RZ)
ASC_PARTS2(asc_float2int16_rn_sat, vector_int16_t, vector_float, ASC_S16_RN)
ASC_PARTS2(asc_float2int16_rna_sat, vector_int16_t, vector_float, ASC_S16_RNA)
ASC_PARTS2(asc_float2int16_rd_sat, vector_int16_t, vector_float, ASC_S16_RD)
ASC_PARTS2(asc_float2int16_ru_sat, vector_int16_t, vector_float, ASC_S16_RU)
ASC_PARTS2(asc_float2int16_rz_sat, vector_int16_t, vector_float, ASC_S16_RZ)
#undef ASC_S16_RN
#undef ASC_S16_RNA
#undef ASC_S16_RD
#undef ASC_S16_RU
#undef ASC_S16_RZ
#undef ASC_S16_MODE
#define ASC_T16(part) narrow(dst, src, mask, part, [](auto x) { return static_cast<int16_t>(x); })
ASC_PARTS2(asc_int322int16, vector_int16_t, vector_int32_t, ASC_T16)
#undef ASC_T16
#define ASC_T8(part) narrow(dst, src, mask, part, [](auto x) { return static_cast<uint8_t>(x); })
ASC_PARTS4(asc_uint322uint8, vector_uint8_t, vector_uint32_t, ASC_T8)
ASC_PARTS4(asc_int322uint8, vector_uint8_t, vector_int32_t, ASC_T8)
#undef ASC_T8
#undef ASC_PARTS2
#undef ASC_PARTS4
