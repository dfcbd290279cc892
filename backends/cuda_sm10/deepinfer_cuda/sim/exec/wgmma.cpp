// wgmma.mma_async (sm_90): asynchronous products of a warpgroup, operands from shared memory or registers, accumulators in registers.
//
// Each warp of the group owns rows 16*(warp%4)..+15 of D, so the operation is executed per warp; but it is one operation of the
// warpgroup: wait_group returns in no warp before all four have issued and finished it, so one warp may give back the operands
// for all (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"). Fragments as in mma.sync: register i of D holds row
// lane/4 + 8*(i/2%2), column 8*(i/4) + 2*(lane%4) + i%2 (PTX ISA, "Register Fragments ... wgmma").
#include "exec/families.h"
#include "exec/ops.h"
#include "isa/formats.h"
#include "tensor/descriptor.h"
#include "tensor/matmul.h"
#include "tensor/sparse.h"

namespace ptxsim {
namespace {

struct Wgmma : Extra {
    u32 n = 0, k = 0;
    Ty d, a, b;
    bool a_regs = false, sat = false, binary = false;
    float neg_a = 1, neg_b = 1;
    bool trans_a = false, trans_b = false;
    bool sparse = false;       // k counts the columns of B; A holds half of them
    u32 selector = 0;
    i32 meta = kNoSlot;
    u32 depth() const { return sparse ? k / 2 : k; }
    i32 a_desc = kNoSlot, b_desc = kNoSlot, scale_d = kNoSlot;
};

u32 stored_bytes(Ty t) { return t == Ty::tf32 ? 4 : u32(type_size(t)); }

struct WgmmaOp : AsyncOp {
    const Wgmma* w = nullptr;
    std::shared_ptr<Pending> group;
    std::shared_ptr<Collective> whole;
    MatrixDesc a, b;
    bool accumulate = true;
    u32 meta[32] = {};
    const char* kind() const override { return "wgmma.mma_async"; }

    u32 element(const MatrixDesc& m, u32 r, u32 k) const {
        u32 at = m.address(r, k), v = 0;
        std::memcpy(&v, cta->shared.data() + at, m.element_bytes);
        return v;
    }

    // Bounds and checker for every 16-byte chunk of an operand.
    void visit(const MatrixDesc& m, u32 first_row, u32 rows, u32 depth) {
        Who who = who_op(*this, self);
        u32 per = 16 / m.element_bytes;
        auto one = [&](u32 at) {
            if (at + 16 > cta->shared.size() || at < 1024)
                throw SimError("out of bounds: matrix descriptor reaches shared offset " + std::to_string(at) + " of " + std::to_string(cta->shared.size()) + ": kernel " +
                               grid->program->name + " " + grid->program->where(*inst));
            grid->check.shared(who, *cta, at, 16, Use::read);
        };
        if (m.k_major)
            for (u32 r = first_row; r < first_row + rows; ++r)
                for (u32 k = 0; k < depth; k += per) one(m.address(r, k) & ~15u);
        else
            for (u32 k = 0; k < depth; ++k)
                for (u32 r = first_row / per * per; r < first_row + rows; r += per) one(m.address(r, k) & ~15u);
    }

    u32 a_register(u32 row, u32 k) const {
        u32 bits = 8 * stored_bytes(w->a), e = 32 / bits, lane_id = row % 8 * 4 + k / e % 4, reg = row / 8 + 2 * (k / (4 * e));
        return u32(warp->regs[size_t(inst->v2[reg]) * 32 + lane_id] >> (bits * (k % e)) & (bits == 32 ? 0xffffffffull : (1ull << bits) - 1));
    }

    bool step(Machine& m) override {
        u32 row0 = warp->index % 4 * 16;
        if (!w->a_regs) visit(a, row0, 16, w->depth());
        visit(b, 0, w->n, w->k);
        bool integer = w->d == Ty::s32;
        std::vector<double> fa(16 * w->depth()), fb(size_t(w->n) * w->k);
        std::vector<i32> ia, ib;
        if (integer) ia.resize(fa.size()), ib.resize(fb.size());
        auto put = [&](Ty t, u32 raw, float neg, size_t at, std::vector<double>& f, std::vector<i32>& i) {
            if (integer) i[at] = is_signed(t) ? i32(i8(raw)) : i32(raw & 0xff);
            else f[at] = double(neg) * element_value(t, raw);
        };
        for (u32 r = 0; r < 16; ++r)
            for (u32 k = 0; k < w->depth(); ++k) put(w->a, w->a_regs ? a_register(r, k) : element(a, row0 + r, k), w->neg_a, r * w->depth() + k, fa, ia);
        for (u32 r = 0; r < w->n; ++r)
            for (u32 k = 0; k < w->k; ++k) put(w->b, element(b, r, k), w->neg_b, size_t(r) * w->k + k, fb, ib);
        if (integer) finish_int(ia, ib);
        else finish_float(fa, fb);
        m.stats.mma_macs += u64(16) * w->n * w->depth();
        ++m.progress;
        whole->parts.push_back(self);
        if (whole->parts.size() < 4) return true;
        for (auto& g : whole->groups) {
            --g->open;
            for (Epoch e : whole->parts) g->done.all.raise(e);
        }
        return true;
    }

    // Column of B that kept element i of a row meets. Lanes hold metadata as CuTe's ELayout_64x16, 64x32 and 64x64 say: 16 bits of
    // row r and of row r + 8 each (16 and 32-bit types, the selector names the pair of lanes), or 32 bits of one row.
    u32 column(u32 row, u32 i) const {
        if (!w->sparse) return i;
        u32 bits = 8 * stored_bytes(w->a), quad = row % 8 * 4;
        return sparse_column(sparse_group(int(bits)), i, [&](u32 g) {
            if (bits >= 16) return meta[quad + 2 * w->selector + g / 4] >> (16 * (row / 8) + 4 * (g % 4)) & 15;
            return meta[quad + row / 8 + 2 * (g / 8)] >> (4 * (g % 8)) & 15;
        });
    }

    // B as row `row` of A meets it: dense, all of it.
    template <class T>
    void picked(const std::vector<T>& b_all, u32 row, std::vector<T>& to) const {
        to.resize(size_t(w->n) * w->depth());
        for (u32 i = 0; i < w->depth(); ++i)
            for (u32 k = column(row, i), c = 0; c < w->n; ++c) to[size_t(c) * w->depth() + i] = b_all[size_t(c) * w->k + k];
    }

    u64& d_register(u32 r, u32 c, bool half) {
        u32 i = c / 8 * 4 + (r / 8) * 2 + c % 2, lane_id = r % 8 * 4 + c % 8 / 2;
        return warp->regs[size_t(inst->v[half ? i / 2 : i]) * 32 + lane_id];
    }

    void finish_float(const std::vector<double>& fa, const std::vector<double>& fb) {
        bool half = w->d == Ty::f16;
        std::vector<double> acc(size_t(16) * w->n);
        if (accumulate)
            for (u32 r = 0; r < 16; ++r)
                for (u32 c = 0; c < w->n; ++c) {
                    u64 v = d_register(r, c, half);
                    acc[size_t(r) * w->n + c] = half ? f16_to_f32(u32(v >> (16 * (c & 1))) & 0xffff) : from_bits<float>(v);
                }
        std::vector<double> own;
        for (u32 r = 0; w->sparse && r < 16; ++r) {
            picked(fb, r, own);
            matmul_block(fa.data() + r * w->depth(), own.data(), acc.data() + size_t(r) * w->n, 1, w->n, w->depth(), block_rule(w->a, w->b, half, false));
        }
        if (!w->sparse) matmul_block(fa.data(), fb.data(), acc.data(), 16, w->n, w->k, block_rule(w->a, w->b, half, false));
        for (u32 r = 0; r < 16; ++r)
            for (u32 c = 0; c < w->n; ++c) {
                double v = acc[size_t(r) * w->n + c];
                u64& d = d_register(r, c, half);
                if (half) {
                    u32 sh = 16 * (c & 1);
                    d = (d & ~(0xffffull << sh) & 0xffffffff) | u64(encode_float(v, kF16, Round::rn)) << sh;
                } else {
                    d = to_bits(std::isnan(v) ? from_bits<float>(0x7fffffff) : float(v));
                }
            }
    }

    void common_bits(const i32* ia, const i32* ib, i64* acc) const {
        for (u32 r = 0; r < 16; ++r)
            for (u32 c = 0; c < w->n; ++c)
                for (u32 k = 0; k < w->k; ++k) acc[size_t(r) * w->n + c] += std::popcount(u32(ia[r * w->k + k] & ib[c * w->k + k]));
    }

    void finish_int(const std::vector<i32>& ia, const std::vector<i32>& ib) {
        std::vector<i64> acc(size_t(16) * w->n);
        if (accumulate)
            for (u32 r = 0; r < 16; ++r)
                for (u32 c = 0; c < w->n; ++c) acc[size_t(r) * w->n + c] = i32(d_register(r, c, false));
        if (w->a == Ty::b1) common_bits(ia.data(), ib.data(), acc.data());
        else if (!w->sparse) matmul_i32(ia.data(), ib.data(), acc.data(), 16, w->n, w->k);
        std::vector<i32> own;
        for (u32 r = 0; w->sparse && r < 16; ++r) {
            picked(ib, r, own);
            matmul_i32(ia.data() + r * w->depth(), own.data(), acc.data() + size_t(r) * w->n, 1, w->n, w->depth());
        }
        for (u32 r = 0; r < 16; ++r)
            for (u32 c = 0; c < w->n; ++c) {
                i64 v = acc[size_t(r) * w->n + c];
                d_register(r, c, false) = u32(w->sat ? std::clamp<i64>(v, INT32_MIN, INT32_MAX) : v);
            }
    }
};

void set_desc(X& x, const Inst& in, u64 raw, Ty t, bool mn_major, MatrixDesc& m) {
    std::string why = decode_desc_sm90(raw, m);
    if (!why.empty()) x.fault(in, 0, why);
    m.k_major = !mn_major;
    m.element_bytes = stored_bytes(t);
}

void wgmma(X& x, const Inst& in, u32) {
    const Wgmma& w = static_cast<const Wgmma&>(*in.extra);
    if (x.w.index / 4 * 4 + 4 > x.cta.warps.size()) x.fault(in, 0, "wgmma needs a whole warpgroup of 4 warps, the CTA has " + std::to_string(x.cta.warps.size()) + " warps");
    if (!x.w.wgmma_fenced) x.find(in, 0, "wgmma without wgmma.fence after its registers were accessed");
    auto op = std::make_shared<WgmmaOp>();
    op->inst = &in, op->w = &w;
    if (!w.a_regs) set_desc(x, in, x.src(w.a_desc)[0], w.a, w.trans_a, op->a);
    set_desc(x, in, x.src(w.b_desc)[0], w.b, w.trans_b, op->b);
    u32 p = w.scale_d == kNoSlot ? ~0u : x.predicate(w.scale_d);
    op->accumulate = p & 1;
    for (u32 l = 0; w.sparse && l < 32; ++l) op->meta[l] = u32(x.src(w.meta)[l]);
    if (p && ~p) x.find(in, 0, "scale-d is not uniform over the warp");
    adopt(x, *op);
    if (!x.w.wgmma_open) x.w.wgmma_open = std::make_shared<Pending>();
    op->group = x.w.wgmma_open;
    ++op->group->open;
    u64 key = x.w.wgmma_issued++ << 8 | x.w.index / 4;
    auto& whole = x.cta.wgmmas[key];
    if (!whole) whole = std::make_shared<Collective>();
    op->whole = whole;
    whole->groups.push_back(op->group);
    if (whole->groups.size() == 4) x.cta.wgmmas.erase(key);
    if (x.g.check.on) own_registers(x.w, *op->group, in.v, in.v2);
    x.m.engine.issue(x.m, op, x.w.wgmma_queue);
}

void fence(X& x, const Inst&, u32) { x.w.wgmma_fenced = true; }

void commit(X& x, const Inst&, u32) {
    if (!x.w.wgmma_open) x.w.wgmma_open = std::make_shared<Pending>();
    x.w.wgmma_groups.push_back(x.w.wgmma_open);
    x.w.wgmma_open = nullptr;
}

void wait(X& x, const Inst& in, u32) {
    auto& g = x.w.wgmma_groups;
    size_t keep = size_t(in.k[0]);
    for (size_t i = 0; i + keep < g.size(); ++i)
        if (g[i]->open) return x.block("wgmma group");
    while (g.size() > keep) {
        release_registers(x.w, *g.front());
        warp_acquire(x.w, g.front()->done);
        g.pop_front();
    }
}
}  // namespace

void decode_wgmma(Dec& d) {
    d.in.aligned = true;
    std::string what = d.need({"fence", "commit_group", "wait_group", "mma_async"});
    bool sparse = d.opt("sp");
    d.need({"sync"}), d.need({"aligned"});
    if (what == "fence") { d.in.fn = fence; return; }
    if (what == "commit_group") { d.in.fn = commit; return; }
    if (what == "wait_group") {
        d.in.k[0] = d.imm(0);
        d.in.fn = wait;
        return;
    }
    auto w = std::make_shared<Wgmma>();
    w->sparse = sparse;
    u32 m = 0;
    std::string shape = d.prefix("m");
    if (std::sscanf(shape.c_str(), "%un%uk%u", &m, &w->n, &w->k) != 3 || m != 64 || w->n % 8 || !w->n || w->n > 256) d.fail("shape m" + shape + " is not a wgmma shape");
    w->sat = d.opt("satfinite");
    w->d = d.need_type(), w->a = d.need_type(), w->b = d.need_type();
    if (w->a == Ty::b1) {
        d.need({"and"}), d.need({"popc"});
        if (w->k != 256) d.fail("k must be 256 for .b1");
        w->k = 32;  // bytes: the layout of 8-bit operands
    }
    if (w->depth() != 32 / stored_bytes(w->a)) d.fail("type and k do not match a wgmma");
    d.in.v = d.dsts(d.arg(0));
    size_t need = w->d == Ty::f16 ? w->n / 4 : w->n / 2;
    if (d.in.v.size() != need) d.fail("needs " + std::to_string(need) + " accumulator registers");
    const Operand& a = d.arg(1);
    w->a_regs = a.kind == Operand::Kind::vec;
    if (w->a_regs) {
        d.in.v2 = d.srcs(a, Ty::b32);
        if (d.in.v2.size() != 4) d.fail("needs 4 registers for A");
    } else {
        w->a_desc = d.src(1);
    }
    w->b_desc = d.src(2);
    size_t at = 3;
    if (sparse) {
        w->meta = d.src(at++, Ty::b32), w->selector = u32(d.imm(at++));
        if (w->selector > (stored_bytes(w->a) == 1 ? 0u : 1u)) d.fail("sparsity selector " + std::to_string(w->selector) + " does not exist for this type");
    }
    w->scale_d = d.pred(at++);
    if (w->d != Ty::s32) {
        w->neg_a = float(d.imm(at)), w->neg_b = float(d.imm(at + 1));
        at += 2;
        if (stored_bytes(w->a) == 2) {
            if (!w->a_regs) w->trans_a = d.imm(at++);
            w->trans_b = d.imm(at++);
        }
    }
    d.in.is_wgmma = true;
    d.in.extra = w, d.in.fn = wgmma;
}

}  // namespace ptxsim
