// Dense block products shared by mma.sync, wgmma and tcgen05.mma.
//
// Numerics: operands decode exactly to f32, products are exact in double, sums are double and rounded once per instruction.
// Tensor cores truncate aligned partial sums instead; results agree bit for bit whenever all sums are exact.
#pragma once
#include <vector>

#include "isa/types.h"

namespace ptxsim {

// acc[m][n] += sum_k a[m][k] * b[n][k]; row-major, a: m x k, b: n x k.
void matmul_f64(const double* a, const double* b, double* acc, u32 m, u32 n, u32 k);
void matmul_i32(const i32* a, const i32* b, i64* acc, u32 m, u32 n, u32 k);

// One element of `t` from its storage bits (f16 bf16 tf32 f32 and all 8-bit and smaller formats) as f32.
float element_value(Ty t, u32 bits);

float round_accumulator(double v, bool f16);  // to f32, or to f16 and back

}  // namespace ptxsim
