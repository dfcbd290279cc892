// Scalar and SIMD video instructions: vadd vsub vabsdiff vmin vmax vshl vshr vmad vset, and their 2 x 16 and 4 x 8 bit forms.
//
// Sources: PTX ISA "Video Instructions". Selectors (.b0-.b3, .h0, .h1; .hxy, .bxyzw) and masks are glued to the register; the
// parser leaves them in the operand's name after an @. A result is saturated to its destination part, then combined with operand c.
#include <algorithm>

#include "exec/families.h"
#include "exec/ops.h"

namespace ptxsim {
namespace {

enum class Op : u8 { add, sub, absdiff, min, max, avrg, shl, shr, mad, set };
enum class Second : u8 { none, add, min, max, merge };
enum class Cmp : u8 { eq, ne, lt, le, gt, ge };

struct Part {
    u8 width = 32, at = 0;  // bits
};

struct Video : Extra {
    Op op;
    bool d_signed = false, a_signed = false, b_signed = false, sat = false, wrap = false, plus_one = false;
    Second second = Second::none;
    Cmp cmp = Cmp::eq;
    u8 scale = 0;
    Part a, b, d;
    u32 lanes = 1;                 // 2 or 4 for SIMD
    std::array<u8, 4> pick_a{}, pick_b{};
    u32 mask = 0;                  // SIMD lanes that are computed
};

i64 extract(u64 v, Part p, bool sgn) {
    i64 r = i64(v >> p.at) & ((1ll << p.width) - 1);
    return sgn && (r >> (p.width - 1) & 1) ? r - (1ll << p.width) : r;
}

i64 saturate(i64 v, u8 width, bool sgn) {
    return sgn ? std::clamp<i64>(v, -(1ll << (width - 1)), (1ll << (width - 1)) - 1) : std::clamp<i64>(v, 0, (1ll << width) - 1);
}

bool holds(Cmp c, i64 a, i64 b) {
    switch (c) {
        case Cmp::eq: return a == b;
        case Cmp::ne: return a != b;
        case Cmp::lt: return a < b;
        case Cmp::le: return a <= b;
        case Cmp::gt: return a > b;
        default: return a >= b;
    }
}

i64 combine(const Video& v, i64 a, i64 b, i64 c) {
    switch (v.op) {
        case Op::add: return a + b;
        case Op::sub: return a - b;
        case Op::absdiff: return a < b ? b - a : a - b;
        case Op::min: return std::min(a, b);
        case Op::max: return std::max(a, b);
        case Op::avrg: return a + b >= 0 ? (a + b + 1) >> 1 : (a + b) >> 1;  // away from zero
        case Op::shl: b = v.wrap ? b & 31 : std::min<i64>(b, 32); return i64(u64(a) << b);
        case Op::shr: b = v.wrap ? b & 31 : std::min<i64>(b, 32); return a >> b;
        case Op::mad: return (a * b + c + v.plus_one) >> v.scale;
        default: return holds(v.cmp, a, b);
    }
}

void video(X& x, const Inst& in, u32 lanes) {
    const Video& v = static_cast<const Video&>(*in.extra);
    const u64 *a = x.src(in.s[1]), *b = x.src(in.s[2]);
    const u64* c = in.s[3] == kNoSlot ? a : x.src(in.s[3]);
    u64* d = x.dst(in.s[0]);
    each(lanes, [&](int l) {
        bool mad = v.op == Op::mad;
        i64 third = mad ? (v.d_signed ? i64(i32(c[l])) : i64(u32(c[l]))) : 0;
        i64 r = combine(v, extract(a[l], v.a, v.a_signed), extract(b[l], v.b, v.b_signed), third);
        if (v.sat) r = saturate(r, v.d.width, v.d_signed);
        i64 other = v.d_signed ? i64(i32(c[l])) : i64(u32(c[l]));
        u32 keep = u32(((1ull << v.d.width) - 1) << v.d.at);
        if (v.second == Second::min || v.second == Second::max) r = v.d_signed ? i64(i32(r)) : i64(u32(r));
        switch (v.second) {
            case Second::add: r += other; break;
            case Second::min: r = std::min(r, other); break;
            case Second::max: r = std::max(r, other); break;
            case Second::merge:  // .h1 takes the upper half of the result as it is (observed on an H200)
                r = i64((u32(c[l]) & ~keep) | (v.d.width == 16 ? u32(u64(r)) & keep : u32(u64(r) << v.d.at) & keep));
                break;
            default: break;
        }
        d[l] = u32(r);
    });
}

void simd(X& x, const Inst& in, u32 lanes) {
    const Video& v = static_cast<const Video&>(*in.extra);
    const u64 *a = x.src(in.s[1]), *b = x.src(in.s[2]), *c = x.src(in.s[3]);
    u64* d = x.dst(in.s[0]);
    u8 w = u8(32 / v.lanes);
    each(lanes, [&](int l) {
        u64 both = u64(u32(b[l])) << 32 | u32(a[l]);
        u32 sum = u32(c[l]), out = 0;
        for (u32 i = 0; i < v.lanes; ++i) {
            u32 part = u32(c[l]) >> (w * i) & ((1u << w) - 1);
            if (v.mask >> i & 1) {
                i64 r = combine(v, extract(both, {w, u8(w * v.pick_a[i])}, v.a_signed), extract(both, {w, u8(w * v.pick_b[i])}, v.b_signed), 0);
                if (v.sat) r = saturate(r, w, v.d_signed);
                part = u32(r) & ((1u << w) - 1);
                sum += u32(r);  // not cut to the lane
            }
            out |= part << (w * i);
        }
        d[l] = v.second == Second::add ? sum : out;
    });
}

Part part_of(Dec& d, const std::string& s) {
    if (s.empty()) return {};
    if (s.size() == 2 && s[0] == 'b' && s[1] >= '0' && s[1] <= '3') return {8, u8(8 * (s[1] - '0'))};
    if (s.size() == 2 && s[0] == 'h' && (s[1] == '0' || s[1] == '1')) return {16, u8(16 * (s[1] - '0'))};
    d.fail("selector '." + s + "' does not exist here");
}

// .hxy or .bxyzw: the last digit names the source of lane 0.
void picks(Dec& d, const std::string& s, u32 n, u8 first, std::array<u8, 4>& to) {
    for (u32 i = 0; i < n; ++i) to[i] = u8(first + i);
    if (s.empty()) return;
    if (s.size() != n + 1 || s[0] != (n == 2 ? 'h' : 'b')) d.fail("selector '." + s + "' does not fit this form");
    for (u32 i = 0; i < n; ++i) {
        u8 v = u8(s[n - i] - '0');
        if (v >= 2 * n) d.fail("selector '." + s + "' does not fit this form");
        to[i] = v;
    }
}

u32 mask_of(Dec& d, const std::string& s, u32 n) {
    if (s.empty()) return (1u << n) - 1;
    u32 m = 0;
    for (char c : s.substr(1)) {
        if (c < '0' || u32(c - '0') >= n) d.fail("mask '." + s + "' does not fit this form");
        m |= 1u << (c - '0');
    }
    return m;
}

bool integer_signed(Dec& d) {
    Ty t = d.need_type();
    if (t != Ty::u32 && t != Ty::s32) d.fail("types are .u32 and .s32");
    return t == Ty::s32;
}

std::string selector(const Operand& o) {
    size_t at = o.name.find('@');
    return at == std::string::npos ? "" : o.name.substr(at + 1);
}

void operands(Dec& d, Video& v) {
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, Ty::b32), d.in.s[2] = d.src(2, Ty::b32);
    if (d.n() > 3) d.in.s[3] = d.src(3, Ty::b32);
    std::string sd = selector(d.arg(0)), sa = selector(d.arg(1)), sb = selector(d.arg(2));
    if (v.lanes > 1) {
        if (d.n() != 4) d.fail("needs a third source");
        picks(d, sa, v.lanes, 0, v.pick_a), picks(d, sb, v.lanes, u8(v.lanes), v.pick_b);
        v.mask = mask_of(d, sd, v.lanes);
        d.in.fn = simd;
        return;
    }
    v.a = part_of(d, sa), v.b = part_of(d, sb), v.d = part_of(d, sd);
    if (d.n() > 3 && v.op != Op::mad && v.second == Second::none) v.second = Second::merge;
    if ((v.second != Second::none || v.op == Op::mad) && d.n() < 4) d.fail("needs a third source");
    d.in.fn = video;
}
}  // namespace

void decode_video(Dec& d) {
    static const std::map<std::string, Op> ops = {{"vadd", Op::add}, {"vsub", Op::sub}, {"vabsdiff", Op::absdiff}, {"vmin", Op::min}, {"vmax", Op::max},
        {"vavrg", Op::avrg}, {"vshl", Op::shl}, {"vshr", Op::shr}, {"vmad", Op::mad}, {"vset", Op::set}};
    static const std::map<std::string, Cmp> cmps = {{"eq", Cmp::eq}, {"ne", Cmp::ne}, {"lt", Cmp::lt}, {"le", Cmp::le}, {"gt", Cmp::gt}, {"ge", Cmp::ge}};
    auto v = std::make_shared<Video>();
    std::string name = d.st.op;
    if (name.back() == '2' || name.back() == '4') v->lanes = u32(name.back() - '0'), name.pop_back();
    v->op = ops.at(name);
    if (v->op == Op::set) {
        v->a_signed = integer_signed(d), v->b_signed = integer_signed(d);
        v->d_signed = v->a_signed;
        v->cmp = cmps.at(d.need({"eq", "ne", "lt", "le", "gt", "ge"}));
    } else {
        v->d_signed = integer_signed(d), v->a_signed = integer_signed(d), v->b_signed = integer_signed(d);
    }
    v->sat = d.opt("sat"), v->plus_one = d.opt("po");
    if (v->op == Op::shl || v->op == Op::shr) v->wrap = d.need({"clamp", "wrap"}) == "wrap";
    if (d.opt("shr7")) v->scale = 7;
    if (d.opt("shr15")) v->scale = 15;
    std::string second = d.one_of({"add", "min", "max"});
    v->second = second == "add" ? Second::add : second == "min" ? Second::min : second == "max" ? Second::max : Second::none;
    operands(d, *v);
    if (v->lanes == 1 && v->sat && v->d_signed && v->second == Second::merge) d.fail(".sat of a signed part is not modelled: hardware and the PTX ISA differ");
    bool alike = v->d_signed == v->a_signed && v->a_signed == v->b_signed && v->op != Op::absdiff;
    if (v->lanes == 1 && (v->second == Second::min || v->second == Second::max) && v->op != Op::set && !alike)
        d.fail("a second operation .min or .max is modelled for equal types only: hardware and the PTX ISA differ");
    if ((v->op == Op::shl || v->op == Op::shr) && v->sat && v->second != Second::none) d.fail("a saturated shift with a second operation is not modelled");
    d.in.extra = v;
}

}  // namespace ptxsim
