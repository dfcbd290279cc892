// Flags, buffer ids, cross-core flags, barriers, vector-function boundaries and scalar memory access.
#include <cstring>

#include "asc_sim/scalar_ops.h"
#include "asc_sim/sync.h"
#include "runtime.h"




namespace asc_sim {

namespace {
constexpr int kFix = 6;
Core& core() {
    if (!g.core) throw SimError("a device call outside a kernel");
    return *g.core;
}
void pipe_legal(const Core& c, int p, const char* what, Loc loc) {
    const bool aic_only = p == 2 || p == 3 || p == kFix, aiv_only = p == 1 || p == 5;
    if ((c.kind == 0 && aiv_only) || (c.kind != 0 && aic_only))
        fail(what, (std::string(c.name()) + " has no pipe " + pipe_name(p)).c_str(), loc);
}
void enqueue(Core& c, int pipe, Item item) {
    item.issue = c.scalar;
    c.pipes[pipe].queue.push_back(std::move(item));
    if (g.sched->options.policy == 0) g.sched->pump_pipe(c, pipe);
}
Item sync_item(Kind kind, const char* name, Loc loc, int a, int b = 0, int d = 0) {
    Item i;
    i.kind = kind;
    i.name = name;
    i.loc = loc;
    i.a = a;
    i.b = b;
    i.c = d;
    return i;
}
int event_id(int id, const char* what, Loc loc) {
    if (id < 0 || id > 7) fail(what, ("event id " + std::to_string(id) + " must lie in [0, 7]").c_str(), loc);
    return id;
}
}  // namespace

bool is_aic() { return core().kind == 0; }
bool is_aiv() { return core().kind != 0; }
int64_t block_idx() { return core().block->index; }
int64_t block_num() { return core().block->launch->grid; }
int64_t subblock_id() { return core().kind == 2 ? 1 : 0; }
int64_t subblock_num() { return core().block->launch->kernel->aiv; }
unsigned char* mem_base(Mem m) { return core().block->arena->of(m, core().aiv()).base; }
bool on_chip(const void* p) {
    Arena& a = *core().block->arena;
    for (const Memory* m : {&a.ub[0], &a.ub[1], &a.l1, &a.l0a, &a.l0b, &a.l0c, &a.ssbuf})
        if (m->holds(p)) return true;
    return false;
}
uint64_t& squeeze_bytes() { return core().squeezed; }
int64_t squeeze_status(Loc loc) {
    sync_drain(PIPE_V, loc);
    return static_cast<int64_t>(core().squeezed);
}
void set_ctrl(uint64_t v) { core().reg.ctrl = v; }
uint64_t get_ctrl() { return core().reg.ctrl; }
void set_atomic(int op, int type) {
    core().reg.atomic_op = op;
    core().reg.atomic_type = type;
}
void reset_state(Loc) { core().reg = Registers{}; }
bool flush() { return g.sched && g.sched->options.ftz; }
void alu_op() {
    if (g.core) ++g.core->alu;
}
void trap(Loc loc) { fail("trap", "the kernel stopped itself", loc); }
int64_t cycle(Loc) { return static_cast<int64_t>(core().cycles += 50); }

void sync_set(int src, int dst, int id, Loc loc) {
    Core& c = core();
    const int s = pipe_index(src, "set_flag", loc), d = pipe_index(dst, "set_flag", loc);
    pipe_legal(c, s, "set_flag", loc);
    pipe_legal(c, d, "set_flag", loc);
    event_id(id, "set_flag", loc);
    if (s != 0) return enqueue(c, s, sync_item(Kind::SetFlag, "set_flag", loc, s, d, id));
    Event& e = c.flag(s, d, id);
    if (e.set) fail("set_flag", ("flag S->" + std::string(pipe_name(d)) + " id " + std::to_string(id) + " is set twice without a wait").c_str(), loc);
    ++c.scalar.t[c.actor(0)];
    e.set = true;
    e.clock = c.scalar;
    e.loc = loc;
}

void sync_wait(int src, int dst, int id, Loc loc) {
    Core& c = core();
    const int s = pipe_index(src, "wait_flag", loc), d = pipe_index(dst, "wait_flag", loc);
    pipe_legal(c, s, "wait_flag", loc);
    pipe_legal(c, d, "wait_flag", loc);
    event_id(id, "wait_flag", loc);
    if (d != 0) return enqueue(c, d, sync_item(Kind::WaitFlag, "wait_flag", loc, s, d, id));
    Event& e = c.flag(s, d, id);
    g.sched->block_fiber(c, "wait_flag", loc, [&e] { return e.set; }, s, d, id);
    c.scalar.join(e.clock);
    e.set = false;
}

void sync_drain(int pipe, Loc loc) {
    Core& c = core();
    const int p = pipe_index(pipe, "asc_sync", loc);
    Pipe& q = c.pipes[p];
    g.sched->block_fiber(c, "waiting for a pipe to finish", loc, [&q] { return q.queue.empty(); }, p, p);
    c.scalar.join(q.clock);
}

void sync_pipe(int pipe, Loc loc) {
    Core& c = core();
    if (pipe == PIPE_ALL) {
        for (int p = 1; p < kPipes; ++p) {
            Pipe& q = c.pipes[p];
            g.sched->block_fiber(c, "pipe_barrier(PIPE_ALL)", loc, [&q] { return q.queue.empty(); }, p, p);
        }
        for (int p = 1; p < kPipes; ++p) c.scalar.join(c.pipes[p].clock);
        c.mmad_addr = 0xFFFFFFFF;
        return;
    }
    const int p = pipe_index(pipe, "pipe_barrier", loc);
    if (p != 0) enqueue(c, p, sync_item(Kind::Barrier, "pipe_barrier", loc, p));
}

void buf_get(int pipe, int id, int mode, Loc loc) {
    Core& c = core();
    const int p = pipe_index(pipe, "get_buf", loc);
    pipe_legal(c, p, "get_buf", loc);
    if (id < 0 || id > 31) fail("get_buf", ("buffer id " + std::to_string(id) + " must lie in [0, 31]").c_str(), loc);
    if (c.open[id])
        fail("get_buf", ("buffer id " + std::to_string(id) + " is already held (by pipe " + pipe_name(c.open_pipe[id]) + "); gets of one id must not nest").c_str(), loc);
    c.open[id] = 1;
    c.open_pipe[id] = p;
    if (mode == ASC_LOCK_NON_BLOCK) return;
    const uint32_t ticket = c.rls_issued[id];
    if (p != 0) return enqueue(c, p, sync_item(Kind::GetBuf, "get_buf", loc, id, static_cast<int>(ticket)));
    g.sched->block_fiber(c, "get_buf", loc, [&c, id, ticket] { return c.rls_done[id] >= ticket; }, -1, -1, id);
    c.scalar.join(c.buf_clock[id]);
}

void buf_release(int pipe, int id, int, Loc loc) {
    Core& c = core();
    const int p = pipe_index(pipe, "rls_buf", loc);
    if (id < 0 || id > 31) fail("rls_buf", ("buffer id " + std::to_string(id) + " must lie in [0, 31]").c_str(), loc);
    if (!c.open[id]) fail("rls_buf", ("buffer id " + std::to_string(id) + " is released without a get").c_str(), loc);
    if (c.open_pipe[id] != p)
        fail("rls_buf", ("buffer id " + std::to_string(id) + " was got by pipe " + pipe_name(c.open_pipe[id]) + " and is released by " + pipe_name(p)).c_str(), loc);
    c.open[id] = 0;
    ++c.rls_issued[id];
    if (p != 0) return enqueue(c, p, sync_item(Kind::RlsBuf, "rls_buf", loc, id));
    ++c.scalar.t[c.actor(0)];
    ++c.rls_done[id];
    c.buf_clock[id].join(c.scalar);
}

Clock Scheduler::release(Core& c, int pipe, const Clock& clock) {
    const size_t actor = static_cast<size_t>(c.actor(pipe));
    auto& list = c.block->releases[actor];
    list.push_back(clock);
    auto r = clock.remote ? std::make_shared<Remote>(*clock.remote) : std::make_shared<Remote>();
    if (r->size() < blocks.size() * kActors) r->resize(blocks.size() * kActors);
    (*r)[static_cast<size_t>(c.block->global) * kActors + actor] = static_cast<uint32_t>(list.size());
    Clock out;
    out.remote = std::move(r);
    return out;
}

static void credit(Core& to, int id, const Clock& clock) {
    Counter& k = to.counters[id];
    if (k.pending.size() >= 15) stop("cross-core flag " + std::to_string(id) + " of " + to.name() + " would pass 15 pending credits");
    k.pending.push_back(clock);
}

// `id` carries mode * 64 + flag id. Group modes credit everybody once the last member has arrived.
void Scheduler::deliver(Core& c, int id, const Clock& clock, Loc) {
    const int mode = id / 64, flag = id % 64;
    Block& b = *c.block;
    auto complete = [](Rendezvous& r) {
        for (auto& q : r.arrived)
            if (q.empty()) return false;
        return !r.arrived.empty();
    };
    auto take = [](Rendezvous& r) {
        Clock joined;
        for (auto& q : r.arrived) {
            joined.join(q.front());
            q.pop_front();
        }
        return joined;
    };
    if (mode == 4) {
        if (c.kind == 0) credit(b.cores[flag >= 16 ? 2 : 1], flag % 16, clock);
        else credit(b.cores[0], flag + (c.kind == 2 ? 16 : 0), clock);
    } else if (mode == 2) {
        if (c.kind == 0) {
            for (uint32_t i = 0; i < b.launch->kernel->aiv; ++i) credit(b.cores[1 + i], flag, clock);
        } else {
            if (b.main[flag].arrived.empty()) b.main[flag].arrived.resize(b.launch->kernel->aiv);
            b.main[flag].arrived[static_cast<size_t>(c.aiv())].push_back(clock);
            if (complete(b.main[flag])) credit(b.cores[0], flag, take(b.main[flag]));
        }
    } else if (mode == 1) {
        if (b.sub[flag].arrived.empty()) b.sub[flag].arrived.resize(b.launch->kernel->aiv);
        b.sub[flag].arrived[static_cast<size_t>(c.aiv())].push_back(clock);
        if (complete(b.sub[flag])) {
            const Clock j = take(b.sub[flag]);
            for (uint32_t i = 0; i < b.launch->kernel->aiv; ++i) credit(b.cores[1 + i], flag, j);
        }
    } else {
        Launch& l = *b.launch;
        Rendezvous& r = c.kind == 0 ? l.inter_aic[flag] : l.inter_aiv[flag];
        const size_t member = c.kind == 0 ? static_cast<size_t>(b.index)
                                          : static_cast<size_t>(b.index) * l.kernel->aiv + static_cast<size_t>(c.aiv());
        Clock out = release(c, g.pipe, clock);
        if (r.arrived.empty()) r.arrived.resize(c.kind == 0 ? l.grid : static_cast<size_t>(l.grid) * l.kernel->aiv);
        r.arrived[member].push_back(out);
        if (complete(r)) {
            const Clock j = take(r);
            for (Block* o : l.blocks) {
                if (c.kind == 0) credit(o->cores[0], flag, j);
                else
                    for (uint32_t i = 0; i < l.kernel->aiv; ++i) credit(o->cores[1 + i], flag, j);
            }
        }
    }
}

void cross_set(int mode, int pipe, uint64_t id, Loc loc) {
    Core& c = core();
    const int p = pipe_index(pipe, "cross-core set", loc);
    pipe_legal(c, p, "cross-core set", loc);
    const uint64_t top = mode == 4 && c.kind == 0 ? 31 : 15;
    if (id > top) fail("cross-core set", ("flag id " + std::to_string(id) + " must lie in [0, " + std::to_string(top) + "]").c_str(), loc);
    if (mode == 1 && c.kind == 0) fail("cross-core set", "mode 1 is between the vector cores", loc);
    Item item = sync_item(Kind::CrossSet, "cross-core set", loc, mode, static_cast<int>(id));
    if (p != 0) return enqueue(c, p, std::move(item));
    ++c.scalar.t[c.actor(0)];
    g.name = "cross-core set";
    g.loc = loc;
    g.sched->deliver(c, mode * 64 + static_cast<int>(id), c.scalar, loc);
}

void cross_wait(int mode, int pipe, uint64_t id, Loc loc) {
    Core& c = core();
    const int p = pipe_index(pipe, "cross-core wait", loc);
    pipe_legal(c, p, "cross-core wait", loc);
    const uint64_t top = mode == 4 && c.kind == 0 ? 31 : 15;
    if (id > top) fail("cross-core wait", ("flag id " + std::to_string(id) + " must lie in [0, " + std::to_string(top) + "]").c_str(), loc);
    if (p != 0) return enqueue(c, p, sync_item(Kind::CrossWait, "cross-core wait", loc, mode, static_cast<int>(id)));
    Counter& k = c.counters[id];
    g.sched->block_fiber(c, "cross-core wait", loc, [&k] { return !k.pending.empty(); }, -1, -1, static_cast<int>(id));
    c.scalar.join(k.pending.front());
    k.pending.pop_front();
}

// Orders this core's memory traffic before what the scalar program does next.
void data_barrier(Loc loc) {
    Core& c = core();
    for (int p : {4, 5, 6}) {
        Pipe& q = c.pipes[p];
        g.sched->block_fiber(c, "data barrier", loc, [&q] { return q.queue.empty(); }, p, p);
        c.scalar.join(q.clock);
    }
}

void cache_invalidate(Loc loc) {
    Core& c = core();
    c.cycles += 2000;
    g.sched->spin(c, loc);
}

bool vf_inline(const char*, Loc) { return g.sched->run_now(core(), 1); }

void vf_enter(const char* name, Loc loc) {
    Core& c = core();
    Pipe& p = c.pipes[1];
    if (g.pipe == 0) {  // inline; from the queue the clock has been advanced already
        p.clock.join(c.scalar);
        ++p.clock.t[c.actor(1)];
    }
    g.pipe = 1;
    g.name = name;
    g.loc = loc;
    c.in_vf = true;
    c.alu = c.loads = c.stores = 0;
    ++c.vf_epoch;
    ++g.sched->counters.vf;
    ++g.sched->counters.ops[1];
}
void vf_leave() {
    Core& c = *g.core;
    c.in_vf = false;
    g.sched->spent = cost::vector_cycles(c.alu, c.loads, c.stores);
    settle_cost(c, 1);
    g.pipe = 0;
}
void vf_push(Closure* closure, const char* name, Loc loc) {
    Item item;
    item.issue = core().scalar;
    item.loc = loc;
    item.name = name;
    item.closure = closure;
    core().pipes[1].queue.push_back(std::move(item));
}
void vf_mem_bar(int kind, Loc) {
    if (kind == VST_VLD || kind == VV_ALL) ++core().vf_epoch;
}

void ub_touch(const void* p, uint32_t bytes, uint32_t align, bool write, const char* what, Loc loc, double slots) {
    Core& c = core();
    (write ? c.stores : c.loads) += slots;
    if (!c.in_vf) {  // a vector function called directly: wait for the pipe, then run as part of it
        Pipe& q = c.pipes[1];
        g.sched->block_fiber(c, "a directly called vector function waits for the vector pipe", loc, [&q] { return q.queue.empty(); }, 1, 1);
        q.clock.join(c.scalar);
        ++q.clock.t[c.actor(1)];
    }
    const Exec saved = g;
    g.pipe = 1;
    g.name = what;
    g.loc = loc;
    if (c.kind == 0) stop("the cube core has no vector unit");
    Memory& m = c.block->arena->ub[c.aiv()];
    local(m, p, bytes, align, write);
    if (bytes) vf_store_track(m, m.offset(p), bytes, write);
    g = saved;
}

void gm_touch(const void* p, uint32_t bytes, bool write, Loc loc) {
    Core& c = core();
    const Exec saved = g;
    g.pipe = 0;
    g.name = write ? "scalar store to global memory" : "scalar load from global memory";
    g.loc = loc;
    ++c.scalar.t[c.actor(0)];
    const auto it = g.sched->sync_words.find(reinterpret_cast<uintptr_t>(p));
    if (it != g.sched->sync_words.end() && !write) {
        c.scalar.join(it->second);
    } else {
        gm(p, bytes, write);
    }
    g = saved;
}

void scalar_touch(const void* p, uint32_t bytes, bool write, Loc loc) {
    Core& c = core();
    Arena& a = *c.block->arena;
    for (Memory* m : {&a.ub[c.aiv()], &a.l1, &a.ssbuf}) {
        if (!m->holds(p)) continue;
        const Exec saved = g;
        g.pipe = 0;
        g.name = write ? "scalar store" : "scalar load";
        g.loc = loc;
        ++c.scalar.t[c.actor(0)];
        local(*m, p, bytes, bytes > 8 ? 8 : bytes, write);
        if (!write) require_init(*m, m->offset(p), bytes, "scalar load");
        g = saved;
        return;
    }
    gm_touch(p, bytes, write, loc);
}

void gm_atomic(void* p, uint32_t bytes, const char* what, Loc loc) {
    Core& c = core();
    const Exec saved = g;
    g.pipe = 0;
    g.name = what;
    g.loc = loc;
    ++c.scalar.t[c.actor(0)];
    if (reinterpret_cast<uintptr_t>(p) % bytes) stop("the address must be a multiple of the element's size");
    gm(p, bytes, true, true);
    Clock& word = g.sched->sync_words[reinterpret_cast<uintptr_t>(p)];
    c.scalar.join(word);
    word.join(g.sched->release(c, 0, c.scalar));
    g = saved;
}

void gm_store_release(void* p, const void* value, uint32_t bytes, Loc loc) {
    Core& c = core();
    const Exec saved = g;
    g.pipe = 0;
    g.name = "asc_store_dev";
    g.loc = loc;
    ++c.scalar.t[c.actor(0)];
    const bool race = g.sched->options.race;
    g.sched->options.race = false;  // a synchronisation word: ordered by its value, not by flags
    try {
        gm(p, bytes, true);
    } catch (...) {
        g.sched->options.race = race;
        throw;
    }
    g.sched->options.race = race;
    Clock& word = g.sched->sync_words[reinterpret_cast<uintptr_t>(p)];
    word.join(g.sched->release(c, 0, c.scalar));
    if (bytes == 4) __atomic_store_n(static_cast<uint32_t*>(p), *static_cast<const uint32_t*>(value), __ATOMIC_RELEASE);
    else if (bytes == 8) __atomic_store_n(static_cast<uint64_t*>(p), *static_cast<const uint64_t*>(value), __ATOMIC_RELEASE);
    else std::memcpy(p, value, bytes);
    g = saved;
}

}  // namespace asc_sim
