// cp.async: per-thread 4, 8 or 16 byte copies from global to shared memory, their groups, and their mbarrier arrival.
//
// All copies of one warp form a queue, so an arrival issued after them runs after them. cp.async writes through the generic
// proxy (PTX ISA, "Async proxy"): no proxy fence is needed, only the wait.
#include "core/access.h"
#include "core/windows.h"
#include "exec/families.h"
#include "exec/ops.h"
#include "tensor/mbarrier.h"

namespace ptxsim {
namespace {

struct Copy {
    int lane;
    u64 from;
    u32 offset, bytes, valid;
    std::shared_ptr<Pending> group;
};

struct CopyOp : AsyncOp {
    std::vector<Copy> copies;
    const char* kind() const override { return "cp.async"; }
    bool step(Machine& m) override {
        for (auto& c : copies) {
            Who w = who_op(*this, self);
            w.async = false, w.lane = c.lane;
            if (c.valid) grid->check.global(w, c.from, c.valid, Use::read);
            grid->check.shared(w, *cta, c.offset, c.bytes, Use::write);
            std::memset(cta->shared.data() + c.offset, 0, c.bytes);
            if (c.valid) std::memcpy(cta->shared.data() + c.offset, global_bytes(*grid, *inst, c.from, c.valid, false, "cp.async"), c.valid);
            --c.group->open;
            c.group->done.all.raise(self);
        }
        ++m.progress;
        return true;
    }
};

struct ArriveOp : AsyncOp {
    struct One {
        Cta* cta;
        u32 offset;
        bool noinc;
    };
    std::vector<One> to;
    std::vector<std::shared_ptr<Pending>> groups;
    const char* kind() const override { return "cp.async.mbarrier.arrive"; }
    bool step(Machine& m) override {
        Message msg;
        for (auto& g : groups) msg.join(g->done);
        for (auto& t : to) mbar_update(m, *t.cta, t.offset, 0, 1, 0, &msg, "kernel " + grid->program->name + " " + grid->program->where(*inst));
        return true;
    }
};

CopyGroups& groups_of(Warp& w, int lane) {
    auto& g = w.copies[lane];
    if (!g) g = std::make_shared<CopyGroups>();
    if (!g->current) g->current = std::make_shared<Pending>();
    return *g;
}

void copy(X& x, const Inst& in, u32 lanes) {
    auto op = std::make_shared<CopyOp>();
    op->inst = &in;
    adopt(x, *op);
    u32 bytes = u32(in.k[2]);
    each(lanes, [&](int l) {
        u64 to = x.src(in.s[0])[l] + u64(in.k[0]), from = x.src(in.s[1])[l] + u64(in.k[1]);
        u32 valid = in.s[2] == kNoSlot ? bytes : u32(x.src(in.s[2])[l]);
        if (in.s[3] != kNoSlot && (x.predicate(in.s[3]) >> l & 1)) valid = 0;  // ignore-src
        if (valid > bytes) x.fault(in, l, "source size " + std::to_string(valid) + " is larger than the copy of " + std::to_string(bytes));
        Place p = resolve(x, in, l, Space::shared, to, bytes, true);
        if (valid) resolve(x, in, l, Space::global, from, valid, false, bytes);
        auto& g = groups_of(x.w, l);
        ++g.current->open;
        op->copies.push_back({l, from, p.offset, bytes, valid, g.current});
    });
    x.m.engine.issue(x.m, op, x.w.copy_queue);
}

void commit(X& x, const Inst&, u32 lanes) {
    each(lanes, [&](int l) {
        auto& g = groups_of(x.w, l);
        g.groups.push_back(g.current);
        g.current = nullptr;
    });
}

void wait(X& x, const Inst& in, u32 lanes) {  // k[0]: groups that may stay open, -1 for wait_all
    bool ready = true;
    each(lanes, [&](int l) {
        auto& g = groups_of(x.w, l);
        size_t keep = in.k[0] < 0 ? 0 : size_t(in.k[0]);
        for (size_t i = 0; i + keep < g.groups.size(); ++i) ready &= g.groups[i]->open == 0;
        if (in.k[0] < 0) ready &= g.current->open == 0;
    });
    if (!ready) return x.block("cp.async group");
    each(lanes, [&](int l) {
        auto& g = groups_of(x.w, l);
        size_t keep = in.k[0] < 0 ? 0 : size_t(in.k[0]);
        while (g.groups.size() > keep) {
            warp_acquire(x.w, g.groups.front()->done);
            g.groups.pop_front();
        }
        if (in.k[0] < 0) warp_acquire(x.w, g.current->done);
    });
}

void mbarrier_arrive(X& x, const Inst& in, u32 lanes) {
    auto op = std::make_shared<ArriveOp>();
    op->inst = &in;
    adopt(x, *op);
    each(lanes, [&](int l) {
        u32 addr = shared_address(x, in, l, x.src(in.s[1])[l] + u64(in.k[0]));
        Cta& c = shared_owner(x, in, l, addr, 8, true);
        u32 off = addr & kOffsetMask;
        if (!in.k[1]) {  // without .noinc the pending count grows by one first
            MbarState s = mbar_read(c, off);
            if (!s.valid) x.fault(in, l, "mbarrier is used before mbarrier.init");
            u64 raw;
            std::memcpy(&raw, c.shared.data() + off, 8);
            ++raw;
            std::memcpy(c.shared.data() + off, &raw, 8);
        }
        op->to.push_back({&c, off, bool(in.k[1])});
        auto& g = groups_of(x.w, l);
        for (auto& p : g.groups) op->groups.push_back(p);
        op->groups.push_back(g.current);
    });
    x.m.engine.issue(x.m, op, x.w.copy_queue);
}
}  // namespace

void decode_cp_async_plain(Dec& d) {  // after "cp" and "async"
    if (d.opt("commit_group")) {
        d.in.fn = commit;
    } else if (d.opt("wait_group")) {
        d.in.k[0] = d.imm(0);
        d.in.fn = wait;
    } else if (d.opt("wait_all")) {
        d.in.k[0] = -1;
        d.in.fn = wait;
    } else if (d.opt("mbarrier")) {
        d.need({"arrive"});
        d.in.k[1] = d.opt("noinc");
        d.one_of({"shared", "shared::cta"});
        d.opt("b64");
        d.in.s[1] = d.base(d.arg(0), d.in.k[0]);
        d.in.fn = mbarrier_arrive;
    } else {
        d.need({"ca", "cg"});
        d.need({"shared", "shared::cta"});
        d.need({"global"});
        while (!d.prefix("L2::").empty()) {}
        d.in.s[0] = d.base(d.arg(0), d.in.k[0]);
        d.in.s[1] = d.base(d.arg(1), d.in.k[1]);
        d.in.k[2] = d.imm(2);
        if (d.in.k[2] != 4 && d.in.k[2] != 8 && d.in.k[2] != 16) d.fail("copies 4, 8 or 16 bytes");
        if (d.n() > 3) {
            const Operand& o = d.arg(3);
            bool pred = o.kind == Operand::Kind::reg && d.p.slot_bits[o.reg] == 1;
            bool policy = o.kind == Operand::Kind::reg && d.p.slot_bits[o.reg] == 64;
            if (pred) d.in.s[3] = d.pred(3);
            else if (!policy) d.in.s[2] = d.src(3, Ty::b32);
        }
        d.in.fn = copy;
    }
}

}  // namespace ptxsim
