// wmma.load, wmma.mma and wmma.store: the matrices of nvcuda::wmma, dense, every shape and type of sm_90.
//
// The PTX ISA leaves the place of an element in a fragment open; here it is that of mma.sync: in tiles of 8 rows by four lanes,
// lane (row % 8) * 4 + (column / e) % 4, e elements per 32-bit register of A and B, pairs of columns in C and D. f16 fragments of A
// and B have eight registers whatever their size; further registers repeat the first ones.
#include <algorithm>

#include "core/access.h"
#include "exec/families.h"
#include "exec/ops.h"
#include "isa/formats.h"
#include "tensor/matmul.h"

namespace ptxsim {
namespace {

struct Fragment2d {
    u32 rows = 0, cols = 0;   // of B: columns and k, because B is kept transposed
    Ty type = Ty::none;
    bool accumulator = false;

    u32 bits() const { return u32(type_bits(type)); }
    u32 registers() const {
        u32 per_lane = rows * cols / 32;
        return bits() >= 32 ? per_lane : per_lane * bits() / 32;
    }
    struct Spot {
        u32 reg, lane, shift;
    };
    Spot spot(u32 r, u32 c) const {
        u32 tall = rows / 8;
        if (accumulator) {
            u32 i = 2 * (r / 8 + tall * (c / 8)) + c % 2, lane = r % 8 * 4 + c % 8 / 2;
            return bits() == 16 ? Spot{i / 2, lane, 16 * (i % 2)} : Spot{i, lane, 0};
        }
        u32 e = bits() >= 32 ? 1 : 32 / bits();
        return {r / 8 + tall * (c / (4 * e)), r % 8 * 4 + c / e % 4, bits() * (c % e)};
    }
};

struct Wmma : Extra {
    u32 m = 0, n = 0, k = 0;
    bool row = true, row_b = false, sat = false;
    u8 bitwise = 0;            // 1 xor, 2 and
    Fragment2d f, a, b, c, d;  // f: of load and store
    char what = 'a';
    std::vector<i32> ra, rb, rc, rd;
};

u64 get(X& x, const std::vector<i32>& regs, const Fragment2d& f, u32 r, u32 c) {
    auto s = f.spot(r, c);
    u64 v = x.src(regs[s.reg])[s.lane] >> s.shift;
    return f.bits() >= 64 ? v : v & ((1ull << f.bits()) - 1);
}
void set(X& x, const std::vector<i32>& regs, const Fragment2d& f, u32 r, u32 c, u64 v) {
    auto s = f.spot(r, c);
    for (u32 reg = s.reg; reg < regs.size(); reg += f.registers()) {
        u64& d = x.dst(regs[reg])[s.lane];
        u64 mask = f.bits() >= 64 ? ~0ull : ((1ull << f.bits()) - 1) << s.shift;
        d = (d & ~mask) | (v << s.shift & mask);
        if (f.bits() < 64) d &= 0xffffffffull;
    }
}

// Calls f(r, c, place, bit within the byte) for every element, in memory order.
template <class F>
void walk(X& x, const Inst& in, const Wmma& w, bool write, F&& f) {
    bool transposed = w.what == 'b';                 // rows of the fragment are columns of B
    bool lines_are_rows = w.row != transposed;
    u32 lines = lines_are_rows ? w.f.rows : w.f.cols, length = lines_are_rows ? w.f.cols : w.f.rows, bits = w.f.bits();
    u64 base = x.src(in.s[1])[0] + u64(in.k[0]);
    u64 stride = in.s[2] == kNoSlot ? length : u32(x.src(in.s[2])[0]);
    for (u32 i = 0; i < lines; ++i) {
        u64 at = base + i * stride * bits / 8;
        u32 bytes = length * bits / 8;
        for (u32 o = 0; o < bytes; o += std::min(16u, bytes)) {
            Place p = resolve(x, in, 0, in.space, at + o, std::min(16u, bytes), write, std::min(16u, bytes));
            touch(x, in, 0, p, std::min(16u, bytes), write ? Use::write : Use::read);
        }
        Place p = resolve(x, in, 0, in.space, at, bytes, write, 1);
        for (u32 j = 0; j < length; ++j) f(lines_are_rows ? i : j, lines_are_rows ? j : i, p.p + j * bits / 8, j * bits % 8);
    }
}

void load(X& x, const Inst& in, u32) {
    const Wmma& w = static_cast<const Wmma&>(*in.extra);
    walk(x, in, w, false, [&](u32 r, u32 c, const u8* p, u32 shift) {
        u64 v = 0;
        std::memcpy(&v, p, std::max(w.f.bits() / 8, 1u));
        set(x, in.v, w.f, r, c, w.f.bits() >= 64 ? v : v >> shift & ((1ull << w.f.bits()) - 1));
    });
}

void store(X& x, const Inst& in, u32) {
    const Wmma& w = static_cast<const Wmma&>(*in.extra);
    walk(x, in, w, true, [&](u32 r, u32 c, u8* p, u32) {
        u64 v = get(x, in.v, w.f, r, c);
        std::memcpy(p, &v, w.f.bits() / 8);
    });
    ++x.m.progress;
}

void multiply_int(X& x, const Wmma& w) {
    auto value = [](Ty t, u64 v) { int b = type_bits(t); return is_signed(t) ? i64(v << (64 - b)) >> (64 - b) : i64(v); };
    std::vector<i64> out;
    for (u32 r = 0; r < w.m; ++r)
        for (u32 c = 0; c < w.n; ++c) {
            i64 s = i32(get(x, w.rc, w.c, r, c));
            for (u32 k = 0; k < w.k; ++k) {
                u64 a = get(x, w.ra, w.a, r, k), b = get(x, w.rb, w.b, c, k);
                s += w.bitwise ? i64(w.bitwise == 1 ? a ^ b : a & b) : value(w.a.type, a) * value(w.b.type, b);
            }
            out.push_back(w.sat ? std::clamp<i64>(s, INT32_MIN, INT32_MAX) : s);
        }
    for (u32 r = 0; r < w.m; ++r)
        for (u32 c = 0; c < w.n; ++c) set(x, w.rd, w.d, r, c, u32(out[r * w.n + c]));
}

double number(Ty t, u64 v) { return t == Ty::f64 ? from_bits<double>(v) : double(element_value(t, u32(v))); }

void multiply_float(X& x, const Wmma& w) {
    std::vector<double> a(w.m * w.k), b(w.n * w.k), c(w.m * w.n);
    for (u32 r = 0; r < w.m; ++r)
        for (u32 k = 0; k < w.k; ++k) a[r * w.k + k] = number(w.a.type, get(x, w.ra, w.a, r, k));
    for (u32 n = 0; n < w.n; ++n)
        for (u32 k = 0; k < w.k; ++k) b[n * w.k + k] = number(w.b.type, get(x, w.rb, w.b, n, k));
    for (u32 r = 0; r < w.m; ++r)
        for (u32 n = 0; n < w.n; ++n) c[r * w.n + n] = number(w.c.type, get(x, w.rc, w.c, r, n));
    if (w.a.type == Ty::f64) {
        for (u32 r = 0; r < w.m; ++r)
            for (u32 n = 0; n < w.n; ++n)
                for (u32 k = 0; k < w.k; ++k) c[r * w.n + n] = std::fma(a[r * w.k + k], b[n * w.k + k], c[r * w.n + n]);
    } else {
        u32 step = w.a.type == Ty::tf32 ? 4 : w.k;  // tf32 is two products of k = 4 (observed on an H200)
        for (u32 at = 0; at < w.k; at += step) {
            std::vector<double> pa(w.m * step), pb(w.n * step);
            for (u32 r = 0; r < w.m; ++r) std::copy_n(&a[r * w.k + at], step, &pa[r * step]);
            for (u32 n = 0; n < w.n; ++n) std::copy_n(&b[n * w.k + at], step, &pb[n * step]);
            matmul_block(pa.data(), pb.data(), c.data(), w.m, w.n, step, block_rule(w.a.type, w.b.type, w.d.type == Ty::f16, false));
        }
    }
    for (u32 r = 0; r < w.m; ++r)
        for (u32 n = 0; n < w.n; ++n) {
            double v = c[r * w.n + n];
            u64 bits = w.d.type == Ty::f64 ? to_bits(v) : w.d.type == Ty::f16 ? encode_float(v, kF16, Round::rn) : to_bits(std::isnan(v) ? from_bits<float>(0x7fffffff) : float(v));
            if (w.sat && w.d.type == Ty::f16 && (bits & 0x7fff) == 0x7c00) bits = (bits & 0x8000) | 0x7bff;
            set(x, w.rd, w.d, r, n, bits);
        }
}

void multiply(X& x, const Inst& in, u32) {
    const Wmma& w = static_cast<const Wmma&>(*in.extra);
    if (w.d.type == Ty::s32) multiply_int(x, w);
    else multiply_float(x, w);
    x.m.stats.mma_macs += u64(w.m) * w.n * w.k;
}

void shape(Dec& d, Wmma& w) {
    std::string s = d.prefix("m");
    if (std::sscanf(s.c_str(), "%un%uk%u", &w.m, &w.n, &w.k) != 3) d.fail("has no shape");
}

void need_registers(Dec& d, const Fragment2d& f, size_t n) {
    u32 want = f.registers();
    bool wide = f.type == Ty::f16 && !f.accumulator && n == 8;  // repeated
    if (n != want && !wide) d.fail("needs " + std::to_string(want) + " registers");
}

void decode_move(Dec& d, Wmma& w, bool loads) {
    w.what = d.need({"a", "b", "c", "d"})[0];
    d.need({"sync"}), d.need({"aligned"});
    w.row = d.need({"row", "col"}) == "row";
    shape(d, w);
    std::string s = d.one_of({"global", "shared", "shared::cta", "shared::cluster"});
    d.in.space = s == "global" ? Space::global : s == "shared::cluster" ? Space::shared_cluster : s.empty() ? Space::generic : Space::shared;
    w.f.type = d.need_type(), w.f.accumulator = w.what == 'c' || w.what == 'd';
    w.f.rows = w.what == 'b' ? w.n : w.m, w.f.cols = w.f.accumulator ? w.n : w.k;
    size_t at = loads ? 1 : 0;
    d.in.s[1] = d.base(d.arg(at), d.in.k[0]);
    d.in.v = loads ? d.dsts(d.arg(0)) : d.srcs(d.arg(1), w.f.bits() == 64 ? Ty::b64 : Ty::b32);
    if (d.n() > 2) d.in.s[2] = d.src(2, Ty::b32);
    need_registers(d, w.f, d.in.v.size());
    d.in.fn = loads ? load : store;
}

void decode_multiply(Dec& d, Wmma& w) {
    w.bitwise = d.opt("xor") ? 1 : d.opt("and") ? 2 : 0;
    if (w.bitwise) d.need({"popc"});
    d.need({"sync"}), d.need({"aligned"});
    d.need({"row", "col"}), d.need({"row", "col"});  // layouts are those of the loads
    shape(d, w);
    Ty types[4], t;
    int count = 0;
    while (count < 4 && (t = d.type()) != Ty::none) types[count++] = t;
    if (count == 2) types[3] = types[1], types[1] = types[2] = Ty::f16;  // .dtype.ctype of f16 products
    else if (count != 4) d.fail("needs two or four types");
    w.sat = d.opt("satfinite");
    w.d = {w.m, w.n, types[0], true}, w.a = {w.m, w.k, types[1], false}, w.b = {w.n, w.k, types[2], false}, w.c = {w.m, w.n, types[3], true};
    Ty wide = types[1] == Ty::f64 ? Ty::b64 : Ty::b32;
    w.rd = d.dsts(d.arg(0)), w.ra = d.srcs(d.arg(1), wide), w.rb = d.srcs(d.arg(2), wide), w.rc = d.srcs(d.arg(3), wide);
    need_registers(d, w.d, w.rd.size()), need_registers(d, w.a, w.ra.size()), need_registers(d, w.b, w.rb.size()), need_registers(d, w.c, w.rc.size());
    d.in.fn = multiply;
}
}  // namespace

void decode_wmma(Dec& d) {
    auto w = std::make_shared<Wmma>();
    std::string what = d.need({"load", "mma", "store"});
    if (what == "mma") decode_multiply(d, *w);
    else decode_move(d, *w, what == "load");
    d.in.aligned = true;
    d.in.extra = w;
}

}  // namespace ptxsim
