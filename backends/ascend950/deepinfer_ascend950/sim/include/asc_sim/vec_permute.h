// Broadcast, index generation, interleave, pack and reductions.
#pragma once
#include "vec_arith.h"

template <class T>
inline void asc_duplicate_scalar(asc_vector<T>& dst, std::type_identity_t<T> value, vector_bool mask) {
    asc_sim::each(dst, mask, [&](int) { return value; });
}
template <class T>
inline void asc_duplicate_scalar(asc_vector<T>& dst, std::type_identity_t<T> value) {
    for (auto& e : dst.v) e = value;
}
template <class T>
inline void asc_duplicate_scalar_merge(asc_vector<T>& dst, std::type_identity_t<T> value, vector_bool mask) {
    for (int i = 0; i < asc_vector<T>::lanes; ++i)
        if (asc_sim::lane(mask, i, sizeof(T))) dst.v[i] = value;
}
template <class T>
inline void vdup(asc_vector<T>& dst, std::type_identity_t<T> value, vector_bool mask, int mode) {
    if (mode == MODE_MERGING) asc_duplicate_scalar_merge(dst, value, mask);
    else asc_duplicate_scalar(dst, value, mask);
}
// Lane 0 of src in every active lane (highest: the last lane).
template <class T>
inline void asc_duplicate(asc_vector<T>& dst, asc_vector<T> src, vector_bool mask) {
    asc_sim::each(dst, mask, [&](int) { return src.v[0]; });
}
template <class T>
inline asc_vector<T> asc_duplicate(asc_vector<T> src, vector_bool mask) {
    asc_vector<T> d;
    asc_duplicate(d, src, mask);
    return d;
}
template <class T>
inline void asc_duplicate_highest(asc_vector<T>& dst, asc_vector<T> src, vector_bool mask) {
    asc_sim::each(dst, mask, [&](int) { return src.v[asc_vector<T>::lanes - 1]; });
}
template <class T>
inline void asc_arange(asc_vector<T>& dst, std::type_identity_t<T> value) {
    for (int i = 0; i < asc_vector<T>::lanes; ++i) dst.v[i] = static_cast<T>(value + static_cast<T>(i));
}
template <class T>
inline void asc_arange_descend(asc_vector<T>& dst, std::type_identity_t<T> value) {
    for (int i = 0; i < asc_vector<T>::lanes; ++i) dst.v[i] = static_cast<T>(value - static_cast<T>(i));
}

// dst0 = a0 b0 a1 b1 ... of the lower halves, dst1 of the upper. The destinations must be different registers (a rule
// of the device's encoder); sources may be the same registers as destinations.
template <class T>
inline void asc_intlv(asc_vector<T>& dst0, asc_vector<T>& dst1, asc_vector<T> a, asc_vector<T> b, ASC_LOC) {
    if (&dst0 == &dst1) asc_sim::fail("asc_intlv", "dst0 and dst1 must be different registers", asc_loc);
    constexpr int h = asc_vector<T>::lanes / 2;
    asc_sim::alu_op();
    for (int i = 0; i < h; ++i) {
        dst0.v[2 * i] = a.v[i];
        dst0.v[2 * i + 1] = b.v[i];
        dst1.v[2 * i] = a.v[h + i];
        dst1.v[2 * i + 1] = b.v[h + i];
    }
}
template <class T>
inline void asc_deintlv(asc_vector<T>& dst0, asc_vector<T>& dst1, asc_vector<T> a, asc_vector<T> b, ASC_LOC) {
    if (&dst0 == &dst1) asc_sim::fail("asc_deintlv", "dst0 and dst1 must be different registers", asc_loc);
    constexpr int h = asc_vector<T>::lanes / 2;
    asc_sim::alu_op();
    for (int i = 0; i < h; ++i) {
        dst0.v[i] = a.v[2 * i];
        dst1.v[i] = a.v[2 * i + 1];
        dst0.v[h + i] = b.v[2 * i];
        dst1.v[h + i] = b.v[2 * i + 1];
    }
}

namespace asc_sim {
// Low halves of the elements, packed into the lower (upper) half of the register; the other half is zero.
template <class D, class S>
inline void pack(asc_vector<D>& dst, const asc_vector<S>& src, bool high) {
    static_assert(sizeof(D) * 2 == sizeof(S));
    constexpr int n = asc_vector<S>::lanes;
    asc_vector<D> r;
    alu_op();
    for (int i = 0; i < n; ++i) {
        r.v[(high ? n : 0) + i] = static_cast<D>(src.v[i]);
        r.v[(high ? 0 : n) + i] = D(0);
    }
    dst = r;
}
template <class D, class S>
inline void unpack(asc_vector<D>& dst, const asc_vector<S>& src, bool high) {
    static_assert(sizeof(D) == 2 * sizeof(S));
    constexpr int n = asc_vector<D>::lanes;
    asc_vector<D> r;
    alu_op();
    for (int i = 0; i < n; ++i) r.v[i] = static_cast<D>(src.v[(high ? n : 0) + i]);
    dst = r;
}
template <class T, class F>
inline T tree(const T* x, const bool* on, int n, F f, bool& any) {
    if (n == 1) {
        any = on[0];
        return x[0];
    }
    bool l, r;
    const T a = tree(x, on, n / 2, f, l), b = tree(x + n / 2, on + n / 2, n / 2, f, r);
    any = l || r;
    return l && r ? f(a, b) : l ? a : b;
}
// Reduces groups of `group` lanes as a balanced tree over the active lanes; results fill the first lanes, rest 0.
// A group without active lanes gives `none`.
template <class D, class T, class F>
inline void reduce(asc_vector<D>& dst, const asc_vector<T>& src, const vector_bool& m, int group, D none, F f) {
    D x[asc_vector<T>::lanes];
    alu_op();
    bool on[asc_vector<T>::lanes];
    for (int i = 0; i < asc_vector<T>::lanes; ++i) {
        x[i] = static_cast<D>(src.v[i]);
        on[i] = lane(m, i, sizeof(T));
    }
    for (auto& e : dst.v) e = zero_of<D>();
    for (int g = 0; g < asc_vector<T>::lanes / group; ++g) {
        bool any;
        const D r = tree(x + g * group, on + g * group, group, f, any);
        dst.v[g] = any ? r : none;
    }
}
template <class T>
inline T lowest() {
    if constexpr (std::is_integral_v<T>) return std::is_signed_v<T> ? static_cast<T>(T(1) << (8 * sizeof(T) - 1)) : T(0);
    else return T(bits_float(0xFF800000u));
}
template <class T>
inline T highest() {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(~lowest<T>());
    else return T(bits_float(0x7F800000u));
}
// Sums of 16-bit integers are 32 bits wide.
template <class T>
using SumOf = std::conditional_t<std::is_same_v<T, int16_t>, int32_t, std::conditional_t<std::is_same_v<T, uint16_t>, uint32_t, T>>;
template <class D>
inline D plus(D a, D b) {
    return wrap<D>([](auto x, auto y) { return x + y; }, a, b);
}
}  // namespace asc_sim

template <class D, class S>
inline void asc_pack_to_low(asc_vector<D>& dst, asc_vector<S> src) {
    asc_sim::pack(dst, src, false);
}
template <class D, class S>
inline void asc_pack_to_high(asc_vector<D>& dst, asc_vector<S> src) {
    asc_sim::pack(dst, src, true);
}
template <class D, class S>
inline void asc_pack(asc_vector<D>& dst, asc_vector<S> src) {
    asc_sim::pack(dst, src, false);
}
template <class D, class S>
inline void asc_unpack_lower(asc_vector<D>& dst, asc_vector<S> src) {
    asc_sim::unpack(dst, src, false);
}
template <class D, class S>
inline void asc_unpack_upper(asc_vector<D>& dst, asc_vector<S> src) {
    asc_sim::unpack(dst, src, true);
}

#define ASC_REDUCE(name, group, type, none, fn)                                             \
    template <class T>                                                                      \
    inline void name(asc_vector<type>& dst, asc_vector<T> src, vector_bool mask) {          \
        using D = type;                                                                     \
        asc_sim::reduce<D>(dst, src, mask, group, none, [](D a, D b) { return fn(a, b); }); \
    }                                                                                       \
    template <class T>                                                                      \
    inline asc_vector<type> name(asc_vector<T> src, vector_bool mask) {                     \
        asc_vector<type> d;                                                                 \
        name(d, src, mask);                                                                 \
        return d;                                                                           \
    }

ASC_REDUCE(asc_reduce_sum, asc_vector<T>::lanes, asc_sim::SumOf<T>, D(0), asc_sim::plus<D>)
ASC_REDUCE(asc_reduce_max, asc_vector<T>::lanes, T, asc_sim::lowest<D>(), asc_sim::fmax_dev<D>)
ASC_REDUCE(asc_reduce_min, asc_vector<T>::lanes, T, asc_sim::highest<D>(), asc_sim::fmin_dev<D>)
ASC_REDUCE(asc_reduce_sum_datablock, 32 / static_cast<int>(sizeof(T)), asc_sim::SumOf<T>, D(0), asc_sim::plus<D>)
ASC_REDUCE(asc_reduce_max_datablock, 32 / static_cast<int>(sizeof(T)), T, asc_sim::lowest<D>(), asc_sim::fmax_dev<D>)
ASC_REDUCE(asc_reduce_min_datablock, 32 / static_cast<int>(sizeof(T)), T, asc_sim::highest<D>(), asc_sim::fmin_dev<D>)
ASC_REDUCE(asc_pair_reduce_sum, 2, T, D(0), asc_sim::plus<D>)
#undef ASC_REDUCE
