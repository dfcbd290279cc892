#include "isa/formats.h"

#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace ptxsim {

const Format* format_of(Ty t) {
    switch (t) {
        case Ty::f16: case Ty::f16x2: return &kF16;
        case Ty::bf16: case Ty::bf16x2: return &kBF16;
        case Ty::tf32: return &kTF32;
        case Ty::e4m3: case Ty::e4m3x2: case Ty::ue4m3: case Ty::ue4m3x2: return &kE4M3;
        case Ty::e5m2: case Ty::e5m2x2: return &kE5M2;
        case Ty::e2m3: case Ty::e2m3x2: return &kE2M3;
        case Ty::e3m2: case Ty::e3m2x2: return &kE3M2;
        case Ty::e2m1: case Ty::e2m1x2: return &kE2M1;
        default: return nullptr;
    }
}

double decode_float(u32 bits, const Format& f) {
    u32 m = bits & ((1u << f.mantissa) - 1), e = bits >> f.mantissa & ((1u << f.exponent) - 1);
    bool neg = bits >> (f.exponent + f.mantissa) & 1;
    u32 top = (1u << f.exponent) - 1;
    double v;
    if (f.specials == Specials::ieee && e == top) v = m ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
    else if (f.specials == Specials::nan_only && e == top && m == (1u << f.mantissa) - 1) v = std::numeric_limits<double>::quiet_NaN();
    else if (e == 0) v = std::ldexp(double(m), 1 - f.bias - f.mantissa);
    else v = std::ldexp(double(m | 1u << f.mantissa), int(e) - f.bias - f.mantissa);
    return neg ? -v : v;
}

u32 encode_float(double v, const Format& f, Round r, bool satfinite) {
    u32 sign = std::signbit(v) ? 1u << (f.exponent + f.mantissa) : 0;
    if (std::isnan(v)) return f.specials == Specials::none ? f.max_finite() : f.nan();
    double a = std::fabs(v);
    if (std::isinf(a)) {
        if (satfinite || f.specials == Specials::none) return sign | f.max_finite();
        return f.specials == Specials::ieee ? sign | f.infinity() : sign | f.nan();
    }
    if (a == 0) return sign;
    int emin = 1 - f.bias, e = std::max(std::ilogb(a), emin);
    double q = std::ldexp(a, f.mantissa - e), whole = std::floor(q), rest = q - whole;
    bool odd = std::fmod(whole, 2.0) != 0, up = false;
    switch (r) {
        case Round::rn: up = rest > 0.5 || (rest == 0.5 && odd); break;
        case Round::rna: up = rest >= 0.5; break;
        case Round::rz: break;
        case Round::rm: up = sign && rest > 0; break;
        case Round::rp: up = !sign && rest > 0; break;
    }
    u64 n = u64(whole) + up;
    // exponent field 1 for e == emin; a mantissa carry moves into it by plain addition
    u64 bits = n < (1ull << f.mantissa) ? n : (u64(e - emin + 1) << f.mantissa) + (n - (1ull << f.mantissa));
    if (bits > f.max_finite()) {
        bool to_max = satfinite || f.specials == Specials::none || r == Round::rz || (r == Round::rm && !sign) || (r == Round::rp && sign);
        if (to_max) return sign | f.max_finite();
        return f.specials == Specials::ieee ? sign | f.infinity() : sign | f.nan();
    }
    return sign | u32(bits);
}

float f16_to_f32(u32 bits) {
    static const std::vector<float> table = [] {
        std::vector<float> t(65536);
        for (u32 i = 0; i < 65536; ++i) t[i] = float(decode_float(i, kF16));
        return t;
    }();
    return table[bits & 0xffff];
}

u32 f32_to_bf16(float v) {
    u32 b = u32(to_bits(v));
    if (std::isnan(v)) return 0x7fff;
    return (b + 0x7fff + (b >> 16 & 1)) >> 16;
}

u32 f32_to_f16(float v) { return encode_float(v, kF16, Round::rn); }

double ue8m0_to_double(u32 bits) {
    return bits == 255 ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, int(bits) - 127);
}

u32 double_to_ue8m0(double v, Round r, bool satfinite) {
    if (std::isnan(v)) return 255;
    double a = std::fabs(v);
    if (std::isinf(a)) return satfinite ? 254 : 255;
    if (a == 0) return 0;
    int e = std::ilogb(a);
    if (r == Round::rp && std::ldexp(1.0, e) < a) ++e;
    if (e + 127 < 0) return 0;
    if (e + 127 > 254) return satfinite ? 254 : 255;
    return u32(e + 127);
}

float decode8(Ty t, u32 bits) {
    using Table = std::array<float, 256>;
    auto make = [](const Format& f) {
        Table x;
        for (u32 i = 0; i < 256; ++i) x[i] = float(decode_float(i & ((1u << f.bits()) - 1), f));
        return x;
    };
    static const Table e4m3 = make(kE4M3), e5m2 = make(kE5M2), e2m3 = make(kE2M3), e3m2 = make(kE3M2), e2m1 = make(kE2M1);
    bits &= 0xff;
    switch (t) {
        case Ty::e4m3: return e4m3[bits];
        case Ty::ue4m3: return e4m3[bits & 0x7f];
        case Ty::e5m2: return e5m2[bits];
        case Ty::e2m3: return e2m3[bits];
        case Ty::e3m2: return e3m2[bits];
        case Ty::e2m1: return e2m1[bits];
        case Ty::ue8m0: return float(ue8m0_to_double(bits));
        default: return 0;
    }
}

double add_round_odd(double a, double b) {
    double s = a + b;
    if (!std::isfinite(s)) return s;
    double bb = s - a, err = (a - (s - bb)) + (b - bb);  // TwoSum, exact
    if (err == 0) return s;
    u64 bits = to_bits(s);
    if (bits & 1) return s;
    bool away = (err > 0) == (s > 0);
    return from_bits<double>(away ? bits + 1 : bits - 1);
}

}  // namespace ptxsim
