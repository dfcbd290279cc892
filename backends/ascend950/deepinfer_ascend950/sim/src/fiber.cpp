// Scalar programs as ucontext fibers: switching, blocking, and what happens when one throws.
#include <sys/mman.h>

#include <new>

#include "runtime.h"

namespace asc_sim {

namespace {
constexpr size_t kStack = 512 * 1024, kGuard = 4096;
thread_local std::vector<unsigned char*> stack_pool;

unsigned char* take_stack() {
    if (!stack_pool.empty()) {
        auto* s = stack_pool.back();
        stack_pool.pop_back();
        return s;
    }
    void* p = mmap(nullptr, kStack + kGuard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    mprotect(p, kGuard, PROT_NONE);  // a scalar program that overruns its stack faults instead of corrupting
    return static_cast<unsigned char*>(p);
}

void entry(unsigned hi, unsigned lo) {
    auto* c = reinterpret_cast<Core*>((static_cast<uintptr_t>(hi) << 32) | lo);
    Scheduler* s = g.sched;
    try {
        c->block->launch->kernel->run(c->block->launch->args.data());
    } catch (...) {
        if (!s->error) s->error = std::current_exception();
    }
    c->fiber.state = Run::Done;
    swapcontext(&c->fiber.ctx, &s->main);
}
}  // namespace

void fiber_start(Core& c, Scheduler& s) {
    Fiber& f = c.fiber;
    f.stack = take_stack();
    f.state = Run::Ready;
    getcontext(&f.ctx);
    f.ctx.uc_stack.ss_sp = f.stack + kGuard;
    f.ctx.uc_stack.ss_size = kStack;
    f.ctx.uc_link = &s.main;
    const auto a = reinterpret_cast<uintptr_t>(&c);
    makecontext(&f.ctx, reinterpret_cast<void (*)()>(entry), 2, static_cast<unsigned>(a >> 32), static_cast<unsigned>(a));
}

void fiber_free(Core& c) {
    if (c.fiber.stack) stack_pool.push_back(c.fiber.stack);
    c.fiber.stack = nullptr;
}

void Scheduler::resume(Core& c) {
    c.fiber.state = Run::Ready;
    c.fiber.wake = nullptr;
    g = Exec{this, &c, 0, "", Loc{"", 0}};
    swapcontext(&main, &c.fiber.ctx);
    g.core = nullptr;
}

void Scheduler::block_fiber(Core& c, const char* why, Loc loc, std::function<bool()> wake, int a, int b, int id) {
    if (wake()) return;
    Fiber& f = c.fiber;
    f.state = Run::Blocked;
    f.wake = std::move(wake);
    f.why = why;
    f.where = loc;
    f.why_a = a;
    f.why_b = b;
    f.why_id = id;
    const Exec saved = g;
    swapcontext(&f.ctx, &main);
    g = saved;
}

void Scheduler::spin(Core& c, Loc loc) {
    c.fiber.state = Run::Spinning;
    c.fiber.why = "polling";
    c.fiber.where = loc;
    const Exec saved = g;
    swapcontext(&c.fiber.ctx, &main);
    g = saved;
}

}  // namespace asc_sim
