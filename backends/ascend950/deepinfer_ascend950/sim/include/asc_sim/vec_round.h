// Conversions between halves and integers, rounding to whole numbers, and the remaining forms of broadcasts and stores.
//
// Plain narrowing to 8 bits keeps the low bits of the rounded value (257 becomes 1), _sat clamps; both clamp infinities and
// turn NaN into 0, as documented.
#pragma once
#include "vec_convert.h"
#include "vec_permute.h"
#include "vec_store.h"

namespace asc_sim {

inline float rounded(float x, Round r) {
    if (!std::isfinite(x)) return x;
    switch (r) {
        case Round::rn: return std::nearbyint(x);
        case Round::rna: return std::round(x);
        case Round::rd: return std::floor(x);
        case Round::ru: return std::ceil(x);
        default: return std::trunc(x);
    }
}
template <class D>
inline D byte_from_float(float x, Round r, bool sat) {
    if (sat || !std::isfinite(x)) return int_from_float<D>(x, r);
    return static_cast<D>(int_from_float<int32_t>(x, r));
}

}  // namespace asc_sim

// A part of the narrow register is written (or, widening, read): even lanes, _v2 or ASC_POSITION_ODD odd ones.
#define ASC_BY_PART(name, D, S, expr)                                                              \
    inline void name(D& dst, S src, vector_bool mask) { constexpr int part = 0; asc_sim::expr; }    \
    inline void name##_v2(D& dst, S src, vector_bool mask) { constexpr int part = 1; asc_sim::expr; } \
    template <asc_position_mode P>                                                                 \
    inline void name(D& dst, S src, vector_bool mask, asc_position<P>) {                           \
        constexpr int part = static_cast<int>(P);                                                  \
        asc_sim::expr;                                                                             \
    }
#define ASC_PER_MODE(each) each(rn) each(rna) each(rd) each(ru) each(rz)
#define ASC_TO_BYTES(mode)                                                                                                                          \
    ASC_BY_PART(asc_half2int8_##mode, vector_int8_t, vector_half, narrow(dst, src, mask, part, [](half x) { return asc_sim::byte_from_float<int8_t>(x, asc_sim::Round::mode, false); }))       \
    ASC_BY_PART(asc_half2int8_##mode##_sat, vector_int8_t, vector_half, narrow(dst, src, mask, part, [](half x) { return asc_sim::byte_from_float<int8_t>(x, asc_sim::Round::mode, true); }))   \
    ASC_BY_PART(asc_half2uint8_##mode, vector_uint8_t, vector_half, narrow(dst, src, mask, part, [](half x) { return asc_sim::byte_from_float<uint8_t>(x, asc_sim::Round::mode, false); }))     \
    ASC_BY_PART(asc_half2uint8_##mode##_sat, vector_uint8_t, vector_half, narrow(dst, src, mask, part, [](half x) { return asc_sim::byte_from_float<uint8_t>(x, asc_sim::Round::mode, true); }))
ASC_PER_MODE(ASC_TO_BYTES)
#undef ASC_TO_BYTES
#define ASC_TO_WORDS(mode)                                                                                                                          \
    ASC_BY_PART(asc_half2int32_##mode, vector_int32_t, vector_half, widen(dst, src, mask, part, [](half x) { return asc_sim::int_from_float<int32_t>(x, asc_sim::Round::mode); }))             \
    ASC_BY_PART(asc_bfloat162int32_##mode, vector_int32_t, vector_bfloat16_t, widen(dst, src, mask, part, [](bfloat16_t x) { return asc_sim::int_from_float<int32_t>(x, asc_sim::Round::mode); }))
ASC_PER_MODE(ASC_TO_WORDS)
#undef ASC_TO_WORDS
ASC_BY_PART(asc_int82half, vector_half, vector_int8_t, widen(dst, src, mask, part, [](int8_t x) { return half(static_cast<float>(x)); }))
ASC_BY_PART(asc_uint82half, vector_half, vector_uint8_t, widen(dst, src, mask, part, [](uint8_t x) { return half(static_cast<float>(x)); }))
#undef ASC_BY_PART

// Same width: whole numbers in the element's own type, and halves from 16-bit integers.
#define ASC_WHOLE(name, mode)                                                                                       \
    template <class T>                                                                                              \
    inline void name(asc_vector<T>& dst, asc_vector<T> src, vector_bool mask) {                                     \
        static_assert(!std::is_integral_v<T>);                                                                      \
        asc_sim::each(dst, mask, [&](int i) { return T(asc_sim::rounded(src.v[i], asc_sim::Round::mode)); });       \
    }
ASC_WHOLE(asc_rint, rn)
ASC_WHOLE(asc_round, rna)
ASC_WHOLE(asc_floor, rd)
ASC_WHOLE(asc_ceil, ru)
ASC_WHOLE(asc_trunc, rz)
#undef ASC_WHOLE
#define ASC_HALF_INT16(mode)                                                                                        \
    inline void asc_int162half_##mode(vector_half& dst, vector_int16_t src, vector_bool mask) {                     \
        asc_sim::each(dst, mask, [&](int i) { return asc_sim::from_float<half>(src.v[i], asc_sim::Round::mode, false); }); \
    }                                                                                                               \
    inline void asc_half2int16_##mode##_sat(vector_int16_t& dst, vector_half src, vector_bool mask) {               \
        asc_sim::each(dst, mask, [&](int i) { return asc_sim::int_from_float<int16_t>(src.v[i], asc_sim::Round::mode); }); \
    }
ASC_PER_MODE(ASC_HALF_INT16)
#undef ASC_HALF_INT16
#undef ASC_PER_MODE

// Broadcasts that keep the lanes that are off.
template <class T>
inline void asc_duplicate_merge(asc_vector<T>& dst, asc_vector<T> src, vector_bool mask) {
    asc_duplicate_scalar_merge(dst, src.v[0], mask);
}
template <class T>
inline void asc_duplicate_highest_merge(asc_vector<T>& dst, asc_vector<T> src, vector_bool mask) {
    asc_duplicate_scalar_merge(dst, src.v[asc_vector<T>::lanes - 1], mask);
}
// A register (or its first `count` lanes) at any address of its elements.
template <class T>
inline void asc_store(T* dst, asc_vector<T> src, uint32_t count, ASC_LOC) {
    if (count > static_cast<uint32_t>(asc_vector<T>::lanes)) asc_sim::fail("asc_store", "count must not exceed the lanes of a register", asc_loc);
    if (!count) return;
    asc_sim::ub_touch(dst, count * sizeof(T), sizeof(T), true, "asc_store", asc_loc);
    std::memcpy(dst, src.v, count * sizeof(T));
}
template <class T>
inline void asc_store(T* dst, asc_vector<T> src, ASC_LOC) {
    asc_store(dst, src, static_cast<uint32_t>(asc_vector<T>::lanes), asc_loc);
}
