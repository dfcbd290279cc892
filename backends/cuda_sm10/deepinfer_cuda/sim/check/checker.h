// Happens-before race, proxy, fence and initialisation checks.
//
// Model: FastTrack-like shadow cells (last write, reads since) compared with what the accessing agent knows (check/clock.h).
// Agents are warps and asynchronous operations; two lanes of one warp are not told apart. A finding names both accesses.
#pragma once
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "check/clock.h"
#include "core/lazy_array.h"

namespace ptxsim {

struct Grid;
struct Cta;
struct Inst;
struct X;
struct AsyncOp;
struct Warp;

enum class Use : u8 { read, write, atomic };

// Who accesses: knowledge, own epoch, proxy, and where in the program.
struct Who {
    const Knowledge* know = nullptr;
    Epoch self;
    bool async = false;    // asynchronous proxy (TMA, bulk copies, wgmma and tcgen05 operands)
    bool strong = false;   // volatile, relaxed or stronger
    bool silent = false;   // a write that changes nothing: two such writers are no race
    bool op = false;       // an operation rather than a warp: no program order with its own agent
    const Inst* inst = nullptr;
    const Cta* cta = nullptr;
    u32 warp = 0;
    int lane = 0;
};

struct Cell {
    Epoch w, r;
    u32 w_inst = 0, r_inst = 0;
    u32 more = 0;          // index into the table of further readers, 0 none
    u8 w_mask = 0, init = 0;
    bool w_async = false, w_strong = false, r_strong = false;
};

struct SharedShadow {
    LazyArray<Cell> cells;  // one per 4 bytes; all-zero bytes are an untouched cell
};

struct MbarInfo {
    Message filling, done;    // of the running phase / of the last completed one
    Epoch init;
    bool published = false;   // fence.mbarrier_init or a proxy fence after the init
    bool valid = false;
};

class Checker {
   public:
    bool on = false;
    Grid* grid = nullptr;

    void shared(const Who& who, Cta& cta, u32 offset, u32 bytes, Use use);
    void global(const Who& who, u64 addr, u32 bytes, Use use);
    void tmem(const Who& who, std::vector<Cell>& cells, u32 cell, Use use, const char* unit);
    // Marks memory written by the host or by an allocation rule as initialised (or not).
    void shared_reset(Cta& cta, u32 offset, u32 bytes, bool initialised);

    // Release / acquire through memory locations.
    Message& location(u64 key) { return locations_[key]; }
    void report(const Who& who, const std::string& what, const Inst* other = nullptr);

    struct Reader {
        Epoch e;
        u32 inst;
        bool strong;
    };

   private:
    struct Context {
        const Clocks& order;       // must cover earlier conflicting accesses
        const Clocks* proxy;       // must cover generic writes, for asynchronous readers
        const Clocks* wider;       // tensor memory: plain happens-before, to tell a missing fence from a race
        const char* what;
    };
    void access(const Who& who, Cell& c, u8 mask, Use use, const Context& ctx, u64 address, bool init_checked);
    void conflict(const Who& who, const Context& ctx, const char* kind, u64 address, u32 other, bool only_fence);
    u32 index_of(const Inst* i) const;

    using Page = std::vector<Cell>;
    std::unordered_map<u64, Page> pages_;
    Page* last_page_ = nullptr;
    u64 last_page_key_ = ~0ull;
    std::unordered_map<u64, Message> locations_;
    std::vector<std::vector<Reader>> readers_{1};
    std::vector<u32> free_readers_;
    std::set<std::tuple<const Inst*, u32, std::string>> seen_;
};

// Warp side. Own writes so far become covered by what is passed on, later ones do not.
void warp_tick(Warp& w);
Message warp_release(Warp& w);
void warp_acquire(Warp& w, const Message& m);
void warp_proxy_fence(Warp& w);
Who who_warp(const X& x, const Inst& in, int lane, bool strong = false);
Who who_op(const AsyncOp& op, Epoch self);
// Gives an operation a slot of its CTA and what its issuer knows.
void adopt(const X& x, AsyncOp& op);
Epoch new_epoch(Cta& cta);

}  // namespace ptxsim
