// Bit operations, shifts, compares and selects.
#pragma once
#include "vec_arith.h"

namespace asc_sim {
// Bits of an element of any type, floats included.
template <class T, class F>
inline T bitwise(F f, T a, T b) {
    if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(f(a, b));
    } else {
        using U = std::conditional_t<sizeof(T) == 4, uint32_t, std::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>>;
        U x, y;
        std::memcpy(&x, &a, sizeof x);
        std::memcpy(&y, &b, sizeof y);
        const U r = static_cast<U>(f(x, y));
        std::memcpy(&a, &r, sizeof r);
        return a;
    }
}
}  // namespace asc_sim
#define ASC_BITS(name, op)                                                                                       \
    template <class T>                                                                                           \
    inline void name(asc_vector<T>& dst, asc_vector<T> a, asc_vector<T> b, vector_bool mask) {                   \
        asc_sim::each(dst, mask, [&](int i) {                                                                    \
            return asc_sim::bitwise<T>([](auto x, auto y) { return op; }, a.v[i], b.v[i]);                       \
        });                                                                                                      \
    }                                                                                                            \
    template <class T>                                                                                           \
    inline asc_vector<T> name(asc_vector<T> a, asc_vector<T> b, vector_bool mask) {                              \
        asc_vector<T> d;                                                                                         \
        name(d, a, b, mask);                                                                                     \
        return d;                                                                                                \
    }
ASC_BITS(asc_and, x & y)
ASC_BITS(asc_or, x | y)
ASC_BITS(asc_xor, x ^ y)
#undef ASC_BITS
ASC_UNARY(asc_not, asc_sim::bitwise<T>([](auto x, auto) { return ~x; }, a, a))

namespace asc_sim {
// Left shifts are logical, right shifts arithmetic for signed types; a distance of the width or more gives 0 (or sign).
template <class T>
inline T shl(T a, int64_t n) {
    constexpr int w = 8 * sizeof(T);
    if (n >= w) return T(0);
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) << (n < 0 ? 0 : n));
}
template <class T>
inline T shr(T a, int64_t n) {
    constexpr int w = 8 * sizeof(T);
    if (n < 0) n = 0;
    if (n >= w) return a < 0 ? T(-1) : T(0);
    return static_cast<T>(a >> n);
}
}  // namespace asc_sim

template <class T, class U>
inline void asc_shiftleft(asc_vector<T>& dst, asc_vector<T> src, asc_vector<U> n, vector_bool mask) {
    asc_sim::each(dst, mask, [&](int i) { return asc_sim::shl(src.v[i], n.v[i]); });
}
template <class T, class U>
inline void asc_shiftright(asc_vector<T>& dst, asc_vector<T> src, asc_vector<U> n, vector_bool mask) {
    asc_sim::each(dst, mask, [&](int i) { return asc_sim::shr(src.v[i], n.v[i]); });
}
template <class T>
inline void asc_shiftleft_scalar(asc_vector<T>& dst, asc_vector<T> src, int16_t n, vector_bool mask) {
    asc_sim::each(dst, mask, [&](int i) { return asc_sim::shl(src.v[i], n); });
}
template <class T>
inline void asc_shiftright_scalar(asc_vector<T>& dst, asc_vector<T> src, int16_t n, vector_bool mask) {
    asc_sim::each(dst, mask, [&](int i) { return asc_sim::shr(src.v[i], n); });
}

// A compare sets one bit per element (the lowest of the element's bits); masked-off lanes give 0.
#define ASC_COMPARE(name, op)                                                                                    \
    template <class T>                                                                                           \
    inline void name(vector_bool& dst, asc_vector<T> a, asc_vector<T> b, vector_bool mask) {                     \
        vector_bool r{};                                                                                         \
        asc_sim::alu_op();                                                                                       \
        for (int i = 0; i < asc_vector<T>::lanes; ++i)                                                           \
            asc_sim::set_lane(r, i, sizeof(T),                                                                   \
                              asc_sim::lane(mask, i, sizeof(T)) && asc_sim::wide(a.v[i]) op asc_sim::wide(b.v[i])); \
        dst = r;                                                                                                 \
    }                                                                                                            \
    template <class T>                                                                                           \
    inline vector_bool name(asc_vector<T> a, asc_vector<T> b, vector_bool mask) {                                \
        vector_bool r;                                                                                           \
        name(r, a, b, mask);                                                                                     \
        return r;                                                                                                \
    }                                                                                                            \
    template <class T>                                                                                           \
    inline void name##_scalar(vector_bool& dst, asc_vector<T> a, std::type_identity_t<T> b, vector_bool mask) {  \
        vector_bool r{};                                                                                         \
        asc_sim::alu_op();                                                                                       \
        for (int i = 0; i < asc_vector<T>::lanes; ++i)                                                           \
            asc_sim::set_lane(r, i, sizeof(T),                                                                   \
                              asc_sim::lane(mask, i, sizeof(T)) && asc_sim::wide(a.v[i]) op asc_sim::wide(b));   \
        dst = r;                                                                                                 \
    }                                                                                                            \
    template <class T>                                                                                           \
    inline vector_bool name##_scalar(asc_vector<T> a, std::type_identity_t<T> b, vector_bool mask) {             \
        vector_bool r;                                                                                           \
        name##_scalar(r, a, b, mask);                                                                            \
        return r;                                                                                                \
    }

ASC_COMPARE(asc_lt, <)
ASC_COMPARE(asc_le, <=)
ASC_COMPARE(asc_gt, >)
ASC_COMPARE(asc_ge, >=)
ASC_COMPARE(asc_eq, ==)
ASC_COMPARE(asc_ne, !=)
#undef ASC_COMPARE

template <class T>
inline void asc_select(asc_vector<T>& dst, asc_vector<T> src0, asc_vector<T> src1, vector_bool mask) {
    asc_vector<T> r;
    asc_sim::alu_op();
    for (int i = 0; i < asc_vector<T>::lanes; ++i) r.v[i] = asc_sim::lane(mask, i, sizeof(T)) ? src0.v[i] : src1.v[i];
    dst = r;
}
template <class T>
inline asc_vector<T> asc_select(asc_vector<T> src0, asc_vector<T> src1, vector_bool mask) {
    asc_vector<T> r;
    asc_select(r, src0, src1, mask);
    return r;
}
#undef ASC_BINARY
#undef ASC_SCALAR
#undef ASC_UNARY
