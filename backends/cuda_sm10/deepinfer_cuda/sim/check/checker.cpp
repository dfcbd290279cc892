#include "check/checker.h"

#include "core/machine.h"

namespace ptxsim {
namespace {
std::string hex(u64 v) {
    char b[32];
    std::snprintf(b, sizeof b, "0x%llx", (unsigned long long)v);
    return b;
}
}  // namespace

u32 Checker::index_of(const Inst* i) const { return i ? u32(i - grid->program->code.data()) : 0; }

void Checker::report(const Who& who, const std::string& what, const Inst* other) {
    if (!seen_.insert({who.inst, other ? index_of(other) + 1 : 0, what.substr(0, what.find(" at "))}).second) return;
    if (grid->machine->findings.size() >= grid->machine->config.max_findings) return;
    std::string t = what + ": kernel " + grid->program->short_name();
    if (who.cta) {
        t += " CTA (" + std::to_string(who.cta->id[0]) + "," + std::to_string(who.cta->id[1]) + "," + std::to_string(who.cta->id[2]) + ")";
        t += " warp " + std::to_string(who.warp) + " lane " + std::to_string(who.lane);
    }
    if (who.inst) t += " " + grid->program->where(*who.inst);
    if (other) t += "; earlier access: " + grid->program->where(*other);
    grid->machine->findings.push_back(t);
}

void Checker::conflict(const Who& who, const Context& ctx, const char* kind, u64 address, u32 other, bool only_fence) {
    std::string t = only_fence ? std::string(ctx.what) + " " + kind + " ordered without tcgen05.fence or tcgen05.wait"
                               : std::string(ctx.what) + " race (" + kind + ")";
    report(who, t + " at " + hex(address), &grid->program->code[other]);
}

void Checker::access(const Who& who, Cell& c, u8 mask, Use use, const Context& ctx, u64 address, bool init_checked) {
    auto ordered = [&](Epoch e) { return e.clock == 0 || (!who.op && e.agent == who.self.agent) || (who.op && e.agent == who.self.agent && e.clock == who.self.clock) || ctx.order.covers(e); };
    bool strong = who.strong || use == Use::atomic;
    if (c.w.clock && (c.w_mask & mask)) {
        if (!ordered(c.w)) {
            if (who.silent && use == Use::write) return;
            if (!(strong && c.w_strong)) conflict(who, ctx, use == Use::read ? "read after write" : "write after write", address, c.w_inst, ctx.wider && ctx.wider->covers(c.w));
        } else if (who.async && ctx.proxy && !c.w_async && !ctx.proxy->covers(c.w)) {
            report(who, std::string(ctx.what) + " written by threads is used by the async proxy without fence.proxy.async at " + hex(address), &grid->program->code[c.w_inst]);
        }
    }
    if (use != Use::write && init_checked && (c.init & mask) != mask) {
        report(who, std::string(ctx.what) + " is read before it was written at " + hex(address));
        c.init |= mask;
    }
    if (use != Use::read) {
        if (c.r.clock && !ordered(c.r) && !(strong && c.r_strong)) conflict(who, ctx, "write after read", address, c.r_inst, ctx.wider && ctx.wider->covers(c.r));
        if (c.more) {
            for (auto& r : readers_[c.more])
                if (!ordered(r.e) && !(strong && r.strong)) conflict(who, ctx, "write after read", address, r.inst, ctx.wider && ctx.wider->covers(r.e));
            readers_[c.more].clear();
            free_readers_.push_back(c.more);
            c.more = 0;
        }
        bool same = c.w.agent == who.self.agent && c.w.clock == who.self.clock;
        c.w_mask = same ? c.w_mask | mask : mask;
        c.w = who.self, c.w_inst = index_of(who.inst), c.w_async = who.async, c.w_strong = strong;
        c.r = {};
        c.init |= mask;
        return;
    }
    if (c.r.clock == 0 || c.r.agent == who.self.agent || (c.more == 0 && ordered(c.r))) {
        c.r = who.self, c.r_inst = index_of(who.inst), c.r_strong = strong;
        return;
    }
    if (!c.more) {
        if (free_readers_.empty()) readers_.emplace_back(), c.more = u32(readers_.size() - 1);
        else c.more = free_readers_.back(), free_readers_.pop_back();
    }
    auto& list = readers_[c.more];
    for (auto& r : list)
        if (r.e.agent == who.self.agent) {
            r = {who.self, index_of(who.inst), strong};
            return;
        }
    list.push_back({who.self, index_of(who.inst), strong});
}

void Checker::shared(const Who& who, Cta& cta, u32 offset, u32 bytes, Use use) {
    if (!on) return;
    Context ctx{who.know->all, &who.know->async, nullptr, "shared memory"};
    for (u32 a = offset & ~3u; a < offset + bytes; a += 4) {
        u32 lo = std::max(a, offset) - a, hi = std::min(a + 4, offset + bytes) - a;
        u8 mask = u8(((1u << hi) - 1) & ~((1u << lo) - 1));
        access(who, cta.shadow->cells[a / 4], mask, use, ctx, a + lo, true);
    }
}

void Checker::shared_reset(Cta& cta, u32 offset, u32 bytes, bool initialised) {
    if (!on) return;
    for (u32 a = offset & ~3u; a < offset + bytes; a += 4) {
        cta.shadow->cells[a / 4] = Cell{};
        cta.shadow->cells[a / 4].init = initialised ? 15 : 0;
    }
}

void Checker::global(const Who& who, u64 addr, u32 bytes, Use use) {
    if (!on) return;
    Context ctx{who.know->all, &who.know->async, nullptr, "global memory"};
    for (u64 a = addr & ~3ull; a < addr + bytes; a += 4) {
        u64 key = a >> 12;
        if (key != last_page_key_) {
            Page& p = pages_[key];
            if (p.empty()) p.resize(1024);
            last_page_ = &p, last_page_key_ = key;
        }
        u32 lo = u32(std::max(a, addr) - a), hi = u32(std::min(a + 4, addr + bytes) - a);
        u8 mask = u8(((1u << hi) - 1) & ~((1u << lo) - 1));
        access(who, (*last_page_)[(a & 4095) / 4], mask, use, ctx, a + lo, false);
    }
}

void Checker::tmem(const Who& who, std::vector<Cell>& cells, u32 cell, Use use, const char* unit) {
    if (!on) return;
    // Some compilers (Triton 3.6) emit no tcgen05.fence at all and rely on barriers; their kernels are held to barriers alone.
    bool fenced = grid->program->tensor_fences;
    Context ctx{fenced ? who.know->tensor : who.know->all, nullptr, fenced ? &who.know->all : nullptr, unit};
    access(who, cells[cell], 1, use, ctx, (u64(cell / 512 * 16) << 16) | cell % 512, true);
}

void warp_tick(Warp& w) {
    w.know.all.raise({w.agent, w.clock});
    ++w.clock;
}

Message warp_release(Warp& w) {
    Message m;
    if (!w.cta->grid->check.on) return m;
    w.know.all.raise({w.agent, w.clock});
    m.add(w.know);
    ++w.clock;
    return m;
}

void warp_acquire(Warp& w, const Message& m) {
    if (w.cta->grid->check.on) acquire(w.know, m);
}

void warp_proxy_fence(Warp& w) {
    if (!w.cta->grid->check.on) return;
    warp_tick(w);
    w.know.async.join(w.know.all);
}

Who who_warp(const X& x, const Inst& in, int lane, bool strong) {
    return {&x.w.know, {x.w.agent, x.w.clock}, false, strong, false, false, &in, &x.cta, x.w.index, lane};
}

Who who_op(const AsyncOp& op, Epoch self) {
    return {&op.know, self, true, false, false, true, op.inst, op.cta, op.warp ? op.warp->index : 0, op.lane};
}

Epoch new_epoch(Cta& cta) {
    u32 slot = kWarpAgents + cta.next_slot++ % (kAgentsPerCta - kWarpAgents);
    return {cta.linear * kAgentsPerCta + slot, ++cta.slot_clock[slot]};
}

void adopt(const X& x, AsyncOp& op) {
    op.grid = &x.g, op.cluster = &x.cl, op.cta = &x.cta, op.warp = &x.w;
    if (!x.g.check.on) return;
    x.w.know.all.raise({x.w.agent, x.w.clock});
    op.know = x.w.know;
    ++x.w.clock;
    op.self = new_epoch(x.cta);
}

}  // namespace ptxsim
