#include "isa/types.h"

#include <map>

namespace ptxsim {
namespace {
struct Row {
    Ty t;
    const char* name;
    int bits;
    bool sgn, flt;
};
constexpr Row rows[] = {
    {Ty::pred, "pred", 1, false, false},     {Ty::b8, "b8", 8, false, false},         {Ty::b16, "b16", 16, false, false},
    {Ty::b32, "b32", 32, false, false},      {Ty::b64, "b64", 64, false, false},      {Ty::b128, "b128", 128, false, false},
    {Ty::u8, "u8", 8, false, false},         {Ty::u16, "u16", 16, false, false},      {Ty::u32, "u32", 32, false, false},
    {Ty::u64, "u64", 64, false, false},      {Ty::s8, "s8", 8, true, false},          {Ty::s16, "s16", 16, true, false},
    {Ty::s32, "s32", 32, true, false},       {Ty::s64, "s64", 64, true, false},       {Ty::f16, "f16", 16, true, true},
    {Ty::f16x2, "f16x2", 32, true, true},    {Ty::bf16, "bf16", 16, true, true},      {Ty::bf16x2, "bf16x2", 32, true, true},
    {Ty::tf32, "tf32", 32, true, true},      {Ty::f32, "f32", 32, true, true},        {Ty::f32x2, "f32x2", 64, true, true},
    {Ty::f64, "f64", 64, true, true},        {Ty::u16x2, "u16x2", 32, false, false},  {Ty::s16x2, "s16x2", 32, true, false},
    {Ty::e4m3, "e4m3", 8, true, true},       {Ty::e5m2, "e5m2", 8, true, true},       {Ty::e2m3, "e2m3", 6, true, true},
    {Ty::e3m2, "e3m2", 6, true, true},       {Ty::e2m1, "e2m1", 4, true, true},       {Ty::ue8m0, "ue8m0", 8, false, true},
    {Ty::ue4m3, "ue4m3", 8, false, true},    {Ty::e4m3x2, "e4m3x2", 16, true, true},  {Ty::e5m2x2, "e5m2x2", 16, true, true},
    {Ty::e2m3x2, "e2m3x2", 16, true, true},  {Ty::e3m2x2, "e3m2x2", 16, true, true},  {Ty::e2m1x2, "e2m1x2", 8, true, true},
    {Ty::ue8m0x2, "ue8m0x2", 16, false, true}, {Ty::ue4m3x2, "ue4m3x2", 16, false, true}, {Ty::u4, "u4", 4, false, false},
    {Ty::s4, "s4", 4, true, false},          {Ty::u2, "u2", 2, false, false},
    {Ty::s2, "s2", 2, true, false},          {Ty::b1, "b1", 1, false, false}};

constexpr auto table_of_facts() {
    std::array<TypeFacts, size_t(Ty::b1) + 1> facts{};
    for (auto& r : rows) facts[size_t(r.t)] = {u8(r.bits), r.sgn, r.flt};
    return facts;
}
}  // namespace

constinit const std::array<TypeFacts, size_t(Ty::b1) + 1> type_facts = table_of_facts();

Ty parse_type(const std::string& name) {
    static const auto table = [] {
        std::map<std::string, Ty> m;
        for (auto& r : rows) m[r.name] = r.t;
        return m;
    }();
    auto it = table.find(name);
    return it == table.end() ? Ty::none : it->second;
}
const char* type_name(Ty t) {
    for (auto& r : rows)
        if (r.t == t) return r.name;
    return "none";
}

}  // namespace ptxsim
