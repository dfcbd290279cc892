// atom and red on global and shared memory, scalar, packed and vector.
//
// A launch runs on one thread, so an atomic is one read-modify-write. Ordering qualifiers matter to the checker alone.
#include "core/access.h"
#include "exec/families.h"
#include "exec/float_ops.h"
#include "exec/ops.h"
#include "exec/reduce.h"
#include "isa/formats.h"

namespace ptxsim {

namespace {
// NaN of a sum as an H200 gives it: canonical in f32, the later operand's bits untouched in f64.
u64 atomic_sum_f32(float x, float y, bool flush) {
    auto zero = [&](float v) { return flush && std::fpclassify(v) == FP_SUBNORMAL ? std::copysign(0.0f, v) : v; };
    float r = zero(zero(x) + zero(y));
    return std::isnan(r) ? 0x7fffffff : to_bits(r);
}
u64 atomic_sum_f64(double x, double y) { return to_bits(std::isnan(y) ? y : std::isnan(x) ? x : x + y); }
}  // namespace

u64 reduce_value(RedOp op, Ty t, u64 a, u64 b, u64 c, bool flush) {
    int bits = type_bits(t);
    u64 mask = bits >= 64 ? ~0ull : (1ull << bits) - 1;
    a &= mask, b &= mask;
    auto sgn = [&](u64 v) { return i64(v << (64 - bits)) >> (64 - bits); };
    switch (op) {
        case RedOp::and_: return a & b;
        case RedOp::or_: return a | b;
        case RedOp::xor_: return a ^ b;
        case RedOp::exch: return b;
        case RedOp::cas: return a == b ? c & mask : a;
        case RedOp::inc: return a >= b ? 0 : a + 1;
        case RedOp::dec: return a == 0 || a > b ? b : a - 1;
        default: break;
    }
    if (t == Ty::f32 || t == Ty::f64) {
        bool dbl = t == Ty::f64;
        double x = dbl ? from_bits<double>(a) : from_bits<float>(a), y = dbl ? from_bits<double>(b) : from_bits<float>(b);
        if (op == RedOp::add) return dbl ? atomic_sum_f64(x, y) : atomic_sum_f32(from_bits<float>(a), from_bits<float>(b), flush);
        double r = float_min_max(x, y, op == RedOp::max, false, false);
        return dbl ? to_bits(r) : to_bits(float(r));
    }
    if (format_of(t)) {
        bool bf = t == Ty::bf16 || t == Ty::bf16x2;
        int n = bits / 16;
        u64 out = 0;
        for (int i = 0; i < n; ++i) {
            auto get = [&](u64 v) { u32 h = u32(v >> (16 * i)) & 0xffff; return double(bf ? bf16_to_f32(h) : f16_to_f32(h)); };
            double r = op == RedOp::add ? add_round_odd(get(a), get(b)) : float_min_max(get(a), get(b), op == RedOp::max, false, false);
            out |= u64(encode_float(r, bf ? kBF16 : kF16, Round::rn)) << (16 * i);
        }
        return out;
    }
    if (op == RedOp::add) return (a + b) & mask;
    bool less = is_signed(t) ? sgn(a) < sgn(b) : a < b;
    return (op == RedOp::min) == less ? a : b;
}

bool parse_red_op(Dec& d, RedOp& op, bool atom) {
    static const std::pair<const char*, RedOp> ops[] = {{"add", RedOp::add}, {"min", RedOp::min}, {"max", RedOp::max}, {"inc", RedOp::inc}, {"dec", RedOp::dec},
        {"and", RedOp::and_}, {"or", RedOp::or_}, {"xor", RedOp::xor_}, {"exch", RedOp::exch}, {"cas", RedOp::cas}};
    for (auto& o : ops)
        if ((atom || (o.second != RedOp::exch && o.second != RedOp::cas)) && d.opt(o.first)) {
            op = o.second;
            return true;
        }
    return false;
}

namespace {

struct Atomic : Extra {
    RedOp op;
    Ty t;
    u32 size;
    bool acquire, release, returns;
};

void atomic(X& x, const Inst& in, u32 lanes) {
    const Atomic& at = static_cast<const Atomic&>(*in.extra);
    const u64* a = x.src(in.s[1]);
    u32 n = u32(in.v2.size()) / (at.op == RedOp::cas ? 2 : 1);
    bool changed = false;
    Message release;
    if (at.release) release = warp_release(x.w);
    each(lanes, [&](int l) {
        Place p = resolve(x, in, l, in.space, a[l] + u64(in.k[0]), at.size * n, true);
        touch(x, in, l, p, at.size * n, Use::atomic, true);
        for (u32 i = 0; i < n; ++i) {
            u8* q = p.p + i * at.size;
            if (at.size == 16) {  // exch / cas .b128
                u64 old[2], want[2], put[2];
                std::memcpy(old, q, 16);
                want[0] = x.src(in.v2[0])[l], want[1] = x.src(in.v2[0] + 1)[l];
                i32 last = in.v2.back();
                put[0] = x.src(last)[l], put[1] = x.src(last + 1)[l];
                if (at.op == RedOp::exch || (old[0] == want[0] && old[1] == want[1])) std::memcpy(q, put, 16);
                changed |= std::memcmp(q, old, 16) != 0;
                x.dst(in.v[0])[l] = old[0], x.dst(in.v[0] + 1)[l] = old[1];
                continue;
            }
            u64 old = 0;
            std::memcpy(&old, q, at.size);
            u64 b = x.src(in.v2[i])[l], c = at.op == RedOp::cas ? x.src(in.v2[i + n])[l] : 0;
            u64 r = reduce_value(at.op, at.t, old, b, c, p.space == Space::global);
            if (at.t == Ty::f64 && at.op == RedOp::add && p.space == Space::shared) r = to_bits(from_bits<double>(old) + from_bits<double>(b));  // a loop of cas there
            std::memcpy(q, &r, at.size);
            changed |= r != old;
            if (at.returns) x.dst(in.v[i])[l] = old;
        }
        if (x.g.check.on) {
            u64 key = p.space == Space::shared ? (1ull << 63) | (u64(p.cta->linear) << 24) | p.offset : p.addr;
            Message& m = x.g.check.location(key);
            if (at.acquire) warp_acquire(x.w, m);
            else x.w.fence_acquire.join(m);
            m.join(at.release ? release : x.w.fence_release);
        }
    });
    if (changed) ++x.m.progress;
    x.yield = true;
}
}  // namespace

void decode_atomic(Dec& d) {
    bool atom = d.st.op == "atom";
    auto a = std::make_shared<Atomic>();
    if (!atom && d.opt("async")) d.opt("mmio");  // red.async of global memory (sm_100), here at the first legal moment
    std::string sem = d.one_of({"relaxed", "acquire", "release", "acq_rel", "seq_cst"});
    a->acquire = sem == "acquire" || sem == "acq_rel" || sem == "seq_cst";
    a->release = sem == "release" || sem == "acq_rel" || sem == "seq_cst";
    d.one_of({"cta", "cluster", "gpu", "sys"});
    std::string s = d.one_of({"global", "shared", "shared::cta", "shared::cluster"});
    d.in.space = s == "global" ? Space::global : s == "shared::cluster" ? Space::shared_cluster : s.empty() ? Space::generic : Space::shared;
    while (!d.prefix("L2::").empty() || !d.prefix("L1::").empty()) {}
    if (!parse_red_op(d, a->op, atom)) d.fail("has no operation that is known");
    d.opt("noftz"), d.opt("rn");
    d.vec();
    a->t = d.need_type();
    a->size = u32(type_size(a->t)), a->returns = atom;
    size_t i = 0;
    if (atom) d.in.v = d.dsts(d.arg(i++));
    d.in.s[1] = d.base(d.arg(i++), d.in.k[0]);
    d.in.v2 = d.srcs(d.arg(i++), a->t);
    if (a->op == RedOp::cas)
        for (i32 c : d.srcs(d.arg(i++), a->t)) d.in.v2.push_back(c);
    if (i < d.n()) d.src(i);  // cache policy
    d.in.extra = a;
    d.in.fn = atomic;
}

}  // namespace ptxsim
