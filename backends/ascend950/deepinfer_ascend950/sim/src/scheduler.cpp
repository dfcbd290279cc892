// Scheduling of blocks, fibers and pipes; deterministic for a given policy and seed.
//
// Blocks start depth first: a new one starts only when every started block is stuck or done, so independent blocks
// share one set of memories. A launch with nothing left to run is a deadlock, found exactly and at once.
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "runtime.h"

namespace asc_sim {

thread_local Exec g;
// Memories of AI cores in the state after reset, for later launches of this thread: making one costs megabytes of pages.
static thread_local std::vector<std::unique_ptr<Arena>> arena_pool;
constexpr size_t kPooled = 4;
void fiber_start(Core& c, Scheduler& s);
void fiber_free(Core& c);

std::vector<Span> merge_spans(std::vector<Span> in) {
    std::sort(in.begin(), in.end(), [](const Span& a, const Span& b) { return a.base < b.base; });
    std::vector<Span> out;
    for (const Span& s : in) {
        if (s.size == 0) continue;
        if (!out.empty() && s.base < out.back().base + out.back().size) {
            out.back().size = std::max(out.back().base + out.back().size, s.base + s.size) - out.back().base;
            out.back().writable |= s.writable;
        } else {
            out.push_back(s);
        }
    }
    return out;
}

Scheduler::Scheduler(std::vector<std::unique_ptr<Launch>> l, const Options& o)
    : launches(std::move(l)), options(o), random(o.seed) {
    for (auto& launch : launches) {
        for (uint32_t i = 0; i < launch->grid; ++i) {
            auto b = std::make_unique<Block>();
            b->launch = launch.get();
            b->index = static_cast<int>(i);
            b->global = static_cast<int>(blocks.size());
            launch->blocks.push_back(b.get());
            blocks.push_back(std::move(b));
        }
        for (const Span& s : launch->spans)
            if (s.writable) tracked.push_back(s);
    }
    tracked = merge_spans(std::move(tracked));
}

Scheduler::~Scheduler() {
    for (auto& a : free_arenas)
        if (arena_pool.size() < kPooled) arena_pool.push_back(std::move(a));
    for (auto& s : tracked) std::free(s.shadow);
    for (auto& b : blocks)
        for (auto& c : b->cores) {
            for (auto& p : c.pipes)
                for (auto& item : p.queue)
                    if (item.closure) item.closure->drop(item.closure);
            fiber_free(c);
        }
    g = Exec{};
}

bool Scheduler::start_block() {
    while (next_block < blocks.size()) {
        Block& b = *blocks[next_block];
        const auto& k = *b.launch->kernel;
        size_t running = 0;
        for (Block* a : active) running += a->launch == b.launch;
        if (running >= options.ai_cores * (k.aic ? 1 : 2)) {
            // this device is full; another device of the group may have room
            size_t other = next_block + 1;
            while (other < blocks.size() && (blocks[other]->active || blocks[other]->finished || blocks[other]->launch == b.launch)) ++other;
            if (other >= blocks.size()) return false;
            std::swap(blocks[next_block], blocks[other]);
            continue;
        }
        ++next_block;
        if (free_arenas.empty() && !arena_pool.empty()) {
            free_arenas.push_back(std::move(arena_pool.back()));
            arena_pool.pop_back();
        }
        if (free_arenas.empty()) {
            b.arena = std::make_unique<Arena>();
        } else {
            b.arena = std::move(free_arenas.back());
            free_arenas.pop_back();
        }
        b.arena->ub[0].usable = b.arena->ub[1].usable = options.ub_usable;
        b.active = true;
        active.push_back(&b);
        for (int i = 0; i < kCores; ++i) {
            Core& c = b.cores[i];
            c.block = &b;
            c.kind = i;
            if (i == 0 ? k.aic != 0 : static_cast<uint32_t>(i) <= k.aiv) fiber_start(c, *this);
            else c.fiber.state = Run::Done;
        }
        return true;
    }
    return false;
}

bool Scheduler::run_now(Core& c, int pipe) {
    if (!c.pipes[pipe].queue.empty()) return false;
    if (options.policy == 0 || pipe == 0) return true;
    if (options.policy == 1) return false;
    return random() & 1;
}

void Scheduler::push(Core& c, int pipe, Item item) { c.pipes[pipe].queue.push_back(std::move(item)); }

bool Scheduler::pump_pipe(Core& c, int p) {
    auto& q = c.pipes[p].queue;
    if (q.empty()) return false;
    const Exec saved = g;
    g = Exec{this, &c, p, q.front().name, q.front().loc};
    const bool done = exec(c, p, q.front());
    g = saved;
    if (done) q.pop_front();
    return done;
}

bool Scheduler::pump(Core& c) {
    bool any = false, again = true;
    while (again) {
        again = false;
        for (int p = 1; p < kPipes; ++p)
            while (pump_pipe(c, p)) again = any = true;
    }
    return any;
}

bool Scheduler::exec(Core& c, int pipe, Item& item) {
    Pipe& p = c.pipes[pipe];
    const int me = c.actor(pipe);
    auto begin = [&] {
        p.clock.join(item.issue);
        ++p.clock.t[me];
    };
    switch (item.kind) {
        case Kind::Op:
            if (item.ready && !item.ready()) return false;
            begin();
            if (item.closure) {
                vf_enter(item.name, item.loc);
                item.closure->run(item.closure);
                vf_leave();
                item.closure->drop(item.closure);
                item.closure = nullptr;
            } else {
                ++counters.ops[pipe];
                item.run();
                settle_cost(c, pipe);
            }
            return true;
        case Kind::SetFlag: {
            begin();
            Event& e = c.flag(item.a, item.b, item.c);
            if (e.set)
                stop("flag " + std::string(pipe_name(item.a)) + "->" + pipe_name(item.b) + " id " + std::to_string(item.c) +
                     " is set twice without a wait (first set at " + e.loc.file + ":" + std::to_string(e.loc.line) + ")");
            e.set = true;
            e.clock = p.clock;
            e.loc = item.loc;
            return true;
        }
        case Kind::WaitFlag: {
            Event& e = c.flag(item.a, item.b, item.c);
            if (!e.set) return false;
            p.clock.join(item.issue);
            p.clock.join(e.clock);
            e.set = false;
            return true;
        }
        case Kind::GetBuf:
            if (c.rls_done[item.a] < static_cast<uint32_t>(item.b)) return false;
            p.clock.join(item.issue);
            p.clock.join(c.buf_clock[item.a]);
            return true;
        case Kind::RlsBuf:
            begin();
            ++c.rls_done[item.a];
            c.buf_clock[item.a].join(p.clock);
            return true;
        case Kind::CrossSet:
            begin();
            deliver(c, item.a * 64 + item.b, p.clock, item.loc);
            return true;
        case Kind::CrossWait: {
            Counter& k = c.counters[item.b];
            if (k.pending.empty()) return false;
            p.clock.join(item.issue);
            p.clock.join(k.pending.front());
            k.pending.pop_front();
            return true;
        }
        case Kind::Barrier:
            begin();
            if (pipe == 2) c.mmad_addr = 0xFFFFFFFF;
            return true;
    }
    return true;
}

bool Scheduler::step_block(Block& b) {
    bool progress = false;
    for (Core& c : b.cores) {
        if (error) return true;
        const Run before = c.fiber.state;
        if (before == Run::Ready || before == Run::Spinning || (before == Run::Blocked && c.fiber.wake())) {
            resume(c);
            if (!(before == Run::Spinning && c.fiber.state == Run::Spinning)) progress = true;
        }
        if (options.policy == 0) progress |= pump(c);
    }
    if (options.policy == 2 && !error) {
        for (int n = static_cast<int>(random() % 8); n >= 0; --n) {
            Core& c = b.cores[random() % kCores];
            progress |= pump_pipe(c, 1 + static_cast<int>(random() % (kPipes - 1)));
        }
    }
    if (!progress && options.policy != 0 && !error)
        for (Core& c : b.cores)
            for (int p = 1; p < kPipes && !progress; ++p) progress = pump_pipe(c, p);
    return progress;
}

void Scheduler::retire(Block& b) {
    check_leftovers(b);
    double end = 0;
    for (Core& c : b.cores) {
        end = std::max(end, c.scalar.time);
        for (int p = 0; p < kPipes; ++p) {
            end = std::max(end, c.pipes[p].clock.time);
            counters.busy[c.actor(p)] += c.busy[p];
        }
    }
    core_cycles.resize(options.ai_cores);
    double& total = core_cycles[static_cast<size_t>(b.index) % core_cycles.size()];
    total += end;
    counters.cycles = std::max(counters.cycles, total);
    b.finished = true;
    b.active = false;
    b.arena->reset();
    free_arenas.push_back(std::move(b.arena));
    for (Core& c : b.cores) fiber_free(c);
}

void Scheduler::check_leftovers(Block& b) {
    for (Core& c : b.cores) {
        g = Exec{this, &c, 0, "end of kernel", Loc{"", 0}};
        for (int s = 0; s < kPipes && c.flags; ++s)
            for (int d = 0; d < kPipes; ++d)
                for (int i = 0; i < 8; ++i)
                    if (c.flag(s, d, i).set) {
                        g.loc = c.flag(s, d, i).loc;
                        const std::string what = "flag " + std::string(pipe_name(s)) + "->" + pipe_name(d) + " id " + std::to_string(i) +
                                                 " is still set when the kernel ends: a set_flag without its wait_flag";
                        if (options.strict) stop(what);
                        warnings.push_back(where(c, s, "end of kernel", g.loc) + ": " + what);
                    }
        for (int i = 0; i < 32; ++i) {
            if (c.open[i]) stop("buffer id " + std::to_string(i) + " was got but never released");
            if (!c.counters[i].pending.empty())
                warnings.push_back(std::string(b.launch->kernel->name) + ": " + c.name() + " of block " +
                                   std::to_string(b.index) + " ends with " + std::to_string(c.counters[i].pending.size()) +
                                   " unused credits of cross-core flag " + std::to_string(i));
        }
        g = Exec{};
    }
}

void Scheduler::run() {
    timespec t0;
    clock_gettime(CLOCK_MONOTONIC, &t0);
    size_t finished = 0;
    while (finished < blocks.size()) {
        bool progress = false;
        for (size_t i = 0; i < active.size(); ++i) {
            progress |= step_block(*active[i]);
            if (error) std::rethrow_exception(error);
        }
        for (size_t i = 0; i < active.size();) {
            Block& b = *active[i];
            bool done = true;
            for (Core& c : b.cores) {
                done &= c.fiber.state == Run::Done;
                for (auto& p : c.pipes) done &= p.queue.empty();
            }
            if (done) {
                retire(b);
                ++finished;
                active.erase(active.begin() + static_cast<ptrdiff_t>(i));
                progress = true;
            } else {
                ++i;
            }
        }
        if (progress) {
            clock_gettime(CLOCK_MONOTONIC, &t0);
            if (!active.empty() || finished == blocks.size()) continue;
        }
        if (start_block()) continue;
        if (finished == blocks.size()) break;
        bool spinning = false;
        for (Block* b : active)
            for (Core& c : b->cores) spinning |= c.fiber.state == Run::Spinning;
        if (!spinning) deadlock();
        sched_yield();  // what is polled for may come from a launch on another thread
        timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (static_cast<double>(now.tv_sec - t0.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec - t0.tv_nsec) > options.deadline_s) deadlock();
    }
}

}  // namespace asc_sim
