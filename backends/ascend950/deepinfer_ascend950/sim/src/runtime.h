// The simulator's runtime: cores, pipes, blocks and the scheduler of one launch (or of a group of launches on several
// devices that run together).
//
// One OS thread runs everything; scalar programs are fibers. State that belongs to "the instruction being executed"
// (for checks and messages) is in Exec.
#pragma once
#include <ucontext.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "asc_sim/core.h"
#include "cost.h"
#include "memory.h"

namespace asc_sim {

// What stops a launch; the text is complete (kernel, core, pipe, place).
struct SimError : std::runtime_error {
    bool timeout = false;
    using std::runtime_error::runtime_error;
};

int pipe_index(int pipe, const char* what, Loc loc);  // pipe_t -> 0..6
const char* pipe_name(int index);

// A queue that owns no memory while it has never held anything: a launch makes thousands of them.
template <class T>
class Fifo {
public:
    bool empty() const { return head_ == items_.size(); }
    size_t size() const { return items_.size() - head_; }
    T& front() { return items_[head_]; }
    const T& front() const { return items_[head_]; }
    void push_back(T item) { items_.push_back(std::move(item)); }
    void pop_front() {
        items_[head_++] = T();
        if (head_ == items_.size()) {
            items_.clear();
            head_ = 0;
        } else if (head_ >= 256 && head_ * 2 > items_.size()) {
            items_.erase(items_.begin(), items_.begin() + static_cast<ptrdiff_t>(head_));
            head_ = 0;
        }
    }
    auto begin() { return items_.begin() + static_cast<ptrdiff_t>(head_); }
    auto end() { return items_.end(); }

private:
    std::vector<T> items_;
    size_t head_ = 0;
};

struct Event {
    bool set = false;
    Clock clock;
    Loc loc{"", 0};
};
struct Counter {
    Fifo<Clock> pending;  // one clock per credit; at most 15
};

enum class Kind : uint8_t { Op, SetFlag, WaitFlag, GetBuf, RlsBuf, CrossSet, CrossWait, Barrier };

struct Item {
    Kind kind = Kind::Op;
    Clock issue;
    Loc loc{"", 0};
    const char* name = "";
    std::function<void()> run;
    std::function<bool()> ready;  // Op only; empty = always
    Closure* closure = nullptr;   // a vector function
    int a = 0, b = 0, c = 0;      // flag: src, dst, id; buffer: id, ticket; cross: mode, id
};

struct Pipe {
    Clock clock;
    Fifo<Item> queue;
};

struct Core;
struct Block;
struct Launch;

enum class Run : uint8_t { Ready, Blocked, Spinning, Done };

struct Fiber {
    ucontext_t ctx;
    unsigned char* stack = nullptr;
    Run state = Run::Ready;
    std::function<bool()> wake;  // Blocked: may go on when true
    const char* why = "";
    Loc where{"", 0};
    int why_a = -1, why_b = -1, why_id = -1;
};

// State registers: latched by the instruction that uses them, at issue.
struct Registers {
    uint64_t ctrl = 0;  // bit 48: 1 = cube results and FixPipe casts keep inf and nan, 0 = saturate (documented default)
    uint64_t nz_para = 0;
    bool nz_para_set = false;
    uint32_t ub_loop1 = 1, ub_loop2 = 1, gm_loop1 = 1, gm_loop2 = 1, l1_loop1 = 1, l1_loop2 = 1;
    uint64_t gm2ub_s1[2] = {}, gm2ub_s2[2] = {}, ub2gm_s1[2] = {}, ub2gm_s2[2] = {}, gm2l1_s1[2] = {}, gm2l1_s2[2] = {};
    uint64_t pad_value = 0;
    uint32_t l0c_num = 1, l0c_src_stride = 0, l0c_dst_stride = 0;
    bool l0c_nz_set = false;
    uint32_t l0c_channel = 0;
    uint64_t quant_word = 0;
    bool quant_set = false;
    uint64_t quant_addr = 0;
    bool quant_addr_set = false;
    int atomic_op = 0, atomic_type = 0;  // op: 0 none 1 add 2 max 3 min; type: AtomicType
    bool direction_n = false, hf32 = true, hf32_even = false;
};

struct Core {
    Block* block = nullptr;
    int kind = 0;  // 0 AIC, 1 AIV0, 2 AIV1
    Pipe pipes[kPipes];
    Clock scalar;
    Fiber fiber;
    Registers reg;
    std::unique_ptr<Event[]> flags;  // kPipes x kPipes x 8, made when the first one is used
    uint32_t rls_issued[32] = {}, rls_done[32] = {}, open[32] = {};
    int open_pipe[32] = {};
    Clock buf_clock[32];
    Counter counters[32];
    uint32_t vf_epoch = 0;
    bool in_vf = false, implicit_vf = false;
    double alu = 0, loads = 0, stores = 0;  // of the vector function that runs
    double busy[kPipes] = {};               // modelled cycles
    uint64_t cycles = 0;
    uint32_t mmad_addr = 0xFFFFFFFF;
    uint64_t squeezed = 0;  // AR: bytes that squeezing stores have written
    Event& flag(int src, int dst, int id) {
        if (!flags) flags = std::make_unique<Event[]>(kPipes * kPipes * 8);
        return flags[static_cast<size_t>((src * kPipes + dst) * 8 + id)];
    }
    int aiv() const { return kind == 2 ? 1 : 0; }
    int actor(int pipe) const { return kind * kPipes + pipe; }
    const char* name() const { return kind == 0 ? "AIC" : kind == 1 ? "AIV0" : "AIV1"; }
};

// Members of a group arrive one by one; when all have, everybody gets one credit.
struct Rendezvous {
    std::vector<Fifo<Clock>> arrived;  // sized by the first arrival
};

struct Block {
    Launch* launch = nullptr;
    int index = 0;       // block idx of its launch
    int global = 0;      // number among all blocks of the group
    std::unique_ptr<Arena> arena;
    Core cores[kCores];
    Rendezvous sub[32], main[32];  // mode 1 and mode 2 (AIV side)
    std::vector<Clock> releases[kActors];  // what each actor has published to other blocks, in order
    bool active = false, finished = false;
};

struct Span {
    uintptr_t base = 0, size = 0;
    bool writable = false;
    Record* shadow = nullptr;  // calloc'ed on first use, one per 32 bytes; only in Scheduler::tracked
};

std::vector<Span> merge_spans(std::vector<Span> in);  // sorted and disjoint

struct Options {
    int policy = 0;           // 0 eager, 1 lazy, 2 random
    uint64_t seed = 1;
    bool race = true;
    bool ftz = false;
    bool check_uninit = true;
    // Stops at what hardware forgives: a flag that is left set (else a warning), and operands of the cube and the FixPipe
    // with unwritten bytes (else their results count as unwritten).
    bool strict = false;
    double deadline_s = 60;   // wall time without progress while polling
    uint32_t ai_cores = 32;
    uint32_t ub_usable = 253952;
};

struct Launch {
    const KernelEntry* kernel = nullptr;
    std::vector<unsigned char> args;
    uint32_t grid = 1;
    uint32_t device = 0;
    std::vector<Span> spans;  // sorted, disjoint
    Rendezvous inter_aic[32], inter_aiv[32];
    std::vector<Block*> blocks;
};

struct Counters {
    uint64_t ops[kPipes] = {}, bytes[kPipes] = {}, macs = 0, vf = 0, races = 0;
    double cycles = 0, busy[kActors] = {};  // modelled: of the longest AI core; per (core, pipe), summed over blocks
};

class Scheduler {
public:
    Scheduler(std::vector<std::unique_ptr<Launch>> launches, const Options& options);
    ~Scheduler();
    void run();

    std::vector<std::unique_ptr<Launch>> launches;
    std::vector<std::unique_ptr<Block>> blocks;
    std::vector<std::unique_ptr<Arena>> free_arenas;
    Options options;
    Counters counters;
    double spent = 0;  // modelled cycles of the instruction being executed
    std::vector<double> core_cycles;  // per AI core of a device
    std::map<uintptr_t, Clock> sync_words;  // words written by asc_store_dev: a reader is ordered after the writer
    std::vector<Span> tracked;  // union of the writable spans of all launches: two ranks may map the same memory
    std::vector<std::string> warnings;
    std::vector<Block*> active;
    size_t next_block = 0;
    std::mt19937_64 random;
    ucontext_t main;
    std::exception_ptr error;
    std::vector<std::pair<const char*, int>> locs{{"", 0}};
    std::map<std::pair<const char*, int>, uint32_t> loc_index;
    struct { const char* file = nullptr; int line = 0; uint32_t id = 0; } recent[64];  // places seen lately

    // --- called by instructions of the running core -----------------------------------------------------------
    void block_fiber(Core& c, const char* why, Loc loc, std::function<bool()> wake, int a = -1, int b = -1, int id = -1);
    void spin(Core& c, Loc loc);
    bool pump(Core& c);
    bool pump_pipe(Core& c, int p);
    void push(Core& c, int pipe, Item item);
    bool run_now(Core& c, int pipe);
    uint32_t loc_id(Loc loc);
    void deliver(Core& c, int id, const Clock& clock, Loc loc);
    Clock release(Core& c, int pipe, const Clock& clock);
    [[noreturn]] void deadlock();

private:
    bool start_block();
    void resume(Core& c);
    bool step_block(Block& b);
    void retire(Block& b);
    void check_leftovers(Block& b);
    bool exec(Core& c, int pipe, Item& item);
};

// The instruction being executed.
struct Exec {
    Scheduler* sched = nullptr;
    Core* core = nullptr;
    int pipe = 0;
    const char* name = "";
    Loc loc{"", 0};
};
extern thread_local Exec g;

// Accounts for bytes that the executing instruction moves on `pipe` at `rate` bytes per cycle.
inline void moved(int pipe, uint64_t bytes, double rate) {
    g.sched->counters.bytes[pipe] += bytes;
    g.sched->spent += static_cast<double>(bytes) / rate;
}
// What the instruction cost goes to its pipe.
inline void settle_cost(Core& c, int pipe) {
    c.pipes[pipe].clock.time += g.sched->spent;
    c.busy[pipe] += g.sched->spent;
    g.sched->spent = 0;
}

std::string where(const Core& c, int pipe, const char* name, Loc loc);
[[noreturn]] void stop(const std::string& what);  // adds the place of the executing instruction

// Issues an instruction: runs at once when its pipe is free, else queued with everything it captured.
template <class F>
inline void issue(int pipe, const char* name, Loc loc, F f, std::function<bool()> ready = {}) {
    Core& c = *g.core;
    if (g.sched->run_now(c, pipe) && (!ready || ready())) {
        Pipe& p = c.pipes[pipe];
        p.clock.join(c.scalar);
        ++p.clock.t[c.actor(pipe)];
        const Exec saved = g;
        g.pipe = pipe;
        g.name = name;
        g.loc = loc;
        ++g.sched->counters.ops[pipe];
        f();
        g = saved;
        settle_cost(c, pipe);
        return;
    }
    Item item;
    item.issue = c.scalar;
    item.loc = loc;
    item.name = name;
    item.run = std::move(f);
    item.ready = std::move(ready);
    g.sched->push(c, pipe, std::move(item));
}

// --- memory checks (check.cpp) -----------------------------------------------------------------------------------
// A checked range of an on-chip memory for the executing instruction.
unsigned char* local(Memory& m, const void* p, uint64_t bytes, uint32_t align, bool write, bool track = true);
void track_local(Memory& m, uint32_t offset, uint32_t bytes, bool write);
void require_init(Memory& m, uint32_t offset, uint32_t bytes, const char* role);
void copy_init(Memory& to, uint32_t to_off, Memory& from, uint32_t from_off, uint32_t bytes);
bool written(const Memory& m, uint32_t offset, uint32_t bytes);      // every byte was
bool taken(Memory& m, uint32_t offset, uint32_t bytes, const char* role);  // written; a strict launch stops instead
bool repeats(Memory& m, uint32_t offset, const unsigned char* from, uint32_t bytes);  // a store that the twin core has made
void clear_init(Memory& m, uint32_t offset, uint32_t bytes);         // as if never written
void mark_init(Memory& m, uint32_t offset, uint32_t bytes);
unsigned char* gm(const void* p, uint64_t bytes, bool write, bool atomic = false);
Memory& arena_of(Mem m);
void limit(const char* arg, uint64_t value, uint64_t low, uint64_t high);
void vf_store_track(Memory& m, uint32_t offset, uint32_t bytes, bool write);

}  // namespace asc_sim
