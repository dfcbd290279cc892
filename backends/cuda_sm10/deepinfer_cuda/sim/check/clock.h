// Vector clocks over the agents of a launch.
//
// An agent is a warp or one slot of a CTA's asynchronous units. Agents of one CTA share a chunk; chunks are copied on write,
// so a snapshot (taken at every asynchronous issue and every barrier arrival) costs a few pointers.
#pragma once
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "isa/types.h"

namespace ptxsim {

constexpr u32 kAgentsPerCta = 128;
constexpr u32 kWarpAgents = 32;  // the rest are asynchronous slots

struct Epoch {
    u32 agent = 0, clock = 0;  // clock 0: never
};

class Clocks {
   public:
    u32 at(u32 agent) const {
        const Row* r = find(agent / kAgentsPerCta);
        return r ? (*r->chunk)[agent % kAgentsPerCta] : 0;
    }
    bool covers(Epoch e) const { return e.clock == 0 || at(e.agent) >= e.clock; }
    void raise(Epoch e) {
        Chunk& c = writable(e.agent / kAgentsPerCta);
        u32& v = c[e.agent % kAgentsPerCta];
        v = std::max(v, e.clock);
    }
    void join(const Clocks& o) {
        for (auto& r : o.rows_) {
            Row* mine = find(r.cta);
            if (!mine) {
                rows_.insert(std::lower_bound(rows_.begin(), rows_.end(), r.cta, [](const Row& a, u32 c) { return a.cta < c; }), r);
            } else if (mine->chunk != r.chunk) {
                Chunk& c = writable(r.cta);
                for (u32 i = 0; i < kAgentsPerCta; ++i) c[i] = std::max(c[i], (*r.chunk)[i]);
            }
        }
    }
    void clear() { rows_.clear(); }
    bool empty() const { return rows_.empty(); }

   private:
    using Chunk = std::array<u32, kAgentsPerCta>;
    struct Row {
        u32 cta;
        std::shared_ptr<Chunk> chunk;
    };
    std::vector<Row> rows_;

    const Row* find(u32 cta) const {
        for (auto& r : rows_)
            if (r.cta == cta) return &r;
        return nullptr;
    }
    Row* find(u32 cta) { return const_cast<Row*>(static_cast<const Clocks*>(this)->find(cta)); }
    Chunk& writable(u32 cta) {
        Row* r = find(cta);
        if (!r) {
            auto at = std::lower_bound(rows_.begin(), rows_.end(), cta, [](const Row& a, u32 c) { return a.cta < c; });
            r = &*rows_.insert(at, Row{cta, std::make_shared<Chunk>()});
        } else if (r->chunk.use_count() > 1) {
            r->chunk = std::make_shared<Chunk>(*r->chunk);
        }
        return *r->chunk;
    }
};

// What an agent knows. `all`: happens-before. `async`: the part of it made visible to the asynchronous proxy by a proxy fence.
// `tensor`: the part that tcgen05 operations of this agent are ordered after; `tensor_in` was acquired but waits for
// tcgen05.fence::after_thread_sync; `tensor_out` is what a release passes on since the last fence::before_thread_sync.
struct Knowledge {
    Clocks all, async, tensor, tensor_in, tensor_out;
};

// What travels through a barrier, an mbarrier or an atomic.
struct Message {
    Clocks all, async, tensor;
    void join(const Message& o) { all.join(o.all), async.join(o.async), tensor.join(o.tensor); }
    void add(const Knowledge& k) { all.join(k.all), async.join(k.async), tensor.join(k.tensor_out); }
};

inline void acquire(Knowledge& k, const Message& m) {
    k.all.join(m.all), k.async.join(m.async), k.tensor_in.join(m.tensor);
}

}  // namespace ptxsim
