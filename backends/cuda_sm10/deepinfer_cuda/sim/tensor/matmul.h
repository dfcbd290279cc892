// Dense block products shared by mma.sync, wgmma and tcgen05.mma.
//
// Numerics of mma.sync and wgmma: block fused multiply-add as fitted to an H200 (bench/ptx_bitwise, every random case bit for bit):
// all products of an instruction and the accumulator are aligned to the largest exponent among them, cut towards zero below a fixed
// number of fraction bits, added exactly, and the sum is cut (f32) or rounded to nearest even (f16). tcgen05.mma, which no H200
// has, sums in double and rounds once. Both agree whenever all sums are exact.
#pragma once
#include <vector>

#include "isa/types.h"

namespace ptxsim {

// acc[m][n] += sum_k a[m][k] * b[n][k]; row-major, a: m x k, b: n x k.
void matmul_f64(const double* a, const double* b, double* acc, u32 m, u32 n, u32 k);

struct BlockRule {
    int kept;      // fraction bits below the largest exponent that take part in the sum
    int fraction;  // fraction bits of an f32 result
    bool half;     // results are f16
    int emin_a, emin_b;  // exponents of the smallest normal operands; subnormal ones are not normalised
};
BlockRule block_rule(Ty a, Ty b, bool half, bool wide_fp8);  // wide_fp8: fp8 operands multiplied as f16 (mma.sync on sm_90)

// As matmul_f64, rounded by `rule` over the whole of k; acc holds f32 or f16 values before and after.
void matmul_block(const double* a, const double* b, double* acc, u32 m, u32 n, u32 k, const BlockRule& rule);

void matmul_i32(const i32* a, const i32* b, i64* acc, u32 m, u32 n, u32 k);

// One element of `t` from its storage bits (f16 bf16 tf32 f32 and all 8-bit and smaller formats) as f32.
float element_value(Ty t, u32 bits);

float round_accumulator(double v, bool f16);  // to f32, or to f16 and back

}  // namespace ptxsim
