// CTA barriers (bar, barrier), cluster barrier, fences.
#include "core/warp_run.h"
#include "exec/families.h"
#include "exec/ops.h"

namespace ptxsim {
namespace {

enum class Kind : u8 { sync, arrive, red_popc, red_and, red_or };

struct Bar : Extra {
    Kind kind;
    bool whole_warps = true;  // .aligned: a warp counts as 32 threads
    bool negate = false;
    i32 pred = kNoSlot;
};

void complete(NamedBarrier& b, Cluster& cl) {
    b.arrived = 0, b.expected = 0;
    b.last_popc = b.popc, b.last_all = b.all, b.last_any = b.any;
    b.popc = 0, b.all = true, b.any = false;
    b.out = b.in;
    b.in = {};
    ++b.generation;
    ++cl.events, ++cl.grid->machine->progress;
}

void cta_barrier(X& x, const Inst& in, u32 lanes) {
    const Bar& k = static_cast<const Bar&>(*in.extra);
    u32 id = u32(x.src(in.s[1])[first_lane(lanes)]);
    if (id >= 16) x.fault(in, first_lane(lanes), "barrier " + std::to_string(id) + " of 16");
    NamedBarrier& b = x.cta.barriers[id];
    if (x.frag->token < 0) {
        u32 whole = (x.cta.thread_count + 31) / 32 * 32;
        u32 running = 0;
        for (auto& w : x.cta.warps) running += w->live ? 32 : 0;
        b.whole_cta = in.s[2] == kNoSlot;
        u32 expected = b.whole_cta ? running : u32(x.src(in.s[2])[first_lane(lanes)]);
        if (expected % 32 || !expected) x.fault(in, first_lane(lanes), "barrier thread count " + std::to_string(expected) + " is not a multiple of the warp size");
        if (expected > whole) x.fault(in, first_lane(lanes), "barrier thread count " + std::to_string(expected) + " is larger than the CTA");
        if (b.expected && b.expected != expected)
            x.find(in, first_lane(lanes), "barrier " + std::to_string(id) + " is used with " + std::to_string(expected) + " and " + std::to_string(b.expected) + " threads in one phase");
        b.expected = expected;
        u32 n = k.whole_warps ? 32 : u32(__builtin_popcount(lanes));
        if (!k.whole_warps && lanes == x.w.live) n = 32;
        b.arrived += n;
        if (k.pred != kNoSlot) {
            u32 p = x.predicate(k.pred) & lanes;
            if (k.negate) p = ~p & lanes;
            b.popc += u32(__builtin_popcount(p));
            b.all = b.all && p == lanes;
            b.any = b.any || p;
        }
        b.in.join(warp_release(x.w));
        ++x.m.progress;
        x.frag->token = i64(b.generation);
        if (b.arrived > b.expected) x.fault(in, first_lane(lanes), "barrier " + std::to_string(id) + " got more arrivals than its thread count");
        if (b.arrived == b.expected) complete(b, x.cl);
        if (k.kind == Kind::arrive) return;
    }
    if (b.generation == u64(x.frag->token)) return x.block("CTA barrier");
    warp_acquire(x.w, b.out);
    if (k.kind == Kind::red_popc) each(lanes, [&](int l) { x.dst(in.s[0])[l] = b.last_popc; });
    if (k.kind == Kind::red_and) set_predicate(x, in.s[0], lanes, b.last_all ? ~0u : 0);
    if (k.kind == Kind::red_or) set_predicate(x, in.s[0], lanes, b.last_any ? ~0u : 0);
}

// The phase ends when every live thread has arrived; exited threads count as arrived.
bool all_arrived(const Cluster& cl) {
    for (auto& c : cl.ctas)
        for (auto& w : c->warps) {
            u32 here = w->cluster_phase == cl.generation ? w->cluster_lanes : 0;
            if (w->live & ~here) return false;
        }
    return true;
}

void check_cluster(X& x) {
    if (!all_arrived(x.cl)) return;
    x.cl.out = x.cl.in;
    x.cl.in = {};
    ++x.cl.generation, ++x.cl.events, ++x.m.progress;
}

void cluster_arrive(X& x, const Inst& in, u32 lanes) {
    if (x.w.cluster_lanes & lanes) x.fault(in, first_lane(lanes), "barrier.cluster.arrive twice without a wait between");
    x.w.cluster_lanes |= lanes, x.w.cluster_phase = x.cl.generation;
    // .relaxed orders nothing formally, but fence.mbarrier_init plus a relaxed arrive is the common way to publish barriers, and
    // known-good kernels publish plain shared memory that way too.
    x.cl.in.join(warp_release(x.w));
    ++x.m.progress;
    check_cluster(x);
}

void cluster_wait(X& x, const Inst& in, u32 lanes) {
    if (u32 absent = lanes & ~x.w.cluster_lanes) x.fault(in, first_lane(absent), "barrier.cluster.wait without an arrive before it");
    check_cluster(x);  // exited threads count as arrived
    if (x.cl.generation == x.w.cluster_phase) return x.block("cluster barrier");
    x.w.cluster_lanes &= ~lanes;
    warp_acquire(x.w, x.cl.out);
}

// Memory fences: what this warp knows goes out with later relaxed writes, what relaxed reads collected comes in.
void fence(X& x, const Inst&, u32) {
    if (!x.g.check.on) return;
    warp_acquire(x.w, x.w.fence_acquire);
    x.w.fence_release = warp_release(x.w);
}

void fence_proxy(X& x, const Inst& in, u32) {
    if (in.k[0]) return;  // alias, generic-only or tensormap forms: no rule is attached to them
    warp_proxy_fence(x.w);
    for (auto& c : x.cl.ctas)
        for (auto& m : c->mbars)
            if (x.w.know.all.covers(m.second.init)) m.second.published = true;
}

void fence_mbarrier_init(X& x, const Inst&, u32) {
    for (auto& m : x.cta.mbars)
        if (m.second.init.agent == x.w.agent || x.w.know.all.covers(m.second.init)) m.second.published = true;
}

void parse_bar(Dec& d, bool aligned) {
    auto b = std::make_shared<Bar>();
    d.opt("cta");
    if (d.opt("aligned")) aligned = true;
    std::string what = d.need({"sync", "arrive", "red"});
    size_t at = 0;
    if (what == "red") {
        std::string op = d.need({"popc", "and", "or"});
        d.need_type();
        b->kind = op == "popc" ? Kind::red_popc : op == "and" ? Kind::red_and : Kind::red_or;
        d.in.s[0] = d.dst(at++);
    } else {
        b->kind = what == "sync" ? Kind::sync : Kind::arrive;
    }
    d.in.s[1] = d.src(at++, Ty::b32);
    size_t left = d.n() - at - (what == "red" ? 1 : 0);
    if (left == 1) d.in.s[2] = d.src(at++, Ty::b32);
    if (what == "red") b->pred = d.pred(at);
    b->whole_warps = aligned;
    d.in.aligned = aligned;
    d.in.extra = b;
    d.in.fn = cta_barrier;
}
}  // namespace

void barrier_exit(Warp& w) {
    for (auto& b : w.cta->barriers) {
        if (!b.expected || !b.whole_cta) continue;
        b.expected -= 32;
        if (b.arrived == b.expected) complete(b, *w.cta->cluster);
    }
    w.cta->spare_registers += w.registers;
    ++w.cta->cluster->events;
}

void decode_bar(Dec& d) {
    if (d.opt("warp")) {
        d.need({"sync"});
        return decode_warp_sync(d);
    }
    parse_bar(d, true);
}
void decode_barrier(Dec& d) {
    if (!d.opt("cluster")) return parse_bar(d, false);
    bool arrive = d.need({"arrive", "wait"}) == "arrive";
    d.one_of({"release", "relaxed", "acquire"});
    d.in.aligned = d.opt("aligned");
    d.in.fn = arrive ? cluster_arrive : cluster_wait;
}
void decode_fence(Dec& d) {
    if (d.opt("mbarrier_init")) {
        d.p.strings["#publishes_barriers"] = 1;
        d.opt("release"), d.opt("cluster");
        d.in.fn = fence_mbarrier_init;
        return;
    }
    if (d.opt("proxy")) {
        std::string kind = d.need({"async", "async::generic", "alias", "tensormap::generic", "async.global", "async.shared"});
        d.in.k[0] = kind != "async" ? 1 : 0;
        if (kind == "async") d.p.strings["#publishes_barriers"] = 1;
        d.one_of({"global", "shared::cta", "shared::cluster", "shared", "cta", "cluster", "gpu", "sys"});
        d.one_of({"acquire", "release"});
        d.prefix("sync_restrict::");
        d.one_of({"cta", "cluster", "gpu", "sys"});
        for (size_t i = 0; i < d.n(); ++i)
            if (d.arg(i).kind == Operand::Kind::addr) { i64 k; d.base(d.arg(i), k); }
        d.in.fn = fence_proxy;
        return;
    }
    d.one_of({"sc", "acq_rel", "acquire", "release"});
    d.prefix("sync_restrict::");
    d.one_of({"cta", "cluster", "gpu", "sys"});
    d.in.fn = fence;
}
void decode_membar(Dec& d) {
    if (d.opt("proxy")) {
        d.need({"alias"});
        d.in.k[0] = 1, d.in.fn = fence_proxy;
        return;
    }
    d.need({"cta", "gl", "sys"});
    d.in.fn = fence;
}

}  // namespace ptxsim
