// Memory checks: range, alignment, uninitialised reads, races (happens-before), in-VF ordering.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "runtime.h"

namespace asc_sim {

namespace {
// Clock of the executing instruction: the scalar program's for pipe S, else the pipe's.
Clock& now() { return g.pipe == 0 ? g.core->scalar : g.core->pipes[g.pipe].clock; }
uint32_t global_actor() {
    return static_cast<uint32_t>(g.core->block->global * kActors + g.core->actor(g.pipe) + 1);
}

bool before(const Access& a, const Clock& clk) {
    const uint32_t own = a.actor - 1 - static_cast<uint32_t>(g.core->block->global * kActors);
    if (own < kActors) return clk.t[own] >= a.epoch;  // an actor of this block
    const int block = static_cast<int>(a.actor - 1) / kActors, actor = static_cast<int>(a.actor - 1) % kActors;
    const size_t first = static_cast<size_t>(block) * kActors;
    if (!clk.remote || clk.remote->size() < first + kActors) return false;
    const Block& b = *g.sched->blocks[static_cast<size_t>(block)];
    for (size_t i = 0; i < kActors; ++i) {
        const uint32_t r = (*clk.remote)[first + i];
        if (r && b.releases[i][r - 1].t[actor] >= a.epoch) return true;
    }
    return false;
}

std::string who(const Access& a) {
    const int block = static_cast<int>(a.actor - 1) / kActors, actor = static_cast<int>(a.actor - 1) % kActors;
    const auto& l = g.sched->locs[a.loc];
    const char* file = std::strrchr(l.first, '/');
    static const char* names[] = {"AIC", "AIV0", "AIV1"};
    return std::string("block ") + std::to_string(block) + " " + names[actor / kPipes] + " pipe " + pipe_name(actor % kPipes) +
           " at " + (file ? file + 1 : l.first) + ":" + std::to_string(l.second);
}

[[noreturn]] void race(const char* kind, const char* mem, uint64_t offset, const Access& other) {
    ++g.sched->counters.races;
    stop(std::string("race: ") + kind + " on " + mem + " offset " + std::to_string(offset) + ": nothing orders it after " + who(other));
}

inline void visit(Record& r, uint32_t mask, bool write, const Clock& clk, uint32_t epoch, uint32_t actor, uint32_t loc, const char* mem, uint64_t offset) {
    if (r.w.actor && r.w.actor != actor && (r.w.mask & mask) && !before(r.w, clk))
        race(write ? "write after write" : "read after write", mem, offset, r.w);
    if (!write) {
        Access* slot = nullptr;
        for (Access& a : r.r)
            if (a.actor == actor) {
                slot = &a;
                break;
            }
        if (!slot)
            for (Access& a : r.r)
                if (!a.actor || before(a, clk)) slot = &a;
        if (!slot) slot = &r.r[0];
        const uint32_t old = slot->actor == actor ? slot->mask : 0;
        *slot = Access{actor, epoch, mask | old, loc};
        return;
    }
    for (Access& a : r.r) {
        if (!a.actor || a.actor == actor) continue;
        if ((a.mask & mask) && !before(a, clk)) race("write after read", mem, offset, a);
        if (!(a.mask & ~mask)) a = Access{};
    }
    const uint32_t old = r.w.actor == actor ? r.w.mask : 0;
    r.w = Access{actor, epoch, mask | old, loc};
    r.init |= mask;
}

// Atomic additions need no order among themselves, but one towards plain accesses that came before.
inline void visit_atomic(const Record& r, uint32_t mask, const Clock& clk, uint32_t actor, uint64_t offset) {
    if (r.w.actor && r.w.actor != actor && (r.w.mask & mask) && !before(r.w, clk)) race("atomic write after write", "global memory", offset, r.w);
    for (const Access& a : r.r)
        if (a.actor && a.actor != actor && (a.mask & mask) && !before(a, clk)) race("atomic write after read", "global memory", offset, a);
}

// Whether the access is the executing instruction as the other vector core of the block ran it.
bool by_twin(const Access& a, uint32_t loc) {
    if (!a.actor || a.loc != loc || g.core->kind == 0) return false;
    const int block = static_cast<int>(a.actor - 1) / kActors, actor = static_cast<int>(a.actor - 1) % kActors;
    const int kind = actor / kPipes;
    return block == g.core->block->global && kind != 0 && kind != g.core->kind && actor % kPipes == g.pipe;
}

template <class F>
inline void granules(uint64_t offset, uint64_t bytes, F f) {
    const uint64_t end = offset + bytes;
    for (uint64_t at = offset; at < end;) {
        const uint64_t i = at / kGranule, stop_at = std::min(end, (i + 1) * kGranule);
        f(i, byte_mask(static_cast<uint32_t>(at % kGranule), static_cast<uint32_t>(stop_at - i * kGranule)));
        at = stop_at;
    }
}

const char* memory_of(const void* p) {
    Arena& a = *g.core->block->arena;
    for (Memory* m : {&a.ub[0], &a.ub[1], &a.l1, &a.l0a, &a.l0b, &a.l0c, &a.bt, &a.fb, &a.l0a_mx, &a.l0b_mx, &a.ssbuf})
        if (m->holds(p)) return m == &a.ub[0] ? "UB of AIV0" : m == &a.ub[1] ? "UB of AIV1" : m->name;
    return "no on-chip memory (what a kernel declares as an array there needs an address here: mem::ub<T>(offset))";
}
}  // namespace

Memory& arena_of(Mem m) { return g.core->block->arena->of(m, g.core->aiv()); }

void limit(const char* arg, uint64_t value, uint64_t low, uint64_t high) {
    if (value < low || value > high)
        stop(std::string(arg) + " = " + std::to_string(value) + " must lie in [" + std::to_string(low) + ", " + std::to_string(high) + "]");
}

void track_local(Memory& m, uint32_t offset, uint32_t bytes, bool write) {
    m.touch(offset, bytes);
    if (!g.sched->options.race) {
        if (write) mark_init(m, offset, bytes);
        return;
    }
    const Clock& clk = now();
    const uint32_t actor = global_actor(), loc = g.sched->loc_id(g.loc), epoch = clk.t[g.core->actor(g.pipe)];
    granules(offset, bytes, [&](uint64_t i, uint32_t mask) {
        visit(m.shadow[i], mask, write, clk, epoch, actor, loc, m.name, i * kGranule);
    });
}

unsigned char* local(Memory& m, const void* p, uint64_t bytes, uint32_t align, bool write, bool track) {
    if (!m.holds(p))
        stop(std::string("address is not in ") + m.name + " but in " + memory_of(p) + (write ? " (write)" : " (read)"));
    const uint32_t off = m.offset(p);
    if (off % align) stop(std::string(m.name) + " offset " + std::to_string(off) + " must be a multiple of " + std::to_string(align));
    if (off + bytes > m.usable)
        stop(std::string("bytes [") + std::to_string(off) + ", " + std::to_string(off + bytes) + ") pass the end of " + m.name + ", " +
             std::to_string(m.usable) + " bytes usable");
    if (track && bytes) track_local(m, off, static_cast<uint32_t>(bytes), write);
    return m.base + off;
}

void mark_init(Memory& m, uint32_t offset, uint32_t bytes) {
    m.touch(offset, bytes);
    granules(offset, bytes, [&](uint64_t i, uint32_t mask) { m.shadow[i].init |= mask; });
}

bool written(const Memory& m, uint32_t offset, uint32_t bytes) {
    if (!g.sched->options.check_uninit) return true;
    bool all = true;
    granules(offset, bytes, [&](uint64_t i, uint32_t mask) { all &= !(mask & ~m.shadow[i].init); });
    return all;
}

bool taken(Memory& m, uint32_t offset, uint32_t bytes, const char* role) {
    if (!g.sched->options.strict) return written(m, offset, bytes);
    require_init(m, offset, bytes, role);
    return true;
}

void clear_init(Memory& m, uint32_t offset, uint32_t bytes) {
    granules(offset, bytes, [&](uint64_t i, uint32_t mask) { m.shadow[i].init &= ~mask; });
}

void require_init(Memory& m, uint32_t offset, uint32_t bytes, const char* role) {
    if (!g.sched->options.check_uninit) return;
    granules(offset, bytes, [&](uint64_t i, uint32_t mask) {
        if (mask & ~m.shadow[i].init)
            stop(std::string(role) + " uses bytes of " + m.name + " that were never written, near offset " + std::to_string(i * kGranule));
    });
}

void copy_init(Memory& to, uint32_t to_off, Memory& from, uint32_t from_off, uint32_t bytes) {
    if (to_off % kGranule != from_off % kGranule) return;
    uint32_t delta_i = to_off / kGranule, first = from_off / kGranule;
    granules(from_off, bytes, [&](uint64_t i, uint32_t mask) {
        Record& d = to.shadow[delta_i + (i - first)];
        d.init = (d.init & ~mask) | (from.shadow[i].init & mask);
    });
}

// Both vector cores of a block may run one program on one input: a store of the bytes that its twin has stored there is
// the same store, and needs no order towards that one or towards who has read it.
bool repeats(Memory& m, uint32_t offset, const unsigned char* from, uint32_t bytes) {
    if (!g.sched->options.race || std::memcmp(m.base + offset, from, bytes) != 0) return false;
    const uint32_t loc = g.sched->loc_id(g.loc), actor = global_actor(), epoch = now().t[g.core->actor(g.pipe)];
    bool all = true;
    granules(offset, bytes, [&](uint64_t i, uint32_t mask) {
        const Access& w = m.shadow[i].w;
        all &= by_twin(w, loc) && (w.mask & mask) == mask;
    });
    if (all) granules(offset, bytes, [&](uint64_t i, uint32_t mask) { m.shadow[i].w = Access{actor, epoch, mask | m.shadow[i].w.mask, loc}; });
    return all;
}

// Races in global memory: over the buffers that some launch of the group may write.
static void track_gm(uintptr_t a, uint64_t bytes, bool write, bool atomic) {
    const Clock& clk = now();
    const uint32_t actor = global_actor(), loc = g.sched->loc_id(g.loc), epoch = clk.t[g.core->actor(g.pipe)];
    for (Span& s : g.sched->tracked) {
        const uintptr_t low = std::max(a, s.base), high = std::min(a + bytes, s.base + s.size);
        if (low >= high) continue;
        const uintptr_t origin = s.base / kGranule * kGranule;
        if (!s.shadow) {
            s.shadow = static_cast<Record*>(std::calloc((s.base + s.size - origin + kGranule - 1) / kGranule, sizeof(Record)));
            if (!s.shadow) throw std::bad_alloc();
        }
        granules(low - origin, high - low, [&](uint64_t i, uint32_t mask) {
            if (atomic) visit_atomic(s.shadow[i], mask, clk, actor, i * kGranule);
            else visit(s.shadow[i], mask, write, clk, epoch, actor, loc, "global memory", i * kGranule);
        });
    }
}

unsigned char* gm(const void* p, uint64_t bytes, bool write, bool atomic) {
    if (bytes == 0) return static_cast<unsigned char*>(const_cast<void*>(p));
    auto& spans = g.core->block->launch->spans;
    const auto a = reinterpret_cast<uintptr_t>(p);
    auto it = std::upper_bound(spans.begin(), spans.end(), a, [](uintptr_t x, const Span& s) { return x < s.base; });
    Span* s = it == spans.begin() ? nullptr : &*(it - 1);
    if (!s || a + bytes > s->base + s->size) {
        std::string near = s ? "; the nearest buffer of the launch is " + std::to_string(s->size) + " bytes long and the access covers its bytes [" +
                                   std::to_string(a - s->base) + ", " + std::to_string(a - s->base + bytes) + ")"
                             : "";
        stop("global memory access outside every buffer given to the launch (" + std::to_string(bytes) + " bytes)" + near);
    }
    if (write && !s->writable) stop("write into a read-only buffer of the launch, byte " + std::to_string(a - s->base));
    if (g.sched->options.race) track_gm(a, bytes, write, atomic);
    return reinterpret_cast<unsigned char*>(a);
}

void vf_store_track(Memory& m, uint32_t offset, uint32_t bytes, bool write) {
    Core& c = *g.core;
    if (!c.in_vf) return;
    granules(offset, bytes, [&](uint64_t i, uint32_t mask) {
        Record& r = m.shadow[i];
        if (write) {
            if (r.vst != c.vf_epoch) r.vst_mask = 0;
            r.vst = c.vf_epoch;
            r.vst_mask |= mask;
        } else if (r.vst == c.vf_epoch && (r.vst_mask & mask)) {
            stop(std::string("load from UB offset ") + std::to_string(i * kGranule) +
                 " that this vector function stored to, without asc_mem_bar(VST_VLD) between");
        }
    });
}

}  // namespace asc_sim
