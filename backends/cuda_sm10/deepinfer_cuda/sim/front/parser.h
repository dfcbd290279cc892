// Recursive-descent parser of PTX text; see ast.h for what it produces.
#pragma once
#include "front/ast.h"
#include "front/lexer.h"

namespace ptxsim {

class Parser {
   public:
    Parser(const std::string& text, Module& m);
    void run();

   private:
    struct Scope {
        std::map<std::string, int> regs;
        std::map<std::string, int> vectors;  // .v2/.v4 registers: number of components, which are registers NAME.x ...
        std::map<std::string, VarPtr> vars;
        std::map<std::string, int> labels;
        int parent = -1;
    };
    struct LabelUse {
        int statement, arg, scope;  // arg -1: an entry of a .branchtargets list
        std::string name;
        int line;
    };

    // cursor
    const Token& peek(int ahead = 0) const { return toks_[std::min(at_ + ahead, toks_.size() - 1)]; }
    const Token& next() { return toks_[at_ < toks_.size() - 1 ? at_++ : at_]; }
    bool is(const char* punct) const { return peek().kind == Tok::punct && peek().text == punct; }
    bool is_dot(const char* word) const { return peek().kind == Tok::dotted && peek().text == word; }
    bool take(const char* punct) { return is(punct) ? (next(), true) : false; }
    bool take_dot(const char* word) { return is_dot(word) ? (next(), true) : false; }
    void expect(const char* punct);
    std::string name();
    uint64_t integer();
    [[noreturn]] void fail(const std::string& why) const;

    // module level (parser.cpp)
    void top_level();
    void function(bool entry);
    void function_directives(Function& f);
    Param formal(Function& f);
    VarPtr variable(Space space, bool is_extern);
    void initialiser(Variable& v, int element_bytes);
    void skip_braces();
    void skip_to_semicolon();

    // bodies (parser_body.cpp)
    void body(Function& f);
    void statement(Function& f);
    bool body_directive(Function& f);
    void declare_regs(Function& f);
    void location(bool in_body);
    void instruction(Function& f);
    Operand operand();
    Operand primary();
    Operand address();
    Operand list(const char* close, Operand::Kind kind);
    Operand named(const std::string& n);
    Operand components(const std::string& n, int count, Operand::Kind kind);
    bool glued_part(const char* first) const;
    void resolve_labels(Function& f);
    int add_reg(Function& f, const std::string& n, int bits);

    Module& m_;
    std::vector<Token> toks_;
    size_t at_ = 0;
    std::vector<Scope> scopes_;
    int scope_ = -1;
    std::vector<LabelUse> uses_;
    int loc_file_ = 0, loc_line_ = 0;
};

// Size in bytes of a fundamental type name, 0 if it is none ("pred" counts as 1).
int type_bytes(const std::string& name);

}  // namespace ptxsim
