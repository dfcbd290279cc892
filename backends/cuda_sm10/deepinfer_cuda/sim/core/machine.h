// State of the simulated devices: machine > device > grid > cluster > CTA > warp > fragment.
//
// Ownership: the machine owns devices and active grids, each level owns the next. One thread at a time runs the machine
// (driver entry points hold its lock), so nothing here is atomic.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "async/engine.h"
#include "check/checker.h"
#include "check/clock.h"
#include "core/lazy_array.h"
#include "core/memory.h"
#include "isa/inst.h"
#include "tensor/tmem.h"

namespace ptxsim {

struct Warp;
struct Cta;
struct Cluster;
struct Grid;
struct Machine;

enum class Schedule : u8 { eager, lazy, random };

struct Config {
    u64 seed = 0;
    Schedule schedule = Schedule::eager;
    bool checker = true;
    bool findings_fail = true;     // a launch with findings reports DI_LAUNCH_FAILED
    bool spurious_waits = false;   // try_wait may time out, elect picks any lane
    bool drift = false;            // random schedule: lanes drift apart and warps fall behind wherever nothing keeps them together
    bool strict = false;           // rules that known-good kernels break and hardware forgives are kept to the letter
    u64 stall_instructions = 20'000'000;  // without progress, before a livelock is reported
    u32 max_findings = 64;
    u32 resident_ctas = 0;         // 0: as the occupancy rules of the profile give
};

struct Profile {
    const char* name;
    const char* arch;
    int major, minor;
    u32 sms;
    u32 clock_khz;
    u64 memory_bytes, l2_bytes, bandwidth;
    u32 shared_per_sm, shared_per_block, threads_per_sm, ctas_per_sm;
    bool wgmma, tcgen05;
};

struct Statistics {
    u64 launches = 0, warp_instructions = 0, thread_instructions = 0, async_steps = 0, mma_macs = 0;
    double seconds = 0;
};

// Lanes of one warp that share a program counter.
struct Fragment {
    u32 pc = 0, lanes = 0;
    const u64* watch = nullptr;  // blocked until *watch differs from seen
    u64 seen = 0;
    i64 token = -1;              // memory of a waiting instruction, -1 when fresh
    const char* why = nullptr;   // for deadlock dumps
    bool parked = false, released = false;  // bar.warp.sync
    bool apart = false;          // split off by drift: does not merge before the lanes are synchronised
};

struct Warp {
    Cta* cta = nullptr;
    u32 index = 0;                // in its CTA
    u32 live = 0;                 // lanes that have not exited
    LazyArray<u64> regs;
    std::vector<u8> local;
    std::vector<Fragment> frags;
    u32 asleep = 0;               // drift: rounds that this warp still stays behind
    u32 yielded = ~0u;            // pc of a fragment that polled in vain: the next higher one goes first
    LazyArray<u16> pending;       // per slot: asynchronous operations that will write the register
    LazyArray<u16> borrowed;      // per slot: asynchronous operations that still read it
    u32 pending_total = 0;
    u64 tid_base = 0;             // linear thread index of lane 0
    // asynchronous bookkeeping (async/engine.h)
    std::shared_ptr<OpQueue> copy_queue, wgmma_queue, tensor_queue, ldst_queue;
    std::vector<std::shared_ptr<CopyGroups>> copies;   // cp.async, [lane]
    std::vector<std::shared_ptr<BulkGroups>> bulk;     // cp.async.bulk, [lane]
    std::deque<std::shared_ptr<Pending>> wgmma_groups;
    std::shared_ptr<Pending> wgmma_open;
    bool wgmma_fenced = false;
    u64 wgmma_issued = 0;         // ordinal of the next one, which pairs the four warps' parts
    std::shared_ptr<Pending> loads, stores;            // tcgen05.ld / st not waited for
    Clocks pipeline;              // tcgen05 operations issued by this warp so far
    Clocks fenced;                // strict: what was known at the last tcgen05.fence::after_thread_sync
    // checker
    u32 agent = 0, clock = 1;
    Knowledge know;
    Message fence_release;        // set by fence, published by later relaxed writes
    Message fence_acquire;        // collected by relaxed reads, applied by a later fence
    u64 cluster_phase = ~0ull;    // generation these lanes arrived in
    u32 cluster_lanes = 0;
    u64 executed = 0;
    u32 registers = 0;            // per thread; setmaxnreg moves them between the warps of a CTA
    u32 budget_changes = 0;       // setmaxnreg instructions so far
    u64 events = 1;               // a lane exited or a parked fragment was released
};

struct NamedBarrier {
    u32 expected = 0, arrived = 0;
    u64 generation = 0;
    u32 popc = 0;
    bool whole_cta = false;       // no thread count given: exited warps do not take part
    bool all = true, any = false, last_all = false, last_any = false;
    u32 last_popc = 0;
    Message in, out;
};

// One wgmma of a warpgroup: complete, for all four warps, when each warp's part is.
struct Collective {
    std::vector<std::shared_ptr<Pending>> groups;  // of the warps that have issued it
    std::vector<Epoch> parts;                      // done so far
};

struct Cta {
    Cluster* cluster = nullptr;
    Grid* grid = nullptr;
    u32 rank = 0;                 // in the cluster
    u32 id[3] = {0, 0, 0};
    u32 linear = 0;               // in the grid
    std::vector<u8> shared;
    std::vector<std::unique_ptr<Warp>> warps;
    NamedBarrier barriers[16];
    std::unordered_map<u64, std::shared_ptr<Collective>> wgmmas;  // not yet issued by all four warps, by warpgroup and ordinal
    std::unordered_map<u32, MbarInfo> mbars;  // by offset
    std::unique_ptr<Tmem> tmem;
    std::unique_ptr<SharedShadow> shadow;
    u32 live_warps = 0;
    u32 next_slot = 0;            // asynchronous agents, round robin
    std::array<u32, kAgentsPerCta> slot_clock{};
    u32 thread_count = 0;
    u32 spare_registers = 0;      // what warps gave back, per thread, summed over warps
    std::map<std::pair<u32, u32>, u32> budgets;  // what a warpgroup's n-th setmaxnreg sets
};

struct Cluster {
    Grid* grid = nullptr;
    u32 id[3] = {0, 0, 0};
    std::vector<std::unique_ptr<Cta>> ctas;
    u64 events = 1;               // any completion that could unblock a warp of this cluster
    u64 generation = 0;           // of the cluster barrier
    Message in, out;
    u32 async_open = 0;           // operations that still use this cluster's memory
    Cta& cta(u32 r) { return *ctas[r]; }
};

struct Grid {
    Machine* machine = nullptr;
    u32 device = 0;
    std::shared_ptr<Program> program;
    u32 dim[3] = {1, 1, 1}, block[3] = {1, 1, 1}, cluster_dim[3] = {1, 1, 1};
    u32 dynamic_shared = 0;
    u32 registers = 0;            // per thread at the launch; 0: unknown, the kernel has no bounds
    std::vector<u8> params;
    SpanList spans;               // what the launch may touch
    bool strict_spans = false;
    u64 next_cluster = 0, cluster_count = 0;
    std::vector<u64> cancelled;   // clusters taken by clusterlaunchcontrol
    std::vector<std::unique_ptr<Cluster>> resident;
    u32 max_resident = 1;
    u64 ctas_started = 0;
    Checker check;
    std::string error;            // first fault
    bool done() const { return !error.empty() || (resident.empty() && next_cluster >= cluster_count); }
};

struct Machine {
    Config config;
    std::mt19937_64 rng;
    std::vector<Profile> profiles;  // by device index
    SpanList allocations, module_memory, multicast_spans;
    std::vector<std::unique_ptr<Grid>> active;
    Engine engine;
    Statistics stats;
    u64 progress = 0;             // counts changes of state; a round without any is a stall
    std::string print_out;        // what kernels printed
    std::vector<std::string> findings;
    struct Multicast {
        std::vector<u64> replicas;
        u64 bytes;
    };
    std::map<u64, Multicast> multicast;  // multimem objects by base address

    u64 random(u64 n) { return n ? rng() % n : 0; }
};

// Execution context of one fragment while the scheduler runs it.
struct X {
    Machine& m;
    Grid& g;
    Cluster& cl;
    Cta& cta;
    Warp& w;
    Fragment* frag;
    u32 next = 0;                 // pc after this instruction
    bool blocked = false, yield = false;
    u32 exited = 0;               // lanes that end here
    std::vector<std::pair<u32, u32>> jumps;  // (target, lanes) that leave the straight line

    u64* regs;
    const u64* constants;
    const u64* src(i32 s) const { return s >= 0 ? regs + (size_t)s * 32 : constants + (size_t)(~s) * 32; }
    u64* dst(i32 s) const { return regs + (size_t)s * 32; }
    u32 predicate(i32 s) const { return (u32)*src(s); }

    // Stops the fragment; the instruction runs again when the watched counter moves.
    void block(const char* why, const u64* watch) {
        blocked = true, frag->why = why, frag->watch = watch, frag->seen = *watch;
    }
    void block(const char* why) { block(why, &cl.events); }
    [[noreturn]] void fault(const Inst& in, int lane, const std::string& what);
    std::string position(const Inst& in, int lane) const;
    void find(const Inst& in, int lane, const std::string& what);  // checker finding
};

template <class F>
inline void each(u32 lanes, F&& f) {
    if (lanes == 0xffffffffu) {
        for (int l = 0; l < 32; ++l) f(l);
    } else {
        for (u32 m = lanes; m; m &= m - 1) f(__builtin_ctz(m));
    }
}
inline int first_lane(u32 lanes) { return __builtin_ctz(lanes); }

void own_registers(Warp& w, Pending& p, const std::vector<i32>& written, const std::vector<i32>& read);
void release_registers(Warp& w, Pending& p);
void barrier_exit(Warp& w);         // exec/barrier.cpp: the last lane of a warp has exited

// scheduler.cpp
void run_machine(Machine& m);       // until nothing is active or nothing can move
std::unique_ptr<Grid> make_grid(Machine& m, u32 device, std::shared_ptr<Program> p, const u32 dim[3], const u32 block[3],
                                const u32 cluster[3], u32 dynamic_shared);
std::string dump_waiters(const Grid& g);

}  // namespace ptxsim
