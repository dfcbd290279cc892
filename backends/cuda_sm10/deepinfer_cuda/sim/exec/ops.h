// Helpers to build lane-wise handlers from scalar functions.
//
// A family writes one small functor per operation, templated over the scalar type; `pick` turns (functor, type) into a handler.
// Values live in 64-bit slots, zero-extended.
#pragma once
#include <bit>
#include <cmath>

#include "core/machine.h"
#include "isa/decode.h"

namespace ptxsim {

template <class T, class F>
void unary(X& x, const Inst& in, u32 lanes) {
    const u64* a = x.src(in.s[1]);
    u64* d = x.dst(in.s[0]);
    each(lanes, [&](int l) { d[l] = to_bits(F::template f<T>(from_bits<T>(a[l]))); });
}

template <class T, class F>
void binary(X& x, const Inst& in, u32 lanes) {
    const u64 *a = x.src(in.s[1]), *b = x.src(in.s[2]);
    u64* d = x.dst(in.s[0]);
    each(lanes, [&](int l) { d[l] = to_bits(F::template f<T>(from_bits<T>(a[l]), from_bits<T>(b[l]))); });
}

template <class T, class F>
void ternary(X& x, const Inst& in, u32 lanes) {
    const u64 *a = x.src(in.s[1]), *b = x.src(in.s[2]), *c = x.src(in.s[3]);
    u64* d = x.dst(in.s[0]);
    each(lanes, [&](int l) { d[l] = to_bits(F::template f<T>(from_bits<T>(a[l]), from_bits<T>(b[l]), from_bits<T>(c[l]))); });
}


#define PTXSIM_DISPATCH(NAME, SHAPE)                                          \
    template <class F>                                                        \
    Handler NAME(Ty t) {                                                      \
        switch (t) {                                                          \
            case Ty::u8: case Ty::b8: return &SHAPE<u8, F>;                   \
            case Ty::s8: return &SHAPE<i8, F>;                                \
            case Ty::u16: case Ty::b16: return &SHAPE<u16, F>;                \
            case Ty::s16: return &SHAPE<i16, F>;                              \
            case Ty::u32: case Ty::b32: return &SHAPE<u32, F>;                \
            case Ty::s32: return &SHAPE<i32, F>;                              \
            case Ty::u64: case Ty::b64: return &SHAPE<u64, F>;                \
            case Ty::s64: return &SHAPE<i64, F>;                              \
            default: return nullptr;                                          \
        }                                                                     \
    }
PTXSIM_DISPATCH(int_unary, unary)
PTXSIM_DISPATCH(int_binary, binary)
PTXSIM_DISPATCH(int_ternary, ternary)
#undef PTXSIM_DISPATCH

// Writes lane predicates.
inline void set_predicate(X& x, i32 slot, u32 lanes, u32 value) {
    u64* d = x.dst(slot);
    d[0] = (d[0] & ~u64(lanes)) | (value & lanes);
}

}  // namespace ptxsim
