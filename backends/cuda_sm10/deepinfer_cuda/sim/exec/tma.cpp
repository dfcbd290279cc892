// cp.async.bulk.tensor: tiled and im2col loads, stores, reductions and prefetches of rank 1 to 5, gather4 and scatter4; tensormap.replace.
//
// A box is copied row by row into a packed buffer; the buffer goes to shared memory through the swizzle of absolute addresses.
// With a swizzle every row takes a whole span of it (32, 64 or 128 bytes) in shared memory, whatever the box's width, and the
// innermost coordinate must lie on 16 bytes: both observed on an H200, the latter as an illegal-instruction fault.
// complete_tx counts the whole box, out-of-bounds elements included.
#include <bit>

#include "core/windows.h"
#include "exec/bulk.h"
#include "exec/families.h"
#include "exec/ops.h"
#include "isa/formats.h"
#include "tensor/tensor_map.h"

namespace ptxsim {
namespace {

struct Tma : Extra {
    enum class Dir : u8 { load, store, reduce, prefetch } dir;
    u32 rank = 0;
    bool im2col = false, rows4 = false, multicast = false, pair = false, cluster_dst = false;
    RedOp op = RedOp::add;
    i32 dst = kNoSlot, map = kNoSlot, src = kNoSlot, bar = kNoSlot, mask = kNoSlot;
    i64 dst_off = 0, map_off = 0, src_off = 0, bar_off = 0;
    std::vector<i32> coords, offsets;  // offsets: im2col, added to the pixels' positions
};

// One run of inner elements: where it lies in the packed box and in global memory.
struct Run {
    u64 global;
    u32 shared, count;
    bool inside;
};

struct TmaOp : BulkOp {
    const Tma* t = nullptr;
    TensorMap map;
    i32 c[5] = {0, 0, 0, 0, 0};
    i32 row[4] = {0, 0, 0, 0};
    i32 shift[3] = {0, 0, 0};
    Cta* from_cta = nullptr;
    u32 from_offset = 0;

    u32 extent(u32 d) const { return (map.box[d] + map.element_stride[d] - 1) / map.element_stride[d]; }
    u32 rows() const {
        if (t->rows4) return 4;
        if (map.im2col) return map.box[1];
        u32 n = 1;
        for (u32 d = 1; d < map.rank; ++d) n *= extent(d);
        return n;
    }
    u32 pitch() const { return map.inner_shared(extent(0)); }
    u32 footprint() const { return rows() * std::max(pitch(), swizzle_span(Swizzle(map.swizzle))); }
    // Where 16 packed bytes of the box lie in shared memory.
    u32 place(u32 start, u32 packed) const {
        u32 span = swizzle_span(Swizzle(map.swizzle));
        return swizzle_address(Swizzle(map.swizzle), start + (span ? packed / pitch() * span + packed % pitch() : packed));
    }

    // Im2col walks the pixels of the bounding box, W first, then on to the next image (PTX ISA, "Im2col mode").
    void next_pixel(i64* at) const {
        u32 spatial = map.rank - 2u;
        for (u32 i = 0; i < spatial; ++i) {
            at[i] += map.element_stride[i + 1];
            if (at[i] < i64(map.dims[i + 1]) + map.upper[i]) return;
            at[i] = map.lower[i];
        }
        ++at[spatial];
    }

    // Calls f(run) for every run of the box, in order.
    template <class F>
    void runs(F&& f) const {
        u32 inner = extent(0), es = map.element_stride[0];
        i64 pixel[4] = {c[1], c[2], c[3], c[4]};
        for (u32 r = 0; r < rows(); ++r) {
            u64 base = map.base;
            bool inside = true;
            u32 rest = r;
            for (u32 d = 1; d < map.rank; ++d) {
                i64 at;
                if (map.im2col) {
                    at = pixel[d - 1] + (d + 1u < map.rank ? shift[d - 1] : 0);
                } else if (t->rows4) {
                    at = row[r];
                } else {
                    at = i64(c[d]) + i64(rest % extent(d)) * map.element_stride[d];
                    rest /= extent(d);
                }
                inside &= at >= 0 && u64(at) < map.dims[d];
                base += u64(at) * map.strides[d - 1];
            }
            if (map.im2col) next_pixel(pixel);
            if (es == 1) {
                i64 lo = std::clamp<i64>(-i64(c[0]), 0, inner), hi = std::clamp<i64>(i64(map.dims[0]) - c[0], lo, inner);
                if (!inside) lo = hi = inner;
                if (lo > 0) f(Run{0, r * pitch(), u32(lo), false});
                if (hi > lo) f(Run{base + u64(map.inner_global(u32(c[0] + lo))), r * pitch() + map.inner_shared(u32(lo)), u32(hi - lo), true});
                if (hi < inner) f(Run{0, r * pitch() + map.inner_shared(u32(hi)), u32(inner - hi), false});
            } else {
                for (u32 i = 0; i < inner; ++i) {
                    i64 at = i64(c[0]) + i64(i) * es;
                    bool in = inside && at >= 0 && u64(at) < map.dims[0];
                    f(Run{in ? base + map.inner_global(u32(at)) : 0, r * pitch() + map.inner_shared(i), 1, in});
                }
            }
        }
    }

    void fill(u8* p, u32 n) const {
        std::memset(p, 0, n);
        if (!map.oob) return;
        for (u32 i = 0; i + 2 <= n; i += 2) p[i] = 0xf7, p[i + 1] = 0x7f;  // 0x7ff7 in every half-word
    }

    // Loads of the tf32 types round each element to nearest even; no type flushes subnormals (both as an H200 does).
    void convert(u8* p, u32 n) const {
        bool round = map.type() == MapType::tf32 || map.type() == MapType::tf32_ftz;
        if (!round) return;
        for (u32 i = 0; i < n; i += 4) {
            float v;
            std::memcpy(&v, p + i, 4);
            u32 bits = std::isnan(v) ? u32(to_bits(v)) : encode_float(v, kTF32, Round::rn) << 13;
            std::memcpy(p + i, &bits, 4);
        }
    }

    // The gaps of the padded types are not counted: known-good kernels expect the packed size.
    u32 transaction_bytes(u32 n) const override { return padded() ? n / 16 * map.inner_global(16) : n; }

    bool padded() const { return map.type() == MapType::u4_align16 || map.type() == MapType::u6_align16; }

    void read(Machine&) override {
        data.assign(rows() * pitch(), 0);
        Who w = who_op(*this, self);
        if (t->dir != Tma::Dir::load) {
            for (u32 i = 0; i < data.size(); i += 16) {
                u32 at = place(from_offset, i);
                grid->check.shared(w, *from_cta, at, 16, Use::read);
                std::memcpy(data.data() + i, from_cta->shared.data() + at, 16);
            }
            return;
        }
        runs([&](const Run& r) {
            u32 n = map.inner_global(r.count);
            if (!r.inside) return fill(data.data() + r.shared, map.inner_shared(r.count));
            grid->check.global(w, r.global, n, Use::read);
            const u8* s = global_bytes(*grid, *inst, r.global, n, false, who());
            if (!padded()) {
                std::memcpy(data.data() + r.shared, s, n);
                return convert(data.data() + r.shared, n);
            }
            u32 chunk = map.inner_global(16);  // 16 elements, then a gap up to 16 bytes
            for (u32 g = 0; g * 16 < r.count; ++g) std::memcpy(data.data() + r.shared + g * 16, s + g * chunk, chunk);
        });
    }

    void write(Machine& m, Target& to, u32 lo, u32 hi) override {
        ++m.progress;
        Who w = who_op(*this, write_self);
        if (to.cta) {
            for (u32 i = lo; i < hi; i += 16) {
                u32 at = place(to.offset, i);
                grid->check.shared(w, *to.cta, at, 16, Use::write);
                std::memcpy(to.cta->shared.data() + at, data.data() + i, 16);
            }
            return;
        }
        runs([&](const Run& r) {
            if (!r.inside || r.shared < lo || r.shared >= hi) return;
            u32 n = map.inner_global(r.count);
            u8* g = global_bytes(*grid, *inst, r.global, n, true, who());
            bool reduce = t->dir == Tma::Dir::reduce;
            grid->check.global(w, r.global, n, reduce ? Use::atomic : Use::write);
            if (!reduce) {
                std::memcpy(g, data.data() + r.shared, n);
                return;
            }
            Ty ty = map.reduce_type();
            u32 e = u32(type_size(ty));
            for (u32 k = 0; k < n; k += e) {
                u64 a = 0, b = 0;
                std::memcpy(&a, g + k, e), std::memcpy(&b, data.data() + r.shared + k, e);
                a = reduce_value(t->op, ty, a, b);
                std::memcpy(g + k, &a, e);
            }
        });
    }
};

void load_map(X& x, const Inst& in, int l, const Tma& t, TensorMap& map) {
    u64 a = x.src(t.map)[l] + u64(t.map_off);
    if (a % 64) x.fault(in, l, "tensor map is not 64-byte aligned");
    if (!load_tensor_map(read_any(x, in, l, a, 128), map)) x.fault(in, l, "operand is not a tensor map encoded by this driver, or its bytes were changed");
    if (bool(map.im2col) != t.im2col) x.fault(in, l, t.im2col ? "an im2col copy needs an im2col tensor map" : "an im2col tensor map needs an im2col copy");
    if (map.rank != t.rank) x.fault(in, l, "tensor map has rank " + std::to_string(map.rank) + ", the instruction is " + std::to_string(t.rank) + "d");
}

void destinations(X& x, const Inst& in, int l, const Tma& t, TmaOp& op, u32 bytes) {
    u32 dst = shared_address(x, in, l, x.src(t.dst)[l] + u64(t.dst_off));
    if (dst % 128) x.fault(in, l, "destination of a tensor copy is not 128-byte aligned");
    Cta& c = shared_owner(x, in, l, dst, bytes, !t.cluster_dst);
    u64 bar_addr = x.src(t.bar)[l] + u64(t.bar_off);
    MbarRef bar = mbar_operand(x, in, l, bar_addr);
    u32 off = dst & kOffsetMask;
    if (!t.multicast) {
        if (bar.cta != &c && !t.pair) x.find(in, l, "mbarrier and destination of a tensor copy lie in different CTAs");
        op.targets.push_back({&c, off, bar});
        return;
    }
    u32 mask = u32(x.src(t.mask)[l]) & 0xffff;
    for (u32 r = 0; mask; ++r, mask >>= 1) {
        if (!(mask & 1)) continue;
        if (r >= x.cl.ctas.size()) x.fault(in, l, "multicast mask names CTA rank " + std::to_string(r) + " of a cluster of " + std::to_string(x.cl.ctas.size()));
        // with .cta_group::2 the signal goes to the CTA of the destination's pair that has the parity of the barrier's CTA
        u32 owner = t.pair ? (r & ~1u) | (bar.cta->rank & 1) : r;
        op.targets.push_back({&x.cl.cta(r), off, {&x.cl.cta(owner), bar.offset}});
    }
}

void tensor_copy(X& x, const Inst& in, u32 lanes) {
    const Tma& t = static_cast<const Tma&>(*in.extra);
    each(lanes, [&](int l) {
        auto op = std::make_shared<TmaOp>();
        op->inst = &in, op->lane = l, op->t = &t;
        op->name = t.dir == Tma::Dir::load ? "cp.async.bulk.tensor load" : t.dir == Tma::Dir::store ? "cp.async.bulk.tensor store" : "cp.reduce.async.bulk.tensor";
        load_map(x, in, l, t, op->map);
        if (t.rows4) {
            op->c[0] = i32(x.src(t.coords[0])[l]);
            for (int i = 0; i < 4; ++i) op->row[i] = i32(x.src(t.coords[1 + i])[l]);
            if (op->map.rank != 2 || op->map.box[1] != 1) x.fault(in, l, "gather4 and scatter4 need a map of rank 2 with one row per box");
        } else {
            for (u32 i = 0; i < t.rank; ++i) op->c[i] = i32(x.src(t.coords[i])[l]);
            for (size_t i = 0; i < t.offsets.size(); ++i) op->shift[i] = i32(u32(x.src(t.offsets[i])[l]) & 0xffff);
        }
        u32 bits = op->map.element_bits();
        if (bits < 8 && (i64(op->c[0]) * bits) % 8) x.fault(in, l, "first coordinate does not start at a byte");
        if (op->padded() && op->c[0] % 128) x.fault(in, l, "first coordinate must be a multiple of 128 for this type");
        if (bits >= 8 && i64(op->c[0]) * (bits / 8) % 16) x.fault(in, l, "first coordinate " + std::to_string(op->c[0]) + " does not lie on 16 bytes");
        u32 bytes = op->footprint();
        if (t.dir == Tma::Dir::prefetch) return;
        if (t.dir == Tma::Dir::load) {
            destinations(x, in, l, t, *op, bytes);
        } else {
            if (op->padded()) x.fault(in, l, "this tensor map type cannot be stored");
            u32 src = shared_address(x, in, l, x.src(t.src)[l] + u64(t.src_off));
            if (src % 128) x.fault(in, l, "source of a tensor copy is not 128-byte aligned");
            op->from_cta = &shared_owner(x, in, l, src, bytes, true);
            op->from_offset = src & kOffsetMask;
            if (t.dir == Tma::Dir::reduce && op->map.reduce_type() == Ty::none) x.fault(in, l, "this tensor map type has no reductions");
            op->targets.push_back({nullptr, 0, {}});
            op->group = current_group(x.w, l);
        }
        bulk_issue(x, op);
    });
}

void parse_rank(Dec& d, Tma& t) {
    std::string r = d.need({"1d", "2d", "3d", "4d", "5d"});
    t.rank = u32(r[0] - '0');
    if (d.opt("tile::gather4") || d.opt("tile::scatter4")) t.rows4 = true;
    else if (d.opt("im2col") || d.opt("im2col_no_offs")) t.im2col = true;
    else d.one_of({"tile"});
    if (t.im2col && t.rank < 3) d.fail("im2col copies have 3 to 5 dimensions");
}

// [tensorMap, {coords}]
void parse_map(Dec& d, Tma& t, const Operand& o) {
    if (o.kind != Operand::Kind::addr || o.sub.size() < 2) d.fail("operand must be [tensorMap, {coordinates}]");
    t.map = d.base(o, t.map_off);
    t.coords = d.srcs(o.sub[1], Ty::b32);
    u32 want = t.rows4 ? 5 : t.rank;
    if (t.coords.size() != want) d.fail("needs " + std::to_string(want) + " coordinates");
}

// {offsets} of the pixels: one per spatial dimension, for loads and prefetches of im2col.
void parse_offsets(Dec& d, Tma& t, size_t& at) {
    if (!t.im2col) return;
    t.offsets = d.srcs(d.arg(at++), Ty::b16);
    if (t.offsets.size() != t.rank - 2) d.fail("needs " + std::to_string(t.rank - 2) + " im2col offsets");
}

void replace(X& x, const Inst& in, u32 lanes) {
    each(lanes, [&](int l) {
        Place p = resolve(x, in, l, in.space, x.src(in.s[1])[l] + u64(in.k[0]), 128, true, 64);
        touch(x, in, l, p, 128, Use::write);
        TensorMap m;
        if (!load_tensor_map(p.p, m)) x.fault(in, l, "memory does not hold a tensor map encoded by this driver");
        u64 v = x.src(in.s[2])[l];
        u32 i = u32(in.k[2]);
        switch (in.k[1]) {
            case 0: m.base = v; break;
            case 1: m.rank = u8(v + 1); break;
            case 2: m.box[i] = u16(v); break;
            case 3: m.dims[i] = u32(v); break;
            case 4: m.strides[i] = v; break;
            case 5: m.element_stride[i] = u8(v); break;
            case 6: m.dtype = v == 8 ? 10 : v == 9 ? 8 : v == 10 ? 9 : u8(v); break;  // PTX counts f32.ftz, f64, bf16 from 8; cuda.h f64, bf16, f32.ftz
            case 7: m.interleave = u8(v); break;
            case 8: m.swizzle = u8(v); break;
            case 9: m.oob = u8(v); break;
            case 10:  // of 128-byte swizzles: 16 B, 32 B, 32 B with 8 B flips, 64 B
                if (v > 3 || m.swizzle < u8(Swizzle::b128)) x.fault(in, l, "a swizzle atomicity (0 to 3) belongs to a 128-byte swizzle");
                m.swizzle = u8(u8(Swizzle::b128) + v);
                break;
        }
        store_tensor_map(p.p, m);
    });
    ++x.m.progress;
}
// tensormap.cp_fenceproxy: one copy of 128 bytes from shared to global memory by the warp, released like a fence.
void fenceproxy_copy(X& x, const Inst& in, u32 lanes) {
    int l = std::countr_zero(lanes);
    Place to = resolve(x, in, l, Space::global, x.src(in.s[1])[l] + u64(in.k[0]), 128, true, 128);
    Place from = resolve(x, in, l, Space::shared, x.src(in.s[2])[l] + u64(in.k[1]), 128, false, 128);
    touch(x, in, l, from, 128, Use::read);
    touch(x, in, l, to, 128, Use::write);
    std::memcpy(to.p, from.p, 128);
    if (x.g.check.on) x.w.fence_release = warp_release(x.w);
    ++x.m.progress;
}

void decode_fenceproxy_copy(Dec& d) {
    d.need({"global"}), d.need({"shared::cta"}), d.need({"tensormap::generic"});
    d.need({"release"}), d.need({"cta", "cluster", "gpu", "sys"});
    d.need({"sync"}), d.need({"aligned"});
    if (d.imm(2) != 128) d.fail("copies 128 bytes");
    d.in.aligned = true;
    d.in.s[1] = d.base(d.arg(0), d.in.k[0]), d.in.s[2] = d.base(d.arg(1), d.in.k[1]);
    d.in.fn = fenceproxy_copy;
}
}  // namespace

void decode_tma(Dec& d, bool reduce) {  // after cp{.reduce}.async.bulk
    auto t = std::make_shared<Tma>();
    d.in.extra = t;
    d.in.fn = tensor_copy;
    bool prefetch = d.opt("prefetch");
    d.need({"tensor"});
    parse_rank(d, *t);
    bool hint = d.opt("L2::cache_hint");
    size_t at = 0;
    if (prefetch) {
        d.need({"L2"}), d.need({"global"});
        t->dir = Tma::Dir::prefetch;
        parse_map(d, *t, d.arg(at++));
        parse_offsets(d, *t, at);
        if (hint) d.src(at++);
        return;
    }
    std::string to = d.need({"shared::cluster", "shared::cta", "global"});
    if (to == "global") {
        d.need({"shared::cta"}), d.need({"bulk_group"});
        d.in.outlives_cta = true;
        t->dir = reduce ? Tma::Dir::reduce : Tma::Dir::store;
        if (reduce && !parse_red_op(d, t->op, false)) d.fail("has no operation that is known");
        parse_map(d, *t, d.arg(at++));
        t->src = d.base(d.arg(at++), t->src_off);
    } else {
        d.need({"global"}), d.need({"mbarrier::complete_tx::bytes"});
        t->dir = Tma::Dir::load;
        t->cluster_dst = to == "shared::cluster";
        t->multicast = d.opt("multicast::cluster");
        if (d.opt("cta_group::2")) t->pair = true;
        else d.opt("cta_group::1");
        t->dst = d.base(d.arg(at++), t->dst_off);
        parse_map(d, *t, d.arg(at++));
        t->bar = d.base(d.arg(at++), t->bar_off);
        parse_offsets(d, *t, at);
        if (t->multicast) t->mask = d.src(at++, Ty::b32);
    }
    if (hint) d.src(at++);
}

void decode_cp(Dec& d) {
    bool reduce = d.opt("reduce");
    d.need({"async"});
    if (!d.opt("bulk")) return decode_cp_async_plain(d);
    for (auto& m : d.st.mods) {
        if (m == "tensor") return decode_tma(d, reduce);
        if (m == "commit_group" || m == "wait_group") return decode_bulk_group(d);
    }
    decode_bulk_plain(d, reduce);
}

void decode_tensormap(Dec& d) {
    if (d.opt("cp_fenceproxy")) return decode_fenceproxy_copy(d);
    d.need({"replace"}), d.need({"tile"});
    static const std::map<std::string, int> fields = {{"global_address", 0}, {"rank", 1}, {"box_dim", 2}, {"global_dim", 3}, {"global_stride", 4},
                                                      {"element_stride", 5}, {"elemtype", 6}, {"interleave_layout", 7}, {"swizzle_mode", 8}, {"fill_mode", 9},
                                                      {"swizzle_atomicity", 10}};
    std::string f = d.need({"global_address", "rank", "box_dim", "global_dim", "global_stride", "element_stride", "elemtype", "interleave_layout", "swizzle_mode", "fill_mode", "swizzle_atomicity"});
    d.in.k[1] = fields.at(f);
    std::string s = d.one_of({"global", "shared::cta"});
    d.in.space = s == "shared::cta" ? Space::shared : s == "global" ? Space::global : Space::generic;
    d.need({"b1024"});
    d.need_type();
    d.in.s[1] = d.base(d.arg(0), d.in.k[0]);
    bool indexed = d.in.k[1] >= 2 && d.in.k[1] <= 5;
    if (indexed) d.in.k[2] = d.imm(1);
    d.in.s[2] = d.src(indexed ? 2 : 1);
    d.in.fn = replace;
}

}  // namespace ptxsim
