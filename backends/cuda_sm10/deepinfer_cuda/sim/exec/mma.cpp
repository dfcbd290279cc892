// mma.sync: warp-level products of all dense shapes.
//
// One rule covers every type (PTX ISA, "Matrix Fragments for mma"): with g = lane/4, c = lane%4 and e elements per 32-bit register,
// A register i holds row g + 8*(i%2), columns e*c + (i/2)*4e + 0..e-1; B register i holds rows (k) e*c + i*4e + 0..e-1 of column g;
// C/D element i is row g + 8*(i/2), column 2c + i%2. f64 uses one element per register. m8n8k4 f16 (sm_70) is not modelled.
#include "exec/families.h"
#include "exec/ops.h"
#include "isa/formats.h"
#include "tensor/matmul.h"
#include "tensor/sparse.h"

namespace ptxsim {
namespace {

struct Mma : Extra {
    u32 m, n, k;
    Ty a, b, c, d;
    bool sat = false;
    bool sparse = false;   // k counts the columns of B; A holds half of them
    i32 meta = kNoSlot;
    u32 selector = 0;
    enum class Bits : u8 { none, and_popc, xor_popc } bits = Bits::none;
    std::vector<i32> ra, rb, rc, rd;
};

int storage_bits(Ty t) {
    int b = type_bits(t);
    return b == 6 || t == Ty::e2m1 ? 8 : b;
}

// Raw element of A at (row, k) from the fragments.
u64 fragment_a(X& x, const Mma& o, u32 row, u32 k, int bits) {
    if (bits == 64) {  // f64: one element per register
        u32 lane = row % 8 * 4 + k % 4, reg = (row / 8) + (o.m == 16 ? 2 : 1) * (k / 4);
        return x.src(o.ra[reg])[lane];
    }
    u32 e = u32(32 / bits), lane = row % 8 * 4 + k / e % 4, reg = (o.m == 16 ? row / 8 : 0) + (o.m == 16 ? 2 : 1) * (k / (4 * e));
    return x.src(o.ra[reg])[lane] >> (bits * (k % e)) & ((1ull << bits) - 1);
}
u64 fragment_b(X& x, const Mma& o, u32 col, u32 k, int bits) {
    if (bits == 64) return x.src(o.rb[k / 4])[col * 4 + k % 4];
    u32 e = u32(32 / bits), lane = col * 4 + k / e % 4, reg = k / (4 * e);
    return x.src(o.rb[reg])[lane] >> (bits * (k % e)) & ((1ull << bits) - 1);
}

// Four metadata bits of group `g` of a row (PTX ISA, "Sparse matrix storage" figures; CuTe ELayout_64x16/32/64 of sm_90). Of 16 and 32-bit
// types one lane holds 16 bits of row r and of row r + 8, of narrower ones 32 bits of one row. The selector names the lane,
// or the pair of lanes, of each four that contributes.
u32 metadata(X& x, const Mma& o, u32 row, u32 g) {
    const u64* e = x.src(o.meta);
    u32 quad = row % 8 * 4;
    if (type_bits(o.a) >= 16) {
        u32 groups = o.k / u32(sparse_group(type_bits(o.a))), lanes = groups / 4;
        u32 lane = quad + (lanes == 1 ? o.selector : 2 * o.selector + g / 4);
        return u32(e[lane] >> (16 * (row / 8) + 4 * (g % 4))) & 15;
    }
    return u32(e[quad + 2 * o.selector + row / 8 + 2 * (g / 8)] >> (4 * (g % 8))) & 15;
}

u32 column_of(X& x, const Mma& o, u32 row, u32 i) {
    if (!o.sparse) return i;
    return sparse_column(sparse_group(type_bits(o.a)), i, [&](u32 g) { return metadata(x, o, row, g); });
}

u32 depth(const Mma& o) { return o.sparse ? o.k / 2 : o.k; }

// C/D element (row, col): register, lane, half for packed f16.
struct Spot {
    u32 reg, lane, half;
};
Spot spot(const Mma& o, u32 row, u32 col, bool f16) {
    u32 i = (o.m == 16 ? 2 * (row / 8) : 0) + col % 2, lane = row % 8 * 4 + col / 2;
    return f16 ? Spot{i / 2, lane, i % 2} : Spot{i, lane, 0};
}

i32 int_element(Ty t, u64 raw) {
    int b = type_bits(t);
    return is_signed(t) ? i32(u32(raw) << (32 - b)) >> (32 - b) : i32(raw);
}

void mma_int(X& x, const Mma& o, int bits) {
    i64 out[16][8];
    for (u32 r = 0; r < o.m; ++r)
        for (u32 c = 0; c < o.n; ++c) {
            Spot s = spot(o, r, c, false);
            i64 sum = i32(x.src(o.rc[s.reg])[s.lane]);
            for (u32 k = 0; k < depth(o); ++k) {
                u64 a = fragment_a(x, o, r, k, bits), b = fragment_b(x, o, c, column_of(x, o, r, k), bits);
                if (o.bits == Mma::Bits::and_popc) sum += i64(a & b);
                else if (o.bits == Mma::Bits::xor_popc) sum += i64(a ^ b);
                else sum += i64(int_element(o.a, a)) * int_element(o.b, b);
            }
            out[r][c] = o.sat ? std::clamp<i64>(sum, INT32_MIN, INT32_MAX) : sum;
        }
    for (u32 r = 0; r < o.m; ++r)
        for (u32 c = 0; c < o.n; ++c) {
            Spot s = spot(o, r, c, false);
            x.dst(o.rd[s.reg])[s.lane] = u32(out[r][c]);
        }
}

double load_c(X& x, const Mma& o, u32 r, u32 c) {
    bool half = o.c == Ty::f16;
    Spot s = spot(o, r, c, half);
    u64 v = x.src(o.rc[s.reg])[s.lane];
    if (o.c == Ty::f64) return from_bits<double>(v);
    return half ? f16_to_f32(u32(v >> (16 * s.half)) & 0xffff) : from_bits<float>(v);
}

void mma_f64(X& x, const Mma& o, double* out) {
    for (u32 r = 0; r < o.m; ++r)
        for (u32 c = 0; c < o.n; ++c) {
            double sum = load_c(x, o, r, c);
            for (u32 k = 0; k < o.k; ++k) sum = std::fma(from_bits<double>(fragment_a(x, o, r, k, 64)), from_bits<double>(fragment_b(x, o, c, k, 64)), sum);
            out[r * 8 + c] = sum;
        }
}

// fp8 products of mma.sync on sm_90 are two f16 products from zero, over k % 4 < 2 and then the rest (each register holds two pairs),
// and a rounded addition of C. Fitted to an H200.
void mma_fp8(const Mma& o, const std::vector<double>& a, const std::vector<double>& b, double* out, bool half) {
    double sum[16 * 8] = {};
    std::vector<double> pa(o.m * o.k / 2), pb(o.n * o.k / 2);
    for (u32 part = 0; part < 2; ++part) {
        auto pick = [&](const std::vector<double>& from, std::vector<double>& to, u32 rows) {
            for (u32 r = 0; r < rows; ++r)
                for (u32 k = 0; k < o.k / 2; ++k) to[r * o.k / 2 + k] = from[r * o.k + k / 2 * 4 + k % 2 + 2 * part];
        };
        pick(a, pa, o.m), pick(b, pb, o.n);
        matmul_block(pa.data(), pb.data(), sum, o.m, o.n, o.k / 2, block_rule(o.a, o.b, half, true));
    }
    for (u32 i = 0; i < o.m * o.n; ++i) out[i] = half ? f16_to_f32(encode_float(out[i] + sum[i], kF16, Round::rn)) : double(float(out[i]) + float(sum[i]));
}

// Each row meets its own columns of B: rows are multiplied one by one.
void mma_sparse(X& x, const Mma& o, const std::vector<double>& a, const std::vector<double>& b, double* out, bool half) {
    Mma one = o;
    one.m = 1, one.k = depth(o);
    std::vector<double> row(one.k), picked(o.n * one.k);
    for (u32 r = 0; r < o.m; ++r) {
        for (u32 i = 0; i < one.k; ++i) {
            u32 k = column_of(x, o, r, i);
            row[i] = a[r * one.k + i];
            for (u32 c = 0; c < o.n; ++c) picked[c * one.k + i] = b[c * o.k + k];
        }
        if (type_bits(o.a) == 8) mma_fp8(one, row, picked, out + r * 8, half);
        else matmul_block(row.data(), picked.data(), out + r * 8, 1, o.n, one.k, block_rule(o.a, o.b, half, false));
    }
}

void mma_float(X& x, const Mma& o, int abits, int bbits) {
    double out[16 * 8];
    bool f64 = o.d == Ty::f64, half = o.d == Ty::f16;
    if (f64) {
        mma_f64(x, o, out);
    } else {
        std::vector<double> a(o.m * depth(o)), b(o.n * o.k);
        for (u32 r = 0; r < o.m; ++r)
            for (u32 k = 0; k < depth(o); ++k) a[r * depth(o) + k] = element_value(o.a, u32(fragment_a(x, o, r, k, abits)));
        for (u32 c = 0; c < o.n; ++c)
            for (u32 k = 0; k < o.k; ++k) b[c * o.k + k] = element_value(o.b, u32(fragment_b(x, o, c, k, bbits)));
        for (u32 r = 0; r < o.m; ++r)
            for (u32 c = 0; c < o.n; ++c) out[r * 8 + c] = load_c(x, o, r, c);
        if (o.sparse) mma_sparse(x, o, a, b, out, half);
        else if (type_bits(o.a) == 8) mma_fp8(o, a, b, out, half);
        else matmul_block(a.data(), b.data(), out, o.m, o.n, o.k, block_rule(o.a, o.b, half, false));
    }
    for (u32 r = 0; r < o.m; ++r)
        for (u32 c = 0; c < o.n; ++c) {
            Spot s = spot(o, r, c, half);
            u64& d = x.dst(o.rd[s.reg])[s.lane];
            double v = out[r * 8 + c];
            if (f64) d = to_bits(v);
            else if (half) d = (s.half ? d & 0xffff : 0) | u64(encode_float(v, kF16, Round::rn)) << (16 * s.half);
            else d = to_bits(std::isnan(v) ? from_bits<float>(0x7fffffff) : float(v));
        }
}

void mma(X& x, const Inst& in, u32) {
    const Mma& o = static_cast<const Mma&>(*in.extra);
    int ab = storage_bits(o.a), bb = storage_bits(o.b);
    if (o.d == Ty::s32) mma_int(x, o, ab);
    else mma_float(x, o, ab, bb);
    x.m.stats.mma_macs += u64(o.m) * o.n * o.k;
}
}  // namespace

void decode_mma(Dec& d) {
    auto o = std::make_shared<Mma>();
    o->sparse = d.opt("sp") || d.opt("sp::ordered_metadata");
    d.need({"sync"}), d.need({"aligned"});
    std::string shape = d.prefix("m");
    if (std::sscanf(shape.c_str(), "%un%uk%u", &o->m, &o->n, &o->k) != 3) d.fail("has no shape");
    if (o->n != 8 || (o->m != 16 && o->m != 8) || (o->m == 8 && o->k == 4 && d.n() && d.arg(1).sub.size() == 2)) d.fail("shape m" + shape + " is not modelled");
    d.prefix("kind::");
    if (d.opt("block_scale")) d.fail("block scaling exists on sm_120 only and is not modelled");
    d.need({"row"}), d.need({"col"});
    if (d.opt("xor")) o->bits = Mma::Bits::xor_popc;
    if (d.opt("and")) o->bits = Mma::Bits::and_popc;
    if (o->bits != Mma::Bits::none && !d.opt("popc")) d.fail("needs .popc");
    o->sat = d.opt("satfinite");
    o->d = d.need_type(), o->a = d.need_type(), o->b = d.need_type(), o->c = d.need_type();
    o->rd = d.dsts(d.arg(0)), o->ra = d.srcs(d.arg(1), Ty::b32), o->rb = d.srcs(d.arg(2), Ty::b32), o->rc = d.srcs(d.arg(3), o->c == Ty::f64 ? Ty::f64 : Ty::b32);
    if (o->sparse) {
        o->meta = d.src(4, Ty::b32), o->selector = u32(d.imm(5));
        u32 lanes = o->k / u32(sparse_group(type_bits(o->a))) * 64 / 32 / 8;  // 4 bits per group and row, two rows
        if (o->m != 16 || o->selector >= 4 / std::max(lanes, 1u)) d.fail("sparsity selector " + std::to_string(o->selector) + " does not exist for this shape");
    }
    size_t wa = size_t(o->m) * depth(*o) * storage_bits(o->a) / 32 / (o->a == Ty::f64 ? 64 : 32), wb = size_t(o->n) * o->k * storage_bits(o->b) / 32 / (o->b == Ty::f64 ? 64 : 32);
    size_t wc = size_t(o->m) * o->n / 32 / (o->c == Ty::f16 ? 2 : 1), wd = size_t(o->m) * o->n / 32 / (o->d == Ty::f16 ? 2 : 1);
    if (o->ra.size() != wa || o->rb.size() != wb || o->rc.size() != wc || o->rd.size() != wd) d.fail("operand lengths do not match the shape");
    d.in.aligned = true;
    d.in.extra = o, d.in.fn = mma;
}

}  // namespace ptxsim
