// Tables of the 8-bit float formats.
#include "asc_sim/scalar.h"

#include <cmath>

namespace asc_sim {

const float* fp8_table(bool e4m3) {
    static const auto tables = [] {
        struct T {
            float v[2][256];
        } t;
        for (uint32_t i = 0; i < 256; ++i) {
            t.v[0][i] = decode(i, kE5m2);
            t.v[1][i] = decode(i, kE4m3);
        }
        return t;
    }();
    return tables.v[e4m3];
}

// HiF8: sign, a prefix code (the dot) of 2 to 4 bits that tells how many exponent bits D follow, then the exponent in
// sign-magnitude with a hidden leading one, then 1 to 3 mantissa bits. 0x80 is NaN, 0x6F and 0xEF are the infinities.
float hif8_decode(uint8_t code) {
    const float sign = code & 0x80 ? -1.0f : 1.0f;
    const int b = code & 0x7F;
    if (b == 0) return code & 0x80 ? bits_float(0x7FC00000u) : 0.0f;
    if (b == 0x6F) return sign * bits_float(0x7F800000u);
    int d, used;
    if (b >> 5) {
        d = (b >> 5) + 1;
        used = 2;
    } else if (b >> 4) {
        d = 1;
        used = 3;
    } else if (b >> 3) {
        d = 0;
        used = 4;
    } else {
        return sign * std::ldexp(1.0f, b - 23);  // denormals: powers of two
    }
    const int m_bits = 7 - used - d, e_field = (b >> m_bits) & ((1 << d) - 1), m = b & ((1 << m_bits) - 1);
    int e = 0;
    if (d > 0) {
        const int mag = (1 << (d - 1)) | (e_field & ((1 << (d - 1)) - 1));
        e = e_field >> (d - 1) ? -mag : mag;
    }
    return sign * std::ldexp(1.0f + static_cast<float>(m) / static_cast<float>(1 << m_bits), e);
}

// Nearest value, ties away from zero. The hybrid (stochastic) mode is not modelled.
uint8_t hif8_encode(float x, bool, bool sat) {
    if (std::isnan(x)) return sat ? 0 : 0x80;
    const uint8_t sign = std::signbit(x) ? 0x80 : 0;
    const double a = std::fabs(static_cast<double>(x));
    int best = 0;
    double best_v = 0, best_d = a;
    for (int c = 1; c < 128; ++c) {
        const double v = c == 0x6F ? 49152.0 : hif8_decode(static_cast<uint8_t>(c));
        const double d = std::fabs(a - v);
        if (d < best_d || (d == best_d && v > best_v)) {
            best = c;
            best_v = v;
            best_d = d;
        }
    }
    if (a > 49152.0) best = 0x6F;
    if (best == 0x6F && sat) best = 0x6E;
    return best == 0 ? 0 : static_cast<uint8_t>(sign | best);
}

}  // namespace asc_sim
