#include "isa/decode.h"

#include <algorithm>
#include <set>

namespace ptxsim {

std::string Program::where(const Inst& in) const {
    if (in.statement < 0) return name;
    const Statement& s = function->body[in.statement];
    std::string text = s.line >= 1 && s.line <= (int)module->lines.size() ? module->lines[s.line - 1] : s.opcode();
    size_t b = text.find_first_not_of(" \t");
    if (b != std::string::npos) text = text.substr(b);
    if (text.size() > 200) text = text.substr(0, 120) + " ... " + text.substr(text.size() - 60);
    std::string r = "PTX line " + std::to_string(s.line) + " `" + text + "`";
    if (s.loc_line) {
        auto f = module->files.find(s.loc_file);
        r += " (" + (f == module->files.end() ? "file " + std::to_string(s.loc_file) : f->second) + ":" + std::to_string(s.loc_line) + ")";
    }
    return r;
}

void Dec::fail(const std::string& why) const {
    std::string text = st.line >= 1 && st.line <= (int)p.module->lines.size() ? p.module->lines[st.line - 1] : "";
    throw SimError("PTX line " + std::to_string(st.line) + ": instruction '" + st.opcode() + "': " + why + "; in: " + text);
}

bool Dec::opt(const char* m) {
    for (size_t i = 0; i < st.mods.size(); ++i)
        if (!used_[i] && st.mods[i] == m) return used_[i] = true;
    return false;
}

std::string Dec::one_of(std::initializer_list<const char*> ms) {
    for (size_t i = 0; i < st.mods.size(); ++i)
        for (const char* m : ms)
            if (!used_[i] && st.mods[i] == m) {
                used_[i] = true;
                return m;
            }
    return "";
}

std::string Dec::need(std::initializer_list<const char*> ms) {
    std::string r = one_of(ms);
    if (r.empty()) {
        std::string all;
        for (const char* m : ms) all += std::string(" .") + m;
        fail("needs one of" + all);
    }
    return r;
}

std::string Dec::prefix(const char* start) {
    std::string p0 = start;
    for (size_t i = 0; i < st.mods.size(); ++i)
        if (!used_[i] && st.mods[i].compare(0, p0.size(), p0) == 0) {
            used_[i] = true;
            return st.mods[i].substr(p0.size());
        }
    return "";
}

Ty Dec::type() {
    for (size_t i = 0; i < st.mods.size(); ++i)
        if (!used_[i]) {
            Ty t = parse_type(st.mods[i]);
            if (t != Ty::none) {
                used_[i] = true;
                return t;
            }
        }
    return Ty::none;
}

Ty Dec::need_type() {
    Ty t = type();
    if (t == Ty::none) fail("has no type modifier that is known");
    return t;
}

int Dec::vec() {
    if (opt("v2")) return 2;
    if (opt("v4")) return 4;
    if (opt("v8")) return 8;
    return 1;
}

void Dec::done() const {
    for (size_t i = 0; i < st.mods.size(); ++i)
        if (!used_[i]) fail("modifier '." + st.mods[i] + "' is not modelled here");
}

const Operand& Dec::arg(size_t i) const {
    if (i >= st.args.size()) fail("has only " + std::to_string(st.args.size()) + " operands, operand " + std::to_string(i + 1) + " is missing");
    return st.args[i];
}

i32 Dec::constant(u64 bits) {
    size_t n = p.constants.size() / 32;
    for (size_t i = 0; i < n; ++i)
        if (p.constants[i * 32] == bits) return ~i32(i);
    p.constants.insert(p.constants.end(), 32, bits);
    return ~i32(n);
}

i32 Dec::temp(int bits) {
    i32 s = p.slots;
    p.slots += bits > 64 ? 2 : 1;
    for (int i = s; i < p.slots; ++i) p.slot_bits.push_back(bits);
    return s;
}

i32 Dec::src(const Operand& o, Ty t) {
    using K = Operand::Kind;
    if (st.op[0] != 'v' && o.name.find('@') != std::string::npos) fail("'" + o.name + "', a part of a register, is no operand here");
    switch (o.kind) {
        case K::reg:
            if (o.offset) fail("register plus offset is not an operand");
            if (o.negated) {
                i32 s = temp(1);
                Inst pre;
                pre.s[0] = s, pre.s[1] = o.reg;
                pre.fn = read_not;
                before.push_back(pre);
                in.reads.push_back(o.reg);
                return s;
            }
            in.reads.push_back(o.reg);
            return o.reg;
        case K::imm:
            if (t == Ty::pred) return constant(o.imm ? 0xffffffffu : 0);
            if (is_float(t) && type_bits(t) == 64) return constant(o.imm);
            return constant(type_bits(t) < 64 ? o.imm & ((1ull << type_bits(t)) - 1) : o.imm);
        case K::flt: {
            if (o.flt_bits == type_bits(t) || !is_float(t)) return constant(o.imm);
            if (o.flt_bits == 64 && type_bits(t) == 32) return constant(to_bits((float)from_bits<double>(o.imm)));
            if (o.flt_bits == 32 && type_bits(t) == 64) return constant(to_bits((double)from_bits<float>(o.imm)));
            fail("floating-point literal does not fit the type");
        }
        case K::special: {
            int bits = 32;
            i64 k = 0;
            Handler h = special_reader(o.name, bits, k);
            if (!h) fail("unknown special register or undeclared name '" + o.name + "'");
            i32 s = temp(bits);
            Inst pre;
            pre.fn = h, pre.s[0] = s, pre.k[0] = k;
            before.push_back(pre);
            return s;
        }
        case K::symbol: {
            auto a = p.address.find(o.var.get());
            if (a == p.address.end()) fail("variable '" + o.name + "' has no address here");
            if (o.var->space != Space::shared) return constant(a->second + o.offset);
            i32 s = temp(64);
            Inst pre;
            pre.fn = read_symbol, pre.s[0] = s, pre.k[0] = i64(a->second) + o.offset;
            before.push_back(pre);
            return s;
        }
        default:
            fail("operand '" + o.name + "' is not a value");
    }
}

i32 Dec::dst(const Operand& o) {
    if (st.op[0] != 'v' && o.name.find('@') != std::string::npos) fail("'" + o.name + "', a part of a register, is no destination here");
    if (o.kind == Operand::Kind::sink) return temp(128);
    if (o.kind != Operand::Kind::reg) fail("destination is not a register");
    in.writes.push_back(o.reg);
    return o.reg;
}

std::vector<i32> Dec::srcs(const Operand& o, Ty t) {
    std::vector<i32> r;
    if (o.kind == Operand::Kind::vec)
        for (auto& e : o.sub) r.push_back(src(e, t));
    else
        r.push_back(src(o, t));
    return r;
}

std::vector<i32> Dec::dsts(const Operand& o) {
    std::vector<i32> r;
    if (o.kind == Operand::Kind::vec)
        for (auto& e : o.sub) r.push_back(dst(e));
    else
        r.push_back(dst(o));
    return r;
}

i64 Dec::imm(const Operand& o) const {
    if (o.kind != Operand::Kind::imm) fail("operand must be an integer constant");
    return (i64)o.imm;
}
i64 Dec::imm(size_t i) const { return imm(arg(i)); }

i32 Dec::base(const Operand& a, i64& displacement) {
    if (a.kind != Operand::Kind::addr) fail("operand must be an address in brackets");
    Operand b = a.sub[0];
    displacement = b.offset;
    b.offset = 0;
    return src(b, Ty::b64);
}

}  // namespace ptxsim
