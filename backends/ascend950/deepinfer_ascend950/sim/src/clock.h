// Vector clocks of the race checker.
//
// An actor is one (core, pipe) of a block: 3 cores x 7 pipes. Local memories are shared inside a block only, so a
// clock holds one entry per actor of its own block, plus (rarely) which release points of other blocks it has seen.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

namespace asc_sim {

inline constexpr int kPipes = 7;  // S V M MTE1 MTE2 MTE3 FIX
inline constexpr int kCores = 3;  // AIC AIV0 AIV1
inline constexpr int kActors = kPipes * kCores;

// remote[b * kActors + a] = n: what came before the n-th release point of actor a of block b is known. Immutable once
// shared.
using Remote = std::vector<uint32_t>;

struct Clock {
    uint32_t t[kActors] = {};
    double time = 0;  // modelled cycles at which everything known here is over (cost.h)
    std::shared_ptr<const Remote> remote;

    void join(const Clock& o) {
        for (int i = 0; i < kActors; ++i) t[i] = t[i] > o.t[i] ? t[i] : o.t[i];
        time = time > o.time ? time : o.time;
        if (o.remote && o.remote != remote) join_remote(o.remote);
    }
    void join_remote(const std::shared_ptr<const Remote>& o) {
        if (!o || o == remote) return;
        if (!remote) {
            remote = o;
            return;
        }
        auto merged = std::make_shared<Remote>(*remote);
        if (merged->size() < o->size()) merged->resize(o->size());
        for (size_t i = 0; i < o->size(); ++i)
            if ((*o)[i] > (*merged)[i]) (*merged)[i] = (*o)[i];
        remote = std::move(merged);
    }
};

}  // namespace asc_sim
