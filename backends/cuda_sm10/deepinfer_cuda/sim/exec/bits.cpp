// Logic, shifts, bit fields and permutations.
#include "exec/families.h"
#include "exec/ops.h"

namespace ptxsim {
namespace {

struct And { template <class T> static T f(T a, T b) { return a & b; } };
struct Or { template <class T> static T f(T a, T b) { return a | b; } };
struct Xor { template <class T> static T f(T a, T b) { return a ^ b; } };
struct Not { template <class T> static T f(T a) { return T(~a); } };
struct Cnot { template <class T> static T f(T a) { return a == 0; } };
struct Popc { template <class T> static u32 f(T a) { return (u32)std::popcount(std::make_unsigned_t<T>(a)); } };
struct Clz { template <class T> static u32 f(T a) { return (u32)std::countl_zero(std::make_unsigned_t<T>(a)); } };
struct Brev { template <class T> static T f(T a) { T r = 0; for (size_t i = 0; i < 8 * sizeof(T); ++i) r |= T((a >> i & 1) << (8 * sizeof(T) - 1 - i)); return r; } };

template <class F>
void pred_logic(X& x, const Inst& in, u32 lanes) {
    u32 b = in.s[2] == kNoSlot ? 0 : x.predicate(in.s[2]);
    set_predicate(x, in.s[0], lanes, F::template f<u32>(x.predicate(in.s[1]), b));
}
struct NotP { template <class T> static T f(T a, T) { return ~a; } };

template <class T, bool Left>
void shift(X& x, const Inst& in, u32 lanes) {
    const u64 *a = x.src(in.s[1]), *b = x.src(in.s[2]);
    u64* d = x.dst(in.s[0]);
    constexpr u32 bits = 8 * sizeof(T);
    each(lanes, [&](int l) {
        T v = from_bits<T>(a[l]);
        u32 n = u32(b[l]);
        if (Left) d[l] = n >= bits ? 0 : to_bits(T(u64(v) << n));
        else d[l] = to_bits(T(n >= bits ? (std::is_signed_v<T> && v < T(0) ? T(-1) : T(0)) : T(v >> n)));
    });
}
template <bool Left>
Handler shift_of(Ty t) {
    switch (t) {
        case Ty::b16: case Ty::u16: return shift<u16, Left>;
        case Ty::b32: case Ty::u32: return shift<u32, Left>;
        case Ty::b64: case Ty::u64: return shift<u64, Left>;
        case Ty::s16: return shift<i16, Left>;
        case Ty::s32: return shift<i32, Left>;
        case Ty::s64: return shift<i64, Left>;
        default: return nullptr;
    }
}

template <bool Left, bool Wrap>
void funnel(X& x, const Inst& in, u32 lanes) {
    const u64 *lo = x.src(in.s[1]), *hi = x.src(in.s[2]), *c = x.src(in.s[3]);
    u64* d = x.dst(in.s[0]);
    each(lanes, [&](int l) {
        u32 n = Wrap ? u32(c[l]) & 31 : std::min<u32>(u32(c[l]), 32);
        u64 v = (hi[l] << 32) | u32(lo[l]);
        d[l] = Left ? u32((v << n) >> 32) : u32(v >> n);
    });
}

template <class T>
void bfe(X& x, const Inst& in, u32 lanes) {
    const u64 *a = x.src(in.s[1]), *b = x.src(in.s[2]), *c = x.src(in.s[3]);
    u64* d = x.dst(in.s[0]);
    constexpr int bits = 8 * sizeof(T);
    each(lanes, [&](int l) {
        // 32-bit fields take the low bytes of position and length, 64-bit ones the whole registers (observed on an H200)
        u64 take = bits == 32 ? 0xff : 0xffffffff;
        u64 pos = b[l] & take, len = c[l] & take;
        using U = std::make_unsigned_t<T>;
        U v = U(a[l]), r = 0;
        bool sign = false;
        if constexpr (std::is_signed_v<T>) sign = len && (v >> std::min<u64>(pos + len - 1, bits - 1) & 1);
        for (u32 i = 0; i < (u32)bits; ++i) {
            bool bit = i < len ? (pos + i < (u32)bits ? v >> (pos + i) & 1 : sign) : sign;
            r |= U(bit) << i;
        }
        d[l] = r;
    });
}

template <class T>
void bfi(X& x, const Inst& in, u32 lanes) {
    const u64 *a = x.src(in.s[1]), *b = x.src(in.s[2]), *c = x.src(in.s[3]), *e = x.src(in.s[4]);
    u64* d = x.dst(in.s[0]);
    constexpr u32 bits = 8 * sizeof(T);
    each(lanes, [&](int l) {
        u64 take = bits == 32 ? 0xff : 0xffffffff;
        u64 pos = c[l] & take, len = e[l] & take;
        T r = T(b[l]);
        for (u64 i = 0; i < len && pos + i < bits; ++i) {
            T bit = T(T(1) << (pos + i));
            r = T(a[l] >> i & 1) ? T(r | bit) : T(r & ~bit);
        }
        d[l] = r;
    });
}

void prmt(X& x, const Inst& in, u32 lanes) {
    const u64 *a = x.src(in.s[1]), *b = x.src(in.s[2]), *c = x.src(in.s[3]);
    u64* d = x.dst(in.s[0]);
    each(lanes, [&](int l) {
        u64 v = (b[l] << 32) | u32(a[l]);
        u32 sel = u32(c[l]), r = 0, m = sel & 3;
        for (u32 i = 0; i < 4; ++i) {
            u32 pick = 0;
            bool sign = false;
            switch (in.k[0]) {
                case 0: pick = sel >> (4 * i) & 7, sign = sel >> (4 * i) & 8; break;
                case 1: pick = m + i; break;                                  // f4e
                case 2: pick = (8 + m - i) & 7; break;                        // b4e
                case 3: pick = m; break;                                      // rc8
                case 4: pick = std::max(m, i); break;                         // ecl
                case 5: pick = std::min(m, i); break;                         // ecr
                default: pick = (m & 1) * 2 + (i & 1); break;                 // rc16
            }
            u32 byte = u32(v >> (8 * pick)) & 0xff;
            if (sign) byte = byte & 0x80 ? 0xff : 0;
            r |= byte << (8 * i);
        }
        d[l] = r;
    });
}

void lop3(X& x, const Inst& in, u32 lanes) {
    const u64 *a = x.src(in.s[1]), *b = x.src(in.s[2]), *c = x.src(in.s[3]);
    u64* d = x.dst(in.s[0]);
    u32 nonzero = 0;
    each(lanes, [&](int l) {
        u32 p = u32(a[l]), q = u32(b[l]), r = u32(c[l]), v = 0;
        for (int i = 0; i < 8; ++i)
            if (in.k[0] >> i & 1) v |= (i & 4 ? p : ~p) & (i & 2 ? q : ~q) & (i & 1 ? r : ~r);
        d[l] = v;
        nonzero |= u32(v != 0) << l;
    });
    if (in.s[4] != kNoSlot) {
        u32 q = x.predicate(in.s[5]);
        set_predicate(x, in.s[4], lanes, in.k[1] ? nonzero & q : nonzero | q);
    }
}

template <class T>
void bfind(X& x, const Inst& in, u32 lanes) {
    const u64* a = x.src(in.s[1]);
    u64* d = x.dst(in.s[0]);
    each(lanes, [&](int l) {
        T v = from_bits<T>(a[l]);
        if constexpr (std::is_signed_v<T>) if (v < 0) v = T(~v);
        using U = std::make_unsigned_t<T>;
        int bits = 8 * sizeof(T), pos = v == 0 ? -1 : bits - 1 - std::countl_zero(U(v));
        d[l] = u32(pos < 0 ? -1 : in.k[0] ? bits - 1 - pos : pos);
    });
}

void fns(X& x, const Inst& in, u32 lanes) {  // n-th set bit from base
    const u64 *m = x.src(in.s[1]), *b = x.src(in.s[2]), *o = x.src(in.s[3]);
    u64* d = x.dst(in.s[0]);
    each(lanes, [&](int l) {
        u32 mask = u32(m[l]), found = ~0u;
        i32 n = i32(o[l]), base = i32(b[l]);
        int step = n < 0 ? -1 : 1, left = n == 0 ? 0 : std::abs(n) - 1;
        if (n == 0) found = mask >> base & 1 ? base : ~0u;
        else
            for (int i = base; i >= 0 && i < 32; i += step)
                if (mask >> i & 1 && left-- == 0) { found = i; break; }
        d[l] = found;
    });
}

void szext_mask(X& x, const Inst& in, u32 lanes) {  // bmsk
    const u64 *a = x.src(in.s[1]), *b = x.src(in.s[2]);
    u64* d = x.dst(in.s[0]);
    each(lanes, [&](int l) {
        u32 p = u32(a[l]), n = u32(b[l]);
        if (in.k[0]) p &= 31, n &= 31;
        u64 m = p >= 32 ? 0 : (n >= 32 ? 0xffffffffull : (1ull << n) - 1) << p;
        d[l] = u32(m);
    });
}

template <class T>
void szext(X& x, const Inst& in, u32 lanes) {  // the low n bits, extended
    const u64 *a = x.src(in.s[1]), *b = x.src(in.s[2]);
    u64* d = x.dst(in.s[0]);
    each(lanes, [&](int l) {
        u32 n = in.k[0] ? u32(b[l]) & 31 : std::min<u32>(u32(b[l]), 32);
        d[l] = n == 0 ? 0 : u32(T(u32(a[l]) << (32 - n)) >> (32 - n));
    });
}

template <class F>
void logic(Dec& d) {
    Ty t = d.need_type();
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, t), d.in.s[2] = d.src(2, t);
    d.in.fn = t == Ty::pred ? &pred_logic<F> : int_binary<F>(t);
}
}  // namespace

void decode_and(Dec& d) { logic<And>(d); }
void decode_or(Dec& d) { logic<Or>(d); }
void decode_xor(Dec& d) { logic<Xor>(d); }
void decode_not(Dec& d) {
    Ty t = d.need_type();
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, t);
    d.in.fn = t == Ty::pred ? &pred_logic<NotP> : int_unary<Not>(t);
}
void decode_unary_bits(Dec& d) {
    Ty t = d.need_type();
    const std::string& op = d.st.op;
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, t);
    bool wide = type_bits(t) == 64;
    if (op == "cnot") d.in.fn = int_unary<Cnot>(t);
    else if (op == "popc") d.in.fn = wide ? &unary<u64, Popc> : &unary<u32, Popc>;
    else if (op == "clz") d.in.fn = wide ? &unary<u64, Clz> : &unary<u32, Clz>;
    else d.in.fn = wide ? &unary<u64, Brev> : &unary<u32, Brev>;
}
void decode_shl(Dec& d) {
    Ty t = d.need_type();
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, t), d.in.s[2] = d.src(2, Ty::b32);
    d.in.fn = shift_of<true>(t);
}
void decode_shr(Dec& d) {
    Ty t = d.need_type();
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, t), d.in.s[2] = d.src(2, Ty::b32);
    d.in.fn = shift_of<false>(t);
}
void decode_shf(Dec& d) {
    bool left = d.need({"l", "r"}) == "l", wrap = d.need({"wrap", "clamp"}) == "wrap";
    d.need_type();
    d.in.fn = left ? (wrap ? funnel<true, true> : funnel<true, false>) : (wrap ? funnel<false, true> : funnel<false, false>);
    d.in.s[0] = d.dst(0);
    for (int i = 1; i < 4; ++i) d.in.s[i] = d.src(i, Ty::b32);
}
void decode_bfe(Dec& d) {
    Ty t = d.need_type();
    d.in.fn = t == Ty::u32 ? bfe<u32> : t == Ty::s32 ? bfe<i32> : t == Ty::u64 ? bfe<u64> : t == Ty::s64 ? bfe<i64> : nullptr;
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, t), d.in.s[2] = d.src(2, Ty::b32), d.in.s[3] = d.src(3, Ty::b32);
}
void decode_bfi(Dec& d) {
    Ty t = d.need_type();
    d.in.fn = type_bits(t) == 64 ? bfi<u64> : bfi<u32>;
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, t), d.in.s[2] = d.src(2, t), d.in.s[3] = d.src(3, Ty::b32), d.in.s[4] = d.src(4, Ty::b32);
}
void decode_prmt(Dec& d) {
    static const std::map<std::string, int> modes = {{"", 0}, {"f4e", 1}, {"b4e", 2}, {"rc8", 3}, {"ecl", 4}, {"ecr", 5}, {"rc16", 6}};
    d.need_type();
    d.in.k[0] = modes.at(d.one_of({"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"}));
    d.in.fn = prmt;
    d.in.s[0] = d.dst(0);
    for (int i = 1; i < 4; ++i) d.in.s[i] = d.src(i, Ty::b32);
}
void decode_lop3(Dec& d) {
    std::string combine = d.one_of({"and", "or"});
    d.need_type();
    const Operand& o = d.arg(0);
    d.in.k[1] = combine == "and";
    if (o.kind == Operand::Kind::pair) d.in.s[0] = d.dst(o.sub[0]), d.in.s[4] = d.dst(o.sub[1]), d.in.s[5] = d.pred(5);
    else d.in.s[0] = d.dst(0);
    for (int i = 1; i < 4; ++i) d.in.s[i] = d.src(i, Ty::b32);
    d.in.k[0] = d.imm(4);
    d.in.fn = lop3;
}
void decode_bfind(Dec& d) {
    d.in.k[0] = d.opt("shiftamt");
    Ty t = d.need_type();
    d.in.fn = t == Ty::u32 ? bfind<u32> : t == Ty::s32 ? bfind<i32> : t == Ty::u64 ? bfind<u64> : t == Ty::s64 ? bfind<i64> : nullptr;
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, t);
}
void decode_fns(Dec& d) {
    d.need_type();
    d.in.fn = fns;
    d.in.s[0] = d.dst(0);
    for (int i = 1; i < 4; ++i) d.in.s[i] = d.src(i, Ty::b32);
}
void decode_szext(Dec& d) {
    d.in.k[0] = d.need({"wrap", "clamp"}) == "wrap";
    Ty t = d.need_type();
    d.in.fn = t == Ty::u32 ? &szext<u32> : t == Ty::s32 ? &szext<i32> : nullptr;
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, Ty::b32), d.in.s[2] = d.src(2, Ty::b32);
}
void decode_bmsk(Dec& d) {
    d.in.k[0] = d.need({"wrap", "clamp"}) == "wrap";
    d.need_type();
    d.in.fn = szext_mask;
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, Ty::b32), d.in.s[2] = d.src(2, Ty::b32);
}

}  // namespace ptxsim
