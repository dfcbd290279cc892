// mov with packing, cvta, isspacep, mapa, getctarank, and the special registers.
#include "core/access.h"
#include "core/windows.h"
#include "exec/families.h"
#include "exec/ops.h"

namespace ptxsim {
namespace {

void mov(X& x, const Inst& in, u32 lanes) {
    const u64* a = x.src(in.s[1]);
    u64* d = x.dst(in.s[0]);
    each(lanes, [&](int l) { d[l] = a[l]; });
}
void mov_pred(X& x, const Inst& in, u32 lanes) { set_predicate(x, in.s[0], lanes, x.predicate(in.s[1])); }
void mov128(X& x, const Inst& in, u32 lanes) {
    const u64 *a = x.src(in.s[1]), *b = x.src(in.s[1] + 1);
    u64 *d = x.dst(in.s[0]), *e = x.dst(in.s[0] + 1);
    each(lanes, [&](int l) {
        u64 lo = a[l], hi = b[l];
        d[l] = lo, e[l] = hi;
    });
}

void mov_vector(X& x, const Inst& in, u32 lanes) {
    each(lanes, [&](int l) {
        u64 v[4];
        for (size_t i = 0; i < in.v.size(); ++i) v[i] = x.src(in.v2[i])[l];
        for (size_t i = 0; i < in.v.size(); ++i) x.dst(in.v[i])[l] = v[i];
    });
}

// k[0] bits of one element; d is one register, v the parts.
void mov_join(X& x, const Inst& in, u32 lanes) {
    u64* d = x.dst(in.s[0]);
    int w = int(in.k[0]), total = w * int(in.v.size());
    each(lanes, [&](int l) {
        unsigned __int128 r = 0;
        u64 mask = w == 64 ? ~0ull : (1ull << w) - 1;
        for (size_t i = 0; i < in.v.size(); ++i) r |= (unsigned __int128)(x.src(in.v[i])[l] & mask) << (w * i);
        d[l] = u64(r);
        if (total > 64) d[32 + l] = u64(r >> 64);
    });
}
void mov_split(X& x, const Inst& in, u32 lanes) {
    const u64* a = x.src(in.s[1]);
    int w = int(in.k[0]), total = w * int(in.v.size());
    each(lanes, [&](int l) {
        unsigned __int128 r = a[l];
        if (total > 64) r |= (unsigned __int128)a[32 + l] << 64;
        u64 mask = w == 64 ? ~0ull : (1ull << w) - 1;
        for (size_t i = 0; i < in.v.size(); ++i) x.dst(in.v[i])[l] = u64(r >> (w * i)) & mask;
    });
}

void cvta(X& x, const Inst& in, u32 lanes) {  // k[0]: window base, k[1]: to a state space
    const u64* a = x.src(in.s[1]);
    u64* d = x.dst(in.s[0]);
    u64 window = u64(in.k[0]);
    bool to = in.k[1];
    each(lanes, [&](int l) {
        u64 v = a[l];
        if (window == kSharedWindow) d[l] = to ? u64(u32(v)) : (u32(v) | kSharedWindow);
        else d[l] = v;  // global, const, local and param addresses are generic already
    });
}

void isspacep(X& x, const Inst& in, u32 lanes) {
    const u64* a = x.src(in.s[1]);
    u32 r = 0;
    each(lanes, [&](int l) {
        u64 w = a[l] & kWindowMask;
        bool yes = in.space == Space::global ? w == 0 : in.space == Space::local ? w == kLocalWindow : in.space == Space::param ? w == kParamWindow
                 : in.space == Space::constant ? false : w == kSharedWindow;
        if (yes && in.space == Space::shared) yes = (u32(a[l]) >> kRankShift) == x.cta.rank;
        r |= u32(yes) << l;
    });
    set_predicate(x, in.s[0], lanes, r);
}

void mapa(X& x, const Inst& in, u32 lanes) {
    const u64 *a = x.src(in.s[1]), *b = x.src(in.s[2]);
    u64* d = x.dst(in.s[0]);
    each(lanes, [&](int l) {
        u32 rank = u32(b[l]);
        if (rank >= x.cl.ctas.size()) x.fault(in, l, "mapa to CTA rank " + std::to_string(rank) + " of a cluster of " + std::to_string(x.cl.ctas.size()));
        u64 window = in.space == Space::generic ? kSharedWindow : 0;
        d[l] = window | (rank << kRankShift) | (u32(a[l]) & kOffsetMask);
    });
}
void getctarank(X& x, const Inst& in, u32 lanes) {
    const u64* a = x.src(in.s[1]);
    u64* d = x.dst(in.s[0]);
    each(lanes, [&](int l) { d[l] = u32(a[l]) >> kRankShift; });
}

enum Special : int { kTidX, kTidY, kTidZ, kNtidX, kNtidY, kNtidZ, kCtaidX, kCtaidY, kCtaidZ, kNctaidX, kNctaidY, kNctaidZ, kLaneid, kWarpid, kNwarpid,
    kClusterIdX, kClusterIdY, kClusterIdZ, kNclusterX, kNclusterY, kNclusterZ, kClusterCtaX, kClusterCtaY, kClusterCtaZ, kClusterNctaX, kClusterNctaY,
    kClusterNctaZ, kClusterRank, kClusterSize, kMaskEq, kMaskLt, kMaskLe, kMaskGt, kMaskGe, kClock, kTimer, kSmid, kNsmid, kGridid, kDynSmem, kTotalSmem,
    kExplicit, kReservedBegin, kReservedEnd, kReservedCap, kAggrSmem, kZero };

void read_special(X& x, const Inst& in, u32 lanes) {
    u64* d = x.dst(in.s[0]);
    const Grid& g = x.g;
    int id = int(in.k[0]);
    auto fill = [&](u64 v) { each(lanes, [&](int l) { d[l] = v; }); };
    switch (id) {
        case kTidX: case kTidY: case kTidZ:
            each(lanes, [&](int l) {
                u32 t = u32(x.w.tid_base) + u32(l);
                d[l] = id == kTidX ? t % g.block[0] : id == kTidY ? t / g.block[0] % g.block[1] : t / (g.block[0] * g.block[1]);
            });
            return;
        case kLaneid: each(lanes, [&](int l) { d[l] = u64(l); }); return;
        case kMaskEq: each(lanes, [&](int l) { d[l] = 1u << l; }); return;
        case kMaskLt: each(lanes, [&](int l) { d[l] = (1u << l) - 1; }); return;
        case kMaskLe: each(lanes, [&](int l) { d[l] = u32((2ull << l) - 1); }); return;
        case kMaskGt: each(lanes, [&](int l) { d[l] = u32(~((2ull << l) - 1)); }); return;
        case kMaskGe: each(lanes, [&](int l) { d[l] = u32(~((1ull << l) - 1)); }); return;
        case kNtidX: case kNtidY: case kNtidZ: return fill(g.block[id - kNtidX]);
        case kCtaidX: case kCtaidY: case kCtaidZ: return fill(x.cta.id[id - kCtaidX]);
        case kNctaidX: case kNctaidY: case kNctaidZ: return fill(g.dim[id - kNctaidX]);
        case kWarpid: return fill(x.w.index);
        case kNwarpid: return fill(x.cta.warps.size());
        case kClusterIdX: case kClusterIdY: case kClusterIdZ: return fill(x.cl.id[id - kClusterIdX]);
        case kNclusterX: case kNclusterY: case kNclusterZ: return fill(g.dim[id - kNclusterX] / g.cluster_dim[id - kNclusterX]);
        case kClusterCtaX: case kClusterCtaY: case kClusterCtaZ: return fill(x.cta.id[id - kClusterCtaX] % g.cluster_dim[id - kClusterCtaX]);
        case kClusterNctaX: case kClusterNctaY: case kClusterNctaZ: return fill(g.cluster_dim[id - kClusterNctaX]);
        case kClusterRank: return fill(x.cta.rank);
        case kClusterSize: return fill(x.cl.ctas.size());
        case kClock: case kTimer: return fill(x.m.stats.warp_instructions + x.w.executed);
        case kSmid: return fill(x.cta.linear % x.m.profiles[g.device].sms);
        case kNsmid: return fill(x.m.profiles[g.device].sms);
        case kDynSmem: return fill(g.dynamic_shared);
        case kTotalSmem: return fill(x.cta.shared.size() - kSharedReserved);
        case kAggrSmem: return fill(x.cta.shared.size());  // with the reserved part
        case kExplicit: return fill(x.cl.ctas.size() > 1);
        case kReservedEnd: case kReservedCap: return fill(kSharedReserved);
        default: return fill(0);
    }
}

const std::map<std::string, int>& specials() {
    static const std::map<std::string, int> t = [] {
        std::map<std::string, int> m = {
            {"%laneid", kLaneid}, {"%warpid", kWarpid}, {"%nwarpid", kNwarpid}, {"%cluster_ctarank", kClusterRank}, {"%cluster_nctarank", kClusterSize},
            {"%lanemask_eq", kMaskEq}, {"%lanemask_lt", kMaskLt}, {"%lanemask_le", kMaskLe}, {"%lanemask_gt", kMaskGt}, {"%lanemask_ge", kMaskGe},
            {"%clock", kClock}, {"%clock_hi", kZero}, {"%clock64", kClock}, {"%globaltimer", kTimer}, {"%globaltimer_lo", kTimer}, {"%globaltimer_hi", kZero},
            {"%smid", kSmid}, {"%nsmid", kNsmid}, {"%gridid", kGridid}, {"%dynamic_smem_size", kDynSmem}, {"%total_smem_size", kTotalSmem},
            {"%aggr_smem_size", kAggrSmem}, {"%is_explicit_cluster", kExplicit}, {"%reserved_smem_offset_begin", kReservedBegin},
            {"%reserved_smem_offset_end", kReservedEnd}, {"%reserved_smem_offset_cap", kReservedCap}, {"%reserved_smem_offset_0", kZero},
            {"%reserved_smem_offset_1", kZero}, {"%current_graph_exec", kZero}, {"%tid.w", kZero}, {"%ntid.w", kZero}, {"%ctaid.w", kZero}, {"%nctaid.w", kZero}};
        for (int i = 0; i < 32; ++i) m["%envreg" + std::to_string(i)] = kZero;
        for (int i = 0; i < 8; ++i) m["%pm" + std::to_string(i)] = kZero;
        const std::pair<const char*, int> triples[] = {{"%tid", kTidX}, {"%ntid", kNtidX}, {"%ctaid", kCtaidX}, {"%nctaid", kNctaidX}, {"%clusterid", kClusterIdX},
            {"%nclusterid", kNclusterX}, {"%cluster_ctaid", kClusterCtaX}, {"%cluster_nctaid", kClusterNctaX}};
        for (auto& t3 : triples)
            for (int i = 0; i < 3; ++i) m[std::string(t3.first) + "." + "xyz"[i]] = t3.second + i;
        return m;
    }();
    return t;
}

u64 window_of(const std::string& space) {
    return space.rfind("shared", 0) == 0 ? kSharedWindow : space == "local" ? kLocalWindow : space == "param" ? kParamWindow : 0;
}
}  // namespace

Handler special_reader(const std::string& name, int& bits, i64& k) {
    auto it = specials().find(name);
    if (it == specials().end()) return nullptr;
    bits = name == "%clock64" || name == "%globaltimer" || name == "%gridid" || name == "%current_graph_exec" ? 64 : it->second == kExplicit ? 1 : 32;
    k = it->second;
    if (it->second == kExplicit) return [](X& x, const Inst& in, u32) { x.dst(in.s[0])[0] = x.cl.ctas.size() > 1 ? 0xffffffffu : 0; };
    return read_special;
}

void read_symbol(X& x, const Inst& in, u32 lanes) {
    u64* d = x.dst(in.s[0]);
    u64 v = (u64(x.cta.rank) << kRankShift) | u64(in.k[0]);
    each(lanes, [&](int l) { d[l] = v; });
}

void read_not(X& x, const Inst& in, u32) { x.dst(in.s[0])[0] = u32(~x.predicate(in.s[1])); }

void decode_mov(Dec& d) {
    int parts = d.vec();
    Ty t = d.need_type();
    const Operand &to = d.arg(0), &from = d.arg(1);
    using K = Operand::Kind;
    if (parts > 1) {  // mov.v4 between vectors
        d.in.v = d.dsts(to), d.in.v2 = d.srcs(from, t);
        if (d.in.v.size() != size_t(parts) || d.in.v2.size() != size_t(parts)) d.fail("operands do not match the vector length");
        d.in.fn = mov_vector;
        return;
    }
    if (from.kind == K::vec) {
        d.in.s[0] = d.dst(0);
        d.in.k[0] = type_bits(t) / int(from.sub.size());
        d.in.v = d.srcs(from, Ty::b64);
        d.in.fn = mov_join;
    } else if (to.kind == K::vec) {
        d.in.s[1] = d.src(1, t);
        d.in.k[0] = type_bits(t) / int(to.sub.size());
        d.in.v = d.dsts(to);
        d.in.fn = mov_split;
    } else {
        d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, t);
        d.in.is_copy = from.kind == K::reg;
        d.in.fn = t == Ty::pred ? mov_pred : t == Ty::b128 ? mov128 : mov;
    }
}
void decode_cvta(Dec& d) {
    d.in.k[1] = d.opt("to");
    std::string s = d.need({"global", "shared", "shared::cta", "shared::cluster", "local", "const", "param", "param::entry"});
    d.in.k[0] = i64(window_of(s));
    d.need_type();
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1);
    d.in.fn = cvta;
}
void decode_isspacep(Dec& d) {
    std::string s = d.need({"global", "shared", "shared::cta", "shared::cluster", "local", "const", "param", "param::entry"});
    d.in.space = s == "global" ? Space::global : s == "local" ? Space::local : s == "const" ? Space::constant : s == "shared::cluster" ? Space::shared_cluster
               : s.rfind("shared", 0) == 0 ? Space::shared : Space::param;
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1);
    d.in.fn = isspacep;
}
void decode_mapa(Dec& d) {
    d.in.space = d.opt("shared::cluster") ? Space::shared_cluster : Space::generic;
    d.need_type();
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1), d.in.s[2] = d.src(2, Ty::b32);
    d.in.fn = mapa;
}
void decode_getctarank(Dec& d) {
    d.opt("shared::cluster");
    d.need_type();
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1);
    d.in.fn = getctarank;
}

}  // namespace ptxsim
