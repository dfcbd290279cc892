// What the scalar unit does beside loads and stores: bit counts, atomics and uncached loads of global memory, addresses.
#pragma once
#include <bit>

#include "sync.h"

namespace asc_sim {
// Before an atomic operation on a word of global memory: checks the address, orders this program after whoever published
// the word before, and publishes what it has done so far.
void gm_atomic(void* p, uint32_t bytes, const char* what, Loc loc);

template <class T, class F>
inline T atomically(T* p, F next) {
    using U = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    U old = __atomic_load_n(reinterpret_cast<U*>(p), __ATOMIC_ACQUIRE), wanted;
    do {
        wanted = std::bit_cast<U>(next(std::bit_cast<T>(old)));
    } while (!__atomic_compare_exchange_n(reinterpret_cast<U*>(p), &old, wanted, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    return std::bit_cast<T>(old);
}
template <class T>
inline T wrapping(T a, T b, bool minus) {
    if constexpr (std::is_integral_v<T>) {
        using U = std::make_unsigned_t<T>;
        return static_cast<T>(minus ? static_cast<U>(a) - static_cast<U>(b) : static_cast<U>(a) + static_cast<U>(b));
    } else {
        return minus ? a - b : a + b;
    }
}
}  // namespace asc_sim

// All return what stood there before.
#define ASC_ATOMIC_OP(name, expr)                                                              \
    template <class T>                                                                         \
    inline T name(T* address, std::type_identity_t<T> val, ASC_LOC) {                          \
        static_assert(sizeof(T) == 4 || sizeof(T) == 8);                                       \
        asc_sim::gm_atomic(address, sizeof(T), #name, asc_loc);                                \
        return asc_sim::atomically(address, [=](T a) { return static_cast<T>(expr); });        \
    }
ASC_ATOMIC_OP(asc_atomic_add, asc_sim::wrapping(a, val, false))
ASC_ATOMIC_OP(asc_atomic_sub, asc_sim::wrapping(a, val, true))
ASC_ATOMIC_OP(asc_atomic_max, (a < val ? val : a))
ASC_ATOMIC_OP(asc_atomic_min, (val < a ? val : a))
ASC_ATOMIC_OP(asc_atomic_and, (a & val))
ASC_ATOMIC_OP(asc_atomic_or, (a | val))
ASC_ATOMIC_OP(asc_atomic_xor, (a ^ val))
ASC_ATOMIC_OP(asc_atomic_exch, val)
ASC_ATOMIC_OP(asc_atomic_inc, (a >= val ? 0 : a + 1))
ASC_ATOMIC_OP(asc_atomic_dec, (a == 0 || a > val ? val : a - 1))
#undef ASC_ATOMIC_OP
template <class T>
inline T asc_atomic_cas(T* address, std::type_identity_t<T> compare, std::type_identity_t<T> val, ASC_LOC) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    asc_sim::gm_atomic(address, sizeof(T), "asc_atomic_cas", asc_loc);
    return asc_sim::atomically(address, [=](T a) { return a == compare ? val : a; });
}
// Past the data cache.
template <class T>
inline T asc_load_dev(T* address, ASC_LOC) {
    asc_sim::gm_touch(address, sizeof(T), false, asc_loc);
    T v;
    __atomic_load(address, &v, __ATOMIC_ACQUIRE);
    return v;
}
inline void asc_dcci(void*, ASC_LOC) { asc_sim::cache_invalidate(asc_loc); }
inline void asc_dci(ASC_LOC) { asc_sim::cache_invalidate(asc_loc); }
template <class T>
inline void asc_datacache_preload(T*, int64_t) {}  // a hint

// Bits of a 64-bit word; positions count from the lowest, -1 = there is none.
inline int64_t asc_popc(uint64_t v) { return std::popcount(v); }
inline int64_t asc_zero_bits_cnt(uint64_t v) { return 64 - std::popcount(v); }
inline int64_t asc_clz(uint64_t v) { return std::countl_zero(v); }
inline int64_t asc_ffs(uint64_t v) { return v ? std::countr_zero(v) : -1; }
inline int64_t asc_ffz(uint64_t v) { return ~v ? std::countr_zero(~v) : -1; }
inline uint64_t asc_set_nthbit(uint64_t bits, int64_t i) { return bits | (uint64_t{1} << (i & 63)); }
inline uint64_t asc_clear_nthbit(uint64_t bits, int64_t i) { return bits & ~(uint64_t{1} << (i & 63)); }

// Address of a byte of UB, for kernels that lay out their memory themselves.
inline uint64_t asc_get_phy_buf_addr(uint64_t offset) { return reinterpret_cast<uint64_t>(asc_sim::mem_base(asc_sim::Mem::UB)) + offset; }
