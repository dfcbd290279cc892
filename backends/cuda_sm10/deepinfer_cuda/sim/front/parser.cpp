#include "front/parser.h"

#include <cstring>

namespace ptxsim {

int type_bytes(const std::string& t) {
    static const std::map<std::string, int> sizes = {
        {"pred", 1}, {"b8", 1},  {"u8", 1},  {"s8", 1},  {"b16", 2},   {"u16", 2},   {"s16", 2},  {"f16", 2},
        {"bf16", 2}, {"b32", 4}, {"u32", 4}, {"s32", 4}, {"f32", 4},   {"f16x2", 4}, {"bf16x2", 4}, {"b64", 8},
        {"u64", 8},  {"s64", 8}, {"f64", 8}, {"b128", 16}, {"f32x2", 8}, {"texref", 8}, {"samplerref", 8}, {"surfref", 8}};
    auto it = sizes.find(t);
    return it == sizes.end() ? 0 : it->second;
}

Parser::Parser(const std::string& text, Module& m) : m_(m), toks_(tokenize(text)) {}

void Parser::fail(const std::string& why) const {
    int line = peek().line;
    std::string src = line >= 1 && line <= (int)m_.lines.size() ? m_.lines[line - 1] : "";
    throw SimError("PTX line " + std::to_string(line) + ": " + why + "; at '" + peek().text + "' in: " + src);
}

void Parser::expect(const char* p) {
    if (!take(p)) fail(std::string("expected '") + p + "'");
}

std::string Parser::name() {
    if (peek().kind != Tok::name) fail("expected a name");
    return next().text;
}

uint64_t Parser::integer() {
    bool neg = take("-");
    if (peek().kind != Tok::integer) fail("expected an integer");
    uint64_t v = next().value;
    return neg ? 0 - v : v;
}

void Parser::run() {
    scopes_.push_back({});
    scope_ = 0;
    while (peek().kind != Tok::end) top_level();
}

void Parser::skip_braces() {
    expect("{");
    for (int depth = 1; depth;) {
        if (peek().kind == Tok::end) fail("section is not closed");
        if (is("{")) ++depth;
        if (is("}")) --depth;
        next();
    }
}

void Parser::skip_to_semicolon() {
    while (!is(";")) {
        if (peek().kind == Tok::end) fail("expected ';'");
        next();
    }
    next();
}

void Parser::top_level() {
    if (take(";")) return;
    if (peek().kind != Tok::dotted) fail("expected a directive");
    bool is_extern = false;
    while (is_dot("visible") || is_dot("weak") || is_dot("extern") || is_dot("common")) is_extern |= next().text == "extern";
    std::string d = next().text;
    if (d == "version") {
        Token v = next();
        m_.version = v.text;
        if (v.kind == Tok::integer && peek().kind == Tok::dotted) m_.version += "." + next().text;
    } else if (d == "target") {
        m_.target = name();
        while (take(",")) name();
    } else if (d == "address_size") {
        if (integer() != 64) fail("only .address_size 64 is modelled");
    } else if (d == "entry" || d == "func") {
        function(d == "entry");
    } else if (d == "global" || d == "const" || d == "shared") {
        VarPtr v = variable(d == "global" ? Space::global : d == "const" ? Space::constant : Space::shared, is_extern);
        m_.vars[v->name] = v;
        scopes_[0].vars[v->name] = v;
    } else if (d == "file") {
        int id = (int)integer();
        m_.files[id] = next().text;
        while (take(",")) integer();
    } else if (d == "section") {
        next();
        skip_braces();
    } else if (d == "loc") {
        location(false);
    } else if (d == "pragma" || d == "alias") {
        skip_to_semicolon();
    } else {
        fail("unknown directive ." + d);
    }
}

// [.align n] [.attribute(...)] .type name[dims] [= init];
VarPtr Parser::variable(Space space, bool is_extern) {
    auto v = std::make_shared<Variable>();
    v->space = space, v->is_extern = is_extern;
    int vec = 1, bytes = 0;
    uint64_t align = 0;
    while (peek().kind == Tok::dotted) {
        std::string t = next().text;
        if (t == "align") align = integer();
        else if (t == "attribute") { expect("("); while (!take(")")) next(); }
        else if (t == "v2") vec = 2;
        else if (t == "v4") vec = 4;
        else if (t == "ptr") { while (is_dot("align") || is_dot("global") || is_dot("shared") || is_dot("const") || is_dot("local")) if (next().text == "align") integer(); }
        else if ((bytes = type_bytes(t)) == 0) fail("unknown variable type ." + t);
    }
    v->name = name();
    v->align = align ? align : uint64_t(bytes) * vec;
    uint64_t n = 1;
    bool unsized = false;
    while (take("[")) {
        if (is("]")) unsized = true;
        else n *= integer();
        expect("]");
    }
    v->size = unsized ? 0 : n * bytes * vec;
    if (take("=")) {
        initialiser(*v, bytes);
        if (unsized) v->size = v->init.size();
        v->init.resize(v->size);
    }
    if (space != Space::param || is(";")) expect(";");
    return v;
}

void Parser::initialiser(Variable& v, int bytes) {
    if (take("{")) {
        while (!take("}")) {
            initialiser(v, bytes);
            take(",");
        }
        return;
    }
    uint64_t value = 0;
    if (peek().kind == Tok::name) {
        std::string n = name();
        if (n == "generic") { expect("("); n = name(); expect(")"); }
        int64_t off = 0;
        if (take("+")) off = (int64_t)integer();
        v.fixups.push_back({v.init.size(), n, off});
    } else if (peek().kind == Tok::real) {
        value = next().value;
    } else {
        value = integer();
    }
    for (int i = 0; i < bytes; ++i) v.init.push_back(uint8_t(value >> (8 * i)));
}

Param Parser::formal(Function& f) {
    Param p;
    if (take_dot("reg")) {
        int bytes = type_bytes(peek().text);
        bool pred = peek().text == "pred";
        if (!bytes) fail("unknown parameter type");
        next();
        p.name = name();
        p.size = bytes;
        p.reg = add_reg(f, p.name, pred ? 1 : bytes * 8);
        return p;
    }
    if (!take_dot("param")) fail("expected .param");
    p.var = variable(Space::param, false);
    p.name = p.var->name, p.align = p.var->align, p.size = p.var->size;
    scopes_[scope_].vars[p.name] = p.var;
    return p;
}

void Parser::function_directives(Function& f) {
    while (peek().kind == Tok::dotted) {
        std::string d = next().text;
        auto dims = [&](int* to) {
            to[0] = (int)integer(), to[1] = to[2] = 1;
            for (int i = 1; i < 3 && take(","); ++i) to[i] = (int)integer();
        };
        if (d == "maxntid") dims(f.maxntid);
        else if (d == "reqntid") dims(f.reqntid);
        else if (d == "reqnctapercluster") dims(f.cluster);
        else if (d == "explicitcluster") f.explicit_cluster = true;
        else if (d == "minnctapersm") f.min_ctas = (int)integer();
        else if (d == "maxnreg") f.max_regs = (int)integer();
        else if (d == "maxclusterrank" || d == "maxnctapersm") integer();
        else if (d == "blocksareclusters") continue;
        else if (d == "noreturn") continue;
        else if (d == "pragma") skip_to_semicolon();
        else fail("unknown function directive ." + d);
    }
}

void Parser::function(bool entry) {
    auto f = std::make_shared<Function>();
    f->entry = entry;
    scopes_.push_back({});
    scopes_.back().parent = 0;
    scope_ = (int)scopes_.size() - 1;
    auto formals = [&](std::vector<Param>& to) {
        if (!take("(")) return;
        while (!take(")")) {
            to.push_back(formal(*f));
            take(",");
        }
    };
    if (is("(")) formals(f->returns);
    f->name = name();
    formals(f->params);
    function_directives(*f);
    if (take(";")) {
        if (!m_.functions.count(f->name)) m_.functions[f->name] = f;
    } else {
        f->defined = true;
        loc_file_ = loc_line_ = 0;
        body(*f);
        m_.functions[f->name] = f;
    }
    scope_ = 0;
}

std::shared_ptr<Module> parse_module(const std::string& text) {
    auto m = std::make_shared<Module>();
    for (size_t b = 0; b <= text.size();) {
        size_t e = text.find('\n', b);
        if (e == std::string::npos) e = text.size();
        m->lines.push_back(text.substr(b, e - b));
        b = e + 1;
    }
    Parser(text, *m).run();
    return m;
}

}  // namespace ptxsim
