// Function bodies: scopes, declarations, instructions and their operands.
#include "front/parser.h"

namespace ptxsim {

int Parser::add_reg(Function& f, const std::string& n, int bits) {
    int id = (int)f.regs.size();
    f.regs.push_back({n, (uint16_t)bits});
    scopes_[scope_].regs[n] = id;
    return id;
}

// .reg .b32 %r<10>, a, b;
void Parser::declare_regs(Function& f) {
    int bits = 0, vec = 1;
    while (peek().kind == Tok::dotted) {
        std::string t = next().text;
        if (t == "v2" || t == "v4") { vec = t[1] - '0'; continue; }
        bits = t == "pred" ? 1 : type_bytes(t) * 8;
        if (!bits) fail("unknown register type ." + t);
    }
    auto add = [&](const std::string& n) {
        if (vec == 1) { add_reg(f, n, bits); return; }
        scopes_[scope_].vectors[n] = vec;
        for (int i = 0; i < vec; ++i) add_reg(f, n + "." + "xyzw"[i], bits);
    };
    do {
        std::string n = name();
        if (take("<")) {
            uint64_t count = integer();
            expect(">");
            if (count > (1u << 20)) fail("too many registers");
            for (uint64_t i = 0; i < count; ++i) add(n + std::to_string(i));
        } else {
            add(n);
        }
    } while (take(","));
    expect(";");
}

void Parser::location(bool in_body) {
    int file = (int)integer(), line = (int)integer();
    integer();
    while (take(",")) {  // function_name label [+ offset], inlined_at file line column
        std::string what = name();
        if (what == "function_name") {
            name();
            if (take("+")) integer();
        } else if (what == "inlined_at") {
            for (int i = 0; i < 3; ++i) integer();
        } else {
            fail("unknown .loc attribute");
        }
    }
    if (in_body) loc_file_ = file, loc_line_ = line;
}

bool Parser::body_directive(Function& f) {
    if (peek().kind != Tok::dotted) return false;
    std::string d = next().text;
    if (d == "reg") {
        declare_regs(f);
    } else if (d == "shared" || d == "local" || d == "param" || d == "global" || d == "const") {
        Space s = d == "shared" ? Space::shared : d == "local" ? Space::local : d == "param" ? Space::param
                : d == "global" ? Space::global : Space::constant;
        VarPtr v = variable(s, false);
        scopes_[scope_].vars[v->name] = v;
        f.vars.push_back(v);
    } else if (d == "extern") {
        if (!take_dot("shared")) fail("expected .shared");
        VarPtr v = variable(Space::shared, true);
        scopes_[scope_].vars[v->name] = v;
    } else if (d == "loc") {
        location(true);
    } else if (d == "pragma") {
        skip_to_semicolon();
    } else if (d == "section") {
        next();
        skip_braces();
    } else {
        fail("unknown directive ." + d);
    }
    return true;
}

void Parser::body(Function& f) {
    expect("{");
    uses_.clear();
    while (!take("}")) statement(f);
    resolve_labels(f);
}

void Parser::statement(Function& f) {
    if (take(";")) return;
    if (take("{")) {
        int outer = scope_;
        scopes_.push_back({});
        scopes_.back().parent = outer;
        scope_ = (int)scopes_.size() - 1;
        while (!take("}")) statement(f);
        scope_ = outer;
        return;
    }
    if (body_directive(f)) return;
    if (peek().kind == Tok::name && peek(1).kind == Tok::punct && peek(1).text == ":" ) {
        std::string label = name();
        next();
        if (scopes_[scope_].labels.count(label)) fail("label '" + label + "' is defined twice in one scope");
        scopes_[scope_].labels[label] = (int)f.body.size();
        if (is_dot("branchtargets")) {
            next();
            Statement s;
            s.op = ".branchtargets", s.line = peek().line;
            f.body.push_back(s);
            int id = (int)f.body.size() - 1;
            do uses_.push_back({id, -1, scope_, name(), peek().line});
            while (take(","));
            expect(";");
        } else if (is_dot("callprototype")) {
            skip_to_semicolon();
        }
        return;
    }
    instruction(f);
}

void Parser::instruction(Function& f) {
    Statement s;
    s.line = peek().line, s.loc_file = loc_file_, s.loc_line = loc_line_;
    if (take("@")) {
        s.guard_neg = take("!");
        Operand g = named(name());
        if (g.kind != Operand::Kind::reg) fail("guard is not a predicate register");
        s.guard = g.reg;
    }
    s.op = name();
    while (peek().kind == Tok::dotted && peek().glued) s.mods.push_back(next().text);
    while (!is(";")) {
        if (peek().kind == Tok::end) fail("expected ';'");
        s.args.push_back(operand());
        if (!is(";")) expect(",");
    }
    expect(";");
    for (size_t i = 0; i < s.args.size(); ++i)
        if (s.args[i].kind == Operand::Kind::label) uses_.push_back({(int)f.body.size(), (int)i, scope_, s.args[i].name, s.line});
    f.body.push_back(std::move(s));
}

// The next token is a part of the operand before it: .x of a vector, .h0 or .b3210 of a register.
bool Parser::glued_part(const char* first) const {
    return peek().kind == Tok::dotted && peek().glued && std::string(first).find(peek().text[0]) != std::string::npos;
}

// All components of a vector register or of a special register such as %tid.
Operand Parser::components(const std::string& n, int count, Operand::Kind kind) {
    Operand o;
    o.kind = Operand::Kind::vec;
    for (int i = 0; i < count; ++i) {
        Operand e;
        e.kind = kind, e.name = n + "." + "xyzw"[i];
        if (kind == Operand::Kind::reg)
            for (int s = scope_; s >= 0 && e.reg < 0; s = scopes_[s].parent)
                if (auto r = scopes_[s].regs.find(e.name); r != scopes_[s].regs.end()) e.reg = r->second;
        o.sub.push_back(e);
    }
    return o;
}

Operand Parser::named(const std::string& n) {
    Operand o;
    o.name = n;
    if (n == "_") return o;
    for (int s = scope_; s >= 0; s = scopes_[s].parent) {
        if (auto r = scopes_[s].regs.find(n); r != scopes_[s].regs.end()) {
            o.kind = Operand::Kind::reg, o.reg = r->second;
            if (glued_part("bh")) o.name += "@" + next().text;  // a part: .b0, .h1, .h10, .b3210 (video instructions)
            return o;
        }
        if (auto v = scopes_[s].vectors.find(n); v != scopes_[s].vectors.end()) {
            static const std::map<std::string, std::string> colours = {{"r", "x"}, {"g", "y"}, {"b", "z"}, {"a", "w"}};
            if (!glued_part("xyzwrgba")) return components(n, v->second, Operand::Kind::reg);
            std::string part = next().text;
            if (auto c = colours.find(part); c != colours.end()) part = c->second;
            return named(n + "." + part);
        }
        if (auto v = scopes_[s].vars.find(n); v != scopes_[s].vars.end()) {
            o.kind = Operand::Kind::symbol, o.var = v->second;
            return o;
        }
    }
    if (n[0] == '%') {
        o.kind = Operand::Kind::special;
        if (peek().kind == Tok::dotted && peek().glued) o.name += "." + next().text;
        else if (n == "%tid" || n == "%ntid" || n == "%ctaid" || n == "%nctaid") return components(n, 4, Operand::Kind::special);
        return o;
    }
    if (n == "WARP_SZ") {
        o.kind = Operand::Kind::imm, o.imm = 32;
        return o;
    }
    o.kind = m_.functions.count(n) ? Operand::Kind::func : Operand::Kind::label;
    return o;
}

Operand Parser::list(const char* close, Operand::Kind kind) {
    Operand o;
    o.kind = kind;
    while (!take(close)) {
        o.sub.push_back(operand());
        if (!is(close)) expect(",");
    }
    return o;
}

Operand Parser::address() {
    Operand o = list("]", Operand::Kind::addr);
    if (o.sub.empty()) fail("empty address");
    return o;
}

Operand Parser::primary() {
    if (take("{")) return list("}", Operand::Kind::vec);
    if (take("(")) return list(")", Operand::Kind::paren);
    if (take("[")) return address();
    Operand o;
    if (take("!")) {
        o = named(name());
        o.negated = true;
        return o;
    }
    bool neg = take("-");
    if (peek().kind == Tok::integer) {
        o.kind = Operand::Kind::imm;
        o.imm = neg ? 0 - peek().value : peek().value;
        next();
        return o;
    }
    if (peek().kind == Tok::real) {
        o.kind = Operand::Kind::flt;
        o.imm = peek().value, o.flt_bits = peek().flt_bits;
        if (neg) o.imm ^= 1ull << (o.flt_bits - 1);
        next();
        return o;
    }
    if (neg) fail("expected a number after '-'");
    return named(name());
}

Operand Parser::operand() {
    Operand o = primary();
    if (is("|")) {
        next();
        Operand p;
        p.kind = Operand::Kind::pair;
        Operand second = primary();
        p.sub = {o, second};
        return p;
    }
    while (is("+") || is("-")) {
        bool neg = next().text == "-";
        if (o.kind != Operand::Kind::reg && o.kind != Operand::Kind::symbol && o.kind != Operand::Kind::imm)
            fail("an offset needs a register, a variable or a number");
        int64_t d = (int64_t)integer();
        o.offset += neg ? -d : d;
    }
    if (o.kind == Operand::Kind::imm) o.imm += (uint64_t)o.offset, o.offset = 0;
    return o;
}

void Parser::resolve_labels(Function& f) {
    for (auto& u : uses_) {
        int found = -1;
        for (int s = u.scope; s >= 0 && found < 0; s = scopes_[s].parent) {
            auto it = scopes_[s].labels.find(u.name);
            if (it != scopes_[s].labels.end()) found = it->second;
        }
        if (found < 0) throw SimError("PTX line " + std::to_string(u.line) + ": '" + u.name + "' is neither a register, a variable nor a label here");
        if (u.arg < 0) f.branch_lists[u.statement].push_back(found);
        else f.body[u.statement].args[u.arg].label = found;
    }
}

}  // namespace ptxsim
