// Integer arithmetic: add sub mul mad div rem abs neg min max sad, carries, dp4a, and bit-field instructions.
#include "exec/families.h"
#include "exec/ops.h"

namespace ptxsim {
namespace {

template <class T> using U = std::make_unsigned_t<T>;
struct Add { template <class T> static T f(T a, T b) { return T(U<T>(a) + U<T>(b)); } };
struct Sub { template <class T> static T f(T a, T b) { return T(U<T>(a) - U<T>(b)); } };
struct AddSat { template <class T> static T f(T a, T b) { i64 r = i64(a) + i64(b); return T(std::clamp<i64>(r, std::numeric_limits<T>::min(), std::numeric_limits<T>::max())); } };
struct SubSat { template <class T> static T f(T a, T b) { i64 r = i64(a) - i64(b); return T(std::clamp<i64>(r, std::numeric_limits<T>::min(), std::numeric_limits<T>::max())); } };
struct MulLo { template <class T> static T f(T a, T b) { return T(u64(a) * u64(b)); } };
struct MulHi {
    template <class T> static T f(T a, T b) {
        if constexpr (std::is_signed_v<T>) return T((__int128(a) * b) >> (8 * sizeof(T)));
        else return T(((unsigned __int128)a * b) >> (8 * sizeof(T)));
    }
};
struct Div { template <class T> static T f(T a, T b) { if (b == 0) return T(-1); if constexpr (std::is_signed_v<T>) if (b == T(-1)) return T(U<T>(0) - U<T>(a)); return T(a / b); } };
struct Rem { template <class T> static T f(T a, T b) { if (b == 0) return a; if constexpr (std::is_signed_v<T>) if (b == T(-1)) return 0; return T(a % b); } };
struct Min { template <class T> static T f(T a, T b) { return a < b ? a : b; } };
struct Max { template <class T> static T f(T a, T b) { return a > b ? a : b; } };
struct MinRelu { template <class T> static T f(T a, T b) { T r = a < b ? a : b; return r < 0 ? T(0) : r; } };
struct MaxRelu { template <class T> static T f(T a, T b) { T r = a > b ? a : b; return r < T(0) ? T(0) : r; } };
struct Abs { template <class T> static T f(T a) { return a < T(0) ? T(U<T>(0) - U<T>(a)) : a; } };
struct Neg { template <class T> static T f(T a) { return T(U<T>(0) - U<T>(a)); } };
struct Sad { template <class T> static T f(T a, T b, T c) { return T(U<T>(c) + (a > b ? U<T>(a) - U<T>(b) : U<T>(b) - U<T>(a))); } };
struct MadLo { template <class T> static T f(T a, T b, T c) { return T(u64(a) * u64(b) + u64(c)); } };
struct MadHi { template <class T> static T f(T a, T b, T c) { return T(U<T>(MulHi::f(a, b)) + U<T>(c)); } };
struct MadHiSat { template <class T> static T f(T a, T b, T c) { return AddSat::f(MulHi::f(a, b), c); } };

// 24-bit factors (the low bits of the operands): bits 0-31 or 16-47 of the product, plus an addend.
template <class T, bool Hi>
void mul24(X& x, const Inst& in, u32 lanes) {
    const u64 *a = x.src(in.s[1]), *b = x.src(in.s[2]);
    const u64* c = in.s[3] == kNoSlot ? nullptr : x.src(in.s[3]);
    u64* d = x.dst(in.s[0]);
    auto part = [](u64 v) { return std::is_signed_v<T> ? i64(v << 40) >> 40 : i64(v & 0xffffff); };
    each(lanes, [&](int l) {
        i64 p = part(a[l]) * part(b[l]);
        d[l] = u32((Hi ? p >> 16 : p) + (c ? i64(c[l]) : 0));
    });
}

// One instruction on two 16-bit halves.
template <class T, class F>
void packed16(X& x, const Inst& in, u32 lanes) {
    const u64 *a = x.src(in.s[1]), *b = x.src(in.s[2]);
    u64* d = x.dst(in.s[0]);
    each(lanes, [&](int l) {
        u32 r = 0;
        for (int h = 0; h < 2; ++h) r |= u32(u16(F::template f<T>(T(a[l] >> (16 * h)), T(b[l] >> (16 * h))))) << (16 * h);
        d[l] = r;
    });
}

template <class W, class N>
void mul_wide(X& x, const Inst& in, u32 lanes) {
    const u64 *a = x.src(in.s[1]), *b = x.src(in.s[2]);
    const u64* c = in.s[3] == kNoSlot ? nullptr : x.src(in.s[3]);
    u64* d = x.dst(in.s[0]);
    each(lanes, [&](int l) { d[l] = to_bits(W(u64(W(N(a[l]))) * u64(W(N(b[l]))) + (c ? c[l] : 0))); });
}
Handler wide(Ty t) {
    switch (t) {
        case Ty::u16: return mul_wide<u32, u16>;
        case Ty::s16: return mul_wide<i32, i16>;
        case Ty::u32: return mul_wide<u64, u32>;
        case Ty::s32: return mul_wide<i64, i32>;
        default: return nullptr;
    }
}

// Carries: one flag per lane in a slot of its own (predicate form), named by k[0].
template <class T, int Op>  // 0 add 1 sub 2 mad.lo 3 mad.hi
void carry_op(X& x, const Inst& in, u32 lanes) {
    const u64 *a = x.src(in.s[1]), *b = x.src(in.s[2]);
    const u64* c3 = in.s[3] == kNoSlot ? nullptr : x.src(in.s[3]);
    u64* d = x.dst(in.s[0]);
    bool use = in.k[1], give = in.k[2];
    u32 flags = x.predicate(i32(in.k[0])), out = 0;
    constexpr int bits = 8 * sizeof(T);
    each(lanes, [&](int l) {
        unsigned __int128 r;
        u64 cin = use ? flags >> l & 1 : 0;
        T p = T(a[l]), q = T(b[l]);
        if (Op >= 2) {
            unsigned __int128 m;
            if (is_signed(in.type)) m = (unsigned __int128)(__int128(std::make_signed_t<T>(p)) * std::make_signed_t<T>(q));
            else m = (unsigned __int128)p * q;
            p = T(Op == 3 ? m >> bits : m), q = T(c3[l]);
        }
        if (Op == 1) r = (unsigned __int128)p - q - cin;
        else r = (unsigned __int128)p + q + cin;
        d[l] = T(r);
        out |= u32((r >> bits) & 1) << l;
    });
    if (give) set_predicate(x, i32(in.k[0]), lanes, out);
}

i32 carry_slot(Dec& d) {
    auto it = d.p.strings.find("#carry");
    if (it == d.p.strings.end()) it = d.p.strings.emplace("#carry", u64(d.temp(1))).first;
    return i32(it->second);
}

void decode_carry(Dec& d, int op, bool uses) {
    bool cc = d.opt("cc"), hi = d.opt("hi");
    if (op == 2 && !hi) d.opt("lo");
    Ty t = d.in.type = d.need_type();
    d.in.k[0] = carry_slot(d), d.in.k[1] = uses, d.in.k[2] = cc;
    bool wide64 = type_bits(t) == 64;
    if (op == 0) d.in.fn = wide64 ? carry_op<u64, 0> : carry_op<u32, 0>;
    if (op == 1) d.in.fn = wide64 ? carry_op<u64, 1> : carry_op<u32, 1>;
    if (op == 2 && !hi) d.in.fn = wide64 ? carry_op<u64, 2> : carry_op<u32, 2>;
    if (op == 2 && hi) d.in.fn = wide64 ? carry_op<u64, 3> : carry_op<u32, 3>;
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, t), d.in.s[2] = d.src(2, t);
    if (op == 2) d.in.s[3] = d.src(3, t);
}

bool has(const Dec& d, const char* m) {
    for (auto& k : d.st.mods)
        if (k == m) return true;
    return false;
}

template <class F>
void plain_binary(Dec& d, Handler sat = nullptr) {
    Ty t = d.need_type();
    if (t == Ty::u16x2) d.in.fn = packed16<u16, F>;
    else if (t == Ty::s16x2) d.in.fn = packed16<i16, F>;
    else d.in.fn = int_binary<F>(t);
    if (d.opt("sat")) d.in.fn = t == Ty::s32 ? sat : nullptr;
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, t), d.in.s[2] = d.src(2, t);
}

template <int Bits>
void dp4a_like(X& x, const Inst& in, u32 lanes) {
    const u64 *a = x.src(in.s[1]), *b = x.src(in.s[2]), *c = x.src(in.s[3]);
    u64* d = x.dst(in.s[0]);
    bool sa = in.k[0], sb = in.k[1], hi = in.k[2];
    auto get = [](u64 v, int i, int bits, bool s) { u64 r = v >> (i * bits) & ((1ull << bits) - 1); return s ? i64(r << (64 - bits)) >> (64 - bits) : i64(r); };
    each(lanes, [&](int l) {
        i64 sum = i64(i32(c[l]));
        int n = Bits == 8 ? 4 : 2;
        for (int i = 0; i < n; ++i) sum += get(a[l], i, Bits, sa) * get(b[l], Bits == 16 && hi ? i + 2 : i, 8, sb);
        d[l] = u32(sum);
    });
}
}  // namespace

void decode_add_int(Dec& d) { has(d, "cc") ? decode_carry(d, 0, false) : plain_binary<Add>(d, &binary<i32, AddSat>); }
void decode_sub_int(Dec& d) { has(d, "cc") ? decode_carry(d, 1, false) : plain_binary<Sub>(d, &binary<i32, SubSat>); }
void decode_addc(Dec& d) { decode_carry(d, 0, true); }
void decode_subc(Dec& d) { decode_carry(d, 1, true); }
void decode_madc(Dec& d) { decode_carry(d, 2, true); }

void decode_mul_int(Dec& d) {
    std::string part = d.need({"lo", "hi", "wide"});
    Ty t = d.need_type();
    d.in.fn = part == "lo" ? int_binary<MulLo>(t) : part == "hi" ? int_binary<MulHi>(t) : wide(t);
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, t), d.in.s[2] = d.src(2, t);
}

void decode_mad_int(Dec& d) {
    if (has(d, "cc")) return decode_carry(d, 2, false);
    std::string part = d.need({"lo", "hi", "wide"});
    Ty t = d.need_type();
    d.in.fn = part == "lo" ? int_ternary<MadLo>(t) : part == "hi" ? int_ternary<MadHi>(t) : wide(t);
    if (d.opt("sat")) d.in.fn = part == "hi" && t == Ty::s32 ? &ternary<i32, MadHiSat> : nullptr;
    Ty c = part != "wide" ? t : type_bits(t) == 16 ? Ty::b32 : Ty::b64;
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, t), d.in.s[2] = d.src(2, t), d.in.s[3] = d.src(3, c);
}

void decode_mul24(Dec& d) {
    bool hi = d.need({"lo", "hi"}) == "hi";
    Ty t = d.need_type();
    if (t == Ty::u32) d.in.fn = hi ? mul24<u32, true> : mul24<u32, false>;
    if (t == Ty::s32) d.in.fn = hi ? mul24<i32, true> : mul24<i32, false>;
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, t), d.in.s[2] = d.src(2, t);
    if (d.st.op == "mad24") d.in.s[3] = d.src(3, t);
}

void decode_div_int(Dec& d) { plain_binary<Div>(d); }
void decode_rem(Dec& d) { plain_binary<Rem>(d); }
void decode_min_int(Dec& d) {
    if (d.opt("relu")) {
        Ty t = d.need_type();
        d.in.fn = t == Ty::s16x2 ? &packed16<i16, MinRelu> : t == Ty::s32 ? &binary<i32, MinRelu> : nullptr;
        d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, t), d.in.s[2] = d.src(2, t);
    } else {
        plain_binary<Min>(d);
    }
}
void decode_max_int(Dec& d) {
    if (d.opt("relu")) {
        Ty t = d.need_type();
        d.in.fn = t == Ty::s16x2 ? &packed16<i16, MaxRelu> : t == Ty::s32 ? &binary<i32, MaxRelu> : nullptr;
        d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, t), d.in.s[2] = d.src(2, t);
    } else {
        plain_binary<Max>(d);
    }
}
void decode_abs_int(Dec& d) {
    Ty t = d.need_type();
    d.in.fn = int_unary<Abs>(t);
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, t);
}
void decode_neg_int(Dec& d) {
    Ty t = d.need_type();
    d.in.fn = int_unary<Neg>(t);
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, t);
}
void decode_sad(Dec& d) {
    Ty t = d.need_type();
    d.in.fn = int_ternary<Sad>(t);
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, t), d.in.s[2] = d.src(2, t), d.in.s[3] = d.src(3, t);
}
void decode_dp(Dec& d) {
    bool two = d.st.op == "dp2a";
    if (two) d.in.k[2] = d.need({"lo", "hi"}) == "hi";
    Ty a = d.need_type(), b = d.need_type();
    d.in.k[0] = is_signed(a), d.in.k[1] = is_signed(b);
    d.in.fn = two ? dp4a_like<16> : dp4a_like<8>;
    d.in.s[0] = d.dst(0);
    for (int i = 1; i < 4; ++i) d.in.s[i] = d.src(i, Ty::b32);
}

}  // namespace ptxsim
