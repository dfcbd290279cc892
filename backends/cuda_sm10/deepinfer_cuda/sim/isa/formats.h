// Small floating-point formats: one encoder and one decoder for all of them.
//
// Sources: IEEE 754 (f16), OCP OFP8 (e4m3, e5m2), OCP MX v1.0 (e2m3, e3m2, e2m1, e8m0), PTX ISA "cvt" for saturation and NaN rules.
#pragma once
#include "isa/types.h"

namespace ptxsim {

enum class Round : u8 { rn, rz, rm, rp, rna };

enum class Specials : u8 { ieee, nan_only, none };  // inf+nan; all-ones nan (e4m3); neither (fp6, fp4)

struct Format {
    int exponent, mantissa, bias;
    Specials specials;
    int bits() const { return 1 + exponent + mantissa; }
    u32 max_finite() const {
        u32 all = (1u << (exponent + mantissa)) - 1;
        if (specials == Specials::ieee) return (((1u << exponent) - 2) << mantissa) | ((1u << mantissa) - 1);
        return specials == Specials::nan_only ? all - 1 : all;
    }
    u32 nan() const { return (1u << (exponent + mantissa)) - 1; }  // NVIDIA's canonical NaN has all bits set but the sign
    u32 infinity() const { return ((1u << exponent) - 1) << mantissa; }
};

constexpr Format kF16{5, 10, 15, Specials::ieee}, kBF16{8, 7, 127, Specials::ieee}, kTF32{8, 10, 127, Specials::ieee},
    kE4M3{4, 3, 7, Specials::nan_only}, kE5M2{5, 2, 15, Specials::ieee}, kE2M3{2, 3, 1, Specials::none},
    kE3M2{3, 2, 3, Specials::none}, kE2M1{2, 1, 1, Specials::none};

const Format* format_of(Ty t);  // element format of t (packed or not); null for f32, f64, ue8m0 and integers

double decode_float(u32 bits, const Format& f);
// Rounds once. With satfinite, overflow and infinity give the largest finite value, NaN gives NaN (or the largest, where none exists).
u32 encode_float(double v, const Format& f, Round r, bool satfinite = false);

float f16_to_f32(u32 bits);                                   // table look-up
inline float bf16_to_f32(u32 bits) { return from_bits<float>(u64(bits & 0xffff) << 16); }
u32 f32_to_bf16(float v);                                     // round to nearest even
u32 f32_to_f16(float v);
double ue8m0_to_double(u32 bits);                             // 255 is NaN
u32 double_to_ue8m0(double v, Round r, bool satfinite);       // rz or rp, of |v|

float decode8(Ty t, u32 bits);                                // e4m3 e5m2 e2m3 e3m2 e2m1 ue8m0 ue4m3 by table

// a + b with the last bit made odd when inexact, so that a later rounding to fewer bits is correct (Boldo, Melquiond).
double add_round_odd(double a, double b);

}  // namespace ptxsim
