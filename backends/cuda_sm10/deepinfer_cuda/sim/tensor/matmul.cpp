#include "tensor/matmul.h"

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
