// ld, st, ldu, prefetch, and vectors up to 256 bit.
#include "core/access.h"
#include "core/windows.h"
#include "exec/families.h"
#include "exec/ops.h"

namespace ptxsim {
namespace {

enum : i64 { kWeak = 0, kRelaxed = 1, kAcquire = 2, kRelease = 4, kVolatile = 8 };

void put(X& x, i32 slot, int lane, const u8* p, u32 size, bool sgn, int reg_bits) {
    u64 lo = 0;
    std::memcpy(&lo, p, std::min(size, 8u));
    if (size == 16) std::memcpy(&x.dst(slot + 1)[lane], p + 8, 8);
    if (sgn && size < 8) {
        lo = u64(i64(lo << (64 - 8 * size)) >> (64 - 8 * size));
        if (reg_bits < 64) lo &= (1ull << reg_bits) - 1;
    }
    x.dst(slot)[lane] = lo;
}

u64 location_key(const Place& at) {
    return at.space == Space::shared ? (1ull << 63) | (u64(at.cta->linear) << 24) | at.offset : at.addr;
}

void load(X& x, const Inst& in, u32 lanes) {
    const u64* a = x.src(in.s[1]);
    u32 size = u32(in.k[1]), n = u32(in.v.size());
    bool strong = in.k[2] != kWeak;
    bool sgn = is_signed(in.type) && !is_float(in.type);
    Place at;
    int owner = -1;  // lane of the last access to memory that is the same for all lanes
    each(lanes, [&](int l) {
        // Lanes are not told apart by the checker: those that read one address are one access.
        if (owner < 0 || strong || a[l] != a[owner]) {
            at = resolve(x, in, l, in.space, a[l] + u64(in.k[0]), size * n, false);
            touch(x, in, l, at, size * n, Use::read, strong);
            owner = at.space == Space::local ? -1 : l;
        }
        for (u32 i = 0; i < n; ++i) put(x, in.v[i], l, at.p + i * size, size, sgn, int(x.g.program->slot_bits[in.v[i]]));
        if (strong && x.g.check.on && at.space != Space::local) {
            Message& m = x.g.check.location(location_key(at));
            if (in.k[2] & kAcquire) warp_acquire(x.w, m);
            else x.w.fence_acquire.join(m);
        }
    });
    if (strong) x.yield = true;  // polling loops must not starve what they wait for
}

void store(X& x, const Inst& in, u32 lanes) {
    const u64* a = x.src(in.s[1]);
    u32 size = u32(in.k[1]), n = u32(in.v.size());
    bool strong = in.k[2] != kWeak;
    Message release;
    if (in.k[2] & kRelease) release = warp_release(x.w);
    each(lanes, [&](int l) {
        Place at = resolve(x, in, l, in.space, a[l] + u64(in.k[0]), size * n, true);
        u8 bytes[64];
        for (u32 i = 0; i < n; ++i) {
            u64 lo = x.src(in.v[i])[l];
            std::memcpy(bytes + i * size, &lo, std::min(size, 8u));
            if (size == 16) std::memcpy(bytes + i * size + 8, &x.src(in.v[i])[32 + l], 8);
        }
        bool same = std::memcmp(at.p, bytes, size * n) == 0;
        touch(x, in, l, at, size * n, Use::write, strong, same);
        if (!same) std::memcpy(at.p, bytes, size * n), ++x.m.progress;
        if (at.cta && x.g.check.on)
            for (u32 o = at.offset & ~7u; o < at.offset + size * n; o += 8)
                if (auto it = at.cta->mbars.find(o); it != at.cta->mbars.end() && it->second.valid) {
                    x.find(in, l, "bytes of a live mbarrier are overwritten as data");
                    it->second.valid = false;
                }
        if (strong && x.g.check.on && at.space != Space::local) {
            Message& m = x.g.check.location(location_key(at));
            if (in.k[2] & kRelease) m.join(release);
            else m.join(x.w.fence_release);
        }
    });
}

// st.bulk: zeros in shared memory.
void store_bulk(X& x, const Inst& in, u32 lanes) {
    each(lanes, [&](int l) {
        u64 to = x.src(in.s[1])[l] + u64(in.k[0]), n = x.src(in.s[2])[l];
        if (to % 8 || n % 8) x.fault(in, l, "st.bulk needs an address and a size that are multiples of 8");
        for (u64 o = 0; o < n; o += 8) {
            Place at = resolve(x, in, l, in.space, to + o, 8, true);
            if (at.space != Space::shared) x.fault(in, l, "st.bulk fills shared memory only");
            touch(x, in, l, at, 8, Use::write);
            std::memset(at.p, 0, 8);
        }
    });
    ++x.m.progress;
}

void prefetch(X& x, const Inst& in, u32 lanes) {
    (void)x, (void)in, (void)lanes;  // a hint: no state changes, and an invalid address is no fault
}

// alloca, stacksave, stackrestore: a per-lane stack at the end of local memory; a register holds its top.
constexpr u32 kStackBytes = 16384;

void stack_allocate(X& x, const Inst& in, u32 lanes) {
    const u64* n = x.src(in.s[1]);
    u64 *d = x.dst(in.s[0]), *top = x.dst(in.s[2]);
    u64 align = u64(in.k[1]);
    each(lanes, [&](int l) {
        u64 at = (top[l] + align - 1) / align * align;
        if (n[l] > kStackBytes || at + n[l] > kStackBytes) x.fault(in, l, "alloca of " + std::to_string(n[l]) + " bytes: a lane's stack has " + std::to_string(kStackBytes));
        top[l] = at + n[l];
        d[l] = kLocalWindow + u64(in.k[0]) + at;
    });
}
void stack_save(X& x, const Inst& in, u32 lanes) { each(lanes, [&](int l) { x.dst(in.s[0])[l] = x.src(in.s[2])[l]; }); }
void stack_restore(X& x, const Inst& in, u32 lanes) { each(lanes, [&](int l) { x.dst(in.s[2])[l] = x.src(in.s[1])[l]; }); }

Space space_of(Dec& d) {
    std::string s = d.one_of({"global", "shared", "shared::cta", "shared::cluster", "local", "const", "param", "param::entry", "param::func"});
    if (s == "shared" || s == "shared::cta") return Space::shared;
    if (s == "shared::cluster") return Space::shared_cluster;
    if (s == "global") return Space::global;
    if (s == "local") return Space::local;
    if (s == "param" || s == "param::entry" || s == "param::func") return Space::param;
    return s == "const" ? Space::constant : Space::generic;
}

void cache_hints(Dec& d) {
    d.one_of({"ca", "cg", "cs", "cv", "lu", "wb", "wt"});
    while (!d.prefix("L1::").empty()) {}
    bool hint = false;
    for (std::string h = d.prefix("L2::"); !h.empty(); h = d.prefix("L2::")) hint |= h == "cache_hint";
    (void)hint;
}

i64 ordering(Dec& d) {
    i64 k = d.opt("mmio") ? kRelaxed : kWeak;
    if (d.opt("volatile")) k = kVolatile;
    else if (d.opt("relaxed")) k = kRelaxed;
    else if (d.opt("acquire")) k = kAcquire;
    else if (d.opt("release")) k = kRelease;
    else d.opt("weak");
    d.one_of({"cta", "cluster", "gpu", "sys"});
    return k;
}

Space effective(Space s, const Operand& address) {
    // `.param` of a call sequence names thread-local storage; the address tells which window it is
    (void)address;
    return s == Space::constant ? Space::generic : s;
}
}  // namespace

void decode_ld(Dec& d) {
    d.in.k[2] = ordering(d);
    d.in.space = effective(space_of(d), d.arg(1));
    d.opt("nc");
    d.opt("unified");
    cache_hints(d);
    int v = d.vec();
    Ty t = d.in.type = d.need_type();
    d.in.k[1] = type_size(t);
    d.in.s[1] = d.base(d.arg(1), d.in.k[0]);
    d.in.v = d.dsts(d.arg(0));
    if ((int)d.in.v.size() != v) d.fail("destination does not match the vector length");
    if (d.n() > 2) d.src(2);  // cache policy
    d.in.fn = load;
}
void decode_st_bulk(Dec& d) {
    d.need({"bulk"});
    d.opt("weak");
    d.in.space = space_of(d);
    d.in.s[1] = d.base(d.arg(0), d.in.k[0]);
    d.in.s[2] = d.src(1);
    if (d.n() > 2 && d.imm(2) != 0) d.fail("fills with zeros only");
    d.in.fn = store_bulk;
}
void decode_st(Dec& d) {
    if (d.st.mods.size() && d.st.mods[0] == "bulk") return decode_st_bulk(d);
    d.opt("async");  // of global memory (sm_100): a release store, here at the first legal moment
    d.in.k[2] = ordering(d);
    d.in.space = effective(space_of(d), d.arg(0));
    cache_hints(d);
    int v = d.vec();
    Ty t = d.in.type = d.need_type();
    d.in.k[1] = type_size(t);
    d.in.s[1] = d.base(d.arg(0), d.in.k[0]);
    d.in.v = d.srcs(d.arg(1), t);
    if ((int)d.in.v.size() != v) d.fail("source does not match the vector length");
    if (d.n() > 2) d.src(2);
    d.in.fn = store;
}
void decode_stack(Dec& d) {
    auto& notes = d.p.strings;
    if (!notes.count("#stack")) {
        d.p.local_bytes = (d.p.local_bytes + 15) / 16 * 16;
        notes["#stack"] = u64(d.temp(64)), notes["#stack_base"] = d.p.local_bytes;
        d.p.local_bytes += kStackBytes;
    }
    d.in.s[2] = i32(notes["#stack"]), d.in.k[0] = i64(notes["#stack_base"]);
    d.need_type();
    if (d.st.op == "stacksave") d.in.s[0] = d.dst(0), d.in.fn = stack_save;
    else if (d.st.op == "stackrestore") d.in.s[1] = d.src(0), d.in.fn = stack_restore;
    else {
        d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1);
        d.in.k[1] = d.n() > 2 ? d.imm(2) : 8;
        if (d.in.k[1] < 1 || (d.in.k[1] & (d.in.k[1] - 1))) d.fail("alignment must be a power of two");
        d.in.fn = stack_allocate;
    }
}
void decode_prefetch(Dec& d) {
    space_of(d);
    cache_hints(d);
    d.one_of({"L1", "L2", "evict_last", "evict_normal", "tensormap"});
    d.opt("const"), d.opt("param");
    d.in.s[1] = d.base(d.arg(0), d.in.k[0]);
    d.in.fn = prefetch;
}
void decode_createpolicy(Dec& d) {
    std::string how = d.need({"fractional", "range", "cvt"});
    while (!d.prefix("L2").empty() || d.opt("L2")) {}
    d.opt("global");
    while (!d.prefix("L2::").empty()) {}
    d.need_type();
    d.in.s[0] = d.dst(0);
    d.in.s[1] = d.constant(0x12f0000000000000ull);  // opaque: policies do not change results
    d.in.fn = [](X& x, const Inst& in, u32 lanes) {
        u64* to = x.dst(in.s[0]);
        each(lanes, [&](int l) { to[l] = x.src(in.s[1])[l]; });
    };
    for (size_t i = 1; i < d.n(); ++i)
        if (d.arg(i).kind != Operand::Kind::addr) d.src(i, Ty::b32);
        else { i64 k; d.base(d.arg(i), k); }
}
void decode_hint(Dec& d) {  // applypriority, discard
    space_of(d);
    cache_hints(d);
    d.opt("L2");
    d.in.s[1] = d.base(d.arg(0), d.in.k[0]);
    d.in.fn = prefetch;
}

}  // namespace ptxsim
