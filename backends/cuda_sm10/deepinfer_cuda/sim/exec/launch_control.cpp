// clusterlaunchcontrol, griddepcontrol, setmaxnreg.
#include "exec/bulk.h"
#include "exec/families.h"
#include "exec/ops.h"

namespace ptxsim {
namespace {

// Response layout is opaque to kernels: word 0 is the success flag, words 1-3 the first CTA id of the taken cluster.
struct CancelOp : BulkOp {
    void read(Machine& m) override {
        u32 r[4] = {0, 0, 0, 0};
        Grid& g = *grid;
        // the newest work not yet started; nothing is left once all clusters run
        u64 n = g.next_cluster;
        while (n < g.cluster_count && std::find(g.cancelled.begin(), g.cancelled.end(), n) != g.cancelled.end()) ++n;
        if (n < g.cluster_count) {
            g.cancelled.push_back(n);
            u32 per[2] = {g.dim[0] / g.cluster_dim[0], g.dim[1] / g.cluster_dim[1]};
            r[0] = 1;
            r[1] = u32(n % per[0]) * g.cluster_dim[0], r[2] = u32(n / per[0] % per[1]) * g.cluster_dim[1], r[3] = u32(n / (u64(per[0]) * per[1])) * g.cluster_dim[2];
        }
        data.resize(16);
        std::memcpy(data.data(), r, 16);
        ++m.progress;
    }
    void write(Machine& m, Target& t, u32 lo, u32 hi) override {
        grid->check.shared(who_op(*this, write_self), *t.cta, t.offset + lo, hi - lo, Use::write);
        std::memcpy(t.cta->shared.data() + t.offset + lo, data.data() + lo, hi - lo);
        ++m.progress;
    }
};

void try_cancel(X& x, const Inst& in, u32 lanes) {
    each(lanes, [&](int l) {
        auto op = std::make_shared<CancelOp>();
        op->inst = &in, op->lane = l, op->name = "clusterlaunchcontrol.try_cancel";
        u32 a = shared_address(x, in, l, x.src(in.s[1])[l] + u64(in.k[0]));
        if (a % 16) x.fault(in, l, "response address is not 16-byte aligned");
        Cta& c = shared_owner(x, in, l, a, 16, false);
        MbarRef bar = mbar_operand(x, in, l, x.src(in.s[2])[l] + u64(in.k[1]));
        u32 off = a & 0xffffff;
        if (in.k[2])
            for (auto& other : x.cl.ctas) op->targets.push_back({other.get(), off, {other.get(), bar.offset}});
        else op->targets.push_back({&c, off, bar});
        bulk_issue(x, op);
    });
}

void query(X& x, const Inst& in, u32 lanes) {  // k[0]: -1 is_canceled, 0-2 one coordinate, 3 all
    const u64 *lo = x.src(in.s[1]), *hi = x.src(in.s[1] + 1);
    u32 yes = 0;
    each(lanes, [&](int l) {
        u32 w[4] = {u32(lo[l]), u32(lo[l] >> 32), u32(hi[l]), u32(hi[l] >> 32)};
        yes |= (w[0] & 1) << l;
        if (in.k[0] >= 0 && !(w[0] & 1)) x.find(in, l, "first CTA id is asked from a response that cancelled nothing");
        if (in.k[0] >= 0 && in.k[0] < 3) x.dst(in.v[0])[l] = w[1 + in.k[0]];
        if (in.k[0] == 3)
            for (size_t i = 0; i < in.v.size(); ++i) x.dst(in.v[i])[l] = i < 3 ? w[1 + i] : 0;
    });
    if (in.k[0] < 0) set_predicate(x, in.v[0], lanes, yes);
}

void nothing(X&, const Inst&, u32) {}

// k[0]: inc; k[1]: registers per thread. Contents of what moves are not modelled; who has how many is. An increase to
// less than a warp has, or a decrease to more, changes nothing: how many it starts with is an upper bound here.
void set_registers(X& x, const Inst& in, u32 lanes) {
    u32 wanted = u32(in.k[1]), &have = x.w.registers, &spare = x.cta.spare_registers;
    if (x.frag->token < 0) {  // once, however long it waits
        x.frag->token = 0;
        u32 set = x.cta.budgets.emplace(std::pair(x.w.index / 4, x.w.budget_changes++), wanted).first->second;
        if (set != wanted) x.find(in, first_lane(lanes), "another warp of the warpgroup asks for " + std::to_string(set) + " registers");
    }
    if (!x.g.registers || (in.k[0] ? wanted <= have : wanted >= have)) return;
    if (wanted > have && wanted - have > spare) return x.block("registers that other warps give back (setmaxnreg)");
    spare += have, spare -= wanted, have = wanted;
    ++x.cl.events, ++x.m.progress;
}
}  // namespace

void decode_clc(Dec& d) {
    if (d.opt("try_cancel")) {
        d.need({"async"});
        d.opt("shared::cta");
        d.need({"mbarrier::complete_tx::bytes"});
        d.in.k[2] = d.opt("multicast::cluster::all");
        d.opt("b128");
        d.in.s[1] = d.base(d.arg(0), d.in.k[0]), d.in.s[2] = d.base(d.arg(1), d.in.k[1]);
        d.in.fn = try_cancel;
        return;
    }
    d.need({"query_cancel"});
    if (d.opt("is_canceled")) {
        d.opt("pred"), d.opt("b128");
        d.in.k[0] = -1;
    } else {
        std::string which = d.one_of({"get_first_ctaid", "get_first_ctaid::x", "get_first_ctaid::y", "get_first_ctaid::z"});
        if (which.empty()) d.fail("has no query that is known");
        d.in.k[0] = which.back() == 'x' ? 0 : which.back() == 'y' ? 1 : which.back() == 'z' ? 2 : 3;
        d.vec(), d.opt("b32"), d.opt("b128");
    }
    d.in.v = d.dsts(d.arg(0));
    d.in.s[1] = d.src(1, Ty::b128);
    d.in.fn = query;
}

// Launches of one stream run one after another here, so the dependency is always met.
void decode_griddep(Dec& d) {
    d.need({"wait", "launch_dependents"});
    d.in.fn = nothing;
}

void decode_setmaxnreg(Dec& d) {
    d.in.k[0] = d.opt("inc");
    if (!d.in.k[0]) d.need({"dec"});
    d.need({"sync"}), d.need({"aligned"}), d.need({"u32"});
    i64 n = d.imm(0);
    if (n < 24 || n > 256 || n % 8) d.fail("register count " + std::to_string(n) + " must be a multiple of 8 from 24 to 256");
    d.in.k[1] = n;
    d.in.aligned = true;
    d.in.fn = set_registers;
}

}  // namespace ptxsim
