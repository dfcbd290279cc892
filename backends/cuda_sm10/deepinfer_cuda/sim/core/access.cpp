#include "core/access.h"

#include "core/windows.h"

namespace ptxsim {
namespace {
std::string hex(u64 v) {
    char b[32];
    std::snprintf(b, sizeof b, "0x%llx", (unsigned long long)v);
    return b;
}
}  // namespace

std::string explain_global(const Grid& g, u64 addr, u64 n, bool write) {
    std::string s = std::string(write ? "write" : "read") + " of " + std::to_string(n) + " bytes at global address " + hex(addr) +
                    " lies outside the memory given to this launch";
    const Span* near = g.spans.nearest(addr);
    if (!near) return s;
    if (addr >= near->base && addr + n <= near->end()) return s + " for writing (the span at " + hex(near->base) + " is read-only)";
    i64 off = i64(addr - near->base);
    return s + "; nearest span is " + hex(near->base) + " of " + std::to_string(near->size) + " bytes, offset " + std::to_string(off);
}

u8* global_bytes(Grid& g, const Inst& in, u64 addr, u64 n, bool write, const std::string& who) {
    const Span* s = write ? g.spans.find_writable(addr, n) : g.spans.find(addr, n);
    if (!s) throw SimError("out of bounds: " + explain_global(g, addr, n, write) + ": " + who + " kernel " + g.program->name + " " + g.program->where(in));
    return reinterpret_cast<u8*>(addr);
}

Cta& shared_owner(X& x, const Inst& in, int lane, u32 addr, u32 n, bool own_only) {
    u32 rank = addr >> kRankShift, off = addr & kOffsetMask;
    if (rank >= x.cl.ctas.size())
        x.fault(in, lane, "shared address " + hex(addr) + " names CTA rank " + std::to_string(rank) + " of a cluster of " + std::to_string(x.cl.ctas.size()));
    if (own_only && rank != x.cta.rank)
        x.fault(in, lane, "shared::cta address " + hex(addr) + " belongs to CTA rank " + std::to_string(rank) + ", this is rank " + std::to_string(x.cta.rank));
    Cta& c = x.cl.cta(rank);
    if (off < kSharedReserved || u64(off) + n > c.shared.size())
        x.fault(in, lane, "out of bounds: shared offset " + std::to_string(off) + " of " + std::to_string(n) + " bytes; the CTA has bytes " +
                std::to_string(kSharedReserved) + " to " + std::to_string(c.shared.size()));
    if (&c != &x.cta && x.g.check.on) {
        bool alive = false;
        for (auto& w : c.warps) alive |= w->live != 0;
        if (!alive) x.find(in, lane, "shared memory of CTA rank " + std::to_string(rank) + " is used after that CTA has exited");
    }
    return c;
}

Place resolve(X& x, const Inst& in, int lane, Space space, u64 addr, u32 n, bool write, u32 align) {
    if (space == Space::generic || space == Space::param || space == Space::local) {
        u64 window = addr & kWindowMask;
        if (window == kSharedWindow) space = Space::shared_cluster, addr = u32(addr);
        else if (window == kLocalWindow) space = Space::local;
        else if (window == kParamWindow) space = Space::param;
        else space = Space::global;
    }
    if (!align) align = n;
    if (align & (align - 1)) align = 1;
    if (addr & (align - 1)) x.fault(in, lane, "misaligned address " + hex(addr) + " for an access of " + std::to_string(n) + " bytes (needs " + std::to_string(align) + ")");
    Place at;
    at.space = space, at.addr = addr;
    switch (space) {
        case Space::shared:
        case Space::shared_cluster:
            if ((addr & kWindowMask) == kSharedWindow) addr = u32(addr);
            if (addr >> 32) x.fault(in, lane, "shared address " + hex(addr) + " does not fit 32 bits");
            at.cta = &shared_owner(x, in, lane, u32(addr), n, space == Space::shared);
            at.offset = u32(addr) & kOffsetMask;
            at.space = Space::shared;
            at.p = at.cta->shared.data() + at.offset;
            return at;
        case Space::local: {
            u64 off = addr - kLocalWindow;
            if (off + n > x.g.program->local_bytes) x.fault(in, lane, "out of bounds: local offset " + std::to_string(off) + " of " + std::to_string(x.g.program->local_bytes));
            at.p = x.w.local.data() + size_t(lane) * x.g.program->local_bytes + off;
            return at;
        }
        case Space::param: {
            u64 off = addr - kParamWindow;
            if (off + n > x.g.params.size()) x.fault(in, lane, "out of bounds: parameter offset " + std::to_string(off) + " of " + std::to_string(x.g.params.size()));
            if (write) x.fault(in, lane, "kernel parameters are read-only");
            at.p = x.g.params.data() + off;
            return at;
        }
        default: {
            const Span* s = write ? x.g.spans.find_writable(addr, n) : x.g.spans.find(addr, n);
            if (!s) x.fault(in, lane, "out of bounds: " + explain_global(x.g, addr, n, write));
            at.space = Space::global;
            at.p = reinterpret_cast<u8*>(addr);
            return at;
        }
    }
}

void touch(X& x, const Inst& in, int lane, const Place& at, u32 n, Use use, bool strong, bool silent) {
    if (!x.g.check.on) return;
    Who who = who_warp(x, in, lane, strong);
    who.silent = silent;
    if (at.space == Space::shared) x.g.check.shared(who, *at.cta, at.offset, n, use);
    else if (at.space == Space::global) x.g.check.global(who, at.addr, n, use);
}

u32 shared_address(X& x, const Inst& in, int lane, u64 addr) {
    if ((addr & kWindowMask) == kSharedWindow) return u32(addr);
    if (addr >> 32) x.fault(in, lane, "address " + hex(addr) + " is not in shared memory");
    return u32(addr);
}

const u8* read_any(X& x, const Inst& in, int lane, u64 addr, u32 n) {
    return resolve(x, in, lane, Space::generic, addr, n, false, 1).p;
}

}  // namespace ptxsim
