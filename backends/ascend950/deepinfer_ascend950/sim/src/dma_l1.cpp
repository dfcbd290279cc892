// MTE2 and MTE1 copies of the cube core: GM -> L1 (plain, ND/DN to NZ), fills, L1 -> L0A/L0B, scales, bias, quant table.
#include <cstring>

#include "asc_sim/dma.h"
#include "runtime.h"

namespace asc_sim {

namespace {
constexpr int kMte1 = 3, kMte2 = 4;
bool on_aiv() { return g.core->kind != 0; }
}  // namespace

void set_nz_para(uint64_t config, Loc) {
    if (on_aiv()) return;
    g.core->reg.nz_para = config;
    g.core->reg.nz_para_set = true;
}

void gm2l1(void* dst, const void* src, uint32_t count, uint32_t len, uint64_t src_stride, uint64_t dst_stride, Loc loc) {
    if (on_aiv()) return;
    issue(kMte2, "asc_copy_gm2l1", loc, [=] {
        Memory& l1 = arena_of(Mem::L1);
        for (uint32_t i = 0; i < count; ++i) {
            unsigned char* d = local(l1, static_cast<unsigned char*>(dst) + i * dst_stride, len, 32, true);
            std::memcpy(d, gm(static_cast<const unsigned char*>(src) + i * src_stride, len, false), len);
            moved(kMte2, len, cost::kGmAic);
        }
    });
}

// Rows n x columns d of a row-major (or, dn, column-major) matrix into [column block][row][C0]; the last column block is
// zero-filled to 32 bytes. Strides of the destination come from the state register, latched here.
void nd2nz(void* dst, const void* src, uint64_t row_stride, uint32_t n, uint32_t d, uint64_t matrix_stride, bool small_c0,
           uint32_t esize, bool dn, Loc loc) {
    if (on_aiv()) return;
    const char* name = dn ? "asc_copy_gm2l1_dn2nz" : "asc_copy_gm2l1_nd2nz";
    const Registers reg = g.core->reg;
    if (!reg.nz_para_set) fail(name, "asc_set_gm2l1_nz_para has not been called", loc);
    if (small_c0) fail(name, "the small-C0 mode is not modelled", loc);
    const uint64_t p = reg.nz_para;
    issue(kMte2, name, loc, [=] {
        const uint32_t num = p & 0xFFFF, n_stride = (p >> 16) & 0xFFFF, c0_stride = (p >> 32) & 0xFFFF, m_stride = p >> 48;
        limit("matrix_num", num, 0, 4095);
        if (num == 0 || n == 0 || d == 0) return;  // documented as no operation
        limit("n_value", n, 1, 65535);
        limit("d_value", d, 1, (1u << 21) - 1);
        limit("dst_nz_n_stride", n_stride, 1, 16384);
        limit("dst_nz_c0_stride", c0_stride, 1, 16384);
        Memory& l1 = arena_of(Mem::L1);
        const uint32_t c0 = 32 / esize;
        for (uint32_t m = 0; m < num; ++m) {
            const auto* s = static_cast<const unsigned char*>(src) + m * matrix_stride;
            auto* out = static_cast<unsigned char*>(dst) + static_cast<uint64_t>(m) * m_stride * 32;
            if (dn)
                for (uint32_t c = 0; c < d; ++c) gm(s + c * row_stride, static_cast<uint64_t>(n) * esize, false);
            else
                for (uint32_t r = 0; r < n; ++r) gm(s + r * row_stride, static_cast<uint64_t>(d) * esize, false);
            for (uint32_t cb = 0; cb < (d + c0 - 1) / c0; ++cb) {
                const uint32_t cols = d - cb * c0 < c0 ? d - cb * c0 : c0;
                for (uint32_t r = 0; r < n; ++r) {
                    unsigned char* t = local(l1, out + (static_cast<uint64_t>(cb) * c0_stride + static_cast<uint64_t>(r) * n_stride) * 32, 32, 32, true);
                    if (!dn) std::memcpy(t, s + r * row_stride + static_cast<uint64_t>(cb) * 32, cols * esize);
                    else
                        for (uint32_t c = 0; c < cols; ++c)
                            std::memcpy(t + c * esize, s + (static_cast<uint64_t>(cb) * c0 + c) * row_stride + static_cast<uint64_t>(r) * esize, esize);
                    if (cols < c0) std::memset(t + cols * esize, 0, 32 - cols * esize);
                }
            }
            moved(kMte2, static_cast<uint64_t>(n) * d * esize, cost::kGmAic);
        }
    });
}

void fill_l1(void* dst, uint32_t pattern, uint32_t, asc_fill_value_config cfg, Loc loc) {
    if (on_aiv()) return;
    const uint32_t repeat = cfg.repeat, blocks = cfg.blk_num, gap = cfg.dst_gap;
    issue(kMte1, "asc_fill_l1", loc, [=] {
        Memory& l1 = arena_of(Mem::L1);
        for (uint32_t i = 0; i < repeat; ++i) {
            unsigned char* d = local(l1, static_cast<unsigned char*>(dst) + static_cast<uint64_t>(i) * (blocks + gap) * 32, blocks * 32, 32, true);
            for (uint32_t b = 0; b < blocks * 32; b += 4) std::memcpy(d + b, &pattern, 4);
        }
    });
}

// Plain: whole 512-byte fractals. Transposing: element (r, c) of the source region goes to fractal
// (r / C0) * dst_stride + c / 16, row c % 16, column r % C0.
void l12l0(bool b, void* dst, const void* src, uint32_t m0, uint32_t k0, uint32_t m_step, uint32_t k_step, int32_t src_stride,
           uint32_t dst_stride, uint32_t bits, bool transpose, Loc loc) {
    if (on_aiv()) return;
    const char* name = b ? (transpose ? "asc_copy_l12l0b_transpose" : "asc_copy_l12l0b")
                         : (transpose ? "asc_copy_l12l0a_transpose" : "asc_copy_l12l0a");
    issue(kMte1, name, loc, [=] {
        if (m_step == 0 || k_step == 0) return;
        limit("m_step", m_step, 1, 255);
        limit("k_step", k_step, 1, 255);
        limit("dst_stride", dst_stride, 1, 65535);
        Memory &l1 = arena_of(Mem::L1), &l0 = arena_of(b ? Mem::L0B : Mem::L0A);
        if (!l1.holds(src)) local(l1, src, 0, 32, false);
        const int64_t step = src_stride < 0 ? -src_stride : src_stride;
        const auto* base = static_cast<const unsigned char*>(src) + (static_cast<int64_t>(k0) * step + m0) * 512;
        if (static_cast<unsigned char*>(dst) >= l0.base && l0.offset(dst) % 512) stop(std::string(l0.name) + " offset must be a multiple of 512");
        auto fractal = [&](uint32_t mb, uint32_t kb) { return base + (static_cast<int64_t>(kb) * src_stride + mb) * 512; };
        moved(kMte1, static_cast<uint64_t>(m_step) * k_step * 512, cost::kL1ToL0);
        if (!transpose) {
            for (uint32_t kb = 0; kb < k_step; ++kb)
                for (uint32_t mb = 0; mb < m_step; ++mb) {
                    const unsigned char* f = local(l1, fractal(mb, kb), 512, 32, false);
                    unsigned char* t = local(l0, static_cast<unsigned char*>(dst) + (static_cast<uint64_t>(kb) * dst_stride + mb) * 512, 512, 32, true);
                    std::memcpy(t, f, 512);
                    copy_init(l0, l0.offset(t), l1, l1.offset(f), 512);
                }
            return;
        }
        const uint32_t c0 = 256 / bits, rows = m_step * 16, cols = k_step * c0;
        if (rows % c0) stop("m_step = " + std::to_string(m_step) + " must be a multiple of " + std::to_string(c0 / 16) + " for this element width");
        if (cols % 16) stop("k_step = " + std::to_string(k_step) + " must be a multiple of 2 for this element width");
        bool written = true;  // every source byte
        for (uint32_t kb = 0; kb < k_step; ++kb)
            for (uint32_t mb = 0; mb < m_step; ++mb) {
                const uint32_t first = l1.offset(local(l1, fractal(mb, kb), 512, 32, false)) / kGranule;
                for (uint32_t i = 0; i < 512 / kGranule; ++i) written &= l1.shadow[first + i].init == 0xFFFFFFFFu;
            }
        for (uint32_t rb = 0; rb < rows / c0; ++rb)
            for (uint32_t cb = 0; cb < cols / 16; ++cb) {
                unsigned char* t = local(l0, static_cast<unsigned char*>(dst) + (static_cast<uint64_t>(rb) * dst_stride + cb) * 512, 512, 32, true);
                if (bits == 16 && written) {
                    const unsigned char* f = fractal(rb, cb);
                    uint16_t in[256], out[256];
                    std::memcpy(in, f, 512);
                    for (int ci = 0; ci < 16; ++ci)
                        for (int ri = 0; ri < 16; ++ri) out[ci * 16 + ri] = in[ri * 16 + ci];
                    std::memcpy(t, out, 512);
                    continue;
                }
                for (uint32_t ci = 0; ci < 16; ++ci) {
                    uint32_t unknown = 0;  // bytes whose source nobody wrote
                    for (uint32_t ri = 0; ri < c0; ++ri) {
                        const uint32_t r = rb * c0 + ri, c = cb * 16 + ci;
                        const unsigned char* f = fractal(r / 16, c / c0) + (r % 16) * 32;
                        const uint32_t col = c % c0;
                        if (bits == 4) {
                            const uint8_t v = (f[col / 2] >> (4 * (col % 2))) & 15;
                            uint8_t& o = t[ci * 32 + ri / 2];
                            o = static_cast<uint8_t>(ri % 2 ? (o & 15) | (v << 4) : v);
                        } else {
                            std::memcpy(t + ci * 32 + ri * bits / 8, f + col * bits / 8, bits / 8);
                        }
                        const uint32_t off = l1.offset(f), byte = col * bits / 8;
                        const uint32_t to = ri * bits / 8, size = bits < 8 ? 1 : bits / 8;
                        if (!((l1.shadow[off / 32].init >> byte) & 1)) unknown |= ((1u << size) - 1) << to;
                    }
                    l0.shadow[l0.offset(t + ci * 32) / 32].init &= ~unknown;
                }
            }
    });
}

// Scales travel in 32-byte pieces of 16 rows x 2 scales; x runs over row blocks, y over pieces along K.
void l12l0_mx(bool b, uint64_t dst, const void* src, uint32_t x0, uint32_t y0, uint32_t x_step, uint32_t y_step,
              uint32_t src_stride, uint32_t dst_stride, Loc loc) {
    if (on_aiv()) return;
    issue(kMte1, b ? "asc_copy_l12l0b_mx" : "asc_copy_l12l0a_mx", loc, [=] {
        Memory &l1 = arena_of(Mem::L1), &mx = arena_of(b ? Mem::L0B_MX : Mem::L0A_MX), &l0 = arena_of(b ? Mem::L0B : Mem::L0A);
        // dst = address of the L0 buffer divided by 16; addresses here are the simulator's, so undo the base.
        const uint64_t at = dst * 16, base = reinterpret_cast<uint64_t>(l0.base);
        if (at < base || at >= base + l0.size) stop("dst must be the address in " + std::string(l0.name) + " divided by 16");
        unsigned char* out = mx.base + (at - base) / 16;
        for (uint32_t x = 0; x < x_step; ++x)
            for (uint32_t y = 0; y < y_step; ++y) {
                const unsigned char* f = local(l1, static_cast<const unsigned char*>(src) + (static_cast<uint64_t>(x0 + x) * src_stride + y0 + y) * 32, 32, 32, false);
                unsigned char* t = local(mx, out + (static_cast<uint64_t>(x) * dst_stride + y) * 32, 32, 32, true);
                std::memcpy(t, f, 32);
                copy_init(mx, mx.offset(t), l1, l1.offset(f), 32);
                moved(kMte1, 32, cost::kL1ToL0);
            }
    });
}

void l12bt(uint64_t dst, const void* src, uint32_t count, uint32_t len, uint32_t src_gap, uint32_t dst_gap, uint32_t from,
           bool widen, Loc loc) {
    if (on_aiv()) return;
    issue(kMte1, "asc_copy_l12bt", loc, [=] {
        Memory &l1 = arena_of(Mem::L1), &bt = arena_of(Mem::BT);
        for (uint32_t i = 0; i < count; ++i) {
            const uint32_t in = len * 32, out = widen ? in * 2 : in;
            if (!widen && (len % 2 || dst_gap % 2)) stop("len_burst and dst_gap must be even for 32-bit types");
            const unsigned char* f = local(l1, static_cast<const unsigned char*>(src) + static_cast<uint64_t>(i) * (in + src_gap * 32), in, 32, false);
            unsigned char* t = local(bt, bt.base + dst + static_cast<uint64_t>(i) * (out + dst_gap * 32), out, 64, true);
            if (!widen) {
                std::memcpy(t, f, in);
                continue;
            }
            for (uint32_t e = 0; e < in / 2; ++e) {
                uint16_t bits;
                std::memcpy(&bits, f + 2 * e, 2);
                const float v = decode(bits, from ? kHalf : kBf16);
                std::memcpy(t + 4 * e, &v, 4);
            }
        }
    });
}

void l12fb(void* dst, const void* src, uint32_t count, uint32_t len, uint32_t src_gap, uint32_t dst_gap, Loc loc) {
    if (on_aiv()) return;
    issue(6, "asc_copy_l12fb", loc, [=] {
        Memory &l1 = arena_of(Mem::L1), &fb = arena_of(Mem::FB);
        for (uint32_t i = 0; i < count; ++i) {
            const uint32_t n = len;
            const unsigned char* f = local(l1, static_cast<const unsigned char*>(src) + static_cast<uint64_t>(i) * (n + src_gap * 32), n, 32, false);
            std::memcpy(local(fb, static_cast<unsigned char*>(dst) + static_cast<uint64_t>(i) * (n + dst_gap * 32), n, 128, true), f, n);
        }
    });
}

}  // namespace asc_sim
