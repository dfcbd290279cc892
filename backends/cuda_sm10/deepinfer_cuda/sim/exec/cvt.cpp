// cvt in all scalar and packed forms: value in, one rounding, value out.
//
// Sources of integers go through 128-bit integers (exact), sources of floats through double (every source format is exact in it).
#include <cmath>

#include "exec/families.h"
#include "exec/ops.h"
#include "isa/formats.h"

namespace ptxsim {
namespace {

struct Cvt : Extra {
    Ty to, from;
    Round round = Round::rn;
    bool integer_round = false;  // rni rzi rmi rpi
    bool ftz = false, sat = false, satfinite = false, relu = false;
};

double load_float(u64 v, Ty t) {
    switch (t) {
        case Ty::f16: return f16_to_f32(u32(v));
        case Ty::bf16: return bf16_to_f32(u32(v));
        case Ty::f64: return from_bits<double>(v);
        case Ty::f32: case Ty::tf32: return from_bits<float>(v & 0xffffffff);
        case Ty::ue8m0: return ue8m0_to_double(u32(v));
        default: return decode_float(u32(v), *format_of(t));
    }
}

double round_integer(double v, Round r) {
    switch (r) {
        case Round::rn: return std::nearbyint(v);
        case Round::rz: return std::trunc(v);
        case Round::rm: return std::floor(v);
        default: return std::ceil(v);
    }
}

// double -> f32 under a directed rounding, without touching the rounding mode.
float narrow_f32(double v, Round r) {
    float f = float(v);
    if (!std::isfinite(v) || r == Round::rn || double(f) == v) return f;
    float lo = double(f) <= v ? f : std::nextafter(f, -INFINITY), hi = double(f) >= v ? f : std::nextafter(f, INFINITY);
    if (r == Round::rm) return lo;
    if (r == Round::rp) return hi;
    return v > 0 ? lo : hi;
}

// NaN of one format in another, as an H200 gives it: canonical from f32 and f16, payload and sign kept from f64 and bf16 and
// towards f64.
u64 store_nan(double v, const Cvt& c) {
    u64 raw = to_bits(v) | 1ull << 51, sign = raw >> 63, payload = raw & 0xfffffffffffffull;
    bool kept = c.from == Ty::f64;
    switch (c.to) {
        case Ty::f64: return c.ftz && c.from == Ty::f32 ? 0x7fffffffe0000000ull : raw;
        case Ty::f32: return kept ? sign << 31 | 0x7f800000 | payload >> 29 : 0x7fffffff;
        case Ty::tf32: return 0x7fffe000;
        case Ty::f16: return kept ? sign << 15 | 0x7c00 | payload >> 42 : 0x7fff;
        case Ty::bf16: return kept ? sign << 15 | 0x7f80 | payload >> 45 : 0x7fff;
        case Ty::ue8m0: return 255;
        default: return encode_float(v, *format_of(c.to), c.round, c.satfinite);
    }
}

u64 store_float(double v, const Cvt& c) {
    if (c.relu && !(v > 0)) v = std::isnan(v) ? v : 0.0;
    if (c.sat) v = v > 1 ? 1.0 : v > 0 ? v : 0.0;  // NaN and -0 become +0
    if (std::isnan(v)) return store_nan(v, c);
    switch (c.to) {
        case Ty::f64: return to_bits(v);
        case Ty::f32: {
            float f = narrow_f32(v, c.round);
            if (c.ftz && std::fpclassify(f) == FP_SUBNORMAL) f = std::copysign(0.0f, f);
            return to_bits(f);
        }
        case Ty::tf32: {
            return u64(encode_float(v, kTF32, c.round, c.satfinite)) << 13;
        }
        case Ty::ue8m0: return double_to_ue8m0(v, c.round, c.satfinite);
        default: return encode_float(v, *format_of(c.to), c.round, c.satfinite);
    }
}

// NaN gives the integer with its top bit set from f64 and towards 64 bits, else 0 (observed on an H200).
u64 clamp_to_int(double v, Ty t, Ty from) {
    int bits = type_bits(t);
    if (std::isnan(v)) return bits == 64 || (from == Ty::f64 && bits > 8) ? 1ull << (bits - 1) : 0;
    double lo = is_signed(t) ? -std::ldexp(1.0, bits - 1) : 0.0, top = std::ldexp(1.0, is_signed(t) ? bits - 1 : bits);
    u64 mask = bits == 64 ? ~0ull : (1ull << bits) - 1;
    if (v <= lo) return u64(is_signed(t) ? i64(lo) : 0) & mask;
    if (v >= top) return (is_signed(t) ? (1ull << (bits - 1)) - 1 : ~0ull) & mask;
    return (is_signed(t) ? u64(i64(v)) : u64(v)) & mask;
}

__int128 load_int(u64 v, Ty t) {
    int bits = type_bits(t);
    if (bits < 64) v &= (1ull << bits) - 1;
    if (is_signed(t)) return i64(v << (64 - bits)) >> (64 - bits);
    return (__int128)v;
}

u64 store_int(__int128 v, Ty t, bool sat, int reg_bits) {
    int bits = type_bits(t);
    if (sat) {
        __int128 lo = is_signed(t) ? -((__int128)1 << (bits - 1)) : 0, hi = ((__int128)1 << (is_signed(t) ? bits - 1 : bits)) - 1;
        v = v < lo ? lo : v > hi ? hi : v;
    }
    // the result is extended to the destination register by the type's sign
    u64 r = u64(v);
    if (bits < 64) r = is_signed(t) ? u64(i64(r << (64 - bits)) >> (64 - bits)) : r & ((1ull << bits) - 1);
    return reg_bits < 64 ? r & ((1ull << reg_bits) - 1) : r;
}

u64 int_to_float(__int128 v, const Cvt& c) {
    if (c.to == Ty::f64) {
        double d = double(v);
        if (c.round != Round::rn && (__int128)d != v) {
            bool above = (__int128)d > v;
            if (above && (c.round == Round::rm || (c.round == Round::rz && v > 0))) d = std::nextafter(d, -INFINITY);
            if (!above && (c.round == Round::rp || (c.round == Round::rz && v < 0))) d = std::nextafter(d, INFINITY);
        }
        return to_bits(d);
    }
    // sticky bit below 53 bits keeps the later single rounding right
    double hi = double((i64)(v >> 32)) * 4294967296.0, lo = double(u32(v));
    double d = add_round_odd(hi, lo);
    return store_float(d, c);
}

bool is_int(Ty t) { return !is_float(t) && t != Ty::none; }

void cvt_scalar(X& x, const Inst& in, u32 lanes) {
    const Cvt& c = static_cast<const Cvt&>(*in.extra);
    const u64* a = x.src(in.s[1]);
    u64* d = x.dst(in.s[0]);
    int reg = int(x.g.program->slot_bits[in.s[0]]);
    each(lanes, [&](int l) {
        if (is_int(c.from)) {
            __int128 v = load_int(a[l], c.from);
            d[l] = is_int(c.to) ? store_int(v, c.to, c.sat, reg) : int_to_float(v, c);
            return;
        }
        double v = load_float(a[l], c.from);
        if (std::isnan(v) && c.from == Ty::bf16 && c.to == Ty::f32 && !c.sat) { d[l] = (a[l] & 0xffff) << 16; return; }
        if (std::isnan(v) && c.to == Ty::tf32 && c.round == Round::rna) { d[l] = a[l] & 0xffffe000; return; }
        if (std::isnan(v) && c.from == Ty::f16 && c.to == Ty::f64) { d[l] = (a[l] & 0x8000) << 48 | 0x7ff8ull << 48 | (a[l] & 0x3ff) << 42; return; }
        if (c.ftz && c.from == Ty::f32 && std::fpclassify(float(v)) == FP_SUBNORMAL) v = std::copysign(0.0, v);
        if (c.integer_round) v = round_integer(v, c.round);
        d[l] = is_int(c.to) ? store_int((__int128)load_int(clamp_to_int(v, c.to, c.from), c.to), c.to, false, reg) : store_float(v, c);
    });
}

// cvt d.x2, a, b: a goes to the upper half.
void cvt_pack(X& x, const Inst& in, u32 lanes) {
    const Cvt& c = static_cast<const Cvt&>(*in.extra);
    const u64 *a = x.src(in.s[1]), *b = x.src(in.s[2]);
    u64* d = x.dst(in.s[0]);
    int w = int(in.k[0]);
    each(lanes, [&](int l) { d[l] = store_float(load_float(a[l], c.from), c) << w | store_float(load_float(b[l], c.from), c); });
}

// cvt d.x2, a.x2
void cvt_pair(X& x, const Inst& in, u32 lanes) {
    const Cvt& c = static_cast<const Cvt&>(*in.extra);
    const u64* a = x.src(in.s[1]);
    u64* d = x.dst(in.s[0]);
    int w = int(in.k[0]), r = int(in.k[1]);
    u64 mask = (1ull << r) - 1;
    each(lanes, [&](int l) { d[l] = store_float(load_float(a[l] >> r & mask, c.from), c) << w | store_float(load_float(a[l] & mask, c.from), c); });
}

// cvt d.x4, {a, b, e, f}: first element to the highest byte
void cvt_quad(X& x, const Inst& in, u32 lanes) {
    const Cvt& c = static_cast<const Cvt&>(*in.extra);
    u64* d = x.dst(in.s[0]);
    int w = int(in.k[0]);
    each(lanes, [&](int l) {
        u64 r = 0;
        for (i32 s : in.v) r = r << w | store_float(load_float(x.src(s)[l], c.from), c);
        d[l] = r;
    });
}

// cvt.pack.sat.{u16,s16,u8,s8,..}.s32{.b32} d, a, b{, c}
void cvt_pack_int(X& x, const Inst& in, u32 lanes) {
    const u64 *a = x.src(in.s[1]), *b = x.src(in.s[2]);
    const u64* c = in.s[3] == kNoSlot ? nullptr : x.src(in.s[3]);
    u64* d = x.dst(in.s[0]);
    int w = type_bits(in.type);
    u64 mask = (1ull << w) - 1;
    each(lanes, [&](int l) {
        u64 hi = store_int(i32(a[l]), in.type, true, 64) & mask, lo = store_int(i32(b[l]), in.type, true, 64) & mask;
        u64 r = hi << w | lo;
        if (c) r |= c[l] << (2 * w);
        d[l] = u32(r);
    });
}

Ty element(Ty t) {
    switch (t) {
        case Ty::f16x2: return Ty::f16;
        case Ty::bf16x2: return Ty::bf16;
        case Ty::e4m3x2: return Ty::e4m3;
        case Ty::e5m2x2: return Ty::e5m2;
        case Ty::e2m3x2: return Ty::e2m3;
        case Ty::e3m2x2: return Ty::e3m2;
        case Ty::e2m1x2: return Ty::e2m1;
        case Ty::ue8m0x2: return Ty::ue8m0;
        default: return Ty::none;
    }
}
int width(Ty elem) {  // storage of one element inside a pair; fp6 sits in a byte
    int b = type_bits(elem);
    return b == 6 ? 8 : b;
}

bool parse_rounding(Dec& d, Cvt& c) {
    std::string r = d.one_of({"rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi"});
    if (r.empty()) return false;
    c.integer_round = r.size() == 3 && r[2] == 'i';
    std::string base = c.integer_round ? r.substr(0, 2) : r;
    c.round = base == "rn" ? Round::rn : base == "rz" ? Round::rz : base == "rm" ? Round::rm : base == "rp" ? Round::rp : Round::rna;
    return true;
}
}  // namespace

void decode_cvt(Dec& d) {
    auto c = std::make_shared<Cvt>();
    if (d.opt("pack")) {
        if (!d.opt("sat")) d.fail("pack needs .sat");
        d.in.type = d.need_type();
        if (d.need_type() != Ty::s32) d.fail("pack needs an .s32 source");
        d.type();
        d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, Ty::s32), d.in.s[2] = d.src(2, Ty::s32);
        if (d.n() > 3) d.in.s[3] = d.src(3, Ty::b32);
        d.in.fn = cvt_pack_int;
        return;
    }
    bool rounded = parse_rounding(d, *c);
    c->ftz = d.opt("ftz"), c->sat = d.opt("sat"), c->satfinite = d.opt("satfinite"), c->relu = d.opt("relu");
    // x4 types are only known here
    for (const char* name : {"e4m3x4", "e5m2x4", "e2m1x4", "e2m3x4", "e3m2x4"})
        if (d.opt(name)) {
            c->to = parse_type(std::string(name).substr(0, 4));
            c->from = d.need_type();
            d.in.k[0] = width(c->to);
            d.in.s[0] = d.dst(0), d.in.v = d.srcs(d.arg(1), Ty::f32);
            if (d.n() > 2) d.fail("stochastic rounding is not modelled");
            d.in.fn = cvt_quad, d.in.extra = c;
            return;
        }
    Ty to = d.need_type(), from = d.need_type();
    d.in.s[0] = d.dst(0);
    c->to = to, c->from = from;
    if (element(to) != Ty::none && element(from) != Ty::none) {
        c->to = element(to), c->from = element(from);
        d.in.k[0] = width(c->to), d.in.k[1] = width(c->from);
        d.in.s[1] = d.src(1, Ty::b32);
        d.in.fn = cvt_pair;
    } else if (element(to) != Ty::none) {
        c->to = element(to);
        d.in.k[0] = width(c->to);
        d.in.s[1] = d.src(1, from), d.in.s[2] = d.src(2, from);
        if (d.n() > 3) d.fail("stochastic rounding is not modelled");
        d.in.fn = cvt_pack;
    } else {
        if (from == Ty::f64 && to != Ty::f64 && is_float(to) && !rounded) d.fail("needs a rounding");
        if (!rounded && is_float(from) && is_int(to)) d.fail("needs an integer rounding");
        d.in.s[1] = d.src(1, from);
        d.in.fn = cvt_scalar;
    }
    d.in.extra = c;
}

}  // namespace ptxsim
