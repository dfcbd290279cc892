// Syntax tree of a PTX module.
//
// Why: the decoder wants a flat list of statements whose names are already resolved. PTX scopes nest, and inner scopes
// redeclare registers and labels of the same name, so every register, variable and label is turned into an index here.
// Invariants: `Operand::reg` indexes `Function::regs`; `Operand::label` indexes `Function::body`; strings are kept only for messages.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace ptxsim {

// A fault that stops decoding or execution. The text names the instruction and its line.
struct SimError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

enum class Space : uint8_t { generic, global, shared, shared_cluster, local, param, constant, reg };

struct Variable {
    std::string name;
    Space space = Space::global;
    uint64_t align = 1;
    uint64_t size = 0;       // bytes; 0 for an unsized extern array
    bool is_extern = false;
    std::vector<uint8_t> init;
    struct Fixup {           // an initialiser that is the address of another variable
        uint64_t at;
        std::string symbol;
        int64_t offset;
    };
    std::vector<Fixup> fixups;
};
using VarPtr = std::shared_ptr<Variable>;

struct Operand {
    enum class Kind : uint8_t { reg, imm, flt, symbol, special, vec, addr, pair, paren, sink, label, func };
    Kind kind = Kind::sink;
    bool negated = false;      // !p
    int reg = -1;
    int label = -1;            // statement index once resolved
    uint64_t imm = 0;          // integer value, or raw bits of 0f / 0d literals
    int flt_bits = 0;          // 32 for 0fXXXXXXXX, 64 for 0dX...X and decimal literals
    int64_t offset = 0;        // symbol+offset, [base+offset]
    std::string name;
    VarPtr var;
    std::vector<Operand> sub;  // elements of vec/paren/pair; addr: base, then further parts inside the brackets
};

struct Statement {
    std::string op;                 // mnemonic without modifiers
    std::vector<std::string> mods;  // modifiers without the leading dot, in order
    std::vector<Operand> args;
    int guard = -1;                 // predicate register
    bool guard_neg = false;
    int line = 0;                   // line in the PTX text
    int loc_file = 0, loc_line = 0; // .loc
    std::string opcode() const {
        std::string s = op;
        for (auto& m : mods) s += "." + m;
        return s;
    }
};

struct RegDecl {
    std::string name;
    uint16_t bits = 32;  // 1 for a predicate
};

struct Param {
    std::string name;
    uint64_t align = 1, size = 0;
    VarPtr var;    // .param space formal
    int reg = -1;  // register formal of a .func
};

struct Function {
    std::string name;
    bool entry = false, defined = false;
    std::vector<Param> params, returns;
    std::vector<RegDecl> regs;
    std::vector<VarPtr> vars;
    std::vector<Statement> body;
    int reqntid[3] = {0, 0, 0}, maxntid[3] = {0, 0, 0}, cluster[3] = {0, 0, 0};
    bool explicit_cluster = false;
    int min_ctas = 0, max_regs = 0;
    std::map<int, std::vector<int>> branch_lists;  // index of a .branchtargets statement -> statement indices
};

struct Module {
    std::string version, target;
    std::map<int, std::string> files;
    std::map<std::string, VarPtr> vars;
    std::map<std::string, std::shared_ptr<Function>> functions;
    std::vector<std::string> lines;  // PTX text by line, for messages
};

// Parses a whole module. Throws SimError with the line number and its text.
std::shared_ptr<Module> parse_module(const std::string& text);

// Replaces every call of a function defined in the module by its body (recursion is refused).
std::shared_ptr<Function> inline_calls(const Module& m, const Function& f);

}  // namespace ptxsim
