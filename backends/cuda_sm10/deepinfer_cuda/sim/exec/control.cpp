// Branches, returns, traps, and the calls that reach the device runtime (printf, assert).
#include <cstdio>

#include "core/access.h"
#include "core/windows.h"
#include "exec/families.h"
#include "exec/ops.h"

namespace ptxsim {
namespace {

void bra(X& x, const Inst& in, u32 lanes) { x.jumps.push_back({u32(in.k[0]), lanes}); }

void brx(X& x, const Inst& in, u32 lanes) {
    const u64* a = x.src(in.s[1]);
    std::map<u32, u32> to;
    each(lanes, [&](int l) {
        u64 i = u32(a[l]);
        if (i >= in.v.size()) x.fault(in, l, "branch index " + std::to_string(i) + " of " + std::to_string(in.v.size()) + " targets");
        to[u32(in.v[i])] |= 1u << l;
    });
    for (auto& t : to) x.jumps.push_back(t);
}

void ret(X& x, const Inst&, u32 lanes) { x.exited = lanes; }
void trap(X& x, const Inst& in, u32 lanes) { x.fault(in, first_lane(lanes), "trap"); }
void nothing(X&, const Inst&, u32) {}
void yield(X& x, const Inst&, u32) { x.yield = true; }

std::string text_at(X& x, const Inst& in, int lane, u64 addr) {
    std::string s;
    for (u64 i = 0; i < 4096; ++i) {
        char c = char(*resolve(x, in, lane, Space::generic, addr + i, 1, false).p);
        if (!c) return s;
        s += c;
    }
    return s;
}

template <class T>
T value_at(X& x, const Inst& in, int lane, u64 addr) {
    T v;
    std::memcpy(&v, resolve(x, in, lane, Space::generic, addr, sizeof v, false, 1).p, sizeof v);
    return v;
}

// Formats as the device printf does; arguments lie at natural alignment, C promoted.
std::string format(X& x, const Inst& in, int lane, const std::string& f, u64 args) {
    std::string out;
    u64 at = args;
    auto take = [&](u32 n) { at = (at + n - 1) / n * n; u64 p = at; at += n; return p; };
    for (size_t i = 0; i < f.size(); ++i) {
        if (f[i] != '%') { out += f[i]; continue; }
        if (i + 1 < f.size() && f[i + 1] == '%') { out += '%', ++i; continue; }
        size_t e = i + 1;
        std::string spec = "%";
        bool wide = false;
        while (e < f.size() && std::strchr("-+ #0123456789.hlzjt", f[e])) {
            if (f[e] == 'l' || f[e] == 'z' || f[e] == 'j' || f[e] == 't') wide = true;
            else if (f[e] != 'h') spec += f[e];
            ++e;
        }
        char c = e < f.size() ? f[e] : 0;
        char buf[256];
        if (c == 'd' || c == 'i') std::snprintf(buf, sizeof buf, (spec + "lld").c_str(), wide ? (long long)value_at<i64>(x, in, lane, take(8)) : (long long)value_at<i32>(x, in, lane, take(4)));
        else if (c == 'u' || c == 'x' || c == 'X' || c == 'o') std::snprintf(buf, sizeof buf, (spec + "ll" + c).c_str(), wide ? (unsigned long long)value_at<u64>(x, in, lane, take(8)) : (unsigned long long)value_at<u32>(x, in, lane, take(4)));
        else if (c == 'c') std::snprintf(buf, sizeof buf, (spec + "c").c_str(), value_at<i32>(x, in, lane, take(4)));
        else if (c == 'p') std::snprintf(buf, sizeof buf, "0x%llx", (unsigned long long)value_at<u64>(x, in, lane, take(8)));
        else if (c && std::strchr("feEgGaF", c)) std::snprintf(buf, sizeof buf, (spec + c).c_str(), value_at<double>(x, in, lane, take(8)));
        else if (c == 's') { out += text_at(x, in, lane, value_at<u64>(x, in, lane, take(8))); buf[0] = 0; }
        else std::snprintf(buf, sizeof buf, "%%%c", c);
        out += buf;
        i = e;
    }
    return out;
}

u64 param_u64(X& x, const Inst& in, int lane, i32 slot) { return value_at<u64>(x, in, lane, x.src(slot)[lane]); }

void call_printf(X& x, const Inst& in, u32 lanes) {
    each(lanes, [&](int l) {
        u64 f = param_u64(x, in, l, in.v[0]), a = param_u64(x, in, l, in.v[1]);
        std::string s = format(x, in, l, text_at(x, in, l, f), a);
        if (x.m.print_out.size() < (1u << 20)) x.m.print_out += s;
        if (!in.v2.empty()) {
            i32 n = i32(s.size());
            std::memcpy(resolve(x, in, l, Space::generic, x.src(in.v2[0])[l], 4, true).p, &n, 4);
        }
    });
}

void call_assert(X& x, const Inst& in, u32 lanes) {  // message, file, line, function, char size
    int l = first_lane(lanes);
    std::string message = text_at(x, in, l, param_u64(x, in, l, in.v[0])), file = text_at(x, in, l, param_u64(x, in, l, in.v[1]));
    u32 line = value_at<u32>(x, in, l, x.src(in.v[2])[l]);
    std::string function = text_at(x, in, l, param_u64(x, in, l, in.v[3]));
    x.fault(in, l, "device assertion '" + message + "' failed at " + file + ":" + std::to_string(line) + " in " + function);
}
}  // namespace

void decode_bra(Dec& d) {
    d.opt("uni");
    const Operand& o = d.arg(0);
    if (o.label < 0) d.fail("target is not a label");
    d.in.k[0] = o.label;  // statement; the fix-up below turns it into an instruction index
    d.in.fn = bra;
}
void decode_brx(Dec& d) {
    if (!d.opt("idx")) d.fail("only brx.idx is modelled");
    d.opt("uni");
    d.in.s[1] = d.src(0, Ty::b32);
    const Operand& list = d.arg(1);
    auto it = d.p.function->branch_lists.find(list.label);
    if (it == d.p.function->branch_lists.end()) d.fail("second operand is not a .branchtargets list");
    for (int s : it->second) d.in.v.push_back(s);
    d.in.fn = brx;
}
void decode_ret(Dec& d) {
    d.opt("uni");
    d.in.fn = ret;
}
void decode_trap(Dec& d) { d.in.fn = trap; }
void decode_nothing(Dec& d) { d.opt("mask"), d.in.fn = nothing; }
void decode_nanosleep(Dec& d) {
    d.need_type();
    d.src(0, Ty::b32);
    d.in.fn = yield;
}
void decode_call(Dec& d) {
    d.opt("uni");
    std::string name;
    bool seen = false;
    for (auto& a : d.st.args) {
        if (a.kind == Operand::Kind::func || a.kind == Operand::Kind::label) name = a.name, seen = true;
        else if (a.kind == Operand::Kind::paren)
            for (auto& s : a.sub) (seen ? d.in.v : d.in.v2).push_back(d.src(s));
        else d.fail("indirect calls are not modelled");
    }
    size_t need = name == "vprintf" ? 2 : name == "__assertfail" ? 5 : 0;
    if (!need) d.fail("calls '" + name + "', which this module does not define");
    if (d.in.v.size() != need) d.fail("'" + name + "' takes " + std::to_string(need) + " parameters");
    d.in.fn = name == "vprintf" ? call_printf : call_assert;
}
void fix_branches(Program& p) {
    for (auto& in : p.code) {
        if (in.fn == bra) in.k[0] = p.entry_of[in.k[0]];
        if (in.fn == brx)
            for (i32& t : in.v) t = p.entry_of[t];
    }
}

}  // namespace ptxsim
