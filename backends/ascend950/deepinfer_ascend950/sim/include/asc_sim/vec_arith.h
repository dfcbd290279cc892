// Element-wise arithmetic. Masked-off lanes become zero. Float results are flushed to zero when subnormal if the
// launch asks for it (the hardware's vector unit has none); exp, ln and division are libm's, not bit-exact.
#pragma once
#include "vec_types.h"

namespace asc_sim {

template <class T>
inline constexpr bool is_small_float = std::is_same_v<T, half> || std::is_same_v<T, bfloat16_t>;
// Type the arithmetic is done in: small floats compute in float and round once.
template <class T>
using Wide = std::conditional_t<is_small_float<T>, float, T>;
template <class T>
inline Wide<T> wide(T x) {
    return static_cast<Wide<T>>(x);
}
// Integer arithmetic wraps; going through unsigned keeps that defined.
template <class T, class F>
inline T wrap(F f, T a, T b) {
    if constexpr (std::is_integral_v<T>) {
        using U = std::make_unsigned_t<T>;
        return static_cast<T>(static_cast<U>(f(static_cast<U>(a), static_cast<U>(b))));
    } else {
        return T(f(wide(a), wide(b)));
    }
}
template <class T>
inline T fmax_dev(T a, T b) {
    if constexpr (std::is_integral_v<T>) return a > b ? a : b;
    else {
        const float x = a, y = b;
        if (std::isnan(x) || std::isnan(y)) return T(bits_float(0x7FC00000u));
        return x > y ? a : b;
    }
}
template <class T>
inline T fmin_dev(T a, T b) {
    if constexpr (std::is_integral_v<T>) return a < b ? a : b;
    else {
        const float x = a, y = b;
        if (std::isnan(x) || std::isnan(y)) return T(bits_float(0x7FC00000u));
        return x < y ? a : b;
    }
}

}  // namespace asc_sim

#define ASC_BINARY(name, expr)                                                                                    \
    template <class T>                                                                                            \
    inline void name(asc_vector<T>& dst, asc_vector<T> src0, asc_vector<T> src1, vector_bool mask) {              \
        asc_sim::each_ftz(dst, mask, [&](int i) {                                                                     \
            const T a = src0.v[i], b = src1.v[i];                                                                 \
            return T(expr);                                                                         \
        });                                                                                                       \
    }                                                                                                             \
    template <class T>                                                                                            \
    inline asc_vector<T> name(asc_vector<T> src0, asc_vector<T> src1, vector_bool mask) {                         \
        asc_vector<T> d;                                                                                          \
        name(d, src0, src1, mask);                                                                                \
        return d;                                                                                                 \
    }
#define ASC_SCALAR(name, expr)                                                                                    \
    template <class T>                                                                                            \
    inline void name(asc_vector<T>& dst, asc_vector<T> src, std::type_identity_t<T> value, vector_bool mask) {    \
        asc_sim::each_ftz(dst, mask, [&](int i) {                                                                     \
            const T a = src.v[i], b = value;                                                                      \
            return T(expr);                                                                         \
        });                                                                                                       \
    }                                                                                                             \
    template <class T>                                                                                            \
    inline asc_vector<T> name(asc_vector<T> src, std::type_identity_t<T> value, vector_bool mask) {               \
        asc_vector<T> d;                                                                                          \
        name(d, src, value, mask);                                                                                \
        return d;                                                                                                 \
    }
#define ASC_UNARY(name, expr)                                                                                     \
    template <class T>                                                                                            \
    inline void name(asc_vector<T>& dst, asc_vector<T> src, vector_bool mask) {                                   \
        asc_sim::each_ftz(dst, mask, [&](int i) {                                                                     \
            const T a = src.v[i];                                                                                 \
            return T(expr);                                                                         \
        });                                                                                                       \
    }                                                                                                             \
    template <class T>                                                                                            \
    inline asc_vector<T> name(asc_vector<T> src, vector_bool mask) {                                              \
        asc_vector<T> d;                                                                                          \
        name(d, src, mask);                                                                                       \
        return d;                                                                                                 \
    }

ASC_BINARY(asc_add, asc_sim::wrap<T>([](auto x, auto y) { return x + y; }, a, b))
ASC_BINARY(asc_sub, asc_sim::wrap<T>([](auto x, auto y) { return x - y; }, a, b))
ASC_BINARY(asc_mul, asc_sim::wrap<T>([](auto x, auto y) { return x * y; }, a, b))
ASC_BINARY(asc_div, T(asc_sim::wide(a) / asc_sim::wide(b)))
ASC_BINARY(asc_max, asc_sim::fmax_dev(a, b))
ASC_BINARY(asc_min, asc_sim::fmin_dev(a, b))
ASC_SCALAR(asc_add_scalar, asc_sim::wrap<T>([](auto x, auto y) { return x + y; }, a, b))
ASC_SCALAR(asc_mul_scalar, asc_sim::wrap<T>([](auto x, auto y) { return x * y; }, a, b))
ASC_SCALAR(asc_max_scalar, asc_sim::fmax_dev(a, b))
ASC_SCALAR(asc_min_scalar, asc_sim::fmin_dev(a, b))
ASC_UNARY(asc_abs, T(a < T(0) ? -asc_sim::wide(a) : asc_sim::wide(a)))
ASC_UNARY(asc_neg, T(-asc_sim::wide(a)))
ASC_UNARY(asc_relu, (asc_sim::wide(a) > 0 ? a : T(0)))
ASC_UNARY(asc_exp, T(std::exp(static_cast<float>(a))))
ASC_UNARY(asc_ln, T(std::log(static_cast<float>(a))))
ASC_UNARY(asc_log, T(std::log(static_cast<float>(a))))
ASC_UNARY(asc_sqrt, T(std::sqrt(static_cast<float>(a))))

// dst = exp(src0 - src1).
inline void asc_exp_sub(vector_float& dst, vector_float src0, vector_float src1, vector_bool mask) {
    asc_sim::each_ftz(dst, mask, [&](int i) { return std::exp(src0.v[i] - src1.v[i]); });
}
inline vector_float asc_exp_sub(vector_float src0, vector_float src1, vector_bool mask) {
    vector_float d;
    asc_exp_sub(d, src0, src1, mask);
    return d;
}
// dst += src * value; dst = dst * src0 + src1; dst += src0 * src1. All fused: one rounding.
template <class T>
inline void asc_axpy(asc_vector<T>& dst, asc_vector<T> src, std::type_identity_t<T> value, vector_bool mask) {
    const asc_vector<T> old = dst;
    asc_sim::each(dst, mask, [&](int i) {
        return T(std::fma(static_cast<float>(src.v[i]), static_cast<float>(value), static_cast<float>(old.v[i])));
    });
}
template <class T>
inline void asc_madd(asc_vector<T>& dst, asc_vector<T> src0, asc_vector<T> src1, vector_bool mask) {
    const asc_vector<T> old = dst;
    asc_sim::each(dst, mask, [&](int i) {
        return T(std::fma(static_cast<float>(old.v[i]), static_cast<float>(src0.v[i]), static_cast<float>(src1.v[i])));
    });
}
template <class T>
inline void asc_mula(asc_vector<T>& dst, asc_vector<T> src0, asc_vector<T> src1, vector_bool mask) {
    const asc_vector<T> old = dst;
    asc_sim::each(dst, mask, [&](int i) {
        if constexpr (std::is_integral_v<T>)
            return asc_sim::wrap<T>([](auto x, auto y) { return x + y; }, old.v[i],
                                    asc_sim::wrap<T>([](auto x, auto y) { return x * y; }, src0.v[i], src1.v[i]));
        else
            return T(std::fma(static_cast<float>(src0.v[i]), static_cast<float>(src1.v[i]),
                              static_cast<float>(old.v[i])));
    });
}
template <class T>
inline asc_vector<T> asc_fma(asc_vector<T> src0, asc_vector<T> src1, asc_vector<T> src2, vector_bool mask) {
    asc_vector<T> d;
    asc_sim::each(d, mask, [&](int i) {
        return T(std::fma(static_cast<float>(src0.v[i]), static_cast<float>(src1.v[i]), static_cast<float>(src2.v[i])));
    });
    return d;
}

// 32-bit with carry: a carry sets the lane's bit of the mask register. For asc_sub/subc the bit means "no borrow".
template <class T>
inline void asc_add(vector_bool& carry, asc_vector<T>& dst, asc_vector<T> a, asc_vector<T> b, vector_bool mask) {
    vector_bool c{};
    asc_sim::each(dst, mask, [&](int i) {
        const uint64_t s = uint64_t{static_cast<uint32_t>(a.v[i])} + static_cast<uint32_t>(b.v[i]);
        asc_sim::set_lane(c, i, 4, s >> 32);
        return static_cast<T>(static_cast<uint32_t>(s));
    });
    carry = c;
}
template <class T>
inline void asc_addc(vector_bool& carry, asc_vector<T>& dst, asc_vector<T> a, asc_vector<T> b, vector_bool in,
                     vector_bool mask) {
    vector_bool c{};
    asc_sim::each(dst, mask, [&](int i) {
        const uint64_t s = uint64_t{static_cast<uint32_t>(a.v[i])} + static_cast<uint32_t>(b.v[i]) + asc_sim::lane(in, i, 4);
        asc_sim::set_lane(c, i, 4, s >> 32);
        return static_cast<T>(static_cast<uint32_t>(s));
    });
    carry = c;
}
template <class T>
inline void asc_sub(vector_bool& carry, asc_vector<T>& dst, asc_vector<T> a, asc_vector<T> b, vector_bool mask) {
    vector_bool c{};
    asc_sim::each(dst, mask, [&](int i) {
        const uint32_t x = static_cast<uint32_t>(a.v[i]), y = static_cast<uint32_t>(b.v[i]);
        asc_sim::set_lane(c, i, 4, x >= y);
        return static_cast<T>(x - y);
    });
    carry = c;
}
template <class T>
inline void asc_subc(vector_bool& carry, asc_vector<T>& dst, asc_vector<T> a, asc_vector<T> b, vector_bool in,
                     vector_bool mask) {
    vector_bool c{};
    asc_sim::each(dst, mask, [&](int i) {
        const uint64_t x = static_cast<uint32_t>(a.v[i]), y = uint64_t{static_cast<uint32_t>(b.v[i])} + !asc_sim::lane(in, i, 4);
        asc_sim::set_lane(c, i, 4, x >= y);
        return static_cast<T>(static_cast<uint32_t>(x - y));
    });
    carry = c;
}
// Full 64-bit product of 32-bit lanes: dst0 gets the low halves, dst1 the high ones.
template <class T>
inline void asc_mull(asc_vector<T>& dst0, asc_vector<T>& dst1, asc_vector<T> a, asc_vector<T> b, vector_bool mask) {
    using W = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
    asc_vector<T> hi;
    asc_sim::each(hi, mask, [&](int i) { return static_cast<T>((static_cast<W>(a.v[i]) * static_cast<W>(b.v[i])) >> 32); });
    asc_sim::each(dst0, mask, [&](int i) { return static_cast<T>(static_cast<W>(a.v[i]) * static_cast<W>(b.v[i])); });
    dst1 = hi;
}

// Built-ins in merging mode: masked-off lanes keep their old value.
inline constexpr int MODE_ZEROING = 0, MODE_MERGING = 1;
namespace asc_sim {
template <class T>
inline void keep_masked_off(asc_vector<T>& dst, const asc_vector<T>& old, const vector_bool& mask) {
    for (int i = 0; i < asc_vector<T>::lanes; ++i)
        if (!asc_sim::lane(mask, i, sizeof(T))) dst.v[i] = old.v[i];
}
}  // namespace asc_sim
#define ASC_MERGING(name, call)                                                                                   \
    template <class T>                                                                                            \
    inline void name(asc_vector<T>& dst, asc_vector<T> a, asc_vector<T> b, vector_bool mask, int mode = MODE_ZEROING) { \
        const asc_vector<T> old = dst;                                                                            \
        call(dst, a, b, mask);                                                                                    \
        if (mode == MODE_MERGING) asc_sim::keep_masked_off(dst, old, mask);                                       \
    }
ASC_MERGING(vmax, asc_max)
ASC_MERGING(vmin, asc_min)
#undef ASC_MERGING
