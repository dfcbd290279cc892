// The special function unit (MUFU) of an H200, bit for bit, and the sequences around it that ptxas emits for .approx functions.
#pragma once
#include "isa/types.h"

namespace ptxsim {

// One MUFU operation. Subnormal operands count as zero, tiny results are flushed; NaN is canonical.
float mufu_rcp(float x);
float mufu_rsq(float x);
float mufu_sqrt(float x);
float mufu_ex2(float x);
float mufu_lg2(float x);
float mufu_sin(float turns);
float mufu_cos(float turns);
float mufu_tanh(float x);
u32 mufu_rcp64h(u32 high);  // upper words of doubles
u32 mufu_rsq64h(u32 high);

// PTX functions as compiled for sm_90, with and without .ftz.
float approx_rcp(float x, bool ftz);
float approx_rsqrt(float x, bool ftz);
float approx_sqrt(float x, bool ftz);
float approx_ex2(float x, bool ftz);
float approx_lg2(float x, bool ftz);
float approx_sin(float x);
float approx_cos(float x);
float approx_div(float a, float b, bool ftz, bool full);
double approx_rsqrt64(double x);

}  // namespace ptxsim
