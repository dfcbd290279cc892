// Warp collectives: shfl, vote, match, redux, elect, activemask, bar.warp.
#include "core/warp_run.h"
#include "exec/families.h"
#include "exec/float_ops.h"
#include "exec/ops.h"
#include "exec/reduce.h"

namespace ptxsim {
namespace {

// Every executing lane names its group; the fragment waits until all named live lanes are here.
bool gather_group(X& x, const Inst& in, u32 lanes, i32 mask_slot) {
    u32 need = 0;
    const u64* m = x.src(mask_slot);
    each(lanes, [&](int l) {
        u32 group = u32(m[l]);
        if (!(group >> l & 1)) x.fault(in, l, "the member mask does not contain the executing lane");
        need |= group;
    });
    return converge(x, lanes, need);
}

void shfl(X& x, const Inst& in, u32 lanes) {
    if (in.s[4] != kNoSlot && !gather_group(x, in, lanes, in.s[4])) return;
    const u64 *a = x.src(in.s[1]), *b = x.src(in.s[2]), *c = x.src(in.s[3]);
    u64 out[32] = {};
    u32 ok = 0;
    each(lanes, [&](int l) {
        u32 bv = u32(b[l]) & 31, cv = u32(c[l]) & 31, seg = u32(c[l]) >> 8 & 31;
        u32 max_lane = (u32(l) & seg) | (cv & ~seg), min_lane = u32(l) & seg;
        i32 j = l;
        bool p = false;
        switch (in.k[0]) {
            case 0: j = l - i32(bv), p = j >= i32(max_lane); break;   // up
            case 1: j = l + i32(bv), p = j <= i32(max_lane); break;   // down
            case 2: j = l ^ i32(bv), p = j <= i32(max_lane); break;   // bfly
            default: j = i32(min_lane | (bv & ~seg)), p = j <= i32(max_lane); break;
        }
        if (!p) j = l;
        if (!(lanes >> j & 1) && (x.w.live >> j & 1)) x.find(in, l, "shfl reads lane " + std::to_string(j) + ", which does not take part");
        out[l] = a[j];
        ok |= u32(p) << l;
    });
    u64* d = x.dst(in.s[0]);
    each(lanes, [&](int l) { d[l] = out[l]; });
    if (in.s[5] != kNoSlot) set_predicate(x, in.s[5], lanes, ok);
}

void vote(X& x, const Inst& in, u32 lanes) {
    if (!gather_group(x, in, lanes, in.s[2])) return;
    u32 p = x.predicate(in.s[1]);
    const u64* m = x.src(in.s[2]);
    u32 result = 0;
    u64* d = x.dst(in.s[0]);
    u64 ballot[32];
    each(lanes, [&](int l) {
        u32 group = u32(m[l]) & lanes, yes = p & group;
        ballot[l] = yes;
        bool r = in.k[0] == 0 ? yes == group : in.k[0] == 1 ? yes != 0 : yes == group || yes == 0;
        result |= u32(r) << l;
    });
    if (in.k[0] == 3) each(lanes, [&](int l) { d[l] = ballot[l]; });
    else set_predicate(x, in.s[0], lanes, result);
}

void match(X& x, const Inst& in, u32 lanes) {
    if (!gather_group(x, in, lanes, in.s[2])) return;
    const u64 *a = x.src(in.s[1]), *m = x.src(in.s[2]);
    u64 out[32];
    u32 all = 0;
    each(lanes, [&](int l) {
        u32 group = u32(m[l]) & lanes, same = 0;
        each(group, [&](int o) { same |= u32(a[o] == a[l]) << o; });
        bool every = same == group;
        out[l] = in.k[0] ? (every ? group : 0) : same;
        all |= u32(every) << l;
    });
    u64* d = x.dst(in.s[0]);
    each(lanes, [&](int l) { d[l] = out[l]; });
    if (in.s[3] != kNoSlot) set_predicate(x, in.s[3], lanes, all);
}

struct Redux : Extra {
    RedOp op;
    Ty t;
    bool abs = false, nan = false;
};

void redux(X& x, const Inst& in, u32 lanes) {
    if (!gather_group(x, in, lanes, in.s[2])) return;
    const Redux& r = static_cast<const Redux&>(*in.extra);
    const u64 *a = x.src(in.s[1]), *m = x.src(in.s[2]);
    u64 out[32];
    each(lanes, [&](int l) {
        bool first = true;
        u64 acc = 0;
        each(u32(m[l]) & lanes, [&](int o) {
            u64 v = r.abs ? a[o] & 0x7fffffff : a[o] & 0xffffffff;
            if (first) acc = v;
            else if (r.t == Ty::f32) acc = to_bits(float_min_max(from_bits<float>(acc), from_bits<float>(v), r.op == RedOp::max, r.nan, false));
            else acc = reduce_value(r.op, r.t, acc, v);
            first = false;
        });
        out[l] = acc;
    });
    u64* d = x.dst(in.s[0]);
    each(lanes, [&](int l) { d[l] = out[l]; });
}

void elect(X& x, const Inst& in, u32 lanes) {
    if (!gather_group(x, in, lanes, in.s[2])) return;
    const u64* m = x.src(in.s[2]);
    u32 group = u32(m[first_lane(lanes)]) & lanes;
    int leader = first_lane(group);
    if (x.m.config.spurious_waits) {  // any lane is legal, but the same one for the same mask
        u32 skip = u32((x.m.config.seed * 0x9e3779b97f4a7c15ull >> 40) % u32(__builtin_popcount(group)));
        u32 rest = group;
        while (skip--) rest &= rest - 1;
        leader = first_lane(rest);
    }
    u64* d = x.dst(in.s[0]);
    each(lanes, [&](int l) { d[l] = u64(leader); });
    set_predicate(x, in.s[1], lanes, 1u << leader);
}

void activemask(X& x, const Inst& in, u32 lanes) {
    u64* d = x.dst(in.s[0]);
    each(lanes, [&](int l) { d[l] = lanes; });
}

// bar.warp.sync: lanes may arrive at different instructions; they leave together once the mask is complete.
void warp_sync(X& x, const Inst& in, u32 lanes) {
    if (x.frag->released) {
        x.frag->released = x.frag->parked = false;
        return;
    }
    const u64* m = x.src(in.s[1]);
    u32 need = 0, here = lanes;
    each(lanes, [&](int l) { need |= u32(m[l]); });
    for (auto& f : x.w.frags)
        if (&f != x.frag && f.parked && !f.released) here |= f.lanes;
    if ((need & x.w.live & ~here) == 0) {
        for (auto& f : x.w.frags)
            if (&f != x.frag && f.parked) f.released = true, f.apart = false;
        x.frag->parked = x.frag->released = x.frag->apart = false;
        ++x.w.events, ++x.m.progress;
        return;
    }
    x.frag->parked = true;
    x.block("bar.warp.sync", &x.w.events);
}
}  // namespace

void decode_shfl(Dec& d) {
    bool sync = d.opt("sync");
    std::string mode = d.need({"up", "down", "bfly", "idx"});
    d.need_type();
    d.in.k[0] = mode == "up" ? 0 : mode == "down" ? 1 : mode == "bfly" ? 2 : 3;
    const Operand& o = d.arg(0);
    if (o.kind == Operand::Kind::pair) d.in.s[0] = d.dst(o.sub[0]), d.in.s[5] = d.dst(o.sub[1]);
    else d.in.s[0] = d.dst(0);
    d.in.s[1] = d.src(1, Ty::b32), d.in.s[2] = d.src(2, Ty::b32), d.in.s[3] = d.src(3, Ty::b32);
    if (sync) d.in.s[4] = d.src(4, Ty::b32);
    d.in.fn = shfl;
}
void decode_vote(Dec& d) {
    if (!d.opt("sync")) d.fail("only vote.sync exists on these targets");
    std::string mode = d.need({"all", "any", "uni", "ballot"});
    d.need_type();
    d.in.k[0] = mode == "all" ? 0 : mode == "any" ? 1 : mode == "uni" ? 2 : 3;
    d.in.s[0] = d.dst(0), d.in.s[1] = d.pred(1), d.in.s[2] = d.src(2, Ty::b32);
    d.in.fn = vote;
}
void decode_match(Dec& d) {
    bool all = d.need({"any", "all"}) == "all";
    d.opt("sync");
    Ty t = d.need_type();
    d.in.k[0] = all;
    const Operand& o = d.arg(0);
    if (o.kind == Operand::Kind::pair) d.in.s[0] = d.dst(o.sub[0]), d.in.s[3] = d.dst(o.sub[1]);
    else d.in.s[0] = d.dst(0);
    d.in.s[1] = d.src(1, t), d.in.s[2] = d.src(2, Ty::b32);
    d.in.fn = match;
}
void decode_redux(Dec& d) {
    auto r = std::make_shared<Redux>();
    d.opt("sync");
    if (!parse_red_op(d, r->op, false)) d.fail("has no operation that is known");
    r->abs = d.opt("abs"), r->nan = d.opt("NaN");
    r->t = d.need_type();
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, r->t), d.in.s[2] = d.src(2, Ty::b32);
    d.in.extra = r;
    d.in.fn = redux;
}
void decode_elect(Dec& d) {
    d.opt("sync");
    const Operand& o = d.arg(0);
    if (o.kind != Operand::Kind::pair) d.fail("destination must be a pair");
    d.in.s[0] = d.dst(o.sub[0]), d.in.s[1] = d.dst(o.sub[1]), d.in.s[2] = d.src(1, Ty::b32);
    d.in.fn = elect;
}
void decode_activemask(Dec& d) {
    d.need_type();
    d.in.s[0] = d.dst(0);
    d.in.fn = activemask;
}
void decode_warp_sync(Dec& d) {
    d.in.s[1] = d.src(0, Ty::b32);
    d.in.fn = warp_sync;
}

}  // namespace ptxsim
