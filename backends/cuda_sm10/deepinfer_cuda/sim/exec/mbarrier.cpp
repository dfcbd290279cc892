// mbarrier instructions.
#include "core/access.h"
#include "core/warp_run.h"
#include "core/windows.h"
#include "exec/families.h"
#include "exec/ops.h"
#include "tensor/mbarrier.h"

namespace ptxsim {
namespace {

struct Mbar : Extra {
    bool relaxed = false, parity = false, expect = false, arrive = false, drop = false, no_complete = false, test = false, complete = false;
};

struct At {
    Cta& cta;
    u32 off;
};

At locate(X& x, const Inst& in, int lane, i32 slot, i64 disp) {
    u64 a = x.src(slot)[lane] + u64(disp);
    u32 addr = shared_address(x, in, lane, a);
    if (addr & 7) x.fault(in, lane, "mbarrier address is not 8-byte aligned");
    Cta& c = shared_owner(x, in, lane, addr, 8, false);
    return {c, addr & kOffsetMask};
}

void init(X& x, const Inst& in, u32 lanes) {
    const u64* n = x.src(in.s[2]);
    each(lanes, [&](int l) {
        At a = locate(x, in, l, in.s[1], in.k[0]);
        MbarState s = mbar_read(a.cta, a.off);
        if (s.valid && (s.pending != s.expected || s.tx)) x.find(in, l, "mbarrier.init of a barrier that is in use");
        x.g.check.shared(who_warp(x, in, l), a.cta, a.off, 8, Use::write);
        mbar_init(a.cta, a.off, u32(n[l]), x.position(in, l));
        x.w.know.all.raise({x.w.agent, x.w.clock});
        a.cta.mbars[a.off].init = {x.w.agent, x.w.clock};
    });
    ++x.m.progress;
}

void inval(X& x, const Inst& in, u32 lanes) {
    each(lanes, [&](int l) {
        At a = locate(x, in, l, in.s[1], in.k[0]);
        if (!mbar_read(a.cta, a.off).valid) x.fault(in, l, "mbarrier.inval of memory that holds no mbarrier");
        a.cta.mbars[a.off].valid = false;
    });
}

void check_use(X& x, const Inst& in, int lane, At a) {
    if (!x.g.check.on) return;
    MbarInfo& i = a.cta.mbars[a.off];
    if (!i.valid) return;
    if (i.init.agent != x.w.agent && !x.w.know.all.covers(i.init)) x.find(in, lane, "mbarrier is used without synchronisation after its mbarrier.init");
    else if (&a.cta != &x.cta && !i.published) x.find(in, lane, "mbarrier of another CTA is used although no fence.mbarrier_init followed its init");
}

void arrive(X& x, const Inst& in, u32 lanes) {
    const Mbar& k = static_cast<const Mbar&>(*in.extra);
    Message msg;
    if (!k.relaxed) msg = warp_release(x.w);
    each(lanes, [&](int l) {
        At a = locate(x, in, l, in.s[1], in.k[0]);
        check_use(x, in, l, a);
        i64 n = in.s[2] == kNoSlot ? (k.expect || k.complete ? 0 : 1) : i64(u32(x.src(in.s[2])[l]));
        u32 count = k.arrive ? (k.expect ? 1 : u32(n)) : 0;
        if (k.drop) {
            MbarState s = mbar_read(a.cta, a.off);
            if (s.valid && s.expected < count) x.fault(in, l, "arrive_drop lowers the expected count below zero");
            u64 raw;
            std::memcpy(&raw, a.cta.shared.data() + a.off, 8);
            raw -= u64(count) << 20;
            std::memcpy(a.cta.shared.data() + a.off, &raw, 8);
        }
        u64 state = mbar_update(x.m, a.cta, a.off, k.expect ? n : 0, count, k.complete ? n : 0, &msg, x.position(in, l));
        if (in.s[0] != kNoSlot) x.dst(in.s[0])[l] = state;
    });
}

bool passed(X& x, const Inst& in, int l, const Mbar& k, At a) {
    MbarState s = mbar_read(a.cta, a.off);
    if (!s.valid) x.fault(in, l, "mbarrier at shared offset " + std::to_string(a.off) + " is waited on before mbarrier.init");
    u64 v = x.src(in.s[2])[l];
    bool phase = k.parity ? v & 1 : v >> 62 & 1;
    if (k.parity && (v & ~1ull & 0xffffffff)) x.find(in, l, "phase parity is neither 0 nor 1");
    return s.phase != phase;
}

// Lanes of one fragment may wait on different barriers; all must pass before the fragment moves on, a legal schedule.
void wait(X& x, const Inst& in, u32 lanes) {
    const Mbar& k = static_cast<const Mbar&>(*in.extra);
    u32 ok = 0;
    each(lanes, [&](int l) {
        At a = locate(x, in, l, in.s[1], in.k[0]);
        if (&a.cta != &x.cta) x.fault(in, l, "a wait on an mbarrier of another CTA is not allowed");
        check_use(x, in, l, a);
        ok |= u32(passed(x, in, l, k, a)) << l;
    });
    if (!k.test && ok != lanes && x.frag->token != 2 && !(x.m.config.spurious_waits && x.m.random(4) == 0)) {
        x.frag->token = 1;
        return x.block("mbarrier phase");
    }
    each(ok, [&](int l) {
        At a = locate(x, in, l, in.s[1], in.k[0]);
        if (!k.relaxed) warp_acquire(x.w, a.cta.mbars[a.off].done);
    });
    if (k.test && ok != lanes) x.yield = true;
    set_predicate(x, in.s[0], lanes, ok);
}

void pending_count(X& x, const Inst& in, u32 lanes) {
    const u64* s = x.src(in.s[1]);
    u64* d = x.dst(in.s[0]);
    each(lanes, [&](int l) { d[l] = s[l] & 0xfffff; });
}
}  // namespace

void decode_mbarrier(Dec& d) {
    auto k = std::make_shared<Mbar>();
    d.in.extra = k;
    std::string what = d.need({"init", "inval", "arrive", "arrive_drop", "expect_tx", "complete_tx", "test_wait", "try_wait", "pending_count"});
    if (what == "pending_count") {
        d.need_type();
        d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1);
        d.in.fn = pending_count;
        return;
    }
    bool tx_op = what == "expect_tx" || what == "complete_tx";
    k->arrive = what == "arrive" || what == "arrive_drop", k->drop = what == "arrive_drop";
    k->expect = what == "expect_tx", k->complete = what == "complete_tx";
    if (k->arrive) k->expect = d.opt("expect_tx"), k->no_complete = d.opt("noComplete");
    k->parity = d.opt("parity");
    std::string sem = d.one_of({"release", "acquire", "relaxed"});
    k->relaxed = sem == "relaxed" || tx_op;
    d.one_of({"cta", "cluster"});
    d.one_of({"shared", "shared::cta", "shared::cluster"});
    d.opt("b64");
    size_t at = 0;
    if (what == "test_wait" || what == "try_wait") {
        k->test = what == "test_wait";
        d.in.s[0] = d.dst(at++);
        d.in.s[1] = d.base(d.arg(at++), d.in.k[0]);
        d.in.s[2] = d.src(at++, Ty::b64);
        if (at < d.n()) d.src(at, Ty::b32);  // time limit: any wait may end early or late
        d.in.fn = wait;
        return;
    }
    if (d.arg(0).kind != Operand::Kind::addr) {
        if (d.arg(0).kind != Operand::Kind::sink) d.in.s[0] = d.dst(0);
        at = 1;
    }
    d.in.s[1] = d.base(d.arg(at++), d.in.k[0]);
    if (at < d.n()) d.in.s[2] = d.src(at, Ty::b32);
    d.in.fn = what == "init" ? init : what == "inval" ? inval : arrive;
}

}  // namespace ptxsim
