// FixPipe: L0C -> GM, UB or L1, with conversion, scaling, ReLU and layout change on the way.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "asc_sim/cube.h"
#include "runtime.h"

namespace asc_sim {

void write_gm(unsigned char* dst, const unsigned char* src, uint64_t bytes, const Registers& r);

namespace {
constexpr int kFix = 6;

uint32_t size_of(Elem e) {
    switch (e) {
        case Elem::f32:
        case Elem::i32: return 4;
        case Elem::bf16:
        case Elem::f16: return 2;
        default: return 1;
    }
}

enum class Scale { none, scalar, vector };
struct QuantRule {
    Elem to;
    Scale scale;
    bool from_int;
};
QuantRule rule_of(const FixArgs& a) {
    switch (a.quant) {
        case QuantMode_t::NoQuant: return {a.from_int ? Elem::i32 : Elem::f32, Scale::none, a.from_int};
        case QuantMode_t::F322F16: return {Elem::f16, Scale::none, false};
        case QuantMode_t::F322BF16: return {Elem::bf16, Scale::none, false};
        case QuantMode_t::QF322F16_PRE: return {Elem::f16, Scale::scalar, false};
        case QuantMode_t::VQF322F16_PRE: return {Elem::f16, Scale::vector, false};
        case QuantMode_t::QF322BF16_PRE: return {Elem::bf16, Scale::scalar, false};
        case QuantMode_t::VQF322BF16_PRE: return {Elem::bf16, Scale::vector, false};
        case QuantMode_t::QF322FP8_PRE: return {Elem::e4m3, Scale::scalar, false};
        case QuantMode_t::VQF322FP8_PRE: return {Elem::e4m3, Scale::vector, false};
        case QuantMode_t::QF322HIF8_PRE: return {Elem::hif8, Scale::scalar, false};
        case QuantMode_t::VQF322HIF8_PRE: return {Elem::hif8, Scale::vector, false};
        case QuantMode_t::QF322F32_PRE: return {Elem::f32, Scale::scalar, false};
        case QuantMode_t::VQF322F32_PRE: return {Elem::f32, Scale::vector, false};
        case QuantMode_t::DEQF16: return {Elem::f16, Scale::scalar, true};
        case QuantMode_t::VDEQF16: return {Elem::f16, Scale::vector, true};
        case QuantMode_t::QS322BF16_PRE: return {Elem::bf16, Scale::scalar, true};
        case QuantMode_t::VQS322BF16_PRE: return {Elem::bf16, Scale::vector, true};
        case QuantMode_t::QF322B8_PRE: return {Elem::i8, Scale::scalar, false};
        case QuantMode_t::VQF322B8_PRE: return {Elem::i8, Scale::vector, false};
        case QuantMode_t::REQ8: return {Elem::i8, Scale::scalar, true};
        case QuantMode_t::VREQ8: return {Elem::i8, Scale::vector, true};
        default: stop("this quantisation mode (hybrid rounding of HiF8, or no mode of this FixPipe) is not modelled");
    }
}

// A quantisation word: the scale in bits 0-31, of which the device keeps 1 + 8 + 10; what is added to 8-bit integers in
// bits 37-45 (two's complement); whether those are signed in bit 46.
struct Quant {
    float scale = 1.0f;
    int offset = 0;
    bool is_signed = false;
    explicit Quant(uint64_t word)
        : scale(bits_float(static_cast<uint32_t>(word) & 0xFFFFE000u)),
          offset(static_cast<int>((word >> 37) & 0x1FF)),
          is_signed((word >> 46) & 1) {
        if (offset & 0x100) offset -= 0x200;
    }
};

unsigned char integer8(float x, const Quant& q) {
    const int low = q.is_signed ? -128 : 0, high = q.is_signed ? 127 : 255;
    if (std::isnan(x)) return 0;
    const double y = std::nearbyint(static_cast<double>(x)) + q.offset;  // ties to even
    return static_cast<unsigned char>(static_cast<int>(std::clamp(y, static_cast<double>(low), static_cast<double>(high))));
}

void convert(unsigned char* out, float x, Elem to, bool keep) {
    switch (to) {
        case Elem::f32: std::memcpy(out, &x, 4); return;
        case Elem::bf16:
        case Elem::f16: {
            const auto b = static_cast<uint16_t>(encode(x, to == Elem::bf16 ? kBf16 : kHalf, Round::rn, !keep));
            std::memcpy(out, &b, 2);
            return;
        }
        case Elem::e4m3: *out = static_cast<uint8_t>(encode(x, kE4m3, Round::rn, !keep)); return;
        default: *out = hif8_encode(x, false, !keep); return;
    }
}

struct Tile {  // rows [m0, m1), columns [n0, n1) of the source go to UB `sub`
    uint32_t m0, m1, n0, n1, sub;
};

void check(const FixArgs& a, uint32_t esize) {
    limit("n_size", a.n, 0, 4095);
    limit("m_size", a.m, 0, 65535);
    limit("dst_stride", a.dst_stride, 1, 0xFFFFFFFFu);
    const bool nz = !a.nz2nd && !a.nz2dn;
    if (a.nz2nd && a.nz2dn) stop("NZ2ND and NZ2DN exclude each other");
    if (nz && a.n % (a.channel_split ? 8 : 16)) stop("n_size = " + std::to_string(a.n) + " must be a multiple of " + (a.channel_split ? "8" : "16") + " for NZ output");
    if (a.channel_split && (!nz || a.to != Elem::f32)) stop("channel split needs float output in NZ layout");
    if (a.target != 0) {
        if (a.dst_stride * static_cast<uint64_t>(esize) % 32) stop("dst_stride must be a multiple of 32 bytes for on-chip destinations");
        if (a.nz2nd && a.n * esize % 32) stop("n_size * element size must be a multiple of 32 bytes for ND output on chip");
    }
    if (a.dual) {
        if (a.target != 1) stop("dual destination exists for UB only");
        if (a.dual > 2) stop("dual_dst_ctrl must be 0, 1 (split M) or 2 (split N)");
        if (a.nz2dn || a.channel_split) stop("dual destination works with plain NZ or NZ2ND only");
        if (a.dual == 1 && (a.m % 2 || a.m < 32)) stop("splitting M between the vector cores needs an even m_size >= 32 (fewer than 16 rows each misbehave on the device)");
        if (a.dual == 2 && a.n % 32) stop("splitting N between the vector cores needs n_size a multiple of 32");
    }
    if (a.clip && !a.relu) stop("clip ReLU needs normal ReLU");
    if (a.relu > 1) stop("scalar and vector ReLU are not modelled");
}

// Offset in elements of (i, j) inside the destination of a tile.
uint64_t place(const FixArgs& a, uint32_t i, uint32_t j, uint32_t esize) {
    if (a.nz2nd) return static_cast<uint64_t>(i) * a.dst_stride + j;
    if (a.nz2dn) return static_cast<uint64_t>(j) * a.dst_stride + i;
    const uint32_t c0 = a.channel_split ? 8 : esize == 1 ? 32 : 16;
    return static_cast<uint64_t>(j / c0) * a.dst_stride + static_cast<uint64_t>(i) * c0 + j % c0;
}
uint32_t run_length(const FixArgs& a, uint32_t j, uint32_t n1, uint32_t esize) {  // columns that are contiguous in the destination
    if (a.nz2nd) return n1 - j;
    if (a.nz2dn) return 1;
    const uint32_t c0 = a.channel_split ? 8 : esize == 1 ? 32 : 16;
    return std::min(n1 - j, c0 - j % c0);
}

void move(const FixArgs& a, const Registers& reg, Arena& arena) {
    const QuantRule q = rule_of(a);
    if (q.from_int != a.from_int) stop("the quantisation mode does not fit the type of the accumulator");
    const bool integer = q.to == Elem::i8;
    if (integer ? a.to != Elem::i8 && a.to != Elem::u8 : q.to != a.to) stop("the quantisation mode does not produce the destination's element type");
    if ((a.nz2nd || a.nz2dn) && !reg.l0c_nz_set) stop("asc_set_l0c_copy_nz_para has not been called");
    if (q.scale == Scale::scalar && !reg.quant_set) stop("asc_set_l0c_copy_prequant has not been called");
    if (q.scale == Scale::vector && !reg.quant_addr_set) stop("asc_set_l0c_copy_config has not been called");
    const uint32_t esize = size_of(a.to);
    check(a, esize);
    Memory& l0c = arena.l0c;
    const Quant scalar(reg.quant_word);
    if (integer && q.scale == Scale::scalar && scalar.is_signed != (a.to == Elem::i8)) stop("bit 46 of the quantisation word (signed) does not fit the destination's type");
    const uint32_t row_stride = a.nz2dn && reg.l0c_channel > 1 ? reg.l0c_channel : 1;
    const unsigned char* table = nullptr;
    if (q.scale == Scale::vector) {
        // An offset, or an address as mem::fb gives it.
        const uint64_t at = reg.quant_addr * 128, base = reinterpret_cast<uint64_t>(arena.fb.base);
        table = local(arena.fb, arena.fb.base + (at >= base ? at - base : at), a.n * 8, 128, false);
        require_init(arena.fb, arena.fb.offset(table), a.n * 8, "quantisation table");
    }
    const bool keep = (reg.ctrl >> 48) & 1;
    const uint32_t matrices = a.nz2nd || a.nz2dn ? reg.l0c_num : 1;
    std::vector<Tile> tiles{{0, a.m, 0, a.n, a.sub}};
    if (a.dual == 1) tiles = {{0, a.m / 2, 0, a.n, 0}, {a.m / 2, a.m, 0, a.n, 1}};
    if (a.dual == 2) tiles = {{0, a.m, 0, a.n / 2, 0}, {0, a.m, a.n / 2, a.n, 1}};
    unsigned char row[4096 * 4];
    for (uint32_t mat = 0; mat < matrices; ++mat)
        for (const Tile& t : tiles) {
            auto* dst = static_cast<unsigned char*>(a.dst) + static_cast<uint64_t>(mat) * reg.l0c_dst_stride * esize;
            Memory* to = a.target == 1 ? &arena.ub[t.sub] : a.target == 2 ? &arena.l1 : nullptr;
            if (a.target == 1) {
                if (!arena.ub[0].holds(dst)) local(arena.ub[0], dst, 0, 32, true);
                dst += arena.ub[t.sub].base - arena.ub[0].base;  // the AIC names a UB offset, `sub` picks whose
            }
            if (to && to->offset(dst) % 32) stop(std::string(to->name) + " offset must be a multiple of 32");
            for (uint32_t i = t.m0; i < t.m1; ++i)
                for (uint32_t j = t.n0; j < t.n1;) {
                    const uint32_t run = run_length(a, j - t.n0, t.n1 - t.n0, esize);
                    bool whole = true;  // every source element was written
                    for (uint32_t c = 0; c < run;) {
                        const uint32_t col = j + c, take = std::min(run - c, 16 - col % 16);
                        const auto* s = static_cast<const unsigned char*>(a.src) + (static_cast<uint64_t>(mat) * reg.l0c_src_stride + static_cast<uint64_t>(col / 16) * a.src_stride + static_cast<uint64_t>(i) * row_stride) * 64 + (col % 16) * 4;
                        const unsigned char* p = local(l0c, s, take * 4, 4, false);
                        if (!to) require_init(l0c, l0c.offset(p), take * 4, "FixPipe");
                        else if (!taken(l0c, l0c.offset(p), take * 4, "FixPipe")) whole = false;
                        for (uint32_t e = 0; e < take; ++e) {
                            if (a.from_int && q.scale == Scale::none) {
                                std::memcpy(row + (c + e) * 4, p + 4 * e, 4);
                                continue;
                            }
                            float x;
                            if (a.from_int) {
                                int32_t v;
                                std::memcpy(&v, p + 4 * e, 4);
                                x = static_cast<float>(v);
                            } else {
                                std::memcpy(&x, p + 4 * e, 4);
                            }
                            Quant word = scalar;
                            if (table) {
                                uint64_t bits;
                                std::memcpy(&bits, table + (col + e) * 8, 8);
                                word = Quant(bits);
                            }
                            if (q.scale != Scale::none) x *= word.scale;
                            if (a.relu && !(x > 0)) x = std::isnan(x) ? x : 0.0f;
                            word.is_signed = a.to == Elem::i8;
                            if (integer) row[c + e] = integer8(x, word);
                            else convert(row + (c + e) * esize, x, a.to, keep);
                        }
                        c += take;
                    }
                    unsigned char* d = dst + place(a, i - t.m0, j - t.n0, esize) * esize;
                    const uint32_t bytes = run * esize;
                    if (to) {
                        std::memcpy(local(*to, d, bytes, 1, true), row, bytes);
                        if (!whole) clear_init(*to, to->offset(d), bytes);
                    } else write_gm(gm(d, bytes, true, reg.atomic_op != 0), row, bytes, reg);
                    moved(kFix, bytes, a.target == 0 ? cost::kFixToGm : (a.target == 2 ? cost::kFixToL1 : cost::kFixToUb) * (a.dual ? 2 : 1));
                    j += run;
                }
        }
}
}  // namespace

void fixpipe(const FixArgs& a, Loc loc) {
    if (g.core->kind != 0 || a.n == 0 || a.m == 0) return;  // an empty copy is documented as no operation
    const char* name = a.target == 0 ? "asc_copy_l0c2gm" : a.target == 1 ? "asc_copy_l0c2ub" : "asc_copy_l0c2l1";
    const Registers reg = g.core->reg;
    Arena* arena = g.core->block->arena.get();
    if (!arena->l0c.holds(a.src)) fail(name, "the source is not in L0C", loc);
    if (arena->l0c.offset(a.src) % 64) fail(name, "the source must be 64-byte aligned", loc);
    const uint32_t base = arena->l0c.offset(a.src);
    auto blocks = [=](auto f) {  // 512-byte units of L0C that hold the source
        for (uint32_t nb = 0; nb < (a.n + 15) / 16; ++nb) {
            const uint32_t from = (base + nb * a.src_stride * 64) / 512, to = (base + nb * a.src_stride * 64 + a.m * 64 - 1) / 512;
            for (uint32_t i = from; i <= to && i < arena->unit_flags.size(); ++i)
                if (!f(i)) return false;
        }
        return true;
    };
    std::function<bool()> ready;
    if (a.unit_flag) ready = [=] { return blocks([=](uint32_t i) { return arena->unit_flags[i] != 0; }); };
    issue(kFix, name, loc, [=] {
        Clock& clk = g.core->pipes[kFix].clock;
        if (a.unit_flag)
            blocks([&](uint32_t i) {
                clk.join(arena->unit_clocks[i]);
                return true;
            });
        move(a, reg, *arena);
        if (a.unit_flag == 3)
            blocks([&](uint32_t i) {
                arena->unit_flags[i] = 0;
                arena->unit_clocks[i] = clk;
                return true;
            });
    }, std::move(ready));
}

void set_l0c_nz(uint32_t num, uint32_t src_stride, uint32_t dst_stride) {
    Registers& r = g.core->reg;
    r.l0c_num = num;
    r.l0c_src_stride = src_stride;
    r.l0c_dst_stride = dst_stride;
    r.l0c_nz_set = true;
}
void set_l0c_channel(uint32_t stride) { g.core->reg.l0c_channel = stride; }
void set_prequant_bits(uint64_t word) {
    g.core->reg.quant_word = word;
    g.core->reg.quant_set = true;
}
void set_l0c_config(uint64_t quant_addr, bool clean, Loc) {
    if (g.core->kind != 0) return;
    g.core->reg.quant_addr = quant_addr;
    g.core->reg.quant_addr_set = true;
    if (clean) std::fill(g.core->block->arena->unit_flags.begin(), g.core->block->arena->unit_flags.end(), 0);
}

}  // namespace asc_sim
