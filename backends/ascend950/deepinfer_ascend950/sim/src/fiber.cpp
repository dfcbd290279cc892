// Scalar programs as ucontext fibers: switching, blocking, and what happens when one throws.
#include <sys/mman.h>

#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#include "runtime.h"

namespace asc_sim {

namespace {
constexpr size_t kStack = 512 * 1024, kGuard = 4096;
thread_local std::vector<unsigned char*> stack_pool;

// The address sanitizer knows one stack a thread and must be told of others; in other builds these are nothing.
#if defined(__SANITIZE_ADDRESS__)
struct Stack {
    const void* bottom = nullptr;
    size_t size = 0;
};
thread_local Stack scheduler_stack;
void* leave_for(const void* bottom, size_t size, bool for_good = false) {
    void* frames = nullptr;
    __sanitizer_start_switch_fiber(for_good ? nullptr : &frames, bottom, size);
    return frames;
}
void arrived(void* frames, bool on_fiber) {
    Stack from;
    __sanitizer_finish_switch_fiber(frames, &from.bottom, &from.size);
    if (on_fiber) scheduler_stack = from;
}
void* to_scheduler(bool for_good = false) { return leave_for(scheduler_stack.bottom, scheduler_stack.size, for_good); }
void clean(unsigned char* stack) { __asan_unpoison_memory_region(stack + kGuard, kStack); }  // a launch that stopped left frames
#else
void* leave_for(const void*, size_t) { return nullptr; }
void arrived(void*, bool) {}
void* to_scheduler(bool = false) { return nullptr; }
void clean(unsigned char*) {}
#endif

// From a fiber to the scheduler and, unless it has ended, back.
void yield(Fiber& f, Scheduler& s, bool for_good = false) {
    void* frames = to_scheduler(for_good);
    swapcontext(&f.ctx, &s.main);
    arrived(frames, true);
}

unsigned char* take_stack() {
    if (!stack_pool.empty()) {
        auto* s = stack_pool.back();
        stack_pool.pop_back();
        clean(s);
        return s;
    }
    void* p = mmap(nullptr, kStack + kGuard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    mprotect(p, kGuard, PROT_NONE);  // a scalar program that overruns its stack faults instead of corrupting
    return static_cast<unsigned char*>(p);
}

void entry(unsigned hi, unsigned lo) {
    arrived(nullptr, true);
    auto* c = reinterpret_cast<Core*>((static_cast<uintptr_t>(hi) << 32) | lo);
    Scheduler* s = g.sched;
    try {
        c->block->launch->kernel->run(c->block->launch->args.data());
    } catch (...) {
        if (!s->error) s->error = std::current_exception();
    }
    c->fiber.state = Run::Done;
    yield(c->fiber, *s, true);
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
    void* frames = leave_for(c.fiber.stack + kGuard, kStack);
    swapcontext(&main, &c.fiber.ctx);
    arrived(frames, false);
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
    yield(f, *this);
    g = saved;
}

void Scheduler::spin(Core& c, Loc loc) {
    c.fiber.state = Run::Spinning;
    c.fiber.why = "polling";
    c.fiber.where = loc;
    const Exec saved = g;
    yield(c.fiber, *this);
    g = saved;
}

}  // namespace asc_sim
