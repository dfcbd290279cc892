// tcgen05.mma and tcgen05.cp: the asynchronous tensor pipeline of one issuing thread.
//
// With cta_group::2 the operation reads A rows and B rows from both CTAs of the pair (same descriptor, each CTA's own shared memory)
// and writes each CTA's rows into that CTA's tensor memory.
#include "exec/families.h"
#include "exec/ops.h"
#include "exec/tc_common.h"
#include "isa/formats.h"
#include "tensor/descriptor.h"
#include "tensor/matmul.h"
#include "tensor/sparse.h"

namespace ptxsim {
namespace {

struct TcMma : Extra {
    McKind kind;
    int group = 1;
    bool ws = false, a_tmem = false, sparse = false;
    i32 meta = kNoSlot;
    i64 meta_off = 0;
    u32 scale_vec = 0;
    i32 d = kNoSlot, a = kNoSlot, b = kNoSlot, idesc = kNoSlot, sfa = kNoSlot, sfb = kNoSlot, enable = kNoSlot, zero_mask = kNoSlot;
    i64 d_off = 0, a_off = 0, sfa_off = 0, sfb_off = 0;
    std::vector<i32> disable;
    i64 scale_d = 0;
};

void out_of_shared(const AsyncOp& op, u32 at, u32 size) {
    throw SimError("out of bounds: matrix descriptor reaches shared offset " + std::to_string(at) + " of " + std::to_string(size) + ": kernel " + op.grid->program->name + " " +
                   op.grid->program->where(*op.inst));
}

struct TcOp : AsyncOp {
    const u8* chunk(Cta& c, u32 at) {
        if (at < 1024 || at + 16 > c.shared.size()) out_of_shared(*this, at, u32(c.shared.size()));
        grid->check.shared(who_op(*this, self), c, at, 16, Use::read);
        return c.shared.data() + at;
    }
    void need_columns(Cta& c, u32 col, u32 n) {
        if (!c.tmem->allocated(col, n))
            throw SimError("tensor memory columns " + std::to_string(col) + " to " + std::to_string(col + n - 1) + " of CTA rank " + std::to_string(c.rank) + " are not all allocated: kernel " +
                           grid->program->name + " " + grid->program->where(*inst));
    }
    void visit(Cta& c, u32 lane_lo, u32 lanes, u32 col, u32 cols, Use use, const char* unit = "tensor memory") {
        if (!grid->check.on) return;
        Who w = who_op(*this, self);
        for (u32 g = lane_lo / 16; g <= (lane_lo + lanes - 1) / 16; ++g)
            for (u32 k = 0; k < cols; ++k) grid->check.tmem(w, c.tmem->shadow, g * kTmemColumns + col + k, use, unit);
    }
};

struct MmaOp : TcOp {
    const TcMma* t = nullptr;
    InstrDesc id;
    MatrixDesc a, b;
    TmemAddr d{0, 0}, at{0, 0}, sfa{0, 0}, sfb{0, 0}, meta{0, 0};
    bool accumulate = false;
    std::vector<u32> disable;
    std::vector<Cta*> ctas;
    const char* kind() const override { return "tcgen05.mma"; }

    bool packed4() const { return t->kind == McKind::mxf4 || t->kind == McKind::mxf4nvf4; }

    double value(Ty ty, u32 raw) const {
        if (t->kind == McKind::i8) return ty == Ty::s8 ? i32(i8(raw)) : i32(raw & 0xff);
        return element_value(ty, raw);
    }

    // K-major row: elements come in 16-byte chunks, sub-byte ones padded to 16 per chunk unless the kind packs them.
    void unpack(const u8* c, Ty ty, u32 n, double* out) const {
        int bits = type_bits(ty);
        for (u32 i = 0; i < n; ++i) {
            u32 raw = 0;
            if (bits == 16 || ty == Ty::tf32) std::memcpy(&raw, c + i * (bits / 8), size_t(bits / 8));
            else if (bits == 8) raw = c[i];
            else if (bits == 4) raw = c[i / 2] >> (4 * (i & 1)) & 15;
            else raw = u32((u32(c[i * 6 / 8]) | u32(c[i * 6 / 8 + 1]) << 8) >> (i * 6 % 8)) & 63;
            out[i] = value(ty, raw);
        }
    }

    u32 per_chunk(Ty ty) const { return packed4() ? 32 : type_bits(ty) < 8 ? 16 : 16 / u32(type_size(ty)); }

    void load(Cta& c, const MatrixDesc& m, Ty ty, u32 rows, u32 depth, double* out) {
        u32 per = per_chunk(ty);
        if (m.k_major) {
            for (u32 r = 0; r < rows; ++r)
                for (u32 k = 0; k < depth; k += per) unpack(chunk(c, m.chunk(r, k / per * 16)), ty, per, out + size_t(r) * depth + k);
            return;
        }
        u32 step = 16 / m.element_bytes;
        std::vector<double> tmp(step);
        for (u32 k = 0; k < depth; ++k)
            for (u32 r = 0; r < rows; r += step) {
                unpack(chunk(c, m.address(r, k) & ~15u), ty, step, tmp.data());
                for (u32 i = 0; i < step && r + i < rows; ++i) out[size_t(r + i) * depth + k] = tmp[i];
            }
    }

    // Metadata cell of a group of a row (CuTe tmem_e_frg). 16 and 32-bit operands: a column holds four groups of row r in its low and of
    // row r + 8 in its high half, the lane eight below the next four groups; the selector names the column. Narrower ones: eight
    // groups of one row per column.
    u32 metadata(Cta& c, u32 row, u32 g) const {
        bool halves = t->kind == McKind::f16 || t->kind == McKind::tf32;
        u32 lane = halves ? row / 16 * 16 + g / 4 * 8 + row % 8 : row;
        if (t->group == 1 && !t->ws && id.m == 64) lane = lane / 16 * 32 + lane % 16;
        u32 col = meta.col + (halves ? id.sparse_id : g / 8), shift = halves ? row / 8 % 2 * 16 + g % 4 * 4 : g % 8 * 4;
        return c.tmem->at(lane, col) >> shift & 15;
    }

    // A with its zeros; `kept` says which columns each row has.
    void expand(Cta& c, u32 rows, const std::vector<double>& packed, std::vector<double>& full, std::vector<u32>& kept) {
        SparseGroup group = packed4() ? SparseGroup::pairs_of_eight : t->kind == McKind::tf32 ? SparseGroup::one_of_two : SparseGroup::two_of_four;
        bool halves = t->kind == McKind::f16 || t->kind == McKind::tf32;
        u32 first = meta.col + (halves ? id.sparse_id : 0), columns = halves ? 1 : 2;
        need_columns(c, first, columns);
        visit(c, 0, 128, first, columns, Use::read, "sparsity metadata in tensor memory");
        kept.resize(packed.size());
        for (u32 r = 0; r < rows; ++r)
            for (u32 i = 0; i < id.depth(); ++i) {
                u32 k = sparse_column(group, i, [&](u32 g) { return metadata(c, r, g); });
                kept[size_t(r) * id.depth() + i] = k;
                full[size_t(r) * id.k + k] = packed[size_t(r) * id.depth() + i];
            }
    }

    // Each row meets its own columns of B, so that what is not selected takes no part, not even a NaN.
    void multiply_sparse(u32 rows, const std::vector<double>& a, const std::vector<double>& b, const std::vector<u32>& kept, std::vector<double>& acc) const {
        u32 n = id.n, depth = id.depth();
        for (u32 r = 0; r < rows; ++r)
            for (u32 i = 0; i < depth; ++i) {
                u32 k = kept[size_t(r) * depth + i];
                double v = a[size_t(r) * id.k + k];
                for (u32 j = 0; j < n; ++j) acc[size_t(r) * n + j] += v * b[size_t(j) * id.k + k];
            }
    }

    void load_tmem(Cta& c, u32 rows, double* out) {
        u32 bits = packed4() ? 4 : id.a == Ty::tf32 ? 32 : type_bits(id.a) < 8 ? 8 : u32(type_bits(id.a)), per = 32 / bits;
        u32 depth = id.depth();
        need_columns(c, at.col, depth / per);
        bool spread = t->group == 1 && !t->ws && id.m == 64;  // 16 rows in each sub-partition
        for (u32 r = 0; r < rows; r += 16) visit(c, at.lane + (spread ? r * 2 : r), 16, at.col, depth / per, Use::read);
        for (u32 r = 0; r < rows; ++r) {
            u32 lane_at = at.lane + (spread ? r / 16 * 32 + r % 16 : r);
            for (u32 k = 0; k < depth; ++k) {
                u32 raw = c.tmem->at(lane_at, at.col + k / per) >> (bits * (k % per));
                if (bits < 32) raw &= (1u << bits) - 1;
                out[size_t(r) * depth + k] = value(id.a, raw);
            }
        }
    }

    double scale(Cta& c, TmemAddr s, u32 quarter, u32 mn, u32 k, u32 sf_id) const {
        u32 word = c.tmem->at(quarter * 32 + mn % 32, s.col + mn / 32);
        return decode8(id.scale, word >> (8 * (sf_id + k / id.block)));
    }

    // Scales are powers of two or e4m3 values: the scaled operands stay exact in double.
    void apply_scales(Cta& c, u32 rows, std::vector<double>& fa, std::vector<double>& fb) {
        u32 ca = (rows + 31) / 32, cb = (id.n + 31) / 32;
        need_columns(c, sfa.col, ca), need_columns(c, sfb.col, cb);
        visit(c, 0, 128, sfa.col, ca, Use::read, "scale factors in tensor memory"), visit(c, 0, 128, sfb.col, cb, Use::read, "scale factors in tensor memory");
        for (u32 r = 0; r < rows; ++r)
            for (u32 k = 0; k < id.k; ++k) fa[size_t(r) * id.k + k] *= scale(c, sfa, d_spot(id, t->group, t->ws, r, 0).lane / 32, r, k, id.sfa_id);
        for (u32 j = 0; j < id.n; ++j)
            for (u32 k = 0; k < id.k; ++k) {
                double v = scale(c, sfb, 0, j, k, id.sfb_id);
                for (u32 q = 1; q < 4 && k % id.block == 0; ++q) {
                    double o = scale(c, sfb, q, j, k, id.sfb_id);
                    if (o != v && !(std::isnan(o) && std::isnan(v))) grid->check.report(who_op(*this, self), "B scale factors differ between the four sub-partitions of tensor memory");
                }
                fb[size_t(j) * id.k + k] *= v;
            }
    }

    void visit_d(Cta& c, u32 rows, u32 cols, Use use) {
        for (u32 r = 0; r < rows; r += 16)
            for (u32 j = 0; j < id.n; j += cols) visit(c, d.lane + d_spot(id, t->group, t->ws, r, j).lane, 16, d.col, cols, use, "accumulator in tensor memory");
    }

    double old_value(u32 cell) const {
        double v = id.d == Ty::s32 ? double(i32(cell)) : id.d == Ty::f16 ? f16_to_f32(cell & 0xffff) : double(from_bits<float>(cell));
        return t->scale_d ? std::ldexp(v, -int(t->scale_d)) : v;
    }
    u32 new_value(double v) const {
        if (id.d == Ty::s32) {
            i64 s = i64(v);
            return id.saturate ? u32(i32(std::clamp<i64>(s, INT32_MIN, INT32_MAX))) : u32(s);
        }
        if (id.d == Ty::f16) return encode_float(v, kF16, Round::rn);
        return std::isnan(v) ? 0x7fffffffu : u32(to_bits(float(v)));
    }

    bool step(Machine& m) override {
        u32 rows = rows_per_cta(id, t->group), cols = d_columns(id, t->group, t->ws), nb = id.n / u32(ctas.size());
        std::vector<double> all_b(size_t(id.n) * id.k);
        for (size_t p = 0; p < ctas.size(); ++p) load(*ctas[p], b, id.b, nb, id.k, all_b.data() + p * nb * id.k);
        if (id.neg_b) for (double& v : all_b) v = -v;
        for (size_t p = 0; p < ctas.size(); ++p) {
            Cta& c = *ctas[p];
            std::vector<double> fa(size_t(rows) * id.depth()), fb = all_b, acc(size_t(rows) * id.n);
            std::vector<u32> kept;
            if (t->a_tmem) load_tmem(c, rows, fa.data());
            else load(c, a, id.a, rows, id.depth(), fa.data());
            if (id.sparse) {
                std::vector<double> full(size_t(rows) * id.k);
                expand(c, rows, fa, full, kept);
                fa = std::move(full);
            }
            if (id.neg_a) for (double& v : fa) v = -v;
            if (id.block) apply_scales(c, rows, fa, fb);
            need_columns(c, d.col, cols);
            if (accumulate) visit_d(c, rows, cols, Use::read);
            visit_d(c, rows, cols, Use::write);
            if (accumulate)
                for (u32 r = 0; r < rows; ++r)
                    for (u32 j = 0; j < id.n; ++j) {
                        TmemSpot s = d_spot(id, t->group, t->ws, r, j);
                        acc[size_t(r) * id.n + j] = old_value(c.tmem->at(d.lane + s.lane, d.col + s.col));
                    }
            if (id.sparse) multiply_sparse(rows, fa, fb, kept, acc);
            else matmul_f64(fa.data(), fb.data(), acc.data(), rows, id.n, id.k);
            for (u32 r = 0; r < rows; ++r)
                for (u32 j = 0; j < id.n; ++j) {
                    TmemSpot s = d_spot(id, t->group, t->ws, r, j);
                    u32 l = d.lane + s.lane;
                    if (!disable.empty() && (disable[p * 4 + l / 32] >> (l % 32) & 1)) continue;
                    c.tmem->at(l, d.col + s.col) = new_value(acc[size_t(r) * id.n + j]);
                }
            m.stats.mma_macs += u64(rows) * id.n * id.depth();
        }
        ++m.progress;
        return true;
    }
};

void set_desc(X& x, const Inst& in, u64 raw, Ty t, bool mn_major, MatrixDesc& m) {
    std::string why = decode_desc_sm100(raw, m);
    if (!why.empty()) x.fault(in, 0, why);
    m.k_major = !mn_major;
    m.element_bytes = t == Ty::tf32 ? 4 : u32(type_size(t));
    if (m.swizzle == Swizzle::b128_atom32 && m.k_major) x.fault(in, 0, "128-byte swizzle with 32-byte atoms exists for MN-major operands only");
}

void enter_pipeline(X& x, TcOp& op) {
    adopt(x, op);
    if (!x.g.check.on) return;
    if (x.m.config.strict && x.g.program->tensor_fences) {  // a wait orders these operations through a fence only
        op.know.all = x.w.fenced;
        op.know.all.raise({x.w.agent, x.w.clock - 1});
    }
    op.know.tensor.join(x.w.pipeline), op.know.all.join(x.w.pipeline);  // operations of one thread run in issue order
    x.w.pipeline.raise(op.self);
}

void mma(X& x, const Inst& in, u32 lanes) {
    const TcMma& t = static_cast<const TcMma&>(*in.extra);
    use_tensor_memory(x, in, t.group);
    each(lanes, [&](int l) {
        auto op = std::make_shared<MmaOp>();
        op->inst = &in, op->lane = l, op->t = &t;
        std::string why = decode_instr_desc(u32(x.src(t.idesc)[l]), t.kind, t.scale_vec, t.group, t.ws, t.sparse, op->id);
        if (!why.empty()) x.fault(in, l, why);
        op->d = tmem_address(x, in, x.src(t.d)[l] + u64(t.d_off));
        if (t.a_tmem) op->at = tmem_address(x, in, x.src(t.a)[l] + u64(t.a_off));
        else set_desc(x, in, x.src(t.a)[l], op->id.a, op->id.mn_a, op->a);
        if (t.a_tmem && op->id.mn_a) x.fault(in, l, "A in tensor memory must be K-major");
        set_desc(x, in, x.src(t.b)[l], op->id.b, op->id.mn_b, op->b);
        if (op->id.block) op->sfa = tmem_address(x, in, x.src(t.sfa)[l] + u64(t.sfa_off), true), op->sfb = tmem_address(x, in, x.src(t.sfb)[l] + u64(t.sfb_off), true);
        if (t.sparse) op->meta = tmem_address(x, in, x.src(t.meta)[l] + u64(t.meta_off));
        op->accumulate = x.predicate(t.enable) >> l & 1;
        for (i32 s : t.disable) op->disable.push_back(u32(x.src(s)[l]));
        if (t.zero_mask != kNoSlot && x.src(t.zero_mask)[l]) x.fault(in, l, "a zero-column mask is not modelled");
        if (t.group == 1) op->ctas = {&x.cta};
        else op->ctas = {&pair_cta(x, in, 0), &pair_cta(x, in, 1)};
        for (Cta* c : op->ctas)
            if (op->d.lane + d_spot(op->id, t.group, t.ws, rows_per_cta(op->id, t.group) - 1, op->id.n - 1).lane >= kTmemLanes) x.fault(in, l, "D of CTA rank " + std::to_string(c->rank) + " does not fit the tensor memory lanes");
        enter_pipeline(x, *op);
        x.m.engine.issue(x.m, op, x.w.tensor_queue);
    });
}

// ---- cp ------------------------------------------------------------------------------------------------------------

struct TcCp : Extra {
    int group = 1;
    u32 rows = 0, chunks = 1;  // chunks of 16 bytes per row
    int spread = 0;            // 0 straight, 1 warpx4, 2 warpx2::02_13, 3 warpx2::01_23, 4 one row per sub-partition
    int decompress = 0;        // 4 or 6 bit sources to bytes
};

struct CpOp : TcOp {
    const TcCp* t = nullptr;
    MatrixDesc s;
    TmemAddr to{0, 0};
    std::vector<Cta*> ctas;
    const char* kind() const override { return "tcgen05.cp"; }

    std::vector<u32> lanes_of(u32 r) const {
        switch (t->spread) {
            case 1: return {r, r + 32, r + 64, r + 96};
            case 2: return {r, r + 64};
            case 3: return {r / 32 * 64 + r % 32, r / 32 * 64 + 32 + r % 32};
            case 4: return {to.lane + 32 * r};
            default: return {r};
        }
    }

    bool step(Machine& m) override {
        for (Cta* c : ctas) {
            need_columns(*c, to.col, 4 * t->chunks);
            if (t->spread == 4)
                for (u32 r = 0; r < 4; ++r) visit(*c, to.lane + 32 * r, 1, to.col, 4 * t->chunks, Use::write);
            else visit(*c, 0, 128, to.col, 4 * t->chunks, Use::write);
            for (u32 r = 0; r < t->rows; ++r)
                for (u32 k = 0; k < t->chunks; ++k) {
                    u8 bytes[16];
                    const u8* p = chunk(*c, s.chunk(r, k * 16));
                    for (u32 i = 0; i < 16; ++i) {
                        if (t->decompress == 4) bytes[i] = u8(p[i / 2] >> (4 * (i & 1)) & 15);
                        else if (t->decompress == 6) bytes[i] = u8((u32(p[i * 6 / 8]) | u32(p[i * 6 / 8 + 1]) << 8) >> (i * 6 % 8) & 63);
                        else bytes[i] = p[i];
                    }
                    for (u32 l : lanes_of(r)) std::memcpy(&c->tmem->at(l, to.col + 4 * k), bytes, 16);
                }
        }
        ++m.progress;
        return true;
    }
};

void cp(X& x, const Inst& in, u32 lanes) {
    const TcCp& t = static_cast<const TcCp&>(*in.extra);
    use_tensor_memory(x, in, t.group);
    each(lanes, [&](int l) {
        auto op = std::make_shared<CpOp>();
        op->inst = &in, op->lane = l, op->t = &t;
        op->to = tmem_address(x, in, x.src(in.s[1])[l] + u64(in.k[0]));
        if (t.spread == 4 ? op->to.lane >= 32 : op->to.lane != 0) x.fault(in, l, t.spread == 4 ? "tcgen05.cp.4x256b must start in lanes 0 to 31" : "tcgen05.cp must start at lane 0");
        set_desc(x, in, x.src(in.s[2])[l], Ty::u8, false, op->s);
        if (t.group == 1) op->ctas = {&x.cta};
        else op->ctas = {&pair_cta(x, in, 0), &pair_cta(x, in, 1)};
        enter_pipeline(x, *op);
        x.m.engine.issue(x.m, op, x.w.tensor_queue);
    });
}
}  // namespace

void decode_tc_cp(Dec& d) {
    auto t = std::make_shared<TcCp>();
    d.need({"cp"});
    t->group = parse_cta_group(d);
    std::string s = d.need({"128x256b", "128x128b", "64x128b", "32x128b", "4x256b"});
    t->rows = u32(std::stoi(s)), t->chunks = s == "128x256b" || s == "4x256b" ? 2 : 1;
    if (s == "4x256b") t->spread = 4;  // row r to lane 32 r of the address (CuTe SM100_UTCCP_4dp256bit)
    if (s == "32x128b") d.need({"warpx4"}), t->spread = 1;
    if (s == "64x128b") t->spread = d.need({"warpx2::02_13", "warpx2::01_23"}) == "warpx2::02_13" ? 2 : 3;
    if (d.opt("b8x16")) t->decompress = d.need({"b4x16_p64", "b6x16_p32"}) == "b4x16_p64" ? 4 : 6;
    d.in.s[1] = d.base(d.arg(0), d.in.k[0]), d.in.s[2] = d.src(1);
    d.in.extra = t, d.in.fn = cp;
}

void decode_tc_mma(Dec& d) {
    auto t = std::make_shared<TcMma>();
    d.need({"mma"});
    t->sparse = d.opt("sp");
    if (d.opt("ashift")) d.fail(".ashift is not modelled");
    t->ws = d.opt("ws");
    t->group = parse_cta_group(d);
    static const std::map<std::string, McKind> kinds = {{"f16", McKind::f16}, {"tf32", McKind::tf32}, {"f8f6f4", McKind::f8f6f4}, {"i8", McKind::i8},
                                                        {"mxf8f6f4", McKind::mxf8f6f4}, {"mxf4", McKind::mxf4}, {"mxf4nvf4", McKind::mxf4nvf4}};
    auto k = kinds.find(d.prefix("kind::"));
    if (k == kinds.end()) d.fail("has no kind that is known");
    t->kind = k->second;
    bool scaled = d.opt("block_scale");
    if (scaled != is_block_scaled(t->kind)) d.fail("kind and .block_scale do not match");
    std::string v = d.prefix("scale_vec::");
    if (scaled) {
        t->scale_vec = t->kind == McKind::mxf8f6f4 ? 1 : t->kind == McKind::mxf4 ? 2 : 4;
        if (!v.empty()) t->scale_vec = u32(v[0] - '0');
        if (d.opt("block32")) t->scale_vec = t->kind == McKind::mxf8f6f4 ? 1 : 2;
        if (d.opt("block16")) t->scale_vec = 4;
    }
    while (!d.prefix("collector::").empty()) {}  // a reuse hint: results do not depend on it
    const Operand& a = d.arg(1);
    t->d = d.base(d.arg(0), t->d_off);
    t->a_tmem = a.kind == Operand::Kind::addr;
    t->a = t->a_tmem ? d.base(a, t->a_off) : d.src(1);
    t->b = d.src(2);
    size_t at = 3;
    if (t->sparse) t->meta = d.base(d.arg(at++), t->meta_off);
    t->idesc = d.src(at++, Ty::b32);
    if (scaled) t->sfa = d.base(d.arg(at++), t->sfa_off), t->sfb = d.base(d.arg(at++), t->sfb_off);
    if (d.arg(at).kind == Operand::Kind::vec) {
        t->disable = d.srcs(d.arg(at++), Ty::b32);
        if (t->disable.size() != size_t(4 * t->group)) d.fail("disable-output-lane needs " + std::to_string(4 * t->group) + " registers");
    }
    t->enable = d.pred(at++);
    if (at < d.n()) {
        if (t->ws) t->zero_mask = d.src(at);
        else t->scale_d = d.imm(at);
    }
    d.in.extra = t, d.in.fn = mma;
}

}  // namespace ptxsim
