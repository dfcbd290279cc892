// f16, bf16 and their packed pairs: exact in double (round to odd), then one rounding to the format.
#include "exec/families.h"
#include "exec/float_ops.h"
#include "exec/ops.h"
#include "exec/special.h"
#include "isa/formats.h"

namespace ptxsim {
namespace {

enum class Fn : u8 { add, sub, mul, fma, min, max, abs, neg, ex2, tanh };

struct HalfMode : Extra {
    Fn fn;
    bool bf = false, packed = false, ftz = false, sat = false, relu = false, nan = false, xorsign = false, oob = false;
    int operands = 2;
};

double widen(u32 v, bool bf) { return bf ? double(bf16_to_f32(v)) : double(f16_to_f32(v)); }

u32 half_value(const HalfMode& m, u32 a, u32 b, u32 c) {
    const Format& f = m.bf ? kBF16 : kF16;
    if (m.fn == Fn::abs || m.fn == Fn::neg) {
        if ((a & 0x7fff) > f.infinity()) return 0x7fff;
        if (m.ftz && (a & f.infinity()) == 0) a &= 0x8000;
        return m.fn == Fn::abs ? a & 0x7fff : a ^ 0x8000;
    }
    if (m.oob && (a == 0x7ff7 || b == 0x7ff7)) return 0;  // the fill value of tensor maps (observed on an H200)
    auto get = [&](u32 v) {
        double w = widen(v, m.bf);
        bool sub = (v & 0x7fff) != 0 && (v & f.infinity()) == 0;
        return m.ftz && sub ? std::copysign(0.0, w) : w;
    };
    double p = get(a), q = get(b), s = get(c), r = 0;
    switch (m.fn) {
        case Fn::add: r = add_round_odd(p, q); break;
        case Fn::sub: r = add_round_odd(p, -q); break;
        case Fn::mul: r = p * q; break;
        case Fn::fma: r = add_round_odd(p * q, s); break;
        case Fn::min: r = float_min_max(p, q, false, m.nan, m.xorsign); break;
        case Fn::max: r = float_min_max(p, q, true, m.nan, m.xorsign); break;
        case Fn::ex2: r = mufu_ex2(float(p)); break;
        case Fn::tanh: r = mufu_tanh(float(p)); break;
        default: break;
    }
    if (m.fn == Fn::min || m.fn == Fn::max) {
        if (m.operands == 3) r = float_min_max(r, s, m.fn == Fn::max, m.nan, m.xorsign);
    }
    if (std::isnan(r)) return m.sat ? 0 : 0x7fff;
    if (m.sat) r = r > 1 ? 1.0 : r > 0 ? r : 0.0;  // -0 becomes +0
    if (m.relu && !(r > 0)) r = 0;
    bool unit = m.fn == Fn::ex2 || m.fn == Fn::tanh;  // the special function unit cuts, others round
    u32 v = unit && r >= std::ldexp(1.0, f.bias + 1) ? f.infinity() : encode_float(r, f, unit ? Round::rz : Round::rn);
    if (m.ftz && (v & f.infinity()) == 0) v &= 0x8000;
    return v;
}

void half_op(X& x, const Inst& in, u32 lanes) {
    const HalfMode& m = static_cast<const HalfMode&>(*in.extra);
    const u64* a = x.src(in.s[1]);
    const u64* b = in.s[2] == kNoSlot ? a : x.src(in.s[2]);
    const u64* c = in.s[3] == kNoSlot ? a : x.src(in.s[3]);
    u64* d = x.dst(in.s[0]);
    each(lanes, [&](int l) {
        u32 r = half_value(m, a[l] & 0xffff, b[l] & 0xffff, c[l] & 0xffff);
        if (m.packed) r |= half_value(m, a[l] >> 16 & 0xffff, b[l] >> 16 & 0xffff, c[l] >> 16 & 0xffff) << 16;
        d[l] = r;
    });
}
}  // namespace

void decode_half(Dec& d) {
    static const std::map<std::string, Fn> fns = {{"add", Fn::add}, {"sub", Fn::sub}, {"mul", Fn::mul}, {"fma", Fn::fma}, {"min", Fn::min},
                                                  {"max", Fn::max}, {"abs", Fn::abs}, {"neg", Fn::neg}, {"ex2", Fn::ex2}, {"tanh", Fn::tanh}};
    auto m = std::make_shared<HalfMode>();
    auto f = fns.find(d.st.op);
    if (f == fns.end()) d.fail("has no half-precision form");
    m->fn = f->second;
    d.opt("rn"), d.opt("approx");
    m->ftz = d.opt("ftz"), m->sat = d.opt("sat"), m->relu = d.opt("relu"), m->nan = d.opt("NaN"), m->xorsign = d.opt("xorsign");
    if (m->xorsign) d.opt("abs");
    if (m->fn == Fn::fma) m->oob = d.opt("oob");
    Ty t = d.need_type();
    m->bf = t == Ty::bf16 || t == Ty::bf16x2;
    m->packed = t == Ty::f16x2 || t == Ty::bf16x2;
    int operands = m->fn == Fn::fma ? 3 : m->fn >= Fn::abs ? 1 : 2;
    if ((m->fn == Fn::min || m->fn == Fn::max) && d.n() == 4) operands = 3;
    m->operands = operands;
    d.in.s[0] = d.dst(0);
    for (int i = 1; i <= operands; ++i) d.in.s[i] = d.src(i, Ty::b32);
    d.in.fn = half_op;
    d.in.extra = m;
}

}  // namespace ptxsim
