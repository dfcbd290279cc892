// Replaces calls by bodies.
//
// Why: divergence is kept per warp as (pc, lanes) pairs. Without calls inside a function no call stacks are needed, and a
// kernel compiled with noinline helpers runs exactly like one without. Formals alias the caller's actual parameters.
#include <set>

#include "front/ast.h"

namespace ptxsim {
namespace {

struct Inliner {
    const Module& m;
    Function& out;
    std::set<std::string> open;

    using VarMap = std::map<const Variable*, VarPtr>;

    void rename(Operand& o, int reg_base, const std::map<int, Operand>& reg_alias, const VarMap& vars, int label_base,
                const std::vector<int>& position) {
        if (o.kind == Operand::Kind::reg) {
            if (auto a = reg_alias.find(o.reg); a != reg_alias.end()) {
                Operand r = a->second;
                r.offset += o.offset, r.negated ^= o.negated;
                o = r;
            } else {
                o.reg += reg_base;
            }
        }
        if (o.var) {
            auto v = vars.find(o.var.get());
            if (v != vars.end()) o.var = v->second;
        }
        if (o.label >= 0) o.label = label_base + position[o.label];
        for (auto& s : o.sub) rename(s, reg_base, reg_alias, vars, label_base, position);
    }

    // Appends the body of f to out. `actuals` gives what each formal stands for.
    void expand(const Function& f, const std::map<int, Operand>& reg_alias, const VarMap& formals, bool top) {
        if (!open.insert(f.name).second) throw SimError("function '" + f.name + "' calls itself; recursion is not modelled");
        int reg_base = (int)out.regs.size();
        out.regs.insert(out.regs.end(), f.regs.begin(), f.regs.end());
        VarMap vars = formals;
        for (auto& v : f.vars) {
            VarPtr copy = v;
            if (!top && (v->space == Space::local || v->space == Space::param)) copy = std::make_shared<Variable>(*v);
            vars[v.get()] = copy;
            out.vars.push_back(copy);
        }
        size_t begin = out.body.size();
        std::vector<int> position(f.body.size() + 1);
        std::vector<std::pair<size_t, size_t>> own;  // [begin, end) runs of statements that belong to this body
        std::vector<size_t> returns;
        for (size_t i = 0; i < f.body.size(); ++i) {
            position[i] = int(out.body.size() - begin);
            Statement s = f.body[i];
            if (s.guard >= 0) {
                auto a = reg_alias.find(s.guard);
                s.guard = a == reg_alias.end() ? s.guard + reg_base : a->second.reg;
            }
            const Function* callee = s.op == "call" ? target(s) : nullptr;
            if (callee) {
                for (auto& a : s.args) rename(a, reg_base, reg_alias, vars, 0, position);
                call(s, *callee);
            } else {
                if (auto b = f.branch_lists.find((int)i); b != f.branch_lists.end()) out.branch_lists[(int)out.body.size()] = b->second;
                if (s.op == "ret" && !top) s.op = "bra", s.mods.clear(), returns.push_back(out.body.size());
                out.body.push_back(std::move(s));
                own.push_back({out.body.size() - 1, out.body.size()});
            }
        }
        position[f.body.size()] = int(out.body.size() - begin);
        for (auto& r : own)
            for (size_t i = r.first; i < r.second; ++i) {
                for (auto& a : out.body[i].args) rename(a, reg_base, reg_alias, vars, (int)begin, position);
                if (auto b = out.branch_lists.find((int)i); b != out.branch_lists.end())
                    for (int& l : b->second) l = (int)begin + position[l];
            }
        for (size_t i : returns) {
            Operand to;
            to.kind = Operand::Kind::label, to.label = (int)out.body.size();
            out.body[i].args = {to};
        }
        open.erase(f.name);
    }

    const Function* target(const Statement& s) {
        for (auto& a : s.args) {
            if (a.kind != Operand::Kind::func && a.kind != Operand::Kind::label) continue;
            auto it = m.functions.find(a.name);
            if (it != m.functions.end() && it->second->defined) return it->second.get();
            return nullptr;
        }
        return nullptr;
    }

    void call(const Statement& s, const Function& f) {
        std::vector<Operand> results, actuals;
        bool seen = false;
        for (auto& a : s.args) {
            if (a.kind == Operand::Kind::func) seen = true;
            else if (a.kind == Operand::Kind::paren) (seen ? actuals : results) = a.sub;
        }
        if (actuals.size() != f.params.size() || results.size() != f.returns.size())
            throw SimError("PTX line " + std::to_string(s.line) + ": call of '" + f.name + "' has the wrong number of parameters");
        std::map<int, Operand> regs;
        VarMap vars;
        auto bind = [&](const Param& p, const Operand& a) {
            if (p.reg >= 0) regs[p.reg] = a;
            else if (a.var) vars[p.var.get()] = a.var;
            else throw SimError("PTX line " + std::to_string(s.line) + ": actual parameter of '" + f.name + "' is not a .param variable");
        };
        for (size_t i = 0; i < actuals.size(); ++i) bind(f.params[i], actuals[i]);
        for (size_t i = 0; i < results.size(); ++i) bind(f.returns[i], results[i]);
        size_t skip = out.body.size();
        if (s.guard >= 0) {  // a guarded call jumps over the body
            Statement b;
            b.op = "bra", b.guard = s.guard, b.guard_neg = !s.guard_neg, b.line = s.line;
            out.body.push_back(b);
        }
        expand(f, regs, vars, false);
        if (s.guard >= 0) {
            Operand to;
            to.kind = Operand::Kind::label, to.label = (int)out.body.size();
            out.body[skip].args = {to};
        }
    }
};

}  // namespace

std::shared_ptr<Function> inline_calls(const Module& m, const Function& f) {
    auto out = std::make_shared<Function>(f);
    out->body.clear(), out->vars.clear(), out->regs.clear(), out->branch_lists.clear();
    Inliner in{m, *out, {}};
    in.expand(f, {}, {}, true);
    return out;
}

}  // namespace ptxsim
