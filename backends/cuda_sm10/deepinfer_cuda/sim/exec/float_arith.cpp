// f32 and f64 arithmetic with PTX rounding, .ftz and .sat; approximations.
//
// Approximate functions are those of an H200's special function unit (exec/special.h).
// NaN results are canonical (0x7fffffff) for f32; f64 hands on the last NaN operand (of fma: b, else c), quieted; observed on an H200.
#include <cfenv>
#include <cmath>

#include "exec/families.h"
#include "exec/float_ops.h"
#include "exec/ops.h"
#include "exec/special.h"
#include "isa/formats.h"

namespace ptxsim {
namespace {

enum class Fn : u8 { add, sub, mul, fma, div, rcp, sqrt, rsqrt, sin, cos, lg2, ex2, tanh, abs, neg };

struct FloatMode : Extra {
    Fn fn;
    bool ftz = false, sat = false, relu = false, approx = false, full = false;
    int rounding = FE_TONEAREST;
    Ty narrow = Ty::none;  // type of the narrow operands of mixed-precision forms
};

template <class T>
T flush(T v) { return std::fpclassify(v) == FP_SUBNORMAL ? std::copysign(T(0), v) : v; }

template <class T>
T compute(Fn fn, T a, T b, T c) {
    switch (fn) {
        case Fn::add: return a + b;
        case Fn::sub: return a - b;
        case Fn::mul: return a * b;
        case Fn::fma: return std::fma(a, b, c);
        case Fn::div: return a / b;
        case Fn::rcp: return T(1) / a;
        case Fn::sqrt: return std::sqrt(a);
        case Fn::rsqrt: return T(1.0 / std::sqrt(double(a)));
        case Fn::sin: return T(std::sin(double(a)));
        case Fn::cos: return T(std::cos(double(a)));
        case Fn::lg2: return T(std::log2(double(a)));
        case Fn::ex2: return T(std::exp2(double(a)));
        case Fn::tanh: return T(std::tanh(double(a)));
        case Fn::abs: return std::fabs(a);
        case Fn::neg: return -a;
    }
    return a;
}

template <class T>
T finish(T r, const FloatMode& m) {
    if (std::isnan(r)) {
        if (m.sat) return 0;
        if constexpr (sizeof(T) == 4) return from_bits<float>(0x7fffffff);
        return r;
    }
    if (m.ftz) r = flush(r);
    if (m.sat) r = r < 0 ? T(0) : r > 1 ? T(1) : r == 0 ? T(0) : r;
    if (m.relu && r < 0) r = 0;
    return r;
}

// The NaN that an f64 operation hands on: its last NaN operand, quieted; `r` when no operand is NaN.
template <class T>
T nan_of(T r, std::initializer_list<T> operands) {
    if constexpr (sizeof(T) == 8)
        for (T v : operands)
            if (std::isnan(v)) r = from_bits<T>(to_bits(v) | 1ull << 51);
    return r;
}

// rcp and rsqrt .approx.ftz.f64 read and write the upper words only (observed on an H200).
template <class T>
T upper_word(const FloatMode& m, T v) {
    if constexpr (sizeof(T) == 8) {
        u32 high = u32(to_bits(v) >> 32);
        return from_bits<double>(u64(m.fn == Fn::rcp ? mufu_rcp64h(high) : mufu_rsq64h(high)) << 32);
    }
    return v;
}

// .approx and .full of f32, and rsqrt.approx.f64.
float approximate(const FloatMode& m, float a, float b) {
    switch (m.fn) {
        case Fn::rcp: return approx_rcp(a, m.ftz);
        case Fn::rsqrt: return approx_rsqrt(a, m.ftz);
        case Fn::sqrt: return approx_sqrt(a, m.ftz);
        case Fn::ex2: return approx_ex2(a, m.ftz);
        case Fn::lg2: return approx_lg2(a, m.ftz);
        case Fn::sin: return approx_sin(a);
        case Fn::cos: return approx_cos(a);
        case Fn::tanh: return mufu_tanh(a);
        default: return approx_div(a, b, m.ftz, m.full);
    }
}
double approximate(const FloatMode&, double a, double) { return approx_rsqrt64(a); }

// Division with .ftz flushes what is tiny before it is rounded (observed on an H200 for .rm and .rp).
template <class T>
T quotient(const FloatMode& m, T r, T a, T b) {
    if (sizeof(T) == 4 && m.fn == Fn::div && m.ftz && std::fabs(double(a) / double(b)) < 0x1p-126) return std::copysign(T(0), r);
    return r;
}

struct RoundingScope {
    int old;
    explicit RoundingScope(int mode) : old(std::fegetround()) { if (mode != old) std::fesetround(mode); }
    ~RoundingScope() { std::fesetround(old); }
};

// The scalar operation is called through volatile copies, so that no computation moves out of the rounding scope.
template <class T>
T guarded(const FloatMode& m, T a, T b, T c) {
    volatile T va = m.ftz ? flush(a) : a, vb = m.ftz ? flush(b) : b, vc = m.ftz ? flush(c) : c;
    volatile T r = compute<T>(m.fn, va, vb, vc);
    return quotient<T>(m, finish<T>(r, m), va, vb);
}

template <class T>
void float_op(X& x, const Inst& in, u32 lanes) {
    const FloatMode& m = static_cast<const FloatMode&>(*in.extra);
    const u64* a = x.src(in.s[1]);
    const u64* b = in.s[2] == kNoSlot ? a : x.src(in.s[2]);
    const u64* c = in.s[3] == kNoSlot ? a : x.src(in.s[3]);
    u64* d = x.dst(in.s[0]);
    auto settle = [&](int l, T r) {
        if (sizeof(T) == 8 && std::isnan(r)) {
            T va = from_bits<T>(a[l]), vb = from_bits<T>(b[l]), vc = from_bits<T>(c[l]);
            if (m.fn == Fn::div) std::swap(va, vb);  // of two NaN, the dividend
            r = in.s[3] == kNoSlot ? nan_of<T>(r, {va, vb}) : nan_of<T>(r, {va, vc, vb});
        }
        d[l] = to_bits(r);
    };
    if (m.rounding != FE_TONEAREST) {
        RoundingScope scope(m.rounding);
        each(lanes, [&](int l) { settle(l, guarded<T>(m, from_bits<T>(a[l]), from_bits<T>(b[l]), from_bits<T>(c[l]))); });
        return;
    }
    if (sizeof(T) == 8 && m.approx && m.ftz) {
        each(lanes, [&](int l) { d[l] = to_bits(upper_word<T>(m, from_bits<T>(a[l]))); });
        return;
    }
    each(lanes, [&](int l) {
        T va = from_bits<T>(a[l]), vb = from_bits<T>(b[l]), vc = from_bits<T>(c[l]);
        if (m.ftz) va = flush(va), vb = flush(vb), vc = flush(vc);
        if (m.approx) return settle(l, finish<T>(approximate(m, va, vb), m));
        settle(l, quotient<T>(m, finish<T>(compute<T>(m.fn, va, vb, vc), m), va, vb));
    });
}

void float_x2(X& x, const Inst& in, u32 lanes) {
    const FloatMode& m = static_cast<const FloatMode&>(*in.extra);
    const u64* a = x.src(in.s[1]);
    const u64* b = in.s[2] == kNoSlot ? a : x.src(in.s[2]);
    const u64* c = in.s[3] == kNoSlot ? a : x.src(in.s[3]);
    u64* d = x.dst(in.s[0]);
    RoundingScope scope(m.rounding);
    each(lanes, [&](int l) {
        u64 r = 0;
        for (int h = 0; h < 2; ++h) {
            auto get = [&](const u64* p) { return from_bits<float>(p[l] >> (32 * h) & 0xffffffff); };
            r |= to_bits(guarded<float>(m, get(a), get(b), get(c))) << (32 * h);
        }
        d[l] = r;
    });
}

// add/sub/fma .f32.{f16,bf16}: narrow operands widen exactly (sm_100).
void float_mixed(X& x, const Inst& in, u32 lanes) {
    const FloatMode& m = static_cast<const FloatMode&>(*in.extra);
    const u64* a = x.src(in.s[1]);
    const u64* b = x.src(in.s[2]);
    const u64* c = in.s[3] == kNoSlot ? a : x.src(in.s[3]);
    u64* d = x.dst(in.s[0]);
    auto widen = [&](u64 v) { return m.narrow == Ty::f16 ? f16_to_f32(u32(v)) : bf16_to_f32(u32(v)); };
    RoundingScope scope(m.rounding);
    each(lanes, [&](int l) {
        bool fma = m.fn == Fn::fma;
        float va = widen(a[l]), vb = fma ? widen(b[l]) : from_bits<float>(b[l]), vc = fma ? from_bits<float>(c[l]) : 0;
        d[l] = to_bits(guarded<float>(m, va, vb, vc));
    });
}

void decode_float(Dec& d, Fn fn, int operands, bool default_round = true) {
    auto m = std::make_shared<FloatMode>();
    m->fn = fn;
    m->ftz = d.opt("ftz");
    bool approx = d.opt("approx"), full = m->full = d.opt("full");
    m->approx = approx || full;
    std::string r = d.one_of({"rn", "rz", "rm", "rp"});
    if (!default_round && !approx && !full && r.empty()) d.fail("needs .approx, .full or a rounding");
    m->rounding = r == "rz" ? FE_TOWARDZERO : r == "rm" ? FE_DOWNWARD : r == "rp" ? FE_UPWARD : FE_TONEAREST;
    m->sat = d.opt("sat"), m->relu = d.opt("relu");
    Ty t = d.need_type();
    Ty narrow = d.type();
    d.in.type = t;
    d.in.s[0] = d.dst(0);
    if (narrow != Ty::none) {
        if (t != Ty::f32 || (narrow != Ty::f16 && narrow != Ty::bf16)) d.fail("mixed precision needs .f32 and .f16 or .bf16");
        m->narrow = narrow;
        d.in.fn = float_mixed;
    } else {
        d.in.fn = t == Ty::f32 ? &float_op<float> : t == Ty::f64 ? &float_op<double> : t == Ty::f32x2 ? &float_x2 : nullptr;
    }
    for (int i = 1; i <= operands; ++i) d.in.s[i] = d.src(i, t);
    d.in.extra = m;
}

struct MinMax : Extra {
    bool max, nan, ftz, xorsign, abs = false;
};

template <class T>
void min_max(X& x, const Inst& in, u32 lanes) {
    const MinMax& m = static_cast<const MinMax&>(*in.extra);
    const u64 *a = x.src(in.s[1]), *b = x.src(in.s[2]);
    const u64* c = in.s[3] == kNoSlot ? nullptr : x.src(in.s[3]);
    u64* d = x.dst(in.s[0]);
    each(lanes, [&](int l) {
        T va = from_bits<T>(a[l]), vb = from_bits<T>(b[l]);
        if (m.ftz) va = flush(va), vb = flush(vb);
        if (m.abs) va = std::fabs(va), vb = std::fabs(vb);
        T r = float_min_max<T>(va, vb, m.max, m.nan, m.xorsign);
        if (c) {
            T vc = m.ftz ? flush(from_bits<T>(c[l])) : from_bits<T>(c[l]);
            r = float_min_max<T>(r, m.abs ? std::fabs(vc) : vc, m.max, m.nan, m.xorsign);
        }
        if (std::isnan(r)) r = nan_of<T>(r, {va, vb});
        d[l] = std::isnan(r) && sizeof(T) == 4 ? 0x7fffffff : to_bits(r);
    });
}

void parse_min_max(Dec& d, bool max) {
    auto m = std::make_shared<MinMax>();
    m->max = max, m->ftz = d.opt("ftz"), m->nan = d.opt("NaN"), m->xorsign = d.opt("xorsign");
    bool abs = d.opt("abs");
    if (m->xorsign && !abs) d.fail(".xorsign needs .abs");
    m->abs = abs && !m->xorsign;
    Ty t = d.need_type();
    d.in.fn = t == Ty::f32 ? &min_max<float> : t == Ty::f64 ? &min_max<double> : nullptr;
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, t), d.in.s[2] = d.src(2, t);
    if (d.n() > 3) d.in.s[3] = d.src(3, t);
    if (m->abs && d.n() < 4) d.fail(".abs without .xorsign needs three operands");
    d.in.extra = m;
}

template <class T>
void testp(X& x, const Inst& in, u32 lanes) {
    const u64* a = x.src(in.s[1]);
    u32 r = 0;
    each(lanes, [&](int l) {
        T v = from_bits<T>(a[l]);
        bool b = false;
        switch (in.k[0]) {
            case 0: b = std::isfinite(v); break;
            case 1: b = std::isinf(v); break;
            case 2: b = !std::isnan(v); break;
            case 3: b = std::isnan(v); break;
            case 4: b = std::isnormal(v) || v == 0; break;  // zero counts, as on an H200
            default: b = std::fpclassify(v) == FP_SUBNORMAL; break;
        }
        r |= u32(b) << l;
    });
    set_predicate(x, in.s[0], lanes, r);
}

struct Copysign { template <class T> static T f(T a, T b) { return std::copysign(b, a); } };
}  // namespace

void decode_add_float(Dec& d) { decode_float(d, Fn::add, 2); }
void decode_sub_float(Dec& d) { decode_float(d, Fn::sub, 2); }
void decode_mul_float(Dec& d) { decode_float(d, Fn::mul, 2); }
void decode_fma_float(Dec& d) { decode_float(d, Fn::fma, 3); }
void decode_abs_float(Dec& d) { decode_float(d, Fn::abs, 1); }
void decode_neg_float(Dec& d) { decode_float(d, Fn::neg, 1); }
void decode_min_float(Dec& d) { parse_min_max(d, false); }
void decode_max_float(Dec& d) { parse_min_max(d, true); }
void decode_div_float(Dec& d) { decode_float(d, Fn::div, 2, false); }
void decode_approx(Dec& d) {
    static const std::map<std::string, Fn> fns = {{"rcp", Fn::rcp}, {"sqrt", Fn::sqrt}, {"rsqrt", Fn::rsqrt}, {"sin", Fn::sin},
                                                  {"cos", Fn::cos}, {"lg2", Fn::lg2},   {"ex2", Fn::ex2},     {"tanh", Fn::tanh}};
    decode_float(d, fns.at(d.st.op), 1, false);
}
void decode_testp(Dec& d) {
    static const std::map<std::string, int> k = {{"finite", 0}, {"infinite", 1}, {"number", 2}, {"notanumber", 3}, {"normal", 4}, {"subnormal", 5}};
    d.in.k[0] = k.at(d.need({"finite", "infinite", "number", "notanumber", "normal", "subnormal"}));
    Ty t = d.need_type();
    d.in.fn = t == Ty::f32 ? testp<float> : t == Ty::f64 ? testp<double> : nullptr;
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, t);
}
void decode_copysign(Dec& d) {
    Ty t = d.need_type();
    d.in.fn = t == Ty::f32 ? &binary<float, Copysign> : t == Ty::f64 ? &binary<double, Copysign> : nullptr;
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, t), d.in.s[2] = d.src(2, t);
}

}  // namespace ptxsim
