#include "core/warp_run.h"

#include <algorithm>

namespace ptxsim {
namespace {

bool can_run(const Fragment& f) { return !f.watch || *f.watch != f.seen; }

// Lowest pc first, so that lanes meet again after a branch; sometimes another one in random mode, so that lanes which wait
// for each other make progress, as independent thread scheduling guarantees.
int pick(Warp& w, Machine& m) {
    int best = -1, n = 0, after = -1;
    for (size_t i = 0; i < w.frags.size(); ++i)
        if (can_run(w.frags[i])) {
            ++n;
            if (best < 0 || w.frags[i].pc < w.frags[best].pc) best = (int)i;
            if (w.frags[i].pc > w.yielded && (after < 0 || w.frags[i].pc < w.frags[after].pc)) after = (int)i;
        }
    if (w.yielded != ~0u) {
        w.yielded = ~0u;
        if (after >= 0) return after;
    }
    if (n > 1 && m.config.schedule == Schedule::random && (m.config.drift || m.random(8) == 0)) {
        u64 k = m.random(n);
        for (size_t i = 0; i < w.frags.size(); ++i)
            if (can_run(w.frags[i]) && k-- == 0) return (int)i;
    }
    return best;
}

void merge(Warp& w) {
    for (size_t i = 0; i < w.frags.size(); ++i)
        for (size_t j = i + 1; j < w.frags.size();) {
            Fragment &a = w.frags[i], &b = w.frags[j];
            if (a.pc == b.pc && a.token < 0 && b.token < 0 && !a.parked && !b.parked && !(a.apart && b.apart)) {
                a.lanes |= b.lanes, a.apart = false;
                a.watch = nullptr, a.why = nullptr;
                w.frags.erase(w.frags.begin() + j);
            } else {
                ++j;
            }
        }
}

// Independent thread scheduling lets any lanes run ahead of the others until an instruction synchronises them. Lane 0 alone is
// tried most, because it is what kernels elect.
bool drift_apart(Warp& w, Fragment& f, Machine& m) {
    if (f.apart || f.token >= 0 || f.parked || !(f.lanes & (f.lanes - 1)) || m.random(6)) return false;
    u32 some = m.random(2) ? f.lanes & -f.lanes : f.lanes & u32(m.random(1ull << 32));
    if (!some || some == f.lanes) return false;
    Fragment other;
    other.pc = f.pc, other.lanes = some, other.apart = true;
    f.lanes &= ~some, f.apart = true;
    w.frags.push_back(other);
    return true;
}

void check_pending(X& x, const Inst& in, u32 lanes) {
    if (in.is_wgmma) return;  // chains of wgmma on one accumulator are ordered by the hardware
    auto owned = [&](i32 s) { return s >= 0 && s < (i32)x.w.pending.size() && x.w.pending[s]; };
    for (i32 s : in.reads)
        if (owned(s)) {
            // a copy between accumulators is the compiler's; ptxas merges the registers or waits
            if (in.is_copy && in.touches_wgmma && !in.writes.empty()) x.m.engine.drain(x.m, *x.w.wgmma_queue);
            else x.find(in, first_lane(lanes), "register is read while an asynchronous tcgen05.ld or wgmma still owns it");
        }
    for (i32 s : in.writes) {
        if (owned(s)) x.find(in, first_lane(lanes), "register is written while an asynchronous tcgen05.ld or wgmma still owns it");
        if (s >= 0 && s < (i32)x.w.borrowed.size() && x.w.borrowed[s]) x.find(in, first_lane(lanes), "register is written while an asynchronous wgmma or tcgen05.st still reads it");
    }
}

// Applies branches and exits to the fragment list. The current fragment continues at x.next with what is left.
void split(X& x, size_t index) {
    Warp& w = x.w;
    u32 left = w.frags[index].lanes & ~x.exited;
    std::vector<Fragment> born;
    for (auto& [target, lanes] : x.jumps) {
        left &= ~lanes;
        Fragment f;
        f.pc = target, f.lanes = lanes;
        born.push_back(f);
    }
    if (x.exited) {
        w.live &= ~x.exited;
        ++w.events, ++x.m.progress, ++x.cl.events;
        if (!w.live) barrier_exit(w);
    }
    if (left) w.frags[index].lanes = left, w.frags[index].pc = x.next;
    else w.frags.erase(w.frags.begin() + index);
    w.frags.insert(w.frags.end(), born.begin(), born.end());
    merge(w);
}

}  // namespace

void own_registers(Warp& w, Pending& p, const std::vector<i32>& written, const std::vector<i32>& read) {
    for (i32 s : written)
        if (s >= 0) ++w.pending[s], ++w.pending_total, p.owned.push_back(s);
    for (i32 s : read)
        if (s >= 0) ++w.borrowed[s], ++w.pending_total, p.borrowed.push_back(s);
}

void release_registers(Warp& w, Pending& p) {
    for (i32 s : p.owned) --w.pending[s], --w.pending_total;
    for (i32 s : p.borrowed) --w.borrowed[s], --w.pending_total;
    p.owned.clear(), p.borrowed.clear();
}

bool warp_can_run(const Warp& w) {
    return std::any_of(w.frags.begin(), w.frags.end(), can_run);
}

bool converge(X& x, u32 lanes, u32 needed) {
    needed &= x.w.live;
    if ((needed & ~lanes) == 0) return true;
    x.frag->apart = false;
    x.block("other lanes of the warp", &x.w.events);
    return false;
}

u64 run_warp(Warp& w, u64 budget) {
    Cta& cta = *w.cta;
    Grid& g = *cta.grid;
    Machine& m = *g.machine;
    const Inst* code = g.program->code.data();
    u64 ran = 0, threads = 0;
    while (ran < budget && !w.frags.empty()) {
        int i = pick(w, m);
        if (i < 0) break;
        X x{m, g, *cta.cluster, cta, w, &w.frags[i], 0, false, false, 0, {}, w.regs.data(), g.program->constants.data()};
        x.frag->watch = nullptr, x.frag->why = nullptr;
        if (m.config.drift && m.config.schedule == Schedule::random && drift_apart(w, *x.frag, m)) continue;
        bool alone = w.frags.size() == 1;
        bool leave = false, leave_by_split = false;
        while (ran < budget && !leave) {
            Fragment& f = *x.frag;
            const Inst& in = code[f.pc];
            u32 lanes = f.lanes;
            if (in.guard != kNoSlot) {
                u32 p = x.predicate(in.guard);
                lanes &= in.guard_neg ? ~p : p;
            }
            x.next = f.pc + 1;
            ++ran;
            if (lanes) {
                threads += (u32)__builtin_popcount(lanes);
                if (w.pending_total) check_pending(x, in, lanes);
                if (in.touches_wgmma && !in.is_wgmma) w.wgmma_fenced = false;
                if (!in.aligned || converge(x, lanes, w.live)) in.fn(x, in, lanes);
                if (x.blocked) {
                    if (w.frags.size() > 1) merge(w);  // the others may wait at this very instruction
                    break;
                }
                if (x.exited || !x.jumps.empty()) {
                    f.token = -1;
                    if (!x.exited && x.jumps.size() == 1 && x.jumps[0].second == f.lanes && alone) {
                        f.pc = x.jumps[0].first;
                        x.jumps.clear();
                        continue;
                    }
                    split(x, size_t(&f - w.frags.data()));
                    leave = leave_by_split = true;
                    break;
                }
            }
            f.token = -1;
            f.pc = x.next;
            if (x.yield) {
                leave = true;
                budget = ran;
            } else if (!alone) {
                for (auto& o : w.frags)
                    if (&o != &f && o.pc <= f.pc && (o.pc == f.pc || can_run(o)) && !(o.apart && f.apart)) leave = true;
                if (leave) {
                    merge(w);
                    leave_by_split = true;  // x.frag may be gone
                }
            }
        }
        if ((x.yield || ran >= budget) && !x.blocked && w.frags.size() > 1 && !leave_by_split) w.yielded = x.frag->pc;
    }
    w.executed += ran;
    m.stats.warp_instructions += ran, m.stats.thread_instructions += threads;
    return ran;
}

}  // namespace ptxsim
