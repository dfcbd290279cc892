// cp.async.bulk and cp.reduce.async.bulk without tensor maps, bulk groups, st.async and red.async.
#include "exec/bulk.h"

#include "core/windows.h"
#include "exec/families.h"
#include "exec/ops.h"

namespace ptxsim {

std::string BulkOp::who() const { return "kernel " + grid->program->name + " " + grid->program->where(*inst); }

bool BulkOp::step(Machine& m) {
    if (phase == 0) {
        read(m);
        if (group) {
            --group->reads;
            group->read_done.all.raise(self);
        }
        u32 n = u32(data.size());
        split = m.config.schedule == Schedule::random && n >= 32 ? u32(m.random(n / 16 + 1) * 16) : n;
        ++phase;
        return false;
    }
    u32 n = u32(data.size()), from = phase == 1 ? 0 : split, to = phase == 1 ? split : n;
    Message msg;
    msg.all.raise(self), msg.all.raise(write_self);
    for (auto& t : targets) {
        if (to > from || n == 0) write(m, t, from, to);
        if (t.bar.cta) {
            if (grid->check.on && async_proxy()) {
                auto info = t.bar.cta->mbars.find(t.bar.offset);
                bool unknown = info != t.bar.cta->mbars.end() && info->second.valid && !info->second.published && !know.async.covers(info->second.init);
                // cuda::barrier with cuda::memcpy_async compiles to plain bulk copies and no fence anywhere: libcu++ relies on that
                bool library = name == "cp.async.bulk" && !grid->program->strings.count("#publishes_barriers");
                if (unknown && !library)
                    grid->check.report(who_op(*this, self), "asynchronous completion on an mbarrier whose init was not published (fence.mbarrier_init or fence.proxy.async)");
            }
            if (to > from) mbar_update(m, *t.bar.cta, t.bar.offset, 0, 0, transaction_bytes(to - from), &msg, who());
        }
    }
    ++phase;
    if (phase == 2 && split < n) return false;
    if (group) {
        --group->writes;
        group->write_done.all.raise(self), group->write_done.all.raise(write_self);
    }
    return true;
}

std::shared_ptr<BulkGroup> current_group(Warp& w, int lane) {
    auto& g = w.bulk[lane];
    if (!g) g = std::make_shared<BulkGroups>();
    if (!g->current) g->current = std::make_shared<BulkGroup>();
    return g->current;
}

MbarRef mbar_operand(X& x, const Inst& in, int lane, u64 address) {
    u32 a = shared_address(x, in, lane, address);
    if (a & 7) x.fault(in, lane, "mbarrier address is not 8-byte aligned");
    Cta& c = shared_owner(x, in, lane, a, 8, false);
    u32 off = a & kOffsetMask;
    if (!mbar_read(c, off).valid) x.fault(in, lane, "mbarrier at shared offset " + std::to_string(off) + " of CTA rank " + std::to_string(c.rank) + " is used before mbarrier.init");
    return {&c, off};
}

void bulk_issue(X& x, std::shared_ptr<BulkOp> op) {
    adopt(x, *op);
    if (x.g.check.on) op->write_self = new_epoch(x.cta);
    if (op->group) ++op->group->reads, ++op->group->writes;
    x.m.engine.issue(x.m, op);
}

namespace {

enum class Where : u8 { global, shared_cta, shared_cluster };

struct Plain : Extra {
    Where from, to;
    bool multicast = false, reduce = false, masked = false;
    RedOp op = RedOp::add;
    Ty type = Ty::none;
    bool prefetch = false;
    i32 src = kNoSlot, dst = kNoSlot, size = kNoSlot, bar = kNoSlot, mask = kNoSlot, bytes = kNoSlot;
    i64 src_off = 0, dst_off = 0, bar_off = 0;
};

struct PlainOp : BulkOp {
    const Plain* p = nullptr;
    Cta* from_cta = nullptr;
    u32 from_offset = 0, size = 0;
    u64 from = 0, to = 0;
    u32 byte_mask = 0xffff;

    void read(Machine&) override {
        Who w = who_op(*this, self);
        const u8* s;
        if (from_cta) {
            grid->check.shared(w, *from_cta, from_offset, size, Use::read);
            s = from_cta->shared.data() + from_offset;
        } else {
            grid->check.global(w, from, size, Use::read);
            s = global_bytes(*grid, *inst, from, size, false, who());
        }
        data.assign(s, s + size);
    }

    void put(u8* at, u32 i, u32 n) {
        if (!p->reduce) {
            for (u32 k = 0; k < n; ++k)
                if (byte_mask >> ((i + k) % 16) & 1) at[k] = data[i + k];
            return;
        }
        u32 e = u32(type_size(p->type));
        for (u32 k = 0; k < n; k += e) {
            u64 a = 0, b = 0;
            std::memcpy(&a, at + k, e), std::memcpy(&b, data.data() + i + k, e);
            a = reduce_value(p->op, p->type, a, b);
            std::memcpy(at + k, &a, e);
        }
    }

    void write(Machine& m, Target& t, u32 lo, u32 hi) override {
        Who w = who_op(*this, write_self);
        Use use = p->reduce ? Use::atomic : Use::write;
        if (t.cta) {
            grid->check.shared(w, *t.cta, t.offset + lo, hi - lo, use);
            put(t.cta->shared.data() + t.offset + lo, lo, hi - lo);
        } else {
            grid->check.global(w, to + lo, hi - lo, use);
            put(global_bytes(*grid, *inst, to + lo, hi - lo, true, who()), lo, hi - lo);
        }
        ++m.progress;
    }
};

void bulk_copy(X& x, const Inst& in, u32 lanes) {
    const Plain& p = static_cast<const Plain&>(*in.extra);
    each(lanes, [&](int l) {
        auto op = std::make_shared<PlainOp>();
        op->inst = &in, op->lane = l, op->p = &p, op->name = p.reduce ? "cp.reduce.async.bulk" : "cp.async.bulk";
        u64 src = x.src(p.src)[l] + u64(p.src_off);
        op->size = u32(x.src(p.size)[l]);
        if (op->size % 16 || !op->size) x.fault(in, l, "bulk copy size " + std::to_string(op->size) + " is not a positive multiple of 16");
        if (src % 16) x.fault(in, l, "bulk copy source is not 16-byte aligned");
        if (p.from == Where::global) {
            op->from = src;
            resolve(x, in, l, Space::global, src, op->size, false, 16);
        } else {
            u32 a = shared_address(x, in, l, src);
            op->from_cta = &shared_owner(x, in, l, a, op->size, true);
            op->from_offset = a & kOffsetMask;
        }
        if (p.prefetch) return;
        u64 dst = x.src(p.dst)[l] + u64(p.dst_off);
        if (dst % 16) x.fault(in, l, "bulk copy destination is not 16-byte aligned");
        if (p.bytes != kNoSlot) op->byte_mask = u32(x.src(p.bytes)[l]) & 0xffff;
        if (p.to == Where::global) {
            op->to = dst;
            resolve(x, in, l, Space::global, dst, op->size, true, 16);
            op->targets.push_back({nullptr, 0, {}});
            op->group = current_group(x.w, l);
        } else {
            u32 a = shared_address(x, in, l, dst);
            MbarRef bar = mbar_operand(x, in, l, x.src(p.bar)[l] + u64(p.bar_off));
            Cta& c = shared_owner(x, in, l, a, op->size, false);
            u32 mask = p.multicast ? u32(x.src(p.mask)[l]) & 0xffff : 1u << c.rank;
            if (!p.multicast && bar.cta != &c) x.find(in, l, "mbarrier and destination of a bulk copy lie in different CTAs");
            for (u32 r = 0; mask; ++r, mask >>= 1)
                if (mask & 1) {
                    if (r >= x.cl.ctas.size()) x.fault(in, l, "multicast mask names CTA rank " + std::to_string(r));
                    op->targets.push_back({&x.cl.cta(r), a & kOffsetMask, {&x.cl.cta(r), bar.offset}});
                }
        }
        bulk_issue(x, op);
    });
}

void commit_group(X& x, const Inst&, u32 lanes) {
    each(lanes, [&](int l) {
        auto g = current_group(x.w, l);
        x.w.bulk[l]->groups.push_back(g);
        x.w.bulk[l]->current = nullptr;
    });
}

void wait_group(X& x, const Inst& in, u32 lanes) {  // k[0] groups may stay, k[1] .read
    bool ready = true;
    each(lanes, [&](int l) {
        current_group(x.w, l);
        auto& gs = x.w.bulk[l]->groups;
        for (size_t i = 0; i + size_t(in.k[0]) < gs.size(); ++i) ready &= in.k[1] ? gs[i]->reads == 0 : gs[i]->writes == 0;
    });
    if (!ready) return x.block("bulk group");
    each(lanes, [&](int l) {
        auto& gs = x.w.bulk[l]->groups;
        for (size_t i = 0; i + size_t(in.k[0]) < gs.size(); ++i) warp_acquire(x.w, in.k[1] ? gs[i]->read_done : gs[i]->write_done);
        if (!in.k[1])
            while (gs.size() > size_t(in.k[0])) gs.pop_front();
    });
}

// st.async / red.async: the value leaves the register at issue; the write and its bytes arrive later at the destination CTA.
struct Store : Extra {
    bool reduce = false;
    RedOp op = RedOp::add;
    Ty type;
    i64 bar_off = 0;
};
struct StoreOp : BulkOp {
    const Store* s = nullptr;
    bool async_proxy() const override { return false; }
    void read(Machine&) override {}
    void write(Machine& m, Target& t, u32 lo, u32 hi) override {
        Who w = who_op(*this, write_self);
        w.async = false;
        grid->check.shared(w, *t.cta, t.offset + lo, hi - lo, s->reduce ? Use::atomic : Use::write);
        u32 e = u32(type_size(s->type));
        for (u32 k = lo; k < hi; k += e) {
            u64 a = 0, b = 0;
            std::memcpy(&a, t.cta->shared.data() + t.offset + k, e), std::memcpy(&b, data.data() + k, e);
            if (s->reduce) b = reduce_value(s->op, s->type, a, b);
            std::memcpy(t.cta->shared.data() + t.offset + k, &b, e);
        }
        ++m.progress;
    }
};

void store_async(X& x, const Inst& in, u32 lanes) {
    const Store& s = static_cast<const Store&>(*in.extra);
    each(lanes, [&](int l) {
        auto op = std::make_shared<StoreOp>();
        op->inst = &in, op->lane = l, op->s = &s, op->name = s.reduce ? "red.async" : "st.async";
        u32 e = u32(type_size(s.type)), n = e * u32(in.v.size());
        op->data.resize(n);
        for (size_t i = 0; i < in.v.size(); ++i) std::memcpy(op->data.data() + i * e, &x.src(in.v[i])[l], e);
        u32 a = shared_address(x, in, l, x.src(in.s[1])[l] + u64(in.k[0]));
        if (a % n) x.fault(in, l, "misaligned asynchronous store");
        Cta& c = shared_owner(x, in, l, a, n, false);
        MbarRef bar = mbar_operand(x, in, l, x.src(in.s[2])[l] + u64(s.bar_off));
        if (bar.cta != &c) x.fault(in, l, "mbarrier and destination of an asynchronous store lie in different CTAs");
        op->targets.push_back({&c, a & kOffsetMask, bar});
        bulk_issue(x, op);
    });
}

Where where(const std::string& s) { return s == "global" ? Where::global : s == "shared::cluster" ? Where::shared_cluster : Where::shared_cta; }

}  // namespace

void decode_bulk_group(Dec& d) {  // cp.async.bulk.commit_group / wait_group
    if (d.opt("commit_group")) {
        d.in.fn = commit_group;
        return;
    }
    d.need({"wait_group"});
    d.in.k[1] = d.opt("read");
    d.in.k[0] = d.imm(0);
    d.in.fn = wait_group;
}

void decode_bulk_plain(Dec& d, bool reduce) {
    auto p = std::make_shared<Plain>();
    p->reduce = reduce;
    d.in.extra = p;
    d.in.fn = bulk_copy;
    bool hint = d.opt("L2::cache_hint");
    if (d.opt("prefetch")) {
        d.need({"L2"}), d.need({"global"});
        p->prefetch = true, p->from = Where::global;
        p->src = d.base(d.arg(0), p->src_off);
        p->size = d.src(1, Ty::b32);
        return;
    }
    p->to = where(d.need({"global", "shared::cluster", "shared::cta"}));
    p->from = where(d.need({"global", "shared::cta", "shared::cluster"}));
    bool to_bar = d.opt("mbarrier::complete_tx::bytes");
    if (!to_bar) d.need({"bulk_group"}), d.in.outlives_cta = true;
    p->multicast = d.opt("multicast::cluster");
    p->masked = d.opt("cp_mask");
    size_t at = 0;
    p->dst = d.base(d.arg(at++), p->dst_off);
    p->src = d.base(d.arg(at++), p->src_off);
    p->size = d.src(at++, Ty::b32);
    if (reduce) {
        if (!parse_red_op(d, p->op, false)) d.fail("has no operation that is known");
        d.opt("noftz");
        p->type = d.need_type();
    }
    if (to_bar) p->bar = d.base(d.arg(at++), p->bar_off);
    if (p->multicast) p->mask = d.src(at++, Ty::b32);
    if (hint) d.src(at++);
    if (p->masked) p->bytes = d.src(at++, Ty::b32);
}

void decode_store_async(Dec& d) {
    auto s = std::make_shared<Store>();
    d.need({"async"});
    s->reduce = d.st.op == "red";
    d.opt("weak"), d.opt("relaxed"), d.opt("cluster");
    d.need({"mbarrier::complete_tx::bytes"});
    d.one_of({"shared::cluster"});
    if (s->reduce && !parse_red_op(d, s->op, false)) d.fail("has no operation that is known");
    int v = d.vec();
    s->type = d.need_type();
    d.in.s[1] = d.base(d.arg(0), d.in.k[0]);
    d.in.v = d.srcs(d.arg(1), s->type);
    if ((int)d.in.v.size() != v) d.fail("value does not match the vector length");
    d.in.s[2] = d.base(d.arg(2), s->bar_off);
    d.in.extra = s;
    d.in.fn = store_async;
}

}  // namespace ptxsim
