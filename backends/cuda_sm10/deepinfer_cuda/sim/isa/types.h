// Element types of PTX modifiers, and bit-level views of register slots.
#pragma once
#include <array>
#include <cstdint>
#include <cstring>
#include <string>

namespace ptxsim {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using i8 = int8_t;
using i16 = int16_t;
using i32 = int32_t;
using i64 = int64_t;

enum class Ty : u8 {
    none, pred, b8, b16, b32, b64, b128, u8, u16, u32, u64, s8, s16, s32, s64, f16, f16x2, bf16, bf16x2, tf32, f32, f32x2, f64,
    u16x2, s16x2, e4m3, e5m2, e2m3, e3m2, e2m1, ue8m0, ue4m3, e4m3x2, e5m2x2, e2m3x2, e3m2x2, e2m1x2, ue8m0x2, ue4m3x2, u4, s4, u2, s2, b1
};

Ty parse_type(const std::string& name);  // Ty::none if it is no type
const char* type_name(Ty t);

// Facts of the types by number: the interpreter asks for them once per lane.
struct TypeFacts {
    u8 bits = 0;
    bool is_signed = false, is_float = false;
};
extern const std::array<TypeFacts, size_t(Ty::b1) + 1> type_facts;
inline int type_bits(Ty t) { return type_facts[size_t(t)].bits; }  // 1 for pred and b1
inline int type_size(Ty t) { return (type_bits(t) + 7) / 8; }
inline bool is_signed(Ty t) { return type_facts[size_t(t)].is_signed; }
inline bool is_float(Ty t) { return type_facts[size_t(t)].is_float; }  // any binary floating-point format, packed or not

template <class T>
inline T from_bits(u64 raw) {
    T v;
    std::memcpy(&v, &raw, sizeof v);  // registers are little-endian 64-bit slots
    return v;
}
template <class T>
inline u64 to_bits(T v) {
    u64 raw = 0;
    std::memcpy(&raw, &v, sizeof v);
    return raw;
}

}  // namespace ptxsim
