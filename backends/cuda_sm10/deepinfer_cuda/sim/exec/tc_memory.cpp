// tcgen05: allocation, ld, st, wait, fences, commit.
#include "exec/bulk.h"
#include "exec/families.h"
#include "exec/ops.h"
#include "exec/tc_common.h"

namespace ptxsim {

TmemAddr tmem_address(X& x, const Inst& in, u64 v, bool scale) {
    u32 a = u32(v);
    if (scale) a &= 0x3fffffffu;
    TmemAddr t{a >> 16, a & 0xffff};
    if (t.lane >= kTmemLanes || t.col >= kTmemColumns)
        x.fault(in, 0, "tensor memory address lane " + std::to_string(t.lane) + " column " + std::to_string(t.col) + " is outside 128 x 512");
    return t;
}

int parse_cta_group(Dec& d) { return d.need({"cta_group::1", "cta_group::2"}).back() - '0'; }

void use_tensor_memory(X& x, const Inst& in, int group) {
    if (!x.cta.tmem) x.fault(in, 0, "tcgen05 does not exist on this device");
    Tmem& t = *x.cta.tmem;
    if (!t.cta_group) t.cta_group = group;
    if (t.cta_group != group) x.fault(in, 0, "tcgen05 instructions of one kernel must use the same cta_group");
    if (group == 2 && (x.cta.rank | 1) >= x.cl.ctas.size()) x.fault(in, 0, "cta_group::2 needs a cluster with an even number of CTAs");
}

Cta& pair_cta(X& x, const Inst&, u32 which) { return x.cl.cta((x.cta.rank & ~1u) | which); }

namespace {

// Strict: uses by other threads are ordered after the allocation as after any tcgen05 access, by fences.
void own_columns(X& x, const Inst& in, u32 col, u32 n) {
    Tmem& t = *x.cta.tmem;
    Epoch self{x.w.agent, x.w.clock};
    for (u32 c = col; c < col + n; ++c)
        for (u32 g = 0; g < kTmemLanes / 16; ++g) {
            Cell& cell = t.shadow[g * kTmemColumns + c];
            cell = {};
            cell.w = self, cell.w_mask = 1, cell.w_inst = u32(&in - x.g.program->code.data());
        }
    x.w.know.tensor.raise(self);
    warp_tick(x.w);
}

void alloc(X& x, const Inst& in, u32 lanes) {
    use_tensor_memory(x, in, int(in.k[1]));
    Tmem& t = *x.cta.tmem;
    u32 n = u32(x.src(in.s[2])[first_lane(lanes)]);
    if (n < 32 || n > 512 || (n & (n - 1))) x.fault(in, 0, "tcgen05.alloc of " + std::to_string(n) + " columns: must be a power of two from 32 to 512");
    if (t.relinquished) x.fault(in, 0, "tcgen05.alloc after relinquish_alloc_permit");
    for (u32 c = 0; c + n <= kTmemColumns; c += n) {
        bool free = true;
        for (u32 i = c; i < c + n; ++i) free &= t.owner[i] == 0;
        if (!free) continue;
        for (u32 i = c; i < c + n; ++i) t.owner[i] = t.next;
        if (x.g.check.on && x.m.config.strict) own_columns(x, in, c, n);
        ++t.next, ++x.m.progress;
        Place p = resolve(x, in, first_lane(lanes), Space::shared, x.src(in.s[1])[first_lane(lanes)] + u64(in.k[0]), 4, true);
        touch(x, in, first_lane(lanes), p, 4, Use::write);
        std::memcpy(p.p, &c, 4);
        return;
    }
    x.block("free tensor memory columns");
}

void dealloc(X& x, const Inst& in, u32 lanes) {
    use_tensor_memory(x, in, int(in.k[1]));
    Tmem& t = *x.cta.tmem;
    TmemAddr a = tmem_address(x, in, x.src(in.s[1])[first_lane(lanes)]);
    u32 n = u32(x.src(in.s[2])[first_lane(lanes)]);
    u16 id = t.owner[a.col];
    bool exact = id && a.lane == 0 && a.col + n <= kTmemColumns && (a.col == 0 || t.owner[a.col - 1] != id) && (a.col + n == kTmemColumns || t.owner[a.col + n] != id);
    for (u32 c = a.col; exact && c < a.col + n; ++c) exact = t.owner[c] == id;
    if (!exact) x.fault(in, 0, "tcgen05.dealloc of column " + std::to_string(a.col) + ", " + std::to_string(n) + " columns, which is not one live allocation");
    for (u32 c = a.col; c < a.col + n; ++c) {
        t.owner[c] = 0;
        for (u32 l = 0; l < kTmemLanes; ++l) t.at(l, c) = 0xffffffffu;
        for (u32 g = 0; g < kTmemLanes / 16; ++g) {
            Cell& cell = t.shadow[g * kTmemColumns + c];
            const Clocks& order = x.m.config.strict && x.g.program->tensor_fences ? x.w.know.tensor : x.w.know.all;
            if (x.g.check.on && (!order.covers(cell.w) || !order.covers(cell.r)))
                x.find(in, 0, "tensor memory is freed while an earlier access is not ordered before the dealloc");
            cell = {};
        }
    }
    ++x.m.progress, ++x.cl.events;
}

void relinquish(X& x, const Inst& in, u32) {
    use_tensor_memory(x, in, int(in.k[1]));
    x.cta.tmem->relinquished = true;
}

// ---- ld / st -------------------------------------------------------------------------------------------------------

enum class Frag : u8 { f32x32, f16x64, f16x128, f16x256, f16x32x2 };

struct LdSt : Extra {
    Frag shape;
    u32 repeat = 1, registers = 0;
    bool pack = false;
    i64 half_split = 0;
};

// Lane and column of register r of thread t (PTX ISA, "Matrix fragments" of tcgen05.ld/st).
TmemAddr fragment(const LdSt& s, u32 t, u32 r) {
    switch (s.shape) {
        case Frag::f32x32: return {t, r};
        case Frag::f16x64: return {t / 4 + 8 * (t & 1), 2 * r + (t >> 1 & 1)};
        case Frag::f16x128: return {t / 4 + 8 * (r & 1), 4 * (r / 2) + t % 4};
        case Frag::f16x256: return {t / 4 + 8 * (r >> 1 & 1), 8 * (r / 4) + 2 * (t % 4) + (r & 1)};
        default: return {t % 16, r + (t >= 16 ? u32(s.half_split) : 0)};
    }
}

struct LdStOp : AsyncOp {
    const LdSt* s = nullptr;
    bool load = true;
    TmemAddr base{0, 0};
    std::vector<u32> values;  // st: captured registers
    std::shared_ptr<Pending> pending;
    const char* kind() const override { return load ? "tcgen05.ld" : "tcgen05.st"; }

    bool step(Machine& m) override {
        Tmem& t = *cta->tmem;
        Who who = who_op(*this, self);
        std::vector<bool> seen(t.shadow.size());
        auto cell = [&](u32 l, u32 c) -> u32& {
            u32 lane_at = base.lane + l, col = base.col + c;
            if (!t.allocated(col, 1))
                throw SimError("tensor memory column " + std::to_string(col) + " is not allocated: kernel " + grid->program->name + " " + grid->program->where(*inst));
            u32 idx = lane_at / 16 * kTmemColumns + col;
            if (!seen[idx]) seen[idx] = true, grid->check.tmem(who, t.shadow, idx, load ? Use::read : Use::write, "tensor memory");
            return t.at(lane_at, col);
        };
        for (u32 r = 0; r < s->registers; ++r)
            for (u32 th = 0; th < 32; ++th) {
                if (s->pack) {  // the registers of the plain form, each made of the low halves of two columns (CuTe, ..._16b atoms)
                    TmemAddr lo = fragment(*s, th, r), hi;
                    if (s->shape == Frag::f16x32x2 && th >= 16) lo.col = 2 * r + u32(s->half_split);
                    else lo.col *= 2;
                    hi = {lo.lane, lo.col + 1};
                    if (load) {
                        u32 v = (cell(lo.lane, lo.col) & 0xffff) | cell(hi.lane, hi.col) << 16;
                        warp->regs[size_t(inst->v[r]) * 32 + th] = v;
                    } else {
                        u32 v = values[r * 32 + th];
                        cell(lo.lane, lo.col) = v & 0xffff, cell(hi.lane, hi.col) = v >> 16;
                    }
                    continue;
                }
                TmemAddr f = fragment(*s, th, r);
                u32& c = cell(f.lane, f.col);
                if (load) warp->regs[size_t(inst->v[r]) * 32 + th] = c;
                else c = values[r * 32 + th];
            }
        ++m.progress;
        --pending->open;
        pending->done.all.raise(self), pending->done.tensor.raise(self);
        return true;
    }
};

void ldst(X& x, const Inst& in, u32 lanes) {
    const LdSt& s = static_cast<const LdSt&>(*in.extra);
    if (!x.cta.tmem) x.fault(in, 0, "tcgen05 does not exist on this device");
    auto op = std::make_shared<LdStOp>();
    op->inst = &in, op->s = &s, op->load = in.k[1];
    u64 addr = x.src(in.s[1])[first_lane(lanes)] + u64(in.k[0]);
    op->base = tmem_address(x, in, addr);
    u32 quarter = x.w.index % 4 * 32;
    bool wide = s.shape == Frag::f32x32;
    // A warp reaches its own sub-partition only; known-good kernels leave these lane bits zero, so zero means "own".
    u32 named = op->base.lane / 32 * 32, within = op->base.lane % 32;
    if ((named != quarter && named != 0) || (within && (wide || within != 16)))
        x.fault(in, 0, "warp " + std::to_string(x.w.index) + " may access tensor memory lanes " + std::to_string(quarter) + " to " + std::to_string(quarter + 31) +
                ", the address starts at lane " + std::to_string(op->base.lane));
    op->base.lane = quarter + within;
    adopt(x, *op);
    op->pending = op->load ? x.w.loads : x.w.stores;
    ++op->pending->open;
    if (op->load) {
        if (x.g.check.on) own_registers(x.w, *op->pending, in.v, {});
    } else {
        op->values.resize(in.v.size() * 32);
        for (size_t r = 0; r < in.v.size(); ++r)
            for (u32 t = 0; t < 32; ++t) op->values[r * 32 + t] = u32(x.src(in.v[r])[t]);
    }
    x.m.engine.issue(x.m, op, x.w.ldst_queue);
}

void wait(X& x, const Inst& in, u32) {
    Pending& p = in.k[0] ? *x.w.loads : *x.w.stores;
    if (p.open) return x.block(in.k[0] ? "tcgen05.wait::ld" : "tcgen05.wait::st");
    release_registers(x.w, p);
    if (x.g.check.on) x.w.know.all.join(p.done.all), x.w.know.tensor.join(p.done.tensor);
}

void fence(X& x, const Inst& in, u32) {
    if (!x.g.check.on) return;
    if (in.k[0]) x.w.know.tensor_out.join(x.w.know.tensor);  // before_thread_sync
    else x.w.know.tensor.join(x.w.know.tensor_in), x.w.fenced = x.w.know.all;  // after_thread_sync
}

// ---- commit --------------------------------------------------------------------------------------------------------

struct CommitOp : AsyncOp {
    std::vector<MbarRef> to;
    Message msg;
    const char* kind() const override { return "tcgen05.commit"; }
    bool step(Machine& m) override {
        for (auto& t : to) {
            auto info = t.cta->mbars.find(t.offset);
            if (grid->check.on && info != t.cta->mbars.end() && info->second.valid && !info->second.published && !know.async.covers(info->second.init))
                grid->check.report(who_op(*this, self), "tcgen05.commit to an mbarrier whose init was not published (fence.mbarrier_init or fence.proxy.async)");
            mbar_update(m, *t.cta, t.offset, 0, 1, 0, &msg, "kernel " + grid->program->name + " " + grid->program->where(*inst));
        }
        return true;
    }
};

void commit(X& x, const Inst& in, u32 lanes) {
    use_tensor_memory(x, in, int(in.k[1]));
    each(lanes, [&](int l) {
        auto op = std::make_shared<CommitOp>();
        op->inst = &in, op->lane = l;
        MbarRef bar = mbar_operand(x, in, l, x.src(in.s[1])[l] + u64(in.k[0]));
        if (in.s[2] == kNoSlot) {
            op->to.push_back(bar);
        } else {
            u32 mask = u32(x.src(in.s[2])[l]) & 0xffff;
            for (u32 r = 0; mask; ++r, mask >>= 1)
                if (mask & 1) {
                    if (r >= x.cl.ctas.size()) x.fault(in, l, "multicast mask names CTA rank " + std::to_string(r));
                    op->to.push_back({&x.cl.cta(r), bar.offset});
                }
        }
        adopt(x, *op);
        if (x.g.check.on) {
            op->msg.all = op->know.all, op->msg.async = op->know.async, op->msg.tensor = op->know.tensor;
            op->msg.all.join(x.w.pipeline), op->msg.tensor.join(x.w.pipeline);
        }
        x.m.engine.issue(x.m, op, x.w.tensor_queue);
    });
}

std::shared_ptr<LdSt> parse_ldst(Dec& d) {
    auto s = std::make_shared<LdSt>();
    d.need({"sync"}), d.need({"aligned"});
    std::string shape = d.need({"32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"});
    s->shape = shape == "32x32b" ? Frag::f32x32 : shape == "16x64b" ? Frag::f16x64 : shape == "16x128b" ? Frag::f16x128 : shape == "16x256b" ? Frag::f16x256 : Frag::f16x32x2;
    s->repeat = u32(std::stoi(d.need({"x1", "x2", "x4", "x8", "x16", "x32", "x64", "x128"}).substr(1)));
    s->pack = d.opt("pack::16b") || d.opt("unpack::16b");
    d.need({"b32"});
    u32 per = s->shape == Frag::f16x128 ? 2 : s->shape == Frag::f16x256 ? 4 : 1;
    s->registers = per * s->repeat;
    if (s->registers > 128) d.fail("needs more than 128 registers");
    return s;
}
}  // namespace

void decode_tc_memory(Dec& d) {
    if (d.opt("wait::ld") || d.opt("wait::st")) {
        d.in.k[0] = d.st.mods[0] == "wait::ld";
        d.need({"sync"}), d.need({"aligned"});
        d.in.aligned = true, d.in.fn = wait;
    } else if (d.opt("fence::before_thread_sync") || d.opt("fence::after_thread_sync")) {
        d.in.k[0] = d.st.mods[0] == "fence::before_thread_sync";
        d.p.tensor_fences = true;
        d.in.fn = fence;
    } else if (d.opt("alloc")) {
        d.in.k[1] = parse_cta_group(d);
        d.need({"sync"}), d.need({"aligned"});
        d.opt("shared::cta"), d.need({"b32"});
        d.in.s[1] = d.base(d.arg(0), d.in.k[0]), d.in.s[2] = d.src(1, Ty::b32);
        d.in.aligned = true, d.in.fn = alloc;
    } else if (d.opt("dealloc")) {
        d.in.k[1] = parse_cta_group(d);
        d.need({"sync"}), d.need({"aligned"}), d.need({"b32"});
        d.in.s[1] = d.src(0, Ty::b32), d.in.s[2] = d.src(1, Ty::b32);
        d.in.aligned = true, d.in.fn = dealloc;
    } else if (d.opt("relinquish_alloc_permit")) {
        d.in.k[1] = parse_cta_group(d);
        d.need({"sync"}), d.need({"aligned"});
        d.in.aligned = true, d.in.fn = relinquish;
    } else if (d.opt("ld")) {
        auto s = parse_ldst(d);
        d.in.v = d.dsts(d.arg(0));
        d.in.s[1] = d.base(d.arg(1), d.in.k[0]);
        if (s->shape == Frag::f16x32x2) s->half_split = d.imm(2);
        if (d.in.v.size() != s->registers) d.fail("needs " + std::to_string(s->registers) + " registers");
        d.in.k[1] = 1, d.in.aligned = true, d.in.extra = s, d.in.fn = ldst;
    } else if (d.opt("st")) {
        auto s = parse_ldst(d);
        d.in.s[1] = d.base(d.arg(0), d.in.k[0]);
        size_t at = 1;
        if (s->shape == Frag::f16x32x2) s->half_split = d.imm(at++);
        d.in.v = d.srcs(d.arg(at), Ty::b32);
        if (d.in.v.size() != s->registers) d.fail("needs " + std::to_string(s->registers) + " registers");
        d.in.aligned = true, d.in.extra = s, d.in.fn = ldst;
    } else {
        d.need({"commit"});
        d.in.k[1] = parse_cta_group(d);
        d.need({"mbarrier::arrive::one"});
        d.one_of({"shared::cluster", "shared::cta"});
        bool multi = d.opt("multicast::cluster");
        d.need({"b64"});
        d.in.s[1] = d.base(d.arg(0), d.in.k[0]);
        if (multi) d.in.s[2] = d.src(1, Ty::b32);
        d.in.fn = commit;
    }
}

void decode_tcgen05(Dec& d) {
    const std::string& what = d.st.mods.empty() ? d.st.op : d.st.mods[0];
    if (what == "mma") return decode_tc_mma(d);
    if (what == "cp") return decode_tc_cp(d);
    if (what == "shift") d.fail("tcgen05.shift is not modelled");
    return decode_tc_memory(d);
}

}  // namespace ptxsim
