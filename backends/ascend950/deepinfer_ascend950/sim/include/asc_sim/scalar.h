// Number formats of the device: storage types and exact conversions to and from float.
//
// Every format is a struct around its bits, so that overloads on element types work as with the vendor's compiler.
// Rounding follows the device documentation: rn = ties to even, rna = ties away, rd/ru/rz = directed; e4m3 has no
// infinity (NaN = 0x7F), saturation clamps to the largest finite value.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace asc_sim {

enum class Round { rn, rna, rd, ru, rz };

inline uint32_t float_bits(float x) {
    uint32_t u;
    std::memcpy(&u, &x, 4);
    return u;
}
inline float bits_float(uint32_t u) {
    float x;
    std::memcpy(&x, &u, 4);
    return x;
}

// Rounds the magnitude m/2^shift (m an integer) to an integer in mode r; `neg` tells the sign for directed modes.
inline uint64_t round_shift(uint64_t m, int shift, Round r, bool neg) {
    if (shift <= 0) return m << -shift;
    if (shift > 62) return (m != 0 && ((r == Round::ru && !neg) || (r == Round::rd && neg))) ? 1 : 0;
    const uint64_t q = m >> shift, rem = m & ((uint64_t{1} << shift) - 1), half = uint64_t{1} << (shift - 1);
    switch (r) {
        case Round::rn: return q + (rem > half || (rem == half && (q & 1)));
        case Round::rna: return q + (rem >= half);
        case Round::rd: return q + (neg && rem != 0);
        case Round::ru: return q + (!neg && rem != 0);
        default: return q;
    }
}

// A binary format with E exponent bits, M mantissa bits, given bias. `ieee` = has infinity at the top exponent;
// otherwise only the all-ones code is NaN (e4m3) or there is no NaN at all (`nan_free`: e2m1, e1m2).
struct Format {
    int e, m, bias;
    bool ieee, nan_free;
    constexpr uint32_t sign_bit() const { return 1u << (e + m); }
    constexpr uint32_t exp_max() const { return (1u << e) - 1; }
    constexpr uint32_t max_finite() const {
        return ieee ? ((exp_max() - 1) << m) | ((1u << m) - 1)
                    : nan_free ? (exp_max() << m) | ((1u << m) - 1) : (exp_max() << m) | ((1u << m) - 2);
    }
    constexpr uint32_t nan() const { return ieee ? (exp_max() << m) | (1u << (m - 1)) : (1u << (e + m)) - 1; }
};
inline constexpr Format kBf16{8, 7, 127, true, false}, kHalf{5, 10, 15, true, false}, kE5m2{5, 2, 15, true, false};
inline constexpr Format kE4m3{4, 3, 7, false, false}, kE2m1{2, 1, 1, false, true}, kE1m2{1, 2, 1, false, true};

inline uint32_t encode(float x, Format f, Round r, bool sat) {
    const uint32_t u = float_bits(x), sign = (u >> 31) ? f.sign_bit() : 0;
    const uint32_t ue = (u >> 23) & 255, um = u & 0x7FFFFF;
    if (ue == 255) {
        if (um != 0) return f.nan_free || sat ? 0 : f.nan() | sign;  // saturating conversions turn NaN into 0
        if (sat || f.nan_free) return sign | f.max_finite();
        return sign | (f.ieee ? f.exp_max() << f.m : f.nan());
    }
    if (ue == 0 && um == 0) return sign;
    const uint64_t mant = ue ? (um | 0x800000u) : um;
    const int exp = static_cast<int>(ue ? ue : 1) - 127;  // value = mant * 2^(exp-23)
    int target = exp + f.bias;
    int shift = 23 - f.m;
    if (target < 1) {
        shift += 1 - target;
        target = 1;
    }
    uint64_t q = round_shift(mant, shift, r, sign != 0);
    uint64_t code = (static_cast<uint64_t>(target - 1) << f.m) + q;  // carries into the exponent by itself
    if (code > f.max_finite()) {
        const bool toward_zero = r == Round::rz || (r == Round::rd && !sign) || (r == Round::ru && sign);
        if (sat || f.nan_free || toward_zero) return sign | f.max_finite();
        return sign | (f.ieee ? f.exp_max() << f.m : f.nan());
    }
    return sign | static_cast<uint32_t>(code);
}

inline float decode(uint32_t c, Format f) {
    const bool neg = c & f.sign_bit();
    const uint32_t e = (c >> f.m) & f.exp_max(), m = c & ((1u << f.m) - 1);
    float v;
    if (f.ieee && e == f.exp_max()) v = m ? bits_float(0x7FC00000u) : bits_float(0x7F800000u);
    else if (!f.ieee && !f.nan_free && (c & (f.sign_bit() - 1)) == f.nan()) v = bits_float(0x7FC00000u);
    else if (e == 0) v = std::ldexp(static_cast<float>(m), 1 - f.bias - f.m);
    else v = std::ldexp(static_cast<float>(m | (1u << f.m)), static_cast<int>(e) - f.bias - f.m);
    return neg ? -v : v;
}

inline uint16_t bf16_rn(float x) {
    uint32_t u = float_bits(x);
    if ((u & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>((u >> 16) | 0x40);
    return static_cast<uint16_t>((u + 0x7FFF + ((u >> 16) & 1)) >> 16);
}
float hif8_decode(uint8_t code);
uint8_t hif8_encode(float x, bool hybrid, bool sat);
const float* fp8_table(bool e4m3);  // 256 decoded values

}  // namespace asc_sim

struct bfloat16_t {
    uint16_t bits;
    bfloat16_t() = default;
    bfloat16_t(float x) : bits(asc_sim::bf16_rn(x)) {}
    operator float() const { return asc_sim::bits_float(static_cast<uint32_t>(bits) << 16); }
};
struct half {
    uint16_t bits;
    half() = default;
    half(float x) : bits(static_cast<uint16_t>(asc_sim::encode(x, asc_sim::kHalf, asc_sim::Round::rn, false))) {}
    operator float() const { return asc_sim::decode(bits, asc_sim::kHalf); }
};
struct fp8_e4m3fn_t {
    uint8_t bits;
    explicit operator float() const { return asc_sim::fp8_table(true)[bits]; }
};
struct fp8_e5m2_t {
    uint8_t bits;
    explicit operator float() const { return asc_sim::fp8_table(false)[bits]; }
};
struct fp8_e8m0_t {
    uint8_t bits;
    explicit operator float() const {
        return bits == 255 ? asc_sim::bits_float(0x7FC00000u) : std::ldexp(1.0f, static_cast<int>(bits) - 127);
    }
};
struct hifloat8_t {
    uint8_t bits;
    explicit operator float() const { return asc_sim::hif8_decode(bits); }
};
// Two 4-bit values per byte, the element with the even index in the low nibble.
struct fp4x2_e2m1_t {
    uint8_t bits;
};
struct fp4x2_e1m2_t {
    uint8_t bits;
};
struct int4b_t {
    uint8_t bits;
};
// The same types under their other public names.
using float8_e4m3_t = fp8_e4m3fn_t;
using float8_e5m2_t = fp8_e5m2_t;
using float8_e8m0_t = fp8_e8m0_t;
using float4_e2m1x2_t = fp4x2_e2m1_t;
using float4_e1m2x2_t = fp4x2_e1m2_t;
