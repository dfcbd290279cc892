// setp, set, selp, slct.
#include <cmath>

#include "exec/families.h"
#include "exec/ops.h"
#include "isa/formats.h"

namespace ptxsim {
namespace {

enum class Cmp : u8 { eq, ne, lt, le, gt, ge, lo, ls, hi, hs, equ, neu, ltu, leu, gtu, geu, num, nan };
const std::pair<const char*, Cmp> names[] = {{"eq", Cmp::eq}, {"ne", Cmp::ne}, {"lt", Cmp::lt}, {"le", Cmp::le}, {"gt", Cmp::gt}, {"ge", Cmp::ge},
    {"lo", Cmp::lo}, {"ls", Cmp::ls}, {"hi", Cmp::hi}, {"hs", Cmp::hs}, {"equ", Cmp::equ}, {"neu", Cmp::neu}, {"ltu", Cmp::ltu}, {"leu", Cmp::leu},
    {"gtu", Cmp::gtu}, {"geu", Cmp::geu}, {"num", Cmp::num}, {"nan", Cmp::nan}};

template <class T>
bool compare(T a, T b, Cmp c) {
    if constexpr (std::is_floating_point_v<T>) {
        bool un = std::isnan(a) || std::isnan(b);
        if (c == Cmp::num) return !un;
        if (c == Cmp::nan) return un;
        if (un) return c >= Cmp::equ;
    }
    switch (c) {
        case Cmp::eq: case Cmp::equ: return a == b;
        case Cmp::ne: case Cmp::neu: return a != b;
        case Cmp::lt: case Cmp::lo: case Cmp::ltu: return a < b;
        case Cmp::le: case Cmp::ls: case Cmp::leu: return a <= b;
        case Cmp::gt: case Cmp::hi: case Cmp::gtu: return a > b;
        default: return a >= b;
    }
}

struct Set : Extra {
    Cmp cmp;
    int combine = 0;  // 1 and 2 or 3 xor
    bool ftz = false;
    Ty t, to = Ty::pred;
    bool packed = false;
};

template <class T>
T load(u64 v, const Set& s) {
    T r = from_bits<T>(v);
    if constexpr (std::is_same_v<T, float>) if (s.ftz && std::fpclassify(r) == FP_SUBNORMAL) r = std::copysign(0.0f, r);
    return r;
}

template <class T>
u32 lane_results(const u64* a, const u64* b, const Set& s, u32 lanes) {
    u32 r = 0;
    each(lanes, [&](int l) { r |= u32(compare(load<T>(a[l], s), load<T>(b[l], s), s.cmp)) << l; });
    return r;
}

u32 half_results(const u64* a, const u64* b, const Set& s, u32 lanes, int half) {
    bool bf = s.t == Ty::bf16 || s.t == Ty::bf16x2;
    auto get = [&](u64 v) { return bf ? bf16_to_f32(u32(v >> (16 * half))) : f16_to_f32(u32(v >> (16 * half)) & 0xffff); };
    u32 r = 0;
    each(lanes, [&](int l) { r |= u32(compare(get(a[l]), get(b[l]), s.cmp)) << l; });
    return r;
}

u32 evaluate(X& x, const Inst& in, const Set& s, u32 lanes, int half = 0) {
    const u64 *a = x.src(in.s[1]), *b = x.src(in.s[2]);
    switch (s.t) {
        case Ty::u16: case Ty::b16: return lane_results<u16>(a, b, s, lanes);
        case Ty::s16: return lane_results<i16>(a, b, s, lanes);
        case Ty::u32: case Ty::b32: return lane_results<u32>(a, b, s, lanes);
        case Ty::s32: return lane_results<i32>(a, b, s, lanes);
        case Ty::u64: case Ty::b64: return lane_results<u64>(a, b, s, lanes);
        case Ty::s64: return lane_results<i64>(a, b, s, lanes);
        case Ty::f32: return lane_results<float>(a, b, s, lanes);
        case Ty::f64: return lane_results<double>(a, b, s, lanes);
        default: return half_results(a, b, s, lanes, half);
    }
}

u32 combine(int how, u32 r, u32 q) { return how == 1 ? r & q : how == 2 ? r | q : how == 3 ? r ^ q : r; }

void setp(X& x, const Inst& in, u32 lanes) {
    const Set& s = static_cast<const Set&>(*in.extra);
    u32 c = s.combine ? x.predicate(in.s[4]) : 0;
    u32 r = evaluate(x, in, s, lanes);
    u32 second = s.packed ? evaluate(x, in, s, lanes, 1) : ~r;
    set_predicate(x, in.s[0], lanes, combine(s.combine, r, c));
    if (in.s[3] != kNoSlot) set_predicate(x, in.s[3], lanes, combine(s.combine, second, c));
}

void set_value(X& x, const Inst& in, u32 lanes) {
    const Set& s = static_cast<const Set&>(*in.extra);
    u32 c = s.combine ? x.predicate(in.s[4]) : 0;
    u32 r = combine(s.combine, evaluate(x, in, s, lanes), c), h = s.packed ? combine(s.combine, evaluate(x, in, s, lanes, 1), c) : 0;
    u64* d = x.dst(in.s[0]);
    u64 yes = s.to == Ty::f32 ? 0x3f800000 : s.to == Ty::f16 || s.to == Ty::f16x2 ? 0x3c00 : s.to == Ty::bf16 || s.to == Ty::bf16x2 ? 0x3f80
            : s.to == Ty::u16 || s.to == Ty::s16 || s.packed ? 0xffff : 0xffffffff;
    each(lanes, [&](int l) { d[l] = (r >> l & 1 ? yes : 0) | (h >> l & 1 ? yes << 16 : 0); });
}

void selp(X& x, const Inst& in, u32 lanes) {
    const u64 *a = x.src(in.s[1]), *b = x.src(in.s[2]);
    u32 p = x.predicate(in.s[3]);
    u64* d = x.dst(in.s[0]);
    each(lanes, [&](int l) { d[l] = p >> l & 1 ? a[l] : b[l]; });
}

void slct(X& x, const Inst& in, u32 lanes) {
    const u64 *a = x.src(in.s[1]), *b = x.src(in.s[2]), *c = x.src(in.s[3]);
    u64* d = x.dst(in.s[0]);
    each(lanes, [&](int l) { d[l] = (in.type2 == Ty::f32 ? from_bits<float>(c[l]) >= 0 : i32(c[l]) >= 0) ? a[l] : b[l]; });
}

std::shared_ptr<Set> parse(Dec& d) {
    auto s = std::make_shared<Set>();
    bool found = false;
    for (auto& n : names)
        if (!found && d.opt(n.first)) s->cmp = n.second, found = true;
    if (!found) d.fail("has no comparison");
    std::string c = d.one_of({"and", "or", "xor"});
    s->combine = c == "and" ? 1 : c == "or" ? 2 : c == "xor" ? 3 : 0;
    s->ftz = d.opt("ftz");
    return s;
}
}  // namespace

void decode_setp(Dec& d) {
    auto s = parse(d);
    s->t = d.in.type = d.need_type();
    s->packed = s->t == Ty::f16x2 || s->t == Ty::bf16x2;
    const Operand& o = d.arg(0);
    if (o.kind == Operand::Kind::pair) {
        d.in.s[0] = d.dst(o.sub[0]);
        d.in.s[3] = d.dst(o.sub[1]);
    } else {
        d.in.s[0] = d.dst(0);
    }
    d.in.s[1] = d.src(1, s->t), d.in.s[2] = d.src(2, s->t);
    if (s->combine) d.in.s[4] = d.pred(3);
    d.in.fn = setp, d.in.extra = s;
}
void decode_set(Dec& d) {
    auto s = parse(d);
    s->to = d.need_type(), s->t = d.need_type();
    s->packed = s->t == Ty::f16x2 || s->t == Ty::bf16x2;
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, s->t), d.in.s[2] = d.src(2, s->t);
    if (s->combine) d.in.s[4] = d.pred(3);
    d.in.fn = set_value, d.in.extra = s;
}
void decode_selp(Dec& d) {
    Ty t = d.need_type();
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, t), d.in.s[2] = d.src(2, t), d.in.s[3] = d.pred(3);
    d.in.fn = selp;
}
void decode_slct(Dec& d) {
    d.opt("ftz");
    Ty t = d.need_type();
    d.in.type2 = d.need_type();
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, t), d.in.s[2] = d.src(2, t), d.in.s[3] = d.src(3, d.in.type2);
    d.in.fn = slct;
}

}  // namespace ptxsim
