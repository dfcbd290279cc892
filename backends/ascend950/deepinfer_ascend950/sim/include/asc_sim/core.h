// What the kernel-side headers ask of the simulator's runtime. Everything heavy lives in the runtime library, so that
// a kernel compiles in a few seconds.
//
// Execution model: each AI core runs three scalar programs (AIC, AIV0, AIV1) as fibers. Instructions are issued to
// in-order pipes; an instruction whose pipe is free runs at once, one behind a blocked wait is queued with its
// arguments. Nothing here depends on wall time, so a launch is deterministic.
#pragma once
#include <memory>

#include "qualifiers.h"

namespace asc_sim {

// A queued vector function: `run` executes it, `drop` frees it.
struct Closure {
    void (*run)(Closure*);
    void (*drop)(Closure*);
};

enum class Mem : uint8_t { UB, L1, L0A, L0B, L0C, BT, FB, L0A_MX, L0B_MX, SSBUF, COUNT };

// Base of a memory as the running core sees it (AIC sees the UB of AIV0: equal offsets mean equal places on both).
unsigned char* mem_base(Mem m);

[[noreturn]] void fail(const char* what, const char* detail, Loc loc);

// Checked access to UB from inside a vector function; returns the address to use.
// `slots` is how many load or store instructions the access counts as in the cost model (0 for the rest of one).
void ub_touch(const void* p, uint32_t bytes, uint32_t align, bool write, const char* what, Loc loc, double slots = 1);
void vf_mem_bar(int kind, Loc loc);

// True when the vector pipe is free and the function may run inline between vf_enter and vf_leave.
bool vf_inline(const char* name, Loc loc);
void vf_enter(const char* name, Loc loc);
void vf_leave();
void vf_push(Closure* c, const char* name, Loc loc);
void alu_op();  // counts one arithmetic instruction for the cost model
uint64_t& squeeze_bytes();        // AR of the running core
int64_t squeeze_status(Loc loc);  // the scalar unit's view of it: waits for the vector pipe
bool flush();   // whether the launch flushes subnormal results to zero

// Scalar access to global memory (checked against the spans of the launch, seen by the race checker).
void gm_touch(const void* p, uint32_t bytes, bool write, Loc loc);
void scalar_touch(const void* p, uint32_t bytes, bool write, Loc loc);  // UB, L1, SSBuf or GM by address

struct KernelEntry {
    const char* name;
    void (*run)(const void* args);
    uint32_t args_size;
    uint32_t aic, aiv;  // cores per block: 1/2 mixed, 1/0 cube only, 0/1 vector only
    const KernelEntry* next;
};

template <class F>
struct VfClosure final : Closure {
    F f;
    explicit VfClosure(F fn) : f(fn) {
        run = [](Closure* c) { static_cast<VfClosure*>(c)->f(); };
        drop = [](Closure* c) { delete static_cast<VfClosure*>(c); };
    }
};

// Issues `f` to the vector pipe as one vector function.
template <class F>
inline void issue_vf(F f, const char* name, Loc loc) {
    if (is_aic()) return;
    if (vf_inline(name, loc)) {
        vf_enter(name, loc);
        f();
        vf_leave();
    } else {
        vf_push(new VfClosure<F>(f), name, loc);
    }
}

}  // namespace asc_sim

namespace asc_sim {

bool on_chip(const void* p);  // in a memory of the running core

// What a vector function is given for a parameter of type P: a copy, except that a reference parameter (a plan of UB, in
// kernels that keep their addresses in a struct) stays the object the caller named. A constant that is no part of a memory
// may be a temporary, and is kept.
template <class P>
struct Held {
    P value;
    template <class A>
    explicit Held(A&& a) : value(static_cast<P>(a)) {}
    P get() const { return value; }
};
template <class P>
struct Held<P&> {
    P* at;
    template <class A>
    explicit Held(A&& a) : at(const_cast<P*>(&a)) {}
    P& get() const { return *at; }
};
template <class P>
struct Held<const P&> {
    std::shared_ptr<const P> kept;
    const P* at;
    template <class A>
    explicit Held(A&& a) : at(nullptr) {
        if constexpr (std::is_same_v<std::remove_cvref_t<A>, P>)
            if (on_chip(&a)) at = &a;
        if (!at) at = (kept = std::make_shared<const P>(a)).get();
    }
    const P& get() const { return *at; }
};
template <class...>
struct HeldAll {
    template <class F, class... G>
    void call(F f, G&... got) const { f(got.get()...); }
};
template <class P, class... R>
struct HeldAll<P, R...> {
    Held<P> first;
    HeldAll<R...> rest;
    template <class A, class... B>
    explicit HeldAll(A&& a, B&&... b) : first(a), rest(b...) {}
    template <class F, class... G>
    void call(F f, G&... got) const { rest.call(f, got..., first); }
};

template <auto Fn, class... P, class... A>
inline void vf_call(void (*)(P...), const char* name, Loc loc, A&&... args) {
    static_assert(sizeof...(P) == sizeof...(A), "a vector function is called with all of its arguments");
    issue_vf([held = HeldAll<P...>(args...)] { held.call(Fn); }, name, loc);
}

}  // namespace asc_sim

// Official call form of a vector function.
template <auto Fn, class... A>
inline void asc_vf_call(A&&... args) {
    asc_sim::vf_call<Fn>(Fn, "asc_vf_call", asc_sim::Loc(__builtin_FILE(), __builtin_LINE()), args...);
}
