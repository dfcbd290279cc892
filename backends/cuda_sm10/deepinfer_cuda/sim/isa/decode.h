// Turns statements into instructions.
//
// One decode function per mnemonic family reads its modifiers with `Dec` and picks a handler. Whatever a family does not
// consume is an error that shows the statement, so an unknown form can never run as something else.
#pragma once
#include <initializer_list>
#include <unordered_map>

#include "isa/inst.h"

namespace ptxsim {

class Dec {
   public:
    Dec(Program& p, const Statement& s) : p(p), st(s), used_(s.mods.size(), false) {}

    Program& p;
    const Statement& st;
    Inst in;
    std::vector<Inst> before;  // reads of special registers and symbol addresses

    [[noreturn]] void fail(const std::string& why) const;

    // modifiers
    bool opt(const char* m);                                    // consume if present anywhere
    std::string one_of(std::initializer_list<const char*> ms);  // first listed modifier present, "" if none
    std::string need(std::initializer_list<const char*> ms);
    std::string prefix(const char* start);                      // consume a modifier with this beginning, return the rest
    Ty type();                                                  // next unused type modifier in order, Ty::none if none
    Ty need_type();
    int vec();                                                  // .v2 / .v4 / .v8, else 1
    void done() const;                                          // every modifier must be consumed

    // operands
    size_t n() const { return st.args.size(); }
    const Operand& arg(size_t i) const;
    i32 src(const Operand& o, Ty t = Ty::b64);
    i32 src(size_t i, Ty t = Ty::b64) { return src(arg(i), t); }
    i32 dst(const Operand& o);
    i32 dst(size_t i) { return dst(arg(i)); }
    i32 pred(size_t i) { return src(arg(i), Ty::pred); }
    std::vector<i32> srcs(const Operand& o, Ty t);              // scalar or vector
    std::vector<i32> dsts(const Operand& o);
    i64 imm(size_t i) const;                                    // must be an integer constant
    i64 imm(const Operand& o) const;
    // [base + off] -> slot of base, displacement; symbols resolve by space.
    i32 base(const Operand& addr, i64& displacement);
    i32 constant(u64 bits);
    i32 temp(int bits);

   private:
    std::vector<bool> used_;
    friend struct Decoder;
};

using DecodeFn = void (*)(Dec&);
const std::unordered_map<std::string, DecodeFn>& families();

// Lays out variables and decodes the whole kernel. `global_address` maps module variables to simulated addresses.
std::shared_ptr<Program> decode_kernel(std::shared_ptr<Module> m, const std::string& name,
                                       const std::map<const Variable*, u64>& global_address);

// Special registers: returns the handler that reads it into s[0], or null for an unknown name.
Handler special_reader(const std::string& name, int& bits, i64& k);
void read_symbol(X& x, const Inst& in, u32 lanes);
void read_not(X& x, const Inst& in, u32 lanes);  // s[0] = not s[1], predicates

}  // namespace ptxsim
