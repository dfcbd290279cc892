// Choosing lanes: squeeze (with its count register AR), prefix counts, histograms, moves between registers and masks, and
// the fused forms that read or write every second lane.
//
// AR counts bytes of a vector core from one _init to the next; a squeezing store writes at its pointer plus AR.
#pragma once
#include "vec_convert.h"
#include "vec_load.h"
#include "vec_logic.h"
#include "vec_mask.h"
#include "vec_permute.h"
#include "vec_store.h"

namespace asc_sim {

// Active lanes in order at the lowest places, zero above them; returns how many there are.
template <class T>
inline uint32_t squeeze(asc_vector<T>& dst, const asc_vector<T>& src, const vector_bool& m) {
    asc_vector<T> r;
    alu_op();
    uint32_t n = 0;
    for (int i = 0; i < asc_vector<T>::lanes; ++i)
        if (lane(m, i, sizeof(T))) r.v[n++] = src.v[i];
    for (int i = static_cast<int>(n); i < asc_vector<T>::lanes; ++i) r.v[i] = zero_of<T>();
    dst = r;
    return n;
}
// Lane i of a mask as `size` bits.
inline vector_bool interleave(const vector_bool& a, const vector_bool& b, int size, bool high) {
    vector_bool r{};
    const int lanes = 256 / size;
    for (int i = 0; i < lanes; ++i) {
        const vector_bool& from = i % 2 ? b : a;
        const int s = (high ? lanes / 2 : 0) + i / 2;
        for (int j = 0; j < size; ++j) set_lane(r, i * size + j, 1, bit(from, s * size + j));
    }
    return r;
}
inline vector_bool deinterleave(const vector_bool& a, const vector_bool& b, int size, int odd) {
    vector_bool r{};
    const int lanes = 256 / size;
    for (int i = 0; i < lanes; ++i) {
        const vector_bool& from = i < lanes / 2 ? a : b;
        const int s = 2 * (i % (lanes / 2)) + odd;
        for (int j = 0; j < size; ++j) set_lane(r, i * size + j, 1, bit(from, s * size + j));
    }
    return r;
}
inline void histogram(vector_uint16_t& dst, const vector_uint8_t& src, const vector_bool& m, int first, bool cumulative) {
    alu_op();
    for (int i = 0; i < 256; ++i) {
        if (!lane(m, i, 1)) continue;
        const int bin = src.v[i] - first;
        if (!cumulative && bin >= 0 && bin < 128) ++dst.v[bin];
        if (cumulative)
            for (int b = bin < 0 ? 0 : bin; b < 128; ++b) ++dst.v[b];
    }
}

}  // namespace asc_sim

// --- Squeeze ----------------------------------------------------------------------------------------------------------
template <class T>
inline void asc_squeeze(asc_vector<T>& dst, asc_vector<T> src, vector_bool mask) {
    asc_sim::squeeze(dst, src, mask);
}
template <class T>
inline asc_vector<T> asc_squeeze(asc_vector<T> src, vector_bool mask) {
    asc_vector<T> d;
    asc_sim::squeeze(d, src, mask);
    return d;
}
template <class T>
inline void asc_squeeze_with_status(asc_vector<T>& dst, asc_vector<T> src, vector_bool mask) {
    asc_sim::squeeze_bytes() += asc_sim::squeeze(dst, src, mask) * sizeof(T);
}
template <class T>
inline void asc_squeeze_v2(asc_vector<T>& dst, asc_vector<T> src, vector_bool mask) {
    asc_squeeze_with_status(dst, src, mask);
}
inline void asc_squeeze_and_storeunalign_init() { asc_sim::squeeze_bytes() = 0; }
// Whole 32-byte blocks go to memory, the rest waits in `reg` for the next call or for _finalize.
template <class T>
inline void asc_squeeze_and_storeunalign(T* dst_addr, asc_vector<T>& dst, vector_store_unalign& reg, asc_vector<T> src, vector_bool mask,
                                         ASC_LOC) {
    uint64_t& done = asc_sim::squeeze_bytes();
    if (done == 0) reg.count = 0;  // a first call needs no prepared register
    const uint32_t count = asc_sim::squeeze(dst, src, mask);
    T* at = dst_addr + done / sizeof(T);
    asc_storeunalign_postupdate(at, reg, dst, count, asc_loc);
    done += count * sizeof(T);
}
template <class T>
inline void asc_squeeze_and_storeunalign_finalize(T* dst, vector_store_unalign reg, ASC_LOC) {
    T* at = dst + asc_sim::squeeze_bytes() / sizeof(T);
    asc_storeunalign_post_postupdate(at, reg, 0, asc_loc);
}
inline int64_t asc_get_squeeze_status(ASC_LOC) { return asc_sim::squeeze_status(asc_loc); }
inline int64_t asc_get_ar_spr(ASC_LOC) { return asc_sim::squeeze_status(asc_loc); }

// dst lane i = number of set lanes below i.
template <class T>
inline void asc_unsqueeze(asc_vector<T>& dst, vector_bool mask) {
    asc_sim::alu_op();
    T n = 0;
    for (int i = 0; i < asc_vector<T>::lanes; ++i) {
        dst.v[i] = n;
        n = static_cast<T>(n + asc_sim::lane(mask, i, sizeof(T)));
    }
}
#define ASC_UNSQUEEZE(suffix, type)                        \
    inline asc_vector<type> asc_unsqueeze_##suffix(vector_bool mask) { \
        asc_vector<type> d;                                \
        asc_unsqueeze(d, mask);                            \
        return d;                                          \
    }
ASC_UNSQUEEZE(u8, uint8_t)
ASC_UNSQUEEZE(s8, int8_t)
ASC_UNSQUEEZE(u16, uint16_t)
ASC_UNSQUEEZE(s16, int16_t)
ASC_UNSQUEEZE(u32, uint32_t)
ASC_UNSQUEEZE(s32, int32_t)
#undef ASC_UNSQUEEZE

// --- Histograms: added to what dst holds ---------------------------------------------------------------------------------
inline void asc_frequency_histogram_bin0(vector_uint16_t& dst, vector_uint8_t src, vector_bool mask) { asc_sim::histogram(dst, src, mask, 0, false); }
inline void asc_frequency_histogram_bin1(vector_uint16_t& dst, vector_uint8_t src, vector_bool mask) { asc_sim::histogram(dst, src, mask, 128, false); }
inline void asc_cumulative_histogram_bin0(vector_uint16_t& dst, vector_uint8_t src, vector_bool mask) { asc_sim::histogram(dst, src, mask, 0, true); }
inline void asc_cumulative_histogram_bin1(vector_uint16_t& dst, vector_uint8_t src, vector_bool mask) { asc_sim::histogram(dst, src, mask, 128, true); }

// --- Masks: lanes of b8, b16 and b32 are 1, 2 and 4 bits -------------------------------------------------------------------
#define ASC_MASK_INTLV(suffix, size)                                                                                  \
    inline void asc_intlv_##suffix(vector_bool& dst0, vector_bool& dst1, vector_bool a, vector_bool b) {              \
        dst0 = asc_sim::interleave(a, b, size, false);                                                                \
        dst1 = asc_sim::interleave(a, b, size, true);                                                                 \
    }                                                                                                                 \
    inline void asc_deintlv_##suffix(vector_bool& dst0, vector_bool& dst1, vector_bool a, vector_bool b) {            \
        dst0 = asc_sim::deinterleave(a, b, size, 0);                                                                  \
        dst1 = asc_sim::deinterleave(a, b, size, 1);                                                                  \
    }
ASC_MASK_INTLV(b8, 1)
ASC_MASK_INTLV(b16, 2)
ASC_MASK_INTLV(b32, 4)
#undef ASC_MASK_INTLV
inline void asc_copy(vector_bool& dst, vector_bool src) { dst = src; }
// Bits of a part of a register (16 bytes of 16-bit elements, 8 of 32-bit ones), each widened to a lane.
template <class T, class = std::enable_if_t<std::is_same_v<T, uint16_t> || std::is_same_v<T, uint32_t>>>
inline void asc_copy(vector_bool& dst, asc_vector<T> src, int16_t part, ASC_LOC) {
    constexpr int lanes = asc_vector<T>::lanes;
    if (part < 0 || part >= 8 * static_cast<int>(sizeof(T))) asc_sim::fail("asc_copy", "part must be a block of the register", asc_loc);
    const auto* bytes = reinterpret_cast<const uint8_t*>(src.v) + part * (lanes / 8);
    vector_bool r{};
    for (int i = 0; i < lanes; ++i)
        for (int j = 0; j < static_cast<int>(sizeof(T)); ++j)
            asc_sim::set_lane(r, i * static_cast<int>(sizeof(T)) + j, 1, (bytes[i / 8] >> (i % 8)) & 1);
    dst = r;
}
// Registers: lanes that are off keep what they hold.
template <class T>
inline void asc_copy(asc_vector<T>& dst, asc_vector<T> src, vector_bool mask) {
    asc_sim::alu_op();
    for (int i = 0; i < asc_vector<T>::lanes; ++i)
        if (asc_sim::lane(mask, i, sizeof(T))) dst.v[i] = src.v[i];
}

// --- Arithmetic that is documented beside the above ---------------------------------------------------------------------------
template <class T>
inline void asc_abs_sub(asc_vector<T>& dst, asc_vector<T> a, asc_vector<T> b, vector_bool mask) {
    asc_sim::each_ftz(dst, mask, [&](int i) { return T(std::fabs(asc_sim::wide(a.v[i]) - asc_sim::wide(b.v[i]))); });
}
template <class T>
inline void asc_leakyrelu(asc_vector<T>& dst, asc_vector<T> src, std::type_identity_t<T> alpha, vector_bool mask) {
    asc_sim::each_ftz(dst, mask, [&](int i) {
        return asc_sim::wide(src.v[i]) > 0 ? src.v[i] : T(asc_sim::wide(src.v[i]) * asc_sim::wide(alpha));
    });
}
template <class T>
inline void asc_prelu(asc_vector<T>& dst, asc_vector<T> src, asc_vector<T> alpha, vector_bool mask) {
    asc_sim::each_ftz(dst, mask, [&](int i) {
        return asc_sim::wide(src.v[i]) > 0 ? src.v[i] : T(asc_sim::wide(src.v[i]) * asc_sim::wide(alpha.v[i]));
    });
}
#define ASC_RETURNS(name)                                                                                \
    template <class T, class A>                                                                          \
    inline asc_vector<T> name(asc_vector<T> src, A other, vector_bool mask) {                            \
        asc_vector<T> d;                                                                                 \
        name(d, src, other, mask);                                                                       \
        return d;                                                                                        \
    }
ASC_RETURNS(asc_abs_sub)
ASC_RETURNS(asc_leakyrelu)
ASC_RETURNS(asc_prelu)
#undef ASC_RETURNS
namespace asc_sim {
inline void exp_sub_half(vector_float& dst, const vector_half& a, const vector_half& b, const vector_bool& m, int odd) {
    each_ftz(dst, m, [&](int i) { return std::exp(static_cast<float>(a.v[2 * i + odd]) - static_cast<float>(b.v[2 * i + odd])); });
}
inline void mul_to_half(vector_half& dst, const vector_float& src, float value, const vector_bool& m, int odd) {
    narrow(dst, src, m, odd, [=](float x) { return half(x * value); });
}
}  // namespace asc_sim
// Halves in even (or, _v2, odd) lanes.
inline void asc_exp_sub(vector_float& dst, vector_half a, vector_half b, vector_bool mask) { asc_sim::exp_sub_half(dst, a, b, mask, 0); }
inline void asc_exp_sub_v2(vector_float& dst, vector_half a, vector_half b, vector_bool mask) { asc_sim::exp_sub_half(dst, a, b, mask, 1); }
template <asc_position_mode P>
inline void asc_exp_sub_half2float(vector_float& dst, vector_half a, vector_half b, vector_bool mask, asc_position<P>) {
    asc_sim::exp_sub_half(dst, a, b, mask, static_cast<int>(P));
}
inline void asc_muls(vector_half& dst, vector_float src, float value, vector_bool mask) { asc_sim::mul_to_half(dst, src, value, mask, 0); }
inline void asc_muls_v2(vector_half& dst, vector_float src, float value, vector_bool mask) { asc_sim::mul_to_half(dst, src, value, mask, 1); }

// --- Forms that return what the others write ----------------------------------------------------------------------------------
#define ASC_HALVES(narrow, from)                                                \
    inline narrow asc_pack_to_low(from src) {                                   \
        narrow d;                                                               \
        asc_pack_to_low(d, src);                                                \
        return d;                                                               \
    }                                                                           \
    inline narrow asc_pack_to_high(from src) {                                  \
        narrow d;                                                               \
        asc_pack_to_high(d, src);                                               \
        return d;                                                               \
    }
ASC_HALVES(vector_uint8_t, vector_uint16_t)
ASC_HALVES(vector_uint8_t, vector_int16_t)
ASC_HALVES(vector_uint16_t, vector_uint32_t)
ASC_HALVES(vector_uint16_t, vector_int32_t)
ASC_HALVES(vector_bool, vector_bool)
#undef ASC_HALVES
#define ASC_DOUBLES(wide_type, from)                                            \
    inline wide_type asc_unpack_lower(from src) {                               \
        wide_type d;                                                            \
        asc_unpack_lower(d, src);                                               \
        return d;                                                               \
    }                                                                           \
    inline wide_type asc_unpack_upper(from src) {                               \
        wide_type d;                                                            \
        asc_unpack_upper(d, src);                                               \
        return d;                                                               \
    }
ASC_DOUBLES(vector_uint16_t, vector_uint8_t)
ASC_DOUBLES(vector_int16_t, vector_int8_t)
ASC_DOUBLES(vector_uint32_t, vector_uint16_t)
ASC_DOUBLES(vector_int32_t, vector_int16_t)
ASC_DOUBLES(vector_bool, vector_bool)
#undef ASC_DOUBLES
template <class D, class S>
inline void asc_pack_v2(asc_vector<D>& dst, asc_vector<S> src) {
    asc_sim::pack(dst, src, true);
}
inline void asc_pack(vector_bool& dst, vector_bool src) { asc_pack_to_low(dst, src); }
inline void asc_pack_v2(vector_bool& dst, vector_bool src) { asc_pack_to_high(dst, src); }
#define ASC_MASK_OP(name)                                                       \
    inline vector_bool name(vector_bool a, vector_bool b, vector_bool mask) {   \
        vector_bool d;                                                          \
        name(d, a, b, mask);                                                    \
        return d;                                                               \
    }
ASC_MASK_OP(asc_and)
ASC_MASK_OP(asc_or)
ASC_MASK_OP(asc_xor)
#undef ASC_MASK_OP

// --- Loads ----------------------------------------------------------------------------------------------------------------------
// Eight blocks of 32 bytes: the lowest eight indices are byte offsets, and the lowest eight b32 lanes of the mask choose.
template <class T>
inline void asc_gather_datablock(asc_vector<T>& dst, T* src, vector_uint32_t index, vector_bool mask, ASC_LOC) {
    for (int b = 0; b < 8; ++b) {
        auto* to = reinterpret_cast<char*>(dst.v) + 32 * b;
        if (!asc_sim::lane(mask, b, 4)) {
            std::memset(to, 0, 32);
            continue;
        }
        const char* from = reinterpret_cast<const char*>(src) + index.v[b];
        asc_sim::ub_touch(from, 32, 32, false, "asc_gather_datablock", asc_loc, 0.125);
        std::memcpy(to, from, 32);
    }
}
template <class T>
inline void asc_gather_datablock(asc_vector<T>& dst, T* src, vector_uint32_t index, ASC_LOC) {
    asc_gather_datablock(dst, src, index, asc_sim::mask_of(PAT_ALL, 4), asc_loc);
}
inline void asc_gather(vector_int16_t& dst, int8_t* src, vector_uint16_t index, vector_bool mask, ASC_LOC) {
    asc_sim::each(dst, mask, [&](int i) {
        asc_sim::ub_touch(src + index.v[i], 1, 1, false, "asc_gather", asc_loc, 0.125);
        return src[index.v[i]];
    });
}
// Masks with a pointer that moves, in elements of its type.
inline void asc_loadalign_postupdate(vector_bool& dst, uint32_t*& src, int32_t offset, ASC_LOC) {
    asc_loadalign(dst, src, asc_loc);
    src += offset;
}
inline void asc_storealign_postupdate(uint32_t*& dst, vector_bool src, int32_t offset, ASC_LOC) {
    asc_storealign(dst, src, asc_loc);
    dst += offset;
}
