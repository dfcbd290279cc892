#include "tensor/tc_desc.h"

namespace ptxsim {
namespace {
Ty narrow_format(u32 code) {
    switch (code) {
        case 0: return Ty::e4m3;
        case 1: return Ty::e5m2;
        case 3: return Ty::e2m3;
        case 4: return Ty::e3m2;
        case 5: return Ty::e2m1;
        default: return Ty::none;
    }
}
Ty source_format(McKind k, u32 code) {
    switch (k) {
        case McKind::f16: return code == 0 ? Ty::f16 : code == 1 ? Ty::bf16 : Ty::none;
        case McKind::tf32: return code == 2 ? Ty::tf32 : Ty::none;
        case McKind::f8f6f4: case McKind::mxf8f6f4: return narrow_format(code);
        case McKind::i8: return code == 0 ? Ty::u8 : code == 1 ? Ty::s8 : Ty::none;
        default: return code == 1 ? Ty::e2m1 : Ty::none;
    }
}
std::string show(u32 v) { return std::to_string(v); }

std::string check_shape(const InstrDesc& o, McKind kind, int group, bool ws) {
    std::string at = "shape M=" + show(o.m) + " N=" + show(o.n) + " ";
    if (!o.n || o.n > 256) return at + "has an N outside 8 to 256";
    if (ws) {
        if (group != 1) return ".ws exists for cta_group::1 only";
        if ((o.m != 32 && o.m != 64 && o.m != 128) || (o.n != 64 && o.n != 128 && o.n != 256)) return at + "is not a .ws shape (M 32, 64, 128; N 64, 128, 256)";
        return "";
    }
    if (group == 1 && o.m != 64 && o.m != 128) return at + "needs M 64 or 128 for cta_group::1";
    if (group == 2 && o.m != 128 && o.m != 256) return at + "needs M 128 or 256 for cta_group::2";
    if (is_block_scaled(kind) && group == 1 && o.m != 128) return at + "needs M 128 for block-scaled kinds";
    u32 step = group == 2 ? 16 : o.m == 64 ? 8 : 16;
    if (kind == McKind::i8) step = group == 2 ? 32 : o.n <= 32 && o.m == 64 ? 8 : 16;
    if (is_block_scaled(kind)) step = group == 2 ? 16 : 8;
    if (o.n % step) return at + "needs N to be a multiple of " + show(step);
    return "";
}
}  // namespace

bool is_block_scaled(McKind k) { return k >= McKind::mxf8f6f4; }

std::string decode_instr_desc(u32 raw, McKind kind, u32 scale_vec, int group, bool ws, bool sparse, InstrDesc& o) {
    if ((raw >> 2 & 1) != sparse) return "bit 2 of the instruction descriptor says whether A is sparse, and the instruction says otherwise";
    o.sparse = sparse, o.sparse_id = raw & 3;
    bool selects = kind == McKind::f16 || kind == McKind::tf32;
    if (o.sparse_id > (selects ? 1u : 0u)) return "sparsity selector " + show(o.sparse_id) + " does not exist for this kind";
    if (!sparse && o.sparse_id) return "a sparsity selector belongs to sparse products";
    o.a = source_format(kind, raw >> 7 & 7), o.b = source_format(kind, raw >> 10 & 7);
    if (o.a == Ty::none || o.b == Ty::none) return "A format " + show(raw >> 7 & 7) + " or B format " + show(raw >> 10 & 7) + " of the instruction descriptor does not exist for this kind";
    o.neg_a = raw >> 13 & 1, o.neg_b = raw >> 14 & 1, o.mn_a = raw >> 15 & 1, o.mn_b = raw >> 16 & 1;
    o.n = (raw >> 17 & 0x3f) << 3, o.m = (raw >> 24 & 0x1f) << 4;
    if (is_block_scaled(kind)) {
        o.d = Ty::f32;
        o.sfb_id = raw >> 4 & 3, o.sfa_id = raw >> 29 & 3;
        o.scale = raw >> 23 & 1 ? Ty::ue8m0 : Ty::ue4m3;
        o.k = (kind == McKind::mxf8f6f4 ? 32 : 64) << sparse;
        if (raw >> 31) return "K=96 of mxf4 is not modelled";
        o.block = o.k / scale_vec;
        if (kind != McKind::mxf4nvf4 && o.scale != Ty::ue8m0) return "this kind needs UE8M0 scales";
        if (scale_vec == 2 && ((o.sfa_id | o.sfb_id) & 1)) return "scale ids must be 0 or 2 for two scales per instruction";
        if (scale_vec == 4 && (o.sfa_id | o.sfb_id)) return "scale ids must be 0 for four scales per instruction";
    } else {
        u32 code = raw >> 4 & 3;
        o.d = code == 0 ? Ty::f16 : code == 1 ? Ty::f32 : code == 2 ? Ty::s32 : Ty::none;
        bool ok = kind == McKind::i8 ? o.d == Ty::s32 : kind == McKind::tf32 ? o.d == Ty::f32 : o.d == Ty::f16 || o.d == Ty::f32;
        if (!ok) return "D format " + show(code) + " does not exist for this kind";
        o.saturate = raw >> 3 & 1;
        o.k = (kind == McKind::f16 ? 16 : kind == McKind::tf32 ? 8 : 32) << sparse;
        if (raw >> 30) return "a shift in the instruction descriptor is not modelled";
        if (raw >> 23 & 1 || raw >> 29 & 1) return "reserved bits 23 or 29 of the instruction descriptor are not zero";
    }
    if ((o.mn_a && type_bits(o.a) < 8) || (o.mn_b && type_bits(o.b) < 8)) return "MN-major operands need elements of 8 bits or more";
    return check_shape(o, kind, group, ws);
}

u32 rows_per_cta(const InstrDesc& i, int group) { return i.m / u32(group); }

static bool two_by_two(const InstrDesc& i, int group, bool ws) { return (group == 2 && i.m == 128) || (ws && i.m == 64); }

TmemSpot d_spot(const InstrDesc& i, int group, bool ws, u32 r, u32 c) {
    if (two_by_two(i, group, ws)) return {r + (c >= i.n / 2 ? 64 : 0), c % (i.n / 2)};
    if (ws && i.m == 32) return {r + 32 * (c / (i.n / 4)), c % (i.n / 4)};
    if (group == 1 && i.m == 64) return {r / 16 * 32 + r % 16, c};
    return {r, c};
}

u32 d_columns(const InstrDesc& i, int group, bool ws) {
    if (two_by_two(i, group, ws)) return i.n / 2;
    return ws && i.m == 32 ? i.n / 4 : i.n;
}

}  // namespace ptxsim
