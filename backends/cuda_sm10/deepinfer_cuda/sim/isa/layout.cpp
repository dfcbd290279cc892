// Address-space layout of a kernel and the statement loop of the decoder.
#include <algorithm>
#include <functional>
#include <set>

#include "core/windows.h"
#include "exec/families.h"
#include "isa/decode.h"

namespace ptxsim {
namespace {

u64 align_up(u64 v, u64 a) { return (v + a - 1) / a * a; }

// Registers of 128 bits take two slots, so register indices are renumbered to slots.
void assign_slots(Program& p) {
    Function& f = *p.function;
    std::vector<int> slot(f.regs.size());
    for (size_t i = 0; i < f.regs.size(); ++i) {
        slot[i] = p.slots;
        int n = f.regs[i].bits > 64 ? 2 : 1;
        p.slots += n;
        for (int k = 0; k < n; ++k) p.slot_bits.push_back(f.regs[i].bits);
    }
    std::function<void(Operand&)> fix = [&](Operand& o) {
        if (o.reg >= 0) o.reg = slot[o.reg];
        for (auto& s : o.sub) fix(s);
    };
    for (auto& s : f.body) {
        if (s.guard >= 0) s.guard = slot[s.guard];
        for (auto& a : s.args) fix(a);
    }
}

void visit_variables(const Operand& o, const std::function<void(const VarPtr&)>& f) {
    if (o.var) f(o.var);
    for (auto& s : o.sub) visit_variables(s, f);
}

void lay_out(Program& p, const std::map<const Variable*, u64>& globals) {
    u64 param = 0, local = 0, shared = kSharedReserved;
    for (auto& q : p.function->params) {
        param = align_up(param, std::max<u64>(q.align, 1));
        p.params.push_back({(u32)param, (u32)q.size});
        p.address[q.var.get()] = kParamWindow + param;
        param += q.size;
    }
    std::vector<VarPtr> dynamic;
    std::set<const Variable*> seen;
    auto place = [&](const VarPtr& v) {
        if (!seen.insert(v.get()).second || p.address.count(v.get())) return;
        if (v->space == Space::global || v->space == Space::constant) {
            auto g = globals.find(v.get());
            if (g != globals.end()) p.address[v.get()] = g->second;
        } else if (v->space == Space::shared && (v->is_extern || v->size == 0)) {
            dynamic.push_back(v);
        } else if (v->space == Space::shared) {
            shared = align_up(shared, v->align);
            p.address[v.get()] = shared;
            shared += v->size;
        } else {  // .local and call parameters
            local = align_up(local, v->align);
            p.address[v.get()] = kLocalWindow + local;
            local += v->size;
        }
    };
    for (auto& s : p.function->body)
        for (auto& a : s.args) visit_variables(a, place);
    for (auto& v : p.function->vars) place(v);
    u64 dyn_align = 16;
    for (auto& v : dynamic) dyn_align = std::max(dyn_align, v->align);
    u64 dyn = align_up(shared, dyn_align);
    for (auto& v : dynamic) p.address[v.get()] = dyn;
    p.static_shared = u32(shared), p.dynamic_offset = u32(dyn);
    p.local_bytes = u32(align_up(local, 16)), p.param_bytes = u32(align_up(param, 16));
}

// Instructions that touch accumulators or register operands of some wgmma: a wgmma.fence must follow them.
void mark_wgmma(Program& p) {
    std::vector<bool> used(p.slots);
    for (auto& in : p.code)
        if (in.is_wgmma)
            for (auto* list : {&in.v, &in.v2})
                for (i32 s : *list)
                    if (s >= 0) used[s] = true;
    for (auto& in : p.code) {
        if (in.is_wgmma) continue;
        for (i32 s : in.writes) in.touches_wgmma = in.touches_wgmma || (s >= 0 && used[s]);
    }
}

}  // namespace

struct Decoder {
    static void run(Program& p) {
        const auto& fam = families();
        auto& body = p.function->body;
        p.entry_of.resize(body.size() + 1);
        for (size_t i = 0; i < body.size(); ++i) {
            const Statement& s = body[i];
            p.entry_of[i] = (int)p.code.size();
            if (s.op == ".branchtargets") continue;
            Dec d(p, s);
            auto f = fam.find(s.op);
            if (f == fam.end()) d.fail("unknown instruction");
            d.in.statement = (int)i;
            d.in.guard = s.guard < 0 ? kNoSlot : s.guard;
            d.in.guard_neg = s.guard_neg;
            f->second(d);
            d.done();
            if (!d.in.fn) d.fail("has no executable form");
            if (s.guard >= 0) d.in.reads.push_back(s.guard);
            for (auto& b : d.before) {
                b.statement = (int)i;
                p.code.push_back(std::move(b));
            }
            p.code.push_back(std::move(d.in));
        }
        p.entry_of[body.size()] = (int)p.code.size();
        Inst end;  // falling off the end is a return
        Statement ret;
        ret.op = "ret";
        Dec d(p, ret);
        fam.at("ret")(d);
        p.code.push_back(d.in);
        fix_branches(p);
        mark_wgmma(p);
    }
};

std::shared_ptr<Program> decode_kernel(std::shared_ptr<Module> m, const std::string& name, const std::map<const Variable*, u64>& globals) {
    auto it = m->functions.find(name);
    if (it == m->functions.end() || !it->second->entry || !it->second->defined) {
        std::string known;
        for (auto& f : m->functions)
            if (f.second->entry) known += " " + f.first;
        throw SimError("module has no kernel '" + name + "'; it has:" + (known.empty() ? " none" : known));
    }
    auto p = std::make_shared<Program>();
    p->name = name, p->module = m;
    p->function = inline_calls(*m, *it->second);
    assign_slots(*p);
    lay_out(*p, globals);
    Decoder::run(*p);
    return p;
}

}  // namespace ptxsim
