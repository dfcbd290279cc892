// multimem.ld_reduce, st, red: one access to all replicas of a multicast object (driver extension "cuda.peer").
#include "core/access.h"
#include "exec/families.h"
#include "exec/ops.h"
#include "exec/reduce.h"
#include "isa/formats.h"

namespace ptxsim {
namespace {

struct Multi : Extra {
    enum class What : u8 { load, store, reduce } what;
    RedOp op = RedOp::add;
    Ty t;
    bool wide_acc = false;
};

std::vector<u64> replicas(X& x, const Inst& in, int l, u64 addr, u32 n) {
    auto it = x.m.multicast.upper_bound(addr);
    if (it != x.m.multicast.begin()) {
        --it;
        if (addr + n <= it->first + it->second.bytes) {
            std::vector<u64> r;
            for (u64 base : it->second.replicas) r.push_back(base + (addr - it->first));
            return r;
        }
    }
    x.fault(in, l, "multimem address is not in a multicast object");
}

// Sums of narrow formats with .acc::f32 round once at the end.
u64 combine(const Multi& k, const std::vector<u64>& values) {
    if (k.wide_acc && k.op == RedOp::add && format_of(k.t)) {
        const Format& f = *format_of(k.t);
        int bits = type_bits(k.t), w = bits == 32 ? 16 : bits == 16 && f.bits() == 8 ? 8 : bits;
        u64 out = 0, mask = (1ull << w) - 1;
        for (int i = 0; i < bits / w; ++i) {
            float s = 0;
            for (u64 v : values) s += float(decode_float(u32(v >> (w * i) & mask), f));
            out |= u64(encode_float(s, f, Round::rn)) << (w * i);
        }
        return out;
    }
    u64 r = values[0];
    for (size_t i = 1; i < values.size(); ++i) r = reduce_value(k.op, k.t, r, values[i]);
    return r;
}

void multimem(X& x, const Inst& in, u32 lanes) {
    const Multi& k = static_cast<const Multi&>(*in.extra);
    u32 e = u32(type_size(k.t)), n = e * u32(in.v.size());
    each(lanes, [&](int l) {
        std::vector<u64> where = replicas(x, in, l, x.src(in.s[1])[l] + u64(in.k[0]), n);
        std::vector<Place> at;
        for (u64 a : where) {
            at.push_back(resolve(x, in, l, Space::global, a, n, k.what != Multi::What::load));
            touch(x, in, l, at.back(), n, k.what == Multi::What::load ? Use::read : k.what == Multi::What::store ? Use::write : Use::atomic, true);
        }
        for (size_t i = 0; i < in.v.size(); ++i) {
            std::vector<u64> values;
            for (auto& p : at) {
                u64 v = 0;
                std::memcpy(&v, p.p + i * e, e);
                values.push_back(v);
            }
            if (k.what == Multi::What::load) {
                x.dst(in.v[i])[l] = combine(k, values);
                continue;
            }
            for (size_t r = 0; r < at.size(); ++r) {
                u64 v = x.src(in.v[i])[l];
                if (k.what == Multi::What::reduce) v = reduce_value(k.op, k.t, values[r], v);
                std::memcpy(at[r].p + i * e, &v, e);
            }
            ++x.m.progress;
        }
    });
}
}  // namespace

void decode_multimem(Dec& d) {
    auto k = std::make_shared<Multi>();
    std::string what = d.need({"ld_reduce", "st", "red"});
    k->what = what == "ld_reduce" ? Multi::What::load : what == "st" ? Multi::What::store : Multi::What::reduce;
    d.one_of({"weak", "relaxed", "acquire", "release"});
    d.one_of({"cta", "cluster", "gpu", "sys"});
    d.opt("global");
    if (what != "st" && !parse_red_op(d, k->op, false)) d.fail("has no operation that is known");
    k->wide_acc = !d.prefix("acc::").empty();
    int v = d.vec();
    k->t = d.need_type();
    size_t at = 0;
    if (what == "ld_reduce") d.in.v = d.dsts(d.arg(at++));
    d.in.s[1] = d.base(d.arg(at++), d.in.k[0]);
    if (what != "ld_reduce") d.in.v = d.srcs(d.arg(at++), k->t);
    if ((int)d.in.v.size() != v) d.fail("operand does not match the vector length");
    d.in.extra = k, d.in.fn = multimem;
}

}  // namespace ptxsim
