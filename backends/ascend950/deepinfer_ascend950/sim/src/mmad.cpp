// The cube: C (float or int32, L0C) += A (L0A) x B (L0B), plain or with one e8m0 scale per 32 along K on both sides.
//
// Layouts: A fractal kb * ceil(M/16) + mb, [m][k] inside; B fractal kb * ceil(N/16) + nb, [n][k] inside; C 16x16 block
// nb * ceil(M/16) + mb, [m][n] inside. Scales: 32-byte piece (row block) * ceil(K/64) + kb/2 of the MX buffer at the
// operand's address / 16. Products are exact in float; accumulation is float, in order of k (the hardware's order is
// not documented).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "asc_sim/cube.h"
#include "runtime.h"

namespace asc_sim {

namespace {
constexpr int kM = 2;
uint32_t div_up(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

uint32_t bits_of_elem(Elem e) {
    switch (e) {
        case Elem::f32:
        case Elem::i32: return 32;
        case Elem::bf16:
        case Elem::f16: return 16;
        case Elem::e2m1:
        case Elem::e1m2: return 4;
        default: return 8;
    }
}

float hf32(float x, bool even) {
    uint32_t u = float_bits(x);
    if ((u & 0x7F800000) == 0x7F800000) return x;
    u += even ? 0xFFF + ((u >> 13) & 1) : 0x1000;  // 10 mantissa bits stay
    return bits_float(u & ~0x1FFFu);
}

float element(const unsigned char* p, uint32_t i, Elem e, const Registers& r) {
    switch (e) {
        case Elem::bf16: {
            uint16_t b;
            std::memcpy(&b, p + 2 * i, 2);
            return bits_float(static_cast<uint32_t>(b) << 16);
        }
        case Elem::f16: {
            uint16_t b;
            std::memcpy(&b, p + 2 * i, 2);
            return decode(b, kHalf);
        }
        case Elem::f32: {
            float f;
            std::memcpy(&f, p + 4 * i, 4);
            return r.hf32 ? hf32(f, r.hf32_even) : f;
        }
        case Elem::e4m3: return fp8_table(true)[p[i]];
        case Elem::e5m2: return fp8_table(false)[p[i]];
        case Elem::hif8: return hif8_decode(p[i]);
        case Elem::e2m1: return decode((p[i / 2] >> (4 * (i % 2))) & 15, kE2m1);
        case Elem::e1m2: return decode((p[i / 2] >> (4 * (i % 2))) & 15, kE1m2);
        default: return static_cast<float>(static_cast<int8_t>(p[i]));
    }
}

// One operand as float: rows x k, row-major, rows padded to 16. Rows with bytes that nobody wrote make results that count
// as never written (padding of a tile may be left alone, as long as nothing of it is used).
struct Operand {
    std::vector<float> v;
    std::vector<uint8_t> known;  // per row
    uint32_t stride;
};

void read_operand(Operand& out, Memory& m, const void* base, Elem e, uint32_t rows, uint32_t k, bool nd, const Registers& r, const char* role) {
    const uint32_t bits = bits_of_elem(e), c0 = 256 / bits, kb_n = div_up(k, c0), rb_n = div_up(rows, 16);
    out.stride = k;
    out.v.assign(static_cast<size_t>(rb_n) * 16 * k, 0.0f);
    out.known.assign(static_cast<size_t>(rb_n) * 16, 1);
    if (nd) {
        const uint32_t bytes = div_up(k * bits, 8);
        const unsigned char* p = local(m, base, bytes, 512, false);
        out.known[0] = taken(m, m.offset(p), bytes, role);
        for (uint32_t i = 0; i < k; ++i) out.v[i] = element(p, i, e, r);
        return;
    }
    const unsigned char* p0 = local(m, base, static_cast<uint64_t>(kb_n) * rb_n * 512, 32, false);
    for (uint32_t kb = 0; kb < kb_n; ++kb) {
        const uint32_t kk = std::min(c0, k - kb * c0), bytes = div_up(kk * bits, 8);
        for (uint32_t row = 0; row < rows; ++row) {
            const unsigned char* p = p0 + (static_cast<uint64_t>(kb) * rb_n + row / 16) * 512 + (row % 16) * 32;
            out.known[row] &= taken(m, m.offset(p), bytes, role);
            float* o = out.v.data() + static_cast<size_t>(row) * k + static_cast<size_t>(kb) * c0;
            if (e == Elem::bf16 && kk == 16) {
                uint16_t b[16];
                std::memcpy(b, p, 32);
                for (int i = 0; i < 16; ++i) o[i] = bits_float(static_cast<uint32_t>(b[i]) << 16);
                continue;
            }
            for (uint32_t i = 0; i < kk; ++i) o[i] = element(p, i, e, r);
        }
    }
}

// Scales of `rows` rows as float factors, [row][k/32].
std::vector<float> read_scales(Memory& mx, Memory& l0, const void* operand, uint32_t rows, uint32_t k, std::vector<uint8_t>& known, const char* role) {
    const uint32_t pieces = div_up(k, 64), groups = k / 32;
    std::vector<float> s(static_cast<size_t>(div_up(rows, 16)) * 16 * groups);
    const unsigned char* p0 = local(mx, mx.base + l0.offset(operand) / 16, static_cast<uint64_t>(div_up(rows, 16)) * pieces * 32, 32, false);
    for (uint32_t row = 0; row < rows; ++row)
        for (uint32_t gidx = 0; gidx < groups; ++gidx) {
            const unsigned char* p = p0 + (static_cast<uint64_t>(row / 16) * pieces + gidx / 2) * 32 + (row % 16) * 2 + gidx % 2;
            known[row] &= taken(mx, mx.offset(p), 1, role);
            s[static_cast<size_t>(row) * groups + gidx] = *p == 255 ? bits_float(0x7FC00000u) : std::ldexp(1.0f, static_cast<int>(*p) - 127);
        }
    return s;
}

// One bit per 32-bit word from `offset` on; words from `count` to 16 count as written.
uint16_t written_words(Memory& m, uint32_t offset, uint32_t count) {
    if (taken(m, offset, count * 4, "accumulator")) return 0xFFFF;
    uint32_t bits = (0xFFFFu << count) & 0xFFFFu;
    for (uint32_t j = 0; j < count; ++j) bits |= static_cast<uint32_t>(written(m, offset + 4 * j, 4)) << j;
    return static_cast<uint16_t>(bits);
}

// Wide vectors where the machine has them; without fused multiply-add every clone rounds alike.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define ASC_SIM_CLONES __attribute__((target_clones("avx2", "default"), optimize("O3")))
#else
#define ASC_SIM_CLONES
#endif
// Plain product of one 16-column block; B is [k][16].
ASC_SIM_CLONES void row_block(float* acc, const float* a, const float* b, uint32_t k) {
    float sum[16];
    for (int j = 0; j < 16; ++j) sum[j] = acc[j];
    for (uint32_t i = 0; i < k; ++i) {
        const float x = a[i];
        for (int j = 0; j < 16; ++j) sum[j] += x * b[16 * i + static_cast<uint32_t>(j)];
    }
    for (int j = 0; j < 16; ++j) acc[j] = sum[j];
}
template <class Acc>
void row_block(Acc* acc, const float* a, const float* b, uint32_t k) {
    for (uint32_t i = 0; i < k; ++i) {
        const Acc x = static_cast<Acc>(a[i]);
        for (int j = 0; j < 16; ++j) acc[j] += x * static_cast<Acc>(b[16 * i + static_cast<uint32_t>(j)]);
    }
}
void row_block_mx(float* acc, const float* a, const float* b, const float* sa, const float* sb, uint32_t sb_stride, uint32_t k) {
    for (uint32_t gidx = 0; gidx < k / 32; ++gidx) {
        float part[16] = {};
        row_block(part, a + 32 * gidx, b + 16 * 32 * gidx, 32);
        for (uint32_t j = 0; j < 16; ++j)
            acc[j] += static_cast<float>(static_cast<double>(part[j]) * sa[gidx] * sb[j * sb_stride + gidx]);
    }
}
float settle(float x, bool keep) {
    if (keep || std::isfinite(x)) return x;
    return std::isnan(x) ? 0.0f : std::copysign(3.40282347e38f, x);
}

void compute(const MmadArgs& a, const Registers& reg) {
    Memory &l0a = arena_of(Mem::L0A), &l0b = arena_of(Mem::L0B), &l0c = arena_of(Mem::L0C);
    const uint32_t mb_n = div_up(a.m, 16), nb_n = div_up(a.n, 16);
    Operand A, B;
    read_operand(A, l0a, a.a, a.ea, a.m, a.k, a.m == 1 && !a.disable_gemv, reg, "matrix A");
    read_operand(B, l0b, a.b, a.eb, a.n, a.k, false, reg, "matrix B");
    std::vector<float> sa, sb;
    if (a.mx) {
        sa = read_scales(arena_of(Mem::L0A_MX), l0a, a.a, a.m, a.k, A.known, "scales of A");
        sb = read_scales(arena_of(Mem::L0B_MX), l0b, a.b, a.n, a.k, B.known, "scales of B");
    }
    const uint32_t c_bytes = mb_n * nb_n * 1024;
    unsigned char* c = local(l0c, a.c, c_bytes, 1024, false, false);
    const uint32_t c_off = l0c.offset(c);
    // Which 16-column pieces of a row hold results of written bytes alone; all of them, nearly always.
    std::vector<uint16_t> columns(nb_n, 0);
    for (uint32_t j = 0; j < nb_n * 16; ++j) columns[j / 16] |= static_cast<uint16_t>((j >= a.n || B.known[j]) << (j % 16));
    std::vector<uint16_t> before;
    if (!a.init && !a.bias) {
        track_local(l0c, c_off, c_bytes, false);
        before.resize(static_cast<size_t>(nb_n) * a.m);
        for (uint32_t nb = 0; nb < nb_n; ++nb)
            for (uint32_t row = 0; row < a.m; ++row)
                before[static_cast<size_t>(nb) * a.m + row] = written_words(l0c, c_off + (nb * mb_n + row / 16) * 1024 + (row % 16) * 64, std::min(16u, a.n - nb * 16));
    }
    track_local(l0c, c_off, c_bytes, true);
    const unsigned char* bias = nullptr;
    if (a.bias) {
        Memory& bt = arena_of(Mem::BT);
        const uint64_t base = reinterpret_cast<uint64_t>(bt.base);  // an offset, or an address in the table
        bias = local(bt, bt.base + (a.bias_addr >= base ? a.bias_addr - base : a.bias_addr), a.n * 4, 64, false);
        if (!taken(bt, bt.offset(bias), a.n * 4, "bias"))  // the same for columns whose bias nobody wrote
            for (uint32_t nb = 0; nb < nb_n; ++nb) columns[nb] &= written_words(bt, bt.offset(bias) + 64 * nb, std::min(16u, a.n - nb * 16));
    }
    const bool keep = (reg.ctrl >> 48) & 1;
    std::vector<float> bk(static_cast<size_t>(a.k) * 16);
    for (uint32_t nb = 0; nb < nb_n; ++nb) {
        for (uint32_t k = 0; k < a.k; ++k)
            for (uint32_t j = 0; j < 16; ++j) bk[16 * k + j] = B.v[static_cast<size_t>(nb * 16 + j) * a.k + k];
        for (uint32_t row = 0; row < a.m; ++row) {
            unsigned char* to = c + (static_cast<uint64_t>(nb) * mb_n + row / 16) * 1024 + (row % 16) * 64;
            const float* ar = A.v.data() + static_cast<size_t>(row) * a.k;
            if (a.ea == Elem::i8) {
                int32_t acc[16] = {};
                if (bias) std::memcpy(acc, bias + nb * 64, std::min(16u, a.n - nb * 16) * 4);
                else if (!a.init) std::memcpy(acc, to, 64);
                row_block(acc, ar, bk.data(), a.k);
                std::memcpy(to, acc, 64);
                continue;
            }
            float acc[16] = {};
            if (bias) std::memcpy(acc, bias + nb * 64, std::min(16u, a.n - nb * 16) * 4);
            else if (!a.init) std::memcpy(acc, to, 64);
            if (a.mx) row_block_mx(acc, ar, bk.data(), sa.data() + static_cast<size_t>(row) * (a.k / 32), sb.data() + static_cast<size_t>(nb) * 16 * (a.k / 32), a.k / 32, a.k);
            else row_block(acc, ar, bk.data(), a.k);
            for (float& x : acc) x = settle(x, keep);
            std::memcpy(to, acc, 64);
        }
    }
    for (uint32_t nb = 0; nb < nb_n; ++nb)
        for (uint32_t row = 0; row < a.m; ++row) {
            const uint32_t old = before.empty() ? 0xFFFFu : before[static_cast<size_t>(nb) * a.m + row];
            const uint32_t known = A.known[row] ? columns[nb] & old : 0;
            if (known == 0xFFFF) continue;
            const uint32_t at = c_off + (nb * mb_n + row / 16) * 1024 + (row % 16) * 64;
            for (uint32_t j = 0; j < 16; ++j)
                if (!((known >> j) & 1)) clear_init(l0c, at + 4 * j, 4);
        }
    g.sched->counters.macs += static_cast<uint64_t>(a.m) * a.n * a.k;
    g.sched->spent += cost::cube_cycles(a.m, a.k, a.n, bits_of_elem(a.ea));
}
}  // namespace

void mmad(const MmadArgs& a, Loc loc) {
    if (g.core->kind != 0) return;
    const char* name = a.mx ? "asc_mmad_mx" : "asc_mmad";
    if (a.m > 4095 || a.k > 4095 || a.n > 4095) fail(name, "m, k and n must lie in [0, 4095]", loc);
    if (a.mx && a.k % 64) fail(name, ("k = " + std::to_string(a.k) + " must be a multiple of 64 with scales; pad with zeros").c_str(), loc);
    if (a.unit_flag == 1 || a.unit_flag > 3) fail(name, "unit_flag must be 0, 2 (keep) or 3 (update)", loc);
    const Registers reg = g.core->reg;
    Arena* arena = g.core->block->arena.get();
    if (!arena->l0c.holds(a.c)) fail(name, "the destination is not in L0C", loc);
    const uint32_t first = arena->l0c.offset(a.c) / 512, count = div_up(a.m, 16) * div_up(a.n, 16) * 2;
    std::function<bool()> ready;
    if (a.unit_flag)
        ready = [=] {
            for (uint32_t i = first; i < first + count && i < arena->unit_flags.size(); ++i)
                if (arena->unit_flags[i]) return false;
            return true;
        };
    issue(kM, name, loc, [=] {
        if (a.m == 0 || a.k == 0 || a.n == 0) return;
        Core& c = *g.core;
        Clock& clk = c.pipes[kM].clock;
        if (a.unit_flag)
            for (uint32_t i = first; i < first + count; ++i) clk.join(arena->unit_clocks[i]);
        const uint32_t align = a.mx && (a.ea == Elem::e4m3 || a.ea == Elem::e5m2) ? 1024 : 512;
        for (auto [m, p] : {std::pair<Memory*, const void*>{&arena->l0a, a.a}, {&arena->l0b, a.b}})
            if (m->holds(p) && m->offset(p) % align) stop(std::string(m->name) + " offset " + std::to_string(m->offset(p)) + " must be a multiple of " + std::to_string(align));
        const uint32_t off = arena->l0c.offset(a.c);
        // Unit flags order the cube's own writes block by block; without them small accumulations need a barrier.
        if (!a.init && !a.bias && !a.unit_flag && c.mmad_addr == off && (a.m / 16) * (a.n / 16) < 10)
            stop("accumulates into the block the previous mmad wrote; with fewer than 10 fractals a pipe_barrier(PIPE_M) must stand between");
        compute(a, reg);
        c.mmad_addr = off;
        if (a.unit_flag == 3)
            for (uint32_t i = first; i < first + count; ++i) {
                arena->unit_flags[i] = 1;
                arena->unit_clocks[i] = clk;
            }
    }, std::move(ready));
}

void set_direction(bool n) { g.core->reg.direction_n = n; }
void set_hf32(bool on) { g.core->reg.hf32 = on; }
void set_hf32_round(bool even) { g.core->reg.hf32_even = even; }

}  // namespace asc_sim
