#include "tensor/matmul.h"

#include <bit>
#include <cmath>

#include "isa/formats.h"

namespace ptxsim {

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define PTXSIM_CLONES __attribute__((target_clones("avx2", "default"), optimize("O3")))
#else
#define PTXSIM_CLONES
#endif

// b is transposed once so that the inner loop runs over n with unit stride; every order of these additions is rounded alike.
PTXSIM_CLONES void matmul_f64(const double* a, const double* b, double* acc, u32 m, u32 n, u32 k) {
    std::vector<double> bt(size_t(k) * n);
    for (u32 j = 0; j < n; ++j)
        for (u32 i = 0; i < k; ++i) bt[size_t(i) * n + j] = b[size_t(j) * k + i];
    for (u32 r = 0; r < m; ++r) {
        double* out = acc + size_t(r) * n;
        for (u32 i = 0; i < k; ++i) {
            const double v = a[size_t(r) * k + i];
            const double* row = bt.data() + size_t(i) * n;
            for (u32 j = 0; j < n; ++j) out[j] += v * row[j];
        }
    }
}

namespace {
constexpr int kNothing = -4096;  // exponent of zero

int exponent_of(double v, int emin) { return v == 0 ? kNothing : std::max(int(to_bits(v) >> 52 & 0x7ff) - 1023, emin); }
int lowest_bit(double v) { return int(to_bits(v) >> 52 & 0x7ff) - 1075 + std::countr_zero((to_bits(v) & 0xfffffffffffffull) | 1ull << 52); }

// Exponents of the finite values.
struct Extent {
    int high = kNothing, low = -kNothing;
    void add(const double* v, size_t count, int emin) {
        for (size_t i = 0; i < count; ++i) {
            if (v[i] == 0 || !std::isfinite(v[i])) continue;
            high = std::max(high, exponent_of(v[i], emin)), low = std::min(low, lowest_bit(v[i]));
        }
    }
};

bool all_finite(const double* v, size_t count) {
    for (size_t i = 0; i < count; ++i)
        if (!std::isfinite(v[i])) return false;
    return true;
}

double power(int e) { return from_bits<double>(u64(1023 + e) << 52); }

// One row of D: sums[j] += the cut products, all in units of 2^(top[j] - kept).
PTXSIM_CLONES void aligned_row(const double* a, const double* bt, const double* scale, double* sums, u32 n, u32 k) {
    for (u32 i = 0; i < k; ++i) {
        const double v = a[i];
        const double* row = bt + size_t(i) * n;
        for (u32 j = 0; j < n; ++j) sums[j] += std::trunc(v * row[j] * scale[j]);
    }
}
PTXSIM_CLONES void top_exponents(const int* ea, const int* ebt, int* top, u32 n, u32 k) {
    for (u32 i = 0; i < k; ++i) {
        const int e = ea[i];
        const int* row = ebt + size_t(i) * n;
        for (u32 j = 0; j < n; ++j) top[j] = std::max(top[j], e + row[j]);
    }
}

double cut(double v, int fraction) {
    if (std::fabs(v) >= 0x1p128) return std::copysign(INFINITY, v);
    if (std::fabs(v) < 0x1p-126) return std::trunc(v * power(126 + fraction)) * power(-126 - fraction);
    return from_bits<double>(to_bits(v) & ~((1ull << (52 - fraction)) - 1));
}

double settle(double v, const BlockRule& rule) { return rule.half ? f16_to_f32(encode_float(v, kF16, Round::rn)) : std::isfinite(v) ? cut(v, rule.fraction) : v; }
}  // namespace

BlockRule block_rule(Ty a, Ty b, bool half, bool wide_fp8) {
    auto emin = [](Ty t) { const Format* f = format_of(t); return f ? 1 - f->bias : -126; };
    bool narrow = type_bits(a) == 8 && !wide_fp8;
    return {narrow ? 13 : 25, narrow ? 13 : 23, half, wide_fp8 ? -14 : emin(a), wide_fp8 ? -14 : emin(b)};
}

void matmul_block(const double* a, const double* b, double* acc, u32 m, u32 n, u32 k, const BlockRule& rule) {
    int emin_c = rule.half ? -14 : -126;
    Extent ea, eb, ec;
    ea.add(a, size_t(m) * k, rule.emin_a), eb.add(b, size_t(n) * k, rule.emin_b), ec.add(acc, size_t(m) * n, emin_c);
    int high = std::max(ea.high + eb.high, ec.high), low = std::min(ea.low + eb.low, ec.low);
    int carry = 2 + std::bit_width(k);
    if (high - low <= rule.kept && high + carry - low <= rule.fraction && !rule.half) {
        matmul_f64(a, b, acc, m, n, k);  // exact where it is finite
        for (size_t i = 0; i < size_t(m) * n; ++i) acc[i] = settle(acc[i], rule);
        return;
    }
    std::vector<double> bt(size_t(k) * n), scale(n), sums(n), plain(n);
    std::vector<int> ebt(size_t(k) * n), era(k), top(n);
    std::vector<bool> finite(n);
    for (u32 j = 0; j < n; ++j) {
        for (u32 i = 0; i < k; ++i) bt[size_t(i) * n + j] = b[size_t(j) * k + i], ebt[size_t(i) * n + j] = exponent_of(b[size_t(j) * k + i], rule.emin_b);
        finite[j] = all_finite(b + size_t(j) * k, k);
    }
    for (u32 r = 0; r < m; ++r) {
        double* out = acc + size_t(r) * n;
        const double* row = a + size_t(r) * k;
        // An element that a NaN or an infinity enters needs no alignment, and must not change how the others are rounded.
        bool finite_row = all_finite(row, k);
        auto special = [&](u32 j) { return !finite_row || !finite[j] || !std::isfinite(out[j]); };
        for (u32 j = 0; j < n; ++j) {
            if (!special(j)) continue;
            plain[j] = out[j];
            for (u32 i = 0; i < k; ++i) plain[j] += row[i] * bt[size_t(i) * n + j];
        }
        for (u32 i = 0; i < k; ++i) era[i] = exponent_of(row[i], rule.emin_a);
        for (u32 j = 0; j < n; ++j) top[j] = std::max(exponent_of(out[j], emin_c), -512);
        top_exponents(era.data(), ebt.data(), top.data(), n, k);
        for (u32 j = 0; j < n; ++j) scale[j] = power(rule.kept - top[j]), sums[j] = std::trunc(out[j] * scale[j]);
        aligned_row(row, bt.data(), scale.data(), sums.data(), n, k);
        for (u32 j = 0; j < n; ++j) out[j] = settle(special(j) ? plain[j] : sums[j] * power(top[j] - rule.kept), rule);
    }
}

void matmul_i32(const i32* a, const i32* b, i64* acc, u32 m, u32 n, u32 k) {
    for (u32 r = 0; r < m; ++r)
        for (u32 j = 0; j < n; ++j) {
            i64 s = 0;
            for (u32 i = 0; i < k; ++i) s += i64(a[size_t(r) * k + i]) * b[size_t(j) * k + i];
            acc[size_t(r) * n + j] += s;
        }
}

float element_value(Ty t, u32 bits) {
    switch (t) {
        case Ty::f16: return f16_to_f32(bits);
        case Ty::bf16: return bf16_to_f32(bits);
        case Ty::f32: return from_bits<float>(bits);
        case Ty::tf32: return from_bits<float>(bits & 0xffffe000u);  // the low 13 bits do not take part
        default: return decode8(t, bits);
    }
}

float round_accumulator(double v, bool f16) {
    if (!f16) return float(v);
    return f16_to_f32(encode_float(v, kF16, Round::rn));
}

}  // namespace ptxsim
