// ldmatrix, stmatrix and movmatrix: 8x8 fragments of 16-bit elements, and the 8-bit forms of sm_100.
//
// Fragment rule (PTX ISA, ldmatrix): lane t holds row t/4, elements 2*(t%4) and +1; lane 8*i + j supplies the address of row j of matrix i.
#include "core/access.h"
#include "exec/families.h"
#include "exec/ops.h"

namespace ptxsim {
namespace {

struct Shape : Extra {
    u32 count = 1, row_bytes = 16, rows = 8;
    bool trans = false, tall = false;  // tall: m16n16 of bytes, always transposed
    enum class Kind : u8 { b16, b8, b4_unpack, b6_unpack } kind = Kind::b16;
};

u64 row_address(X& x, const Inst& in, u32 i) { return x.src(in.s[1])[i] + u64(in.k[0]); }

void ldmatrix(X& x, const Inst& in, u32) {
    const Shape& s = static_cast<const Shape&>(*in.extra);
    u32 rows = s.rows;
    for (u32 m = 0; m < s.count; ++m) {
        u8 tile[16][16] = {};
        for (u32 r = 0; r < rows; ++r) {
            int lane = int((m * rows + r) % 32);
            Place p = resolve(x, in, lane, Space::shared, row_address(x, in, u32(lane)), s.row_bytes, false, 16);
            touch(x, in, lane, p, s.row_bytes, Use::read);
            if (s.kind == Shape::Kind::b4_unpack)
                for (u32 i = 0; i < 16; ++i) tile[r][i] = u8(p.p[i / 2] >> (4 * (i & 1)) & 15);
            else if (s.kind == Shape::Kind::b6_unpack)
                for (u32 i = 0; i < 16; ++i) {
                    u32 bit = i * 6, v = p.p[bit / 8] | (bit / 8 + 1 < 12 ? u32(p.p[bit / 8 + 1]) << 8 : 0);
                    tile[r][i] = u8(v >> (bit % 8) & 63);
                }
            else std::memcpy(tile[r], p.p, 16);
        }
        for (u32 t = 0; t < 32; ++t) {
            if (s.tall) {  // two registers per matrix
                for (u32 h = 0; h < 2; ++h) {
                    u32 v = 0;
                    for (u32 e = 0; e < 4; ++e) v |= u32(tile[4 * (t % 4) + e][t / 4 + 8 * h]) << (8 * e);
                    x.dst(in.v[2 * m + h])[t] = v;
                }
                continue;
            }
            u32 v = 0;
            if (s.kind != Shape::Kind::b16) {
                for (u32 e = 0; e < 4; ++e) v |= u32(tile[t / 4][4 * (t % 4) + e]) << (8 * e);
            } else {
                for (u32 e = 0; e < 2; ++e) {
                    u32 row = s.trans ? 2 * (t % 4) + e : t / 4, col = s.trans ? t / 4 : 2 * (t % 4) + e;
                    v |= (u32(tile[row][2 * col]) | u32(tile[row][2 * col + 1]) << 8) << (16 * e);
                }
            }
            x.dst(in.v[m])[t] = v;
        }
    }
}

void stmatrix(X& x, const Inst& in, u32) {
    const Shape& s = static_cast<const Shape&>(*in.extra);
    for (u32 m = 0; m < s.count; ++m) {
        const u64* v = x.src(in.v[m]);
        for (u32 r = 0; r < s.rows; ++r) {
            int lane = int((m * s.rows + r) % 32);
            Place p = resolve(x, in, lane, Space::shared, row_address(x, in, u32(lane)), s.row_bytes, true, 16);
            u8 row[16];
            if (s.kind == Shape::Kind::b8) {  // m16n8 of bytes, stored as 8 rows of 16 (CuTe SM100_U8x4_STSM_T)
                for (u32 c = 0; c < 16; ++c) row[c] = u8(v[c % 8 * 4 + r / 2] >> (8 * (r % 2 + 2 * (c / 8))));
            } else {
                for (u32 c = 0; c < 8; ++c) {
                    u32 t = s.trans ? c * 4 + r / 2 : r * 4 + c / 2, e = s.trans ? r & 1 : c & 1;
                    u16 h = u16(v[t] >> (16 * e));
                    std::memcpy(row + 2 * c, &h, 2);
                }
            }
            bool silent = std::memcmp(p.p, row, s.row_bytes) == 0;  // replicated layouts store the same row several times
            touch(x, in, lane, p, s.row_bytes, Use::write, false, silent);
            std::memcpy(p.p, row, s.row_bytes);
        }
    }
    ++x.m.progress;
}

void movmatrix(X& x, const Inst& in, u32) {
    const u64* a = x.src(in.s[1]);
    u64 out[32];
    for (u32 t = 0; t < 32; ++t) {
        u32 v = 0;
        for (u32 e = 0; e < 2; ++e) {
            u32 row = 2 * (t % 4) + e, col = t / 4;
            v |= u32(a[row * 4 + col / 2] >> (16 * (col & 1)) & 0xffff) << (16 * e);
        }
        out[t] = v;
    }
    for (u32 t = 0; t < 32; ++t) x.dst(in.s[0])[t] = out[t];
}

std::shared_ptr<Shape> shape(Dec& d) {
    auto s = std::make_shared<Shape>();
    d.need({"sync"}), d.need({"aligned"});
    std::string dims = d.need({"m8n8", "m8n16", "m16n16", "m16n8"});
    std::string n = d.need({"x1", "x2", "x4"});
    s->count = u32(n[1] - '0');
    s->trans = d.opt("trans");
    d.need({"shared", "shared::cta"});
    bool unpack = d.opt("b8x16");
    bool p64 = d.opt("b4x16_p64"), p32 = d.opt("b6x16_p32");
    if (unpack) {
        s->kind = p64 ? Shape::Kind::b4_unpack : Shape::Kind::b6_unpack;
        if (!p64 && !p32) d.fail("needs a packed source format");
    } else {
        Ty t = d.need_type();
        if (t == Ty::b8) s->kind = Shape::Kind::b8;
        else if (t != Ty::b16) d.fail("element type is not modelled");
    }
    s->tall = dims == "m16n16";
    if (s->tall) s->rows = 16;
    bool fits = s->kind == Shape::Kind::b16 ? dims == "m8n8" : s->kind == Shape::Kind::b8 ? dims == "m16n16" || dims == "m16n8" : dims == "m8n16" || dims == "m16n16";
    if (!fits) d.fail("shape and type do not match");
    if ((s->tall || s->kind == Shape::Kind::b8) != s->trans && s->kind != Shape::Kind::b16) d.fail("16 rows of bytes need .trans, 8 rows have none");
    d.in.aligned = true;
    return s;
}
}  // namespace

void decode_ldmatrix(Dec& d) {
    auto s = shape(d);
    d.in.v = d.dsts(d.arg(0));
    if (s->kind == Shape::Kind::b8 && !s->tall) d.fail("bytes are loaded as m16n16");
    size_t need = s->tall ? 2 * s->count : s->count;
    if (d.in.v.size() != need) d.fail("needs " + std::to_string(need) + " destination registers");
    d.in.s[1] = d.base(d.arg(1), d.in.k[0]);
    d.in.extra = s, d.in.fn = ldmatrix;
}
void decode_stmatrix(Dec& d) {
    auto s = shape(d);
    if (s->tall || (s->kind != Shape::Kind::b16 && s->kind != Shape::Kind::b8)) d.fail("stores m8n8 of .b16 or m16n8 of .b8");
    d.in.s[1] = d.base(d.arg(0), d.in.k[0]);
    d.in.v = d.srcs(d.arg(1), Ty::b32);
    if (d.in.v.size() != s->count) d.fail("needs " + std::to_string(s->count) + " source registers");
    d.in.extra = s, d.in.fn = stmatrix;
}
void decode_movmatrix(Dec& d) {
    d.need({"sync"}), d.need({"aligned"}), d.need({"m8n8"}), d.need({"trans"});
    d.need_type();
    d.in.s[0] = d.dst(0), d.in.s[1] = d.src(1, Ty::b32);
    d.in.aligned = true;
    d.in.fn = movmatrix;
}

}  // namespace ptxsim
