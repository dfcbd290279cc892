// One quadratic interpolator serves all functions (Oberman and Siu, "A High-Performance Area-Efficient Multifunction Interpolator",
// ARITH 2005): T = c0 + c1 * x + c2 * (square(x) >> drop), the upper bits of the argument choose the coefficients, the lower ones
// (17, of rcp 16) are x. The squarer leaves out every partial product below 2^drop (19, of rcp 17) instead of rounding; sums are
// exact, results are cut to 24 bits. With the coefficients in special_tables.inc that reproduces an H200 for all inputs that were
// dumped: whole binades of every function (bench/ptx_bitwise).
#include "exec/special.h"

#include <bit>
#include <cmath>

namespace ptxsim {
namespace {

struct Coefficients {
    i64 c0, c1, c2;
};
#include "exec/special_tables.inc"

constexpr float kNan = std::bit_cast<float>(0x7fffffffu);

// Square of the lowest `bits` bits of x without the partial products below 2^drop, over 2^drop.
template <int bits, int drop>
u32 truncated_square(u32 x) {
    u64 sum = 0;
    for (int i = 0; i < bits; ++i) {
        if (!(x >> i & 1)) continue;
        if (2 * i >= drop) sum += 1ull << (2 * i);
        // x_i x_j appears twice, at 2^(i+j+1); j > i and i + j + 1 >= drop
        int from = i + 1 > drop - 1 - i ? i + 1 : drop - 1 - i;
        if (from < bits) sum += u64(x >> from & ((1u << (bits - from)) - 1)) << (i + from + 1);
    }
    return u32(sum >> drop);
}

i64 evaluate(const Coefficients* table, u32 segment, u32 x) {
    const Coefficients& c = table[segment];
    return c.c0 + c.c1 * i64(x) + c.c2 * i64(truncated_square<17, 19>(x));
}
i64 evaluate23(const Coefficients* table, u32 f) { return evaluate(table, f >> 17, f & 0x1ffff); }

// v * 2^-fraction as a float, cut to 24 bits; below the normal range zero.
float cut(u64 v, int fraction, bool negative) {
    if (!v) return negative ? -0.0f : 0.0f;
    int top = 63 - std::countl_zero(v);
    if (top > 23) v = v >> (top - 23) << (top - 23);
    double r = std::ldexp(double(v), -fraction);
    if (r < 0x1p-126) r = 0;
    return float(negative ? -r : r);
}

struct Parts {
    u32 bits, mantissa;  // mantissa: 23 bits below the leading one
    int exponent;
    bool negative, zero, infinite, nan;
};
Parts parts(float x) {
    u32 b = std::bit_cast<u32>(x), e = b >> 23 & 0xff;
    return {b, b & 0x7fffff, int(e) - 127, bool(b >> 31), e == 0, e == 255 && !(b & 0x7fffff), e == 255 && (b & 0x7fffff)};
}

// floor(|x| * 2^bits) for |x| < 2^40.
u64 fixed(const Parts& p, int bits) {
    int shift = p.exponent + bits - 23;
    u64 m = p.mantissa | 1u << 23;
    return shift >= 0 ? m << shift : shift < -24 ? 0 : m >> -shift;
}

float turn(float t, u32 quarter) {  // sin of t turns, `quarter` quarters later
    Parts p = parts(t);
    if (p.infinite || p.nan) return kNan;
    u32 u = 0;
    if (!p.zero) {  // 25 fraction bits of the turn
        int shift = p.exponent + 2;
        u64 m = p.mantissa | 1u << 23;
        u = shift >= 32 ? 0 : shift >= 0 ? u32(m << shift) : shift < -24 ? 0 : u32(m >> -shift);
    }
    u = (u + (quarter << 23)) & 0x1ffffff;
    u32 quadrant = u >> 23, f = u & 0x7fffff;
    if (quadrant & 1) f ^= 0x7fffff;  // one's complement
    bool negative = (quadrant & 2) != 0;
    if (!quarter && p.negative) negative = !negative;
    return cut(u64(evaluate23(kSin, f)), 41, negative);
}
}  // namespace

float mufu_rcp(float x) {
    Parts p = parts(x);
    if (p.nan) return kNan;
    if (p.zero) return std::copysign(INFINITY, x);
    if (p.infinite) return std::copysign(0.0f, x);
    const Coefficients& c = kRcp[p.mantissa >> 16];
    u32 low = p.mantissa & 0xffff;
    i64 t = c.c0 + c.c1 * i64(low) + c.c2 * i64(truncated_square<16, 17>(low));
    return cut(u64(t >> 16), 24 + p.exponent, p.negative);
}

float mufu_rsq(float x) {
    Parts p = parts(x);
    if (p.nan) return kNan;
    if (p.zero) return std::copysign(INFINITY, x);
    if (p.negative) return kNan;
    if (p.infinite) return 0;
    int half = p.exponent >> 1;
    if (!p.mantissa && !(p.exponent & 1)) return float(std::ldexp(1.0, -half));
    return cut(u64(evaluate23(p.exponent & 1 ? kRsq2 : kRsq1, p.mantissa) >> 18), 24 + half, false);
}

float mufu_sqrt(float x) {
    Parts p = parts(x);
    if (p.nan) return kNan;
    if (p.zero) return std::copysign(0.0f, x);
    if (p.negative) return kNan;
    if (p.infinite) return INFINITY;
    int half = p.exponent >> 1;
    if (!p.mantissa && !(p.exponent & 1)) return float(std::ldexp(1.0, half));
    return cut(u64(evaluate23(p.exponent & 1 ? kSqrt2 : kSqrt1, p.mantissa) >> 18), 23 - half, false);
}

float mufu_ex2(float x) {
    Parts p = parts(x);
    if (p.nan) return kNan;
    if (p.zero) return 1;
    if (p.exponent >= 7 && !(p.negative && p.exponent == 7)) return p.negative ? 0 : INFINITY;
    i64 f = i64(fixed(p, 23));
    if (p.negative) {  // one's complement, but of integers and of what is too small for the fraction
        bool whole = f == 0 || (p.exponent >= 0 && (f & 0x7fffff) == 0);
        f = whole ? -f : ~f;
    }
    return cut(u64(evaluate23(kEx2, u32(f & 0x7fffff)) >> 18), 23 - int(f >> 23), false);
}

float mufu_lg2(float x) {
    Parts p = parts(x);
    if (p.nan) return kNan;
    if (p.zero) return -INFINITY;
    if (p.negative) return kNan;
    if (p.infinite) return INFINITY;
    if (x == 1) return 0;
    i64 v = i64(p.exponent) * (1ll << 36) + (evaluate23(kLg2, p.mantissa) >> 4);
    return cut(u64(v < 0 ? ~v : v), 36, v < 0);
}

float mufu_sin(float turns) { return turn(turns, 0); }
float mufu_cos(float turns) { return turn(turns, 1); }

float mufu_tanh(float x) {
    static const int first[] = {0, 1, 2, 3, 5, 7, 11, 15, 19, 27, 43}, log_segments[] = {0, 0, 0, 1, 1, 2, 2, 2, 3, 4, 3};
    Parts p = parts(x);
    if (p.nan) return kNan;
    if (p.exponent < -8) return p.zero ? std::copysign(p.mantissa ? x : 0.0f, x) : x;
    if (p.exponent > 2) return std::copysign(1.0f, x);
    int row = p.exponent + 8, log = log_segments[row];
    u32 segment = u32(first[row]) + (p.mantissa >> (23 - log)), low = p.mantissa >> (6 - log) & 0x1ffff;
    return cut(u64(evaluate(kTanh, segment, low)), 42, p.negative);
}

u32 mufu_rcp64h(u32 high) {
    u32 e = high >> 20 & 0x7ff, sign = high & 0x80000000u;
    if (e == 0x7ff) return high & 0xfffff ? 0x7fffffffu : sign;
    if (!e) return sign | 0x7ff00000u;
    u32 m = (high & 0xfffff) << 3, low = m & 0xffff;
    const Coefficients& c = kRcp[m >> 16];
    i64 t = (c.c0 + c.c1 * i64(low) + c.c2 * i64(truncated_square<16, 17>(low))) >> 16;  // 2^-24
    bool one = t >> 24;
    i32 exponent = 2046 - i32(e) - (one ? 0 : 1);
    u32 fraction = u32(one ? t >> 4 : t >> 3) & 0xfffff;
    return exponent <= 0 ? sign : sign | u32(exponent) << 20 | fraction;
}

u32 mufu_rsq64h(u32 high) {
    u32 e = high >> 20 & 0x7ff;
    bool negative = high >> 31;
    if (e == 0x7ff) return high & 0xfffff || negative ? 0x7fffffffu : 0;
    if (!e) return (high & 0x80000000u) | 0x7ff00000u;
    if (negative) return 0x7fffffffu;
    i32 exponent = i32(e) - 1023, half = exponent >> 1;
    u32 m = (high & 0xfffff) << 3;
    if (!m && !(exponent & 1)) return u32(1023 - half) << 20;
    i64 t = evaluate23(exponent & 1 ? kRsq2 : kRsq1, m) >> 18;
    return u32(1022 - half) << 20 | (u32(t >> 3) & 0xfffff);
}

// ---- sequences of ptxas ----------------------------------------------------------------------------------------------------

namespace {
bool tiny(float x) { return std::fabs(x) < 0x1p-126f; }
float flushed(float x) { return tiny(x) && x != 0 ? std::copysign(0.0f, x) : x; }
float to_turns(float x) {  // FMUL.RZ by 0x3e22f983
    double p = double(x) * double(std::bit_cast<float>(0x3e22f983u));
    float t = float(p);
    if (std::isfinite(t) && std::fabs(double(t)) > std::fabs(p)) t = std::nextafterf(t, 0.0f);
    return t;
}
}  // namespace

float approx_rcp(float x, bool ftz) {
    if (ftz) return mufu_rcp(x);
    float s = tiny(x) ? 0x1p24f : std::fabs(x) > 0x1p126f ? 0.25f : 1.0f;
    return s * mufu_rcp(x * s);
}
float approx_rsqrt(float x, bool ftz) { return ftz || !tiny(x) ? mufu_rsq(x) : mufu_rsq(x * 0x1p24f) * 0x1p12f; }
float approx_sqrt(float x, bool ftz) { return ftz || !tiny(x) ? mufu_sqrt(x) : mufu_sqrt(x * 0x1p24f) * 0x1p-12f; }
float approx_lg2(float x, bool ftz) { return ftz || !tiny(x) ? mufu_lg2(x) : mufu_lg2(x * 0x1p24f) - 24.0f; }
float approx_ex2(float x, bool ftz) {
    if (ftz || !(x < -126.0f)) return mufu_ex2(x);
    float r = mufu_ex2(x * 0.5f);
    return r * r;
}
float approx_sin(float x) { return mufu_sin(to_turns(x)); }
float approx_cos(float x) { return mufu_cos(to_turns(x)); }

float approx_div(float a, float b, bool ftz, bool full) {
    if (full && std::fabs(b) > 0x1p126f) a = ftz ? flushed(a * 0.25f) : a * 0.25f, b *= 0.25f;
    if (!ftz && tiny(b)) a *= 0x1p24f, b *= 0x1p24f;
    float r = mufu_rcp(b) * a;
    return ftz ? flushed(r) : r;
}

double approx_rsqrt64(double x) {
    if (x == 0) return std::copysign(INFINITY, x);
    if (std::isnan(x)) return x + x;
    if (x < 0) return std::bit_cast<double>(0xfff8000000000000ull);
    if (std::isinf(x)) return 0;
    bool small = std::fpclassify(x) == FP_SUBNORMAL || (std::bit_cast<u64>(x) >> 32) < 0x100000u;
    if (small) x *= 0x1p54;
    double y = std::bit_cast<double>(u64(mufu_rsq64h(u32(std::bit_cast<u64>(x) >> 32))) << 32);
    double e = std::fma(x, -(y * y), 1.0);
    double r = std::fma(std::fma(e, 0.375, 0.5), y * e, y);
    return small ? r * 0x1p27 : r;
}

}  // namespace ptxsim
