// Starts clusters in waves, runs warps in rounds, decides when asynchronous work moves, and tells stalls from progress.
#include <algorithm>

#include "core/machine.h"
#include "core/warp_run.h"
#include "core/windows.h"

namespace ptxsim {
namespace {

std::unique_ptr<Cta> make_cta(Grid& g, Cluster& cl, u32 rank) {
    auto c = std::make_unique<Cta>();
    const u32* cd = g.cluster_dim;
    u32 in[3] = {rank % cd[0], rank / cd[0] % cd[1], rank / (cd[0] * cd[1])};
    for (int i = 0; i < 3; ++i) c->id[i] = cl.id[i] * cd[i] + in[i];
    c->cluster = &cl, c->grid = &g, c->rank = rank;
    c->linear = (c->id[2] * g.dim[1] + c->id[1]) * g.dim[0] + c->id[0];
    u32 bytes = (g.program->dynamic_offset + g.dynamic_shared + 15) / 16 * 16;
    c->shared.assign(bytes, 0xff);
    if (g.check.on) {
        c->shadow = std::make_unique<SharedShadow>();
        c->shadow->cells.resize(bytes / 4);
        for (u32 i = 0; i < kSharedReserved / 4; ++i) c->shadow->cells[i].init = 15;
    }
    if (g.machine->profiles[g.device].tcgen05) c->tmem = std::make_unique<Tmem>();
    c->thread_count = g.block[0] * g.block[1] * g.block[2];
    u32 warps = (c->thread_count + 31) / 32;
    for (u32 i = 0; i < warps; ++i) {
        auto w = std::make_unique<Warp>();
        w->cta = c.get(), w->index = i, w->tid_base = i * 32;
        u32 n = std::min(32u, c->thread_count - i * 32);
        w->live = n == 32 ? 0xffffffffu : (1u << n) - 1;
        w->regs.resize(size_t(g.program->slots) * 32);
        w->pending.resize(g.program->slots), w->borrowed.resize(g.program->slots);
        w->local.resize(size_t(g.program->local_bytes) * 32);
        w->registers = g.registers;
        Fragment f;
        f.lanes = w->live;
        w->frags.push_back(f);
        w->agent = c->linear * kAgentsPerCta + i;
        w->copy_queue = std::make_shared<OpQueue>(), w->wgmma_queue = std::make_shared<OpQueue>();
        w->tensor_queue = std::make_shared<OpQueue>(), w->ldst_queue = std::make_shared<OpQueue>();
        w->copies.resize(32), w->bulk.resize(32);
        w->loads = std::make_shared<Pending>(), w->stores = std::make_shared<Pending>();
        c->warps.push_back(std::move(w));
    }
    c->live_warps = warps;
    return c;
}

bool start_cluster(Grid& g) {
    while (g.next_cluster < g.cluster_count &&
           std::find(g.cancelled.begin(), g.cancelled.end(), g.next_cluster) != g.cancelled.end())
        ++g.next_cluster;
    if (g.next_cluster >= g.cluster_count || g.resident.size() >= g.max_resident) return false;
    u64 n = g.next_cluster++;
    auto cl = std::make_unique<Cluster>();
    cl->grid = &g;
    u32 per[3];
    for (int i = 0; i < 3; ++i) per[i] = g.dim[i] / g.cluster_dim[i];
    cl->id[0] = u32(n % per[0]), cl->id[1] = u32(n / per[0] % per[1]), cl->id[2] = u32(n / (u64(per[0]) * per[1]));
    u32 size = g.cluster_dim[0] * g.cluster_dim[1] * g.cluster_dim[2];
    for (u32 r = 0; r < size; ++r) cl->ctas.push_back(make_cta(g, *cl, r));
    g.ctas_started += size;
    g.resident.push_back(std::move(cl));
    ++g.machine->progress;
    return true;
}

bool finished(const Cluster& cl) {
    for (auto& c : cl.ctas)
        for (auto& w : c->warps)
            if (w->live) return false;
    return true;
}

// What must not be left behind: transactions, tensor memory, asynchronous uses of shared memory nobody waited for.
void retire(Grid& g, Cluster& cl) {
    if (!g.check.on) return;
    Clocks known;
    for (auto& c : cl.ctas)
        for (auto& w : c->warps) known.join(w->know.all);
    for (auto& c : cl.ctas) {
        Who who;
        who.cta = c.get();
        for (auto& [off, info] : c->mbars) {
            if (!info.valid) continue;
            u64 raw = 0;
            std::memcpy(&raw, c->shared.data() + off, 8);
            i64 tx = i64(raw << 2) >> 42;
            if (tx) g.check.report(who, "CTA exits while mbarrier at offset " + std::to_string(off) + " still has " + std::to_string(tx) + " pending transaction bytes");
        }
        if (c->tmem)
            for (u32 k = 0; k < kTmemColumns; ++k)
                if (c->tmem->owner[k]) {
                    g.check.report(who, "CTA exits without freeing tensor memory (column " + std::to_string(k) + ")");
                    break;
                }
        if (c->next_slot == 0) continue;  // no asynchronous operation: leave the shadow's pages untouched
        for (auto& cell : c->shadow->cells) {
            const Epoch* e = nullptr;
            u32 inst = 0;
            auto asynchronous = [](Epoch x) { return x.clock && x.agent % kAgentsPerCta >= kWarpAgents; };
            if (asynchronous(cell.r) && !known.covers(cell.r)) e = &cell.r, inst = cell.r_inst;
            if (asynchronous(cell.w) && !known.covers(cell.w)) e = &cell.w, inst = cell.w_inst;
            if (e && (g.machine->config.strict || !g.program->code[inst].outlives_cta)) {
                g.check.report(who, "CTA exits although nothing waited for an asynchronous operation that uses its shared memory", &g.program->code[inst]);
                break;
            }
        }
    }
}

u64 run_round(Grid& g) {
    Machine& m = *g.machine;
    u64 ran = 0;
    std::vector<Warp*> order, sleepers;
    bool drift = m.config.drift && m.config.schedule == Schedule::random;
    for (auto& cl : g.resident)
        for (auto& c : cl->ctas)
            for (auto& w : c->warps)
                if (!w->frags.empty() && warp_can_run(*w)) {
                    if (drift && !w->asleep && m.random(128) == 0) w->asleep = u32(m.random(256));
                    if (w->asleep) --w->asleep;
                    (w->asleep ? sleepers : order).push_back(w.get());
                }
    if (order.empty()) order.swap(sleepers);  // everybody else waits for them
    if (m.config.schedule == Schedule::random) std::shuffle(order.begin(), order.end(), m.rng);
    for (Warp* w : order) {
        if (!warp_can_run(*w)) continue;
        ran += run_warp(*w, m.config.schedule == Schedule::random ? 1 + m.random(96) : 256);
        if (m.config.schedule == Schedule::random && m.random(4) == 0) m.engine.step_some(m, 1 + m.random(4));
    }
    return ran;
}

void retire_finished(Grid& g) {
    for (size_t i = 0; i < g.resident.size();) {
        Cluster& cl = *g.resident[i];
        if (finished(cl) && cl.async_open == 0) {
            retire(g, cl);
            g.resident.erase(g.resident.begin() + i);
            ++g.machine->progress;
        } else {
            ++i;
        }
    }
}

// Lets every waiting try_wait return false once, as its time limit allows. The handler sees the negative token.
bool time_out(Grid& g) {
    bool any = false;
    for (auto& cl : g.resident)
        for (auto& c : cl->ctas)
            for (auto& w : c->warps)
                for (auto& f : w->frags)
                    if (f.watch && f.token == 1 && f.why && std::string_view(f.why).starts_with("mbarrier")) {
                        f.token = 2, f.watch = nullptr;
                        any = true;
                    }
    return any;
}

void fail(Grid& g, const std::string& why) {
    if (g.error.empty()) g.error = why;
    g.machine->engine.drop_grid(&g);
    g.resident.clear();
}

u64 step_grid(Grid& g) {
    if (g.done()) return 0;
    try {
        while (start_cluster(g)) {}
        u64 ran = run_round(g);
        retire_finished(g);
        return ran;
    } catch (const SimError& e) {
        fail(g, e.what());
        ++g.machine->progress;
        return 0;
    }
}

void step_engine(Machine& m) {
    try {
        m.engine.step_one(m);
    } catch (const SimError& e) {
        for (auto& g : m.active) fail(*g, e.what());
    }
}

}  // namespace

std::string dump_waiters(const Grid& g) {
    std::string s;
    int shown = 0;
    for (auto& cl : g.resident)
        for (auto& c : cl->ctas)
            for (auto& w : c->warps)
                for (auto& f : w->frags) {
                    if (++shown > 24) continue;
                    char lanes[16];
                    std::snprintf(lanes, sizeof lanes, "%08x", f.lanes);
                    s += "\n  CTA (" + std::to_string(c->id[0]) + "," + std::to_string(c->id[1]) + "," + std::to_string(c->id[2]) + ") warp " +
                         std::to_string(w->index) + " lanes " + lanes + " waits for " + (f.why ? f.why : "nothing (spinning)") + ": " +
                         g.program->where(g.program->code[f.pc]);
                    if (f.why && std::string_view(f.why).starts_with("mbarrier") && c->grid) {
                        for (auto& [off, info] : c->mbars) {
                            if (!info.valid) continue;
                            u64 raw = 0;
                            std::memcpy(&raw, c->shared.data() + off, 8);
                            s += "\n      mbarrier +" + std::to_string(off) + ": phase " + std::to_string(raw >> 62 & 1) + " pending " +
                                 std::to_string(raw & 0xfffff) + " of " + std::to_string(raw >> 20 & 0xfffff) + " tx " + std::to_string(i64(raw << 2) >> 42);
                        }
                    }
                }
    if (shown > 24) s += "\n  ... and " + std::to_string(shown - 24) + " more";
    return s + g.machine->engine.dump(&g);
}

void run_machine(Machine& m) {
    u64 stalled = 0, rounds = 0, timeouts = 0;
    while (std::any_of(m.active.begin(), m.active.end(), [](auto& g) { return !g->done(); })) {
        u64 before = m.progress, ran = 0, warps = 0;
        for (auto& g : m.active) {
            ran += step_grid(*g);
            for (auto& cl : g->resident)
                for (auto& c : cl->ctas) warps += c->warps.size();
        }
        if (m.config.schedule == Schedule::random && !m.engine.idle() && m.random(2)) step_engine(m);
        if (m.progress != before) {
            stalled = rounds = timeouts = 0;
            continue;
        }
        stalled += ran, ++rounds;
        if (!m.engine.idle() && (ran == 0 || rounds >= 4)) {
            step_engine(m);
            continue;
        }
        if (ran == 0) {
            bool any = false;
            if (++timeouts < 16)
                for (auto& g : m.active) any |= time_out(*g);
            if (!any) return;  // deadlock: the caller reports it
        }
        if (stalled > m.config.stall_instructions + 1'000'000 * warps) return;
    }
}

// What the assembler gives each thread of a kernel that moves registers between warps: all that its bounds leave.
static u32 registers_at_launch(const Function& f) {
    constexpr u32 kPerSm = 65536, kMost = 256, kUnit = 8;
    if (f.max_regs) return std::min(u32(f.max_regs), kMost) / kUnit * kUnit;
    const int* bound = f.reqntid[0] ? f.reqntid : f.maxntid;
    u32 threads = u32(bound[0]) * u32(bound[1]) * u32(bound[2]) * u32(std::max(f.min_ctas, 1));
    return threads ? std::min(kPerSm / threads, kMost) / kUnit * kUnit : 0;
}

std::unique_ptr<Grid> make_grid(Machine& m, u32 device, std::shared_ptr<Program> p, const u32 dim[3], const u32 block[3],
                                const u32 cluster[3], u32 dynamic_shared) {
    auto g = std::make_unique<Grid>();
    const Profile& pr = m.profiles[device];
    g->machine = &m, g->device = device, g->program = p, g->dynamic_shared = dynamic_shared;
    for (int i = 0; i < 3; ++i) g->dim[i] = dim[i], g->block[i] = block[i], g->cluster_dim[i] = cluster[i];
    u32 size = cluster[0] * cluster[1] * cluster[2], threads = block[0] * block[1] * block[2];
    g->cluster_count = u64(dim[0]) * dim[1] * dim[2] / size;
    u32 smem = p->dynamic_offset + dynamic_shared;
    u32 per_sm = std::min({pr.ctas_per_sm, pr.threads_per_sm / std::max(threads, 1u), pr.shared_per_sm / std::max(smem, 1u)});
    u32 ctas = m.config.resident_ctas ? m.config.resident_ctas : pr.sms * std::max(per_sm, 1u);
    g->max_resident = std::max(1u, ctas / size);
    g->registers = registers_at_launch(*p->function);
    g->check.on = m.config.checker, g->check.grid = g.get();
    return g;
}

}  // namespace ptxsim
