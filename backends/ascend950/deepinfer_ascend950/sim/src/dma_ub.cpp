// MTE2 and MTE3 copies of the vector cores: GM <-> UB, UB -> L1, UB -> UB, L1 -> UB.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "asc_sim/dma.h"
#include "asc_sim/sync.h"
#include "runtime.h"

namespace asc_sim {

namespace {
constexpr int kV = 1, kMte1 = 3, kMte2 = 4, kMte3 = 5;
uint32_t up32(uint64_t x) { return static_cast<uint32_t>((x + 31) / 32 * 32); }
bool on_aic() { return g.core->kind == 0; }

// False for a copy of nothing, which is no operation.
bool check_bursts(uint32_t count, uint64_t len) {
    limit("burst_count", count, 0, 4095);
    limit("burst_len", len, 0, (1u << 21) - 1);
    return count && len;
}

template <class T, class F>
void atomic_loop(unsigned char* dst, const unsigned char* src, uint64_t bytes, F f) {
    for (uint64_t i = 0; i + sizeof(T) <= bytes; i += sizeof(T)) {
        T a, b;
        std::memcpy(&a, dst + i, sizeof(T));
        std::memcpy(&b, src + i, sizeof(T));
        const T r = f(a, b);
        std::memcpy(dst + i, &r, sizeof(T));
    }
}
template <class T>
void atomic_as(unsigned char* dst, const unsigned char* src, uint64_t bytes, int op) {
    if (bytes % sizeof(T)) stop("an atomic copy must move whole elements of the atomic type");
    if (op == 1) atomic_loop<T>(dst, src, bytes, [](T a, T b) { return T(a + b); });
    else if (op == 2) atomic_loop<T>(dst, src, bytes, [](T a, T b) { return a > b ? a : b; });
    else atomic_loop<T>(dst, src, bytes, [](T a, T b) { return a < b ? a : b; });
}
}  // namespace

// Bytes into global memory, through the atomic state of the core.
void write_gm(unsigned char* dst, const unsigned char* src, uint64_t bytes, const Registers& r) {
    if (r.atomic_op == 0) {
        std::memcpy(dst, src, bytes);
        return;
    }
    switch (r.atomic_type) {
        case AtomF32: return atomic_as<float>(dst, src, bytes, r.atomic_op);
        case AtomF16: return atomic_as<half>(dst, src, bytes, r.atomic_op);
        case AtomBf16: return atomic_as<bfloat16_t>(dst, src, bytes, r.atomic_op);
        case AtomI8: return atomic_as<int8_t>(dst, src, bytes, r.atomic_op);
        case AtomI16: return atomic_as<int16_t>(dst, src, bytes, r.atomic_op);
        default: return atomic_as<int32_t>(dst, src, bytes, r.atomic_op);
    }
}

void set_loop(int path, int which, uint64_t a, uint64_t b, Loc) {
    Registers& r = g.core->reg;
    uint32_t* sizes[3][2] = {{&r.ub_loop1, &r.ub_loop2}, {&r.gm_loop1, &r.gm_loop2}, {&r.l1_loop1, &r.l1_loop2}};
    uint64_t* s1[3] = {r.gm2ub_s1, r.ub2gm_s1, r.gm2l1_s1};
    uint64_t* s2[3] = {r.gm2ub_s2, r.ub2gm_s2, r.gm2l1_s2};
    if (which == 0) {
        *sizes[path][0] = static_cast<uint32_t>(a);
        *sizes[path][1] = static_cast<uint32_t>(b);
    } else {
        uint64_t* s = which == 1 ? s1[path] : s2[path];
        s[0] = a;
        s[1] = b;
    }
}
void set_pad(uint64_t bits) { g.core->reg.pad_value = bits; }

void gm2ub(void* dst, const void* src, uint32_t count, uint32_t len, uint64_t src_stride, uint64_t dst_stride, Loc loc) {
    if (on_aic()) return;
    issue(kMte2, "asc_copy_gm2ub", loc, [=] {
        Memory& ub = arena_of(Mem::UB);
        if (!check_bursts(count, len)) return;
        for (uint32_t i = 0; i < count; ++i) {
            const auto* s = static_cast<const unsigned char*>(src) + i * src_stride;
            auto* d = static_cast<unsigned char*>(dst) + i * dst_stride;
            const bool compact = count > 1 && dst_stride == len;
            if (count > 1 && !compact && dst_stride % 32) stop("dst_stride must be a multiple of 32 (or equal to burst_len)");
            unsigned char* t = local(ub, d, compact && i + 1 < count ? len : up32(len), compact && i ? 1 : 32, true);
            const unsigned char* f = gm(s, len, false);
            std::memcpy(t, f, len);
            if (!compact || i + 1 == count) std::memset(t + len, f[0], up32(len) - len);  // filler bytes are not defined
            moved(kMte2, len, cost::kGmAiv);
        }
    });
}

void ub2gm(void* dst, const void* src, uint32_t count, uint32_t len, uint64_t dst_stride, uint64_t src_stride, Loc loc) {
    if (on_aic()) return;
    const Registers reg = g.core->reg;
    issue(kMte3, "asc_copy_ub2gm", loc, [=] {
        Memory& ub = arena_of(Mem::UB);
        if (!check_bursts(count, len)) return;
        for (uint32_t i = 0; i < count; ++i) {
            auto* s = static_cast<const unsigned char*>(src) + i * src_stride;
            const unsigned char* from = local(ub, s, len, count > 1 && src_stride == len && i ? 1 : 32, false);
            require_init(ub, ub.offset(from), len, "asc_copy_ub2gm");
            write_gm(gm(static_cast<unsigned char*>(dst) + i * dst_stride, len, true, reg.atomic_op != 0), from, len, reg);
            moved(kMte3, len, cost::kGmAiv);
        }
    });
}

namespace {
// One burst of an align copy into UB or L1: data, then padding elements, then filler up to 32 bytes. Compact bursts lie
// head to tail, and only the last one is filled up.
void burst_in(Memory& to, unsigned char* d, const unsigned char* s, const AlignCopy& c, uint64_t pad, bool compact, bool last) {
    const uint32_t left = c.left * c.esize, right = c.right * c.esize, total = left + c.len + right;
    if (left > 32 || right > 32) stop("padding must not exceed 32 bytes on a side");
    const uint32_t at = compact && to.holds(d) ? to.offset(d) % 32 : 0;
    const uint32_t whole = last ? up32(at + total) - at : total;
    unsigned char* p = local(to, d, whole, compact ? 1 : 32, true);
    const unsigned char* from = gm(s, c.len, false);
    const bool constant = left || right || c.constant_pad;
    for (uint32_t i = 0; i < whole; ++i) {
        const bool data = i >= left && i < left + c.len;
        p[i] = data ? from[i - left]
                    : constant ? reinterpret_cast<const unsigned char*>(&pad)[i % 8] : from[(i - left - c.len) % c.esize];
    }
    moved(kMte2, c.len, g.core->kind == 0 ? cost::kGmAic : cost::kGmAiv);
}
void align_in(Mem mem, const char* name, void* dst, const void* src, AlignCopy c, const uint32_t* loops, const uint64_t* s1,
              const uint64_t* s2, Loc loc) {
    const uint64_t pad = g.core->reg.pad_value;
    const uint32_t n1 = loops[0], n2 = loops[1];
    const uint64_t a1 = s1[0], b1 = s1[1], a2 = s2[0], b2 = s2[1];
    issue(kMte2, name, loc, [=] {
        Memory& to = arena_of(mem);
        if (!check_bursts(c.count, c.len)) return;
        if (c.len % c.esize) stop("burst_len must be a multiple of the element size");
        const bool compact = c.count > 1 && c.ub_stride == c.len && c.left == 0 && c.right == 0;
        if (c.count > 1 && !compact && c.ub_stride % 32) stop("dst_stride must be a multiple of 32 (or equal to burst_len)");
        for (uint32_t j2 = 0; j2 < n2; ++j2)
            for (uint32_t j1 = 0; j1 < n1; ++j1)
                for (uint32_t i = 0; i < c.count; ++i) {
                    const auto* s = static_cast<const unsigned char*>(src) + j2 * a2 + j1 * a1 + i * c.gm_stride;
                    auto* d = static_cast<unsigned char*>(dst) + j2 * b2 + j1 * b1 + i * static_cast<uint64_t>(c.ub_stride);
                    burst_in(to, d, s, c, pad, compact && i > 0, !compact || i + 1 == c.count);
                }
    });
}
}  // namespace

void gm2ub_align(void* dst, const void* src, AlignCopy c, Loc loc) {
    if (on_aic()) return;
    const Registers& r = g.core->reg;
    const uint32_t loops[2] = {r.ub_loop1, r.ub_loop2};
    align_in(Mem::UB, "asc_copy_gm2ub_align", dst, src, c, loops, r.gm2ub_s1, r.gm2ub_s2, loc);
}
void gm2l1_align(void* dst, const void* src, AlignCopy c, Loc loc) {
    if (!on_aic()) return;
    const Registers& r = g.core->reg;
    const uint32_t loops[2] = {r.l1_loop1, r.l1_loop2};
    align_in(Mem::L1, "asc_copy_gm2l1_align", dst, src, c, loops, r.gm2l1_s1, r.gm2l1_s2, loc);
}

void ub2gm_align(void* dst, const void* src, AlignCopy c, Loc loc) {
    if (on_aic()) return;
    const Registers reg = g.core->reg;
    issue(kMte3, "asc_copy_ub2gm_align", loc, [=] {
        Memory& ub = arena_of(Mem::UB);
        if (!check_bursts(c.count, c.len)) return;
        if (c.len % c.esize) stop("burst_len must be a multiple of the element size");
        const bool compact = c.count > 1 && c.ub_stride == c.len;
        if (c.count > 1 && !compact && c.ub_stride % 32) stop("src_stride must be a multiple of 32 (or equal to burst_len)");
        if (c.count > 1 && c.ub_stride == 0) stop("src_stride 0 is undefined on the device; repeat a block with the loop registers");
        for (uint32_t j2 = 0; j2 < reg.gm_loop2; ++j2)
            for (uint32_t j1 = 0; j1 < reg.gm_loop1; ++j1)
                for (uint32_t i = 0; i < c.count; ++i) {
                    const auto* s = static_cast<const unsigned char*>(src) + j2 * reg.ub2gm_s2[0] + j1 * reg.ub2gm_s1[0] + i * static_cast<uint64_t>(c.ub_stride);
                    auto* d = static_cast<unsigned char*>(dst) + j2 * reg.ub2gm_s2[1] + j1 * reg.ub2gm_s1[1] + i * c.gm_stride;
                    const unsigned char* from = local(ub, s, c.len, compact && i ? 1 : 32, false);
                    require_init(ub, ub.offset(from), c.len, "asc_copy_ub2gm_align");
                    write_gm(gm(d, c.len, true, reg.atomic_op != 0), from, c.len, reg);
                    moved(kMte3, c.len, cost::kGmAiv);
                }
    });
}

namespace {
void blocks(int pipe, const char* name, Memory* to, Memory* from, void* dst, const void* src, uint32_t count, uint32_t len32,
            uint32_t src_gap, uint32_t dst_gap, Loc loc) {
    issue(pipe, name, loc, [=] {
        limit("burst_count", count, 1, 4095);
        limit("burst_len", len32, 1, 65535);
        const uint32_t len = len32 * 32;
        for (uint32_t i = 0; i < count; ++i) {
            const auto* s = static_cast<const unsigned char*>(src) + i * static_cast<uint64_t>(len + src_gap * 32);
            auto* d = static_cast<unsigned char*>(dst) + i * static_cast<uint64_t>(len + dst_gap * 32);
            const unsigned char* f = local(*from, s, len, 32, false);
            const bool twin = to->holds(d) && to->offset(d) + len <= to->usable && repeats(*to, to->offset(d), f, len);
            unsigned char* t = local(*to, d, len, 32, true, !twin);
            std::memmove(t, f, len);
            copy_init(*to, to->offset(t), *from, from->offset(f), len);
            moved(pipe, len, pipe == kV ? 256.0 : cost::kUbToL1);
        }
    });
}
}  // namespace

void ub2l1(void* dst, const void* src, uint32_t count, uint32_t len32, uint32_t src_gap, uint32_t dst_gap, Loc loc) {
    if (on_aic()) return;
    blocks(kMte3, "asc_copy_ub2l1", &arena_of(Mem::L1), &arena_of(Mem::UB), dst, src, count, len32, src_gap, dst_gap, loc);
}
void ub2ub(void* dst, const void* src, uint32_t count, uint32_t len32, uint32_t src_gap, uint32_t dst_gap, Loc loc) {
    if (on_aic()) return;
    blocks(kV, "asc_copy_ub2ub", &arena_of(Mem::UB), &arena_of(Mem::UB), dst, src, count, len32, src_gap, dst_gap, loc);
}
// The UB address is one the AIC computed, so it lies in AIV0's memory; `aiv` picks whose UB is written.
void l12ub(void* dst, const void* src, int aiv, uint32_t count, uint32_t len32, uint32_t src_gap, uint32_t dst_gap, Loc loc) {
    if (!on_aic()) return;
    Arena& a = *g.core->block->arena;
    auto* d = static_cast<unsigned char*>(dst) + (aiv ? a.ub[1].base - a.ub[0].base : 0);
    blocks(kMte1, "asc_copy_l12ub", &a.ub[aiv ? 1 : 0], &a.l1, d, src, count, len32, src_gap, dst_gap, loc);
}

}  // namespace asc_sim
