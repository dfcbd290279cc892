// Loads from UB into registers. Every distribution mode of the device exists in four forms: returning the register,
// writing a reference, with an element offset, and with post-update of the pointer (offsets are in elements of the
// pointer's type and may be negative).
#pragma once
#include "vec_types.h"

namespace asc_sim {

template <class T>
inline const T* ub_read(const T* p, uint32_t bytes, uint32_t align, const char* what, Loc loc) {
    ub_touch(p, bytes, align, false, what, loc);
    return p;
}

struct LoadNorm {
    template <class T>
    static void to(asc_vector<T>& d, const T* p, Loc loc) {
        std::memcpy(d.v, ub_read(p, 256, 32, "asc_loadalign", loc), 256);
    }
};
struct LoadBrc {
    template <class T>
    static void to(asc_vector<T>& d, const T* p, Loc loc) {
        const T x = *ub_read(p, sizeof(T), sizeof(T), "asc_loadalign_brc", loc);
        for (auto& e : d.v) e = x;
    }
};
struct LoadBrcBlock {
    template <class T>
    static void to(asc_vector<T>& d, const T* p, Loc loc) {
        ub_read(p, 32, 32, "asc_loadalign_brc_datablock", loc);
        for (int b = 0; b < 8; ++b) std::memcpy(reinterpret_cast<char*>(d.v) + 32 * b, p, 32);
    }
};
// Eight elements, each repeated through one 32-byte datablock.
struct LoadElem2Block {
    template <class T>
    static void to(asc_vector<T>& d, const T* p, Loc loc) {
        static_assert(sizeof(T) == 2 || sizeof(T) == 4);
        ub_read(p, 8 * sizeof(T), 8 * sizeof(T), "asc_loadalign_brc_elem2datablock", loc);
        constexpr int per = 32 / sizeof(T);
        for (int i = 0; i < asc_vector<T>::lanes; ++i) d.v[i] = p[i / per];
    }
};
struct LoadUnpack {
    template <class T>
    static void to(asc_vector<T>& d, const T* p, Loc loc) {
        ub_read(p, 128, 32, "asc_loadalign_unpack", loc);
        for (int i = 0; i < asc_vector<T>::lanes; ++i) d.v[i] = i % 2 ? zero_of<T>() : p[i / 2];
    }
};
struct LoadUnpack4 {
    template <class T>
    static void to(asc_vector<T>& d, const T* p, Loc loc) {
        static_assert(sizeof(T) == 1);
        ub_read(p, 64, 32, "asc_loadalign_unpack4", loc);
        for (int i = 0; i < 256; ++i) d.v[i] = i % 4 ? zero_of<T>() : p[i / 4];
    }
};
struct LoadUp {
    template <class T>
    static void to(asc_vector<T>& d, const T* p, Loc loc) {
        ub_read(p, 128, 32, "asc_loadalign_upsample", loc);
        for (int i = 0; i < asc_vector<T>::lanes; ++i) d.v[i] = p[i / 2];
    }
};
struct LoadDown {
    template <class T>
    static void to(asc_vector<T>& d, const T* p, Loc loc) {
        ub_read(p, 512, 32, "asc_loadalign_downsample", loc);
        for (int i = 0; i < asc_vector<T>::lanes; ++i) d.v[i] = p[2 * i];
    }
};

// One 32-byte block per datablock of the register; a block whose lanes are all masked off is not touched and reads 0.
template <class T>
inline void load_strided(asc_vector<T>& d, const T* p, uint32_t block_stride, const vector_bool& m, Loc loc) {
    for (int b = 0; b < 8; ++b) {
        const bool on = (m.w[b / 2] >> (32 * (b % 2))) & 0xFFFFFFFFu;
        char* to = reinterpret_cast<char*>(d.v) + 32 * b;
        const char* from = reinterpret_cast<const char*>(p) + 32 * static_cast<size_t>(block_stride) * b;
        if (on) {
            ub_touch(from, 32, 32, false, "asc_loadalign (datablock strided)", loc, 0.125);
            std::memcpy(to, from, 32);
        } else {
            std::memset(to, 0, 32);
        }
    }
}

}  // namespace asc_sim

#define ASC_LOAD_FORMS(name, mode)                                                                      \
    template <class T>                                                                                  \
    inline asc_vector<T> name(T* src, ASC_LOC) {                                                        \
        asc_vector<T> d;                                                                                \
        asc_sim::mode::to(d, src, asc_loc);                                                             \
        return d;                                                                                       \
    }                                                                                                   \
    template <class T>                                                                                  \
    inline void name(asc_vector<T>& dst, T* src, ASC_LOC) {                                             \
        asc_sim::mode::to(dst, src, asc_loc);                                                           \
    }                                                                                                   \
    template <class T, class I, class = std::enable_if_t<std::is_integral_v<I>>>                        \
    inline void name(asc_vector<T>& dst, T* src, I offset, ASC_LOC) {                                   \
        asc_sim::mode::to(dst, src + static_cast<int32_t>(offset), asc_loc);                            \
    }                                                                                                   \
    template <class T>                                                                                  \
    inline void name(asc_vector<T>& dst, T* src, addr_reg offset, ASC_LOC) {                            \
        asc_sim::mode::to(dst, src + offset.offset, asc_loc);                                           \
    }                                                                                                   \
    template <class T>                                                                                  \
    inline void name##_postupdate(asc_vector<T>& dst, T*& src, int32_t offset, ASC_LOC) {               \
        asc_sim::mode::to(dst, src, asc_loc);                                                           \
        src += offset;                                                                                  \
    }

ASC_LOAD_FORMS(asc_loadalign, LoadNorm)
ASC_LOAD_FORMS(asc_loadalign_brc, LoadBrc)
ASC_LOAD_FORMS(asc_loadalign_brc_elem, LoadBrc)
ASC_LOAD_FORMS(asc_loadalign_brc_datablock, LoadBrcBlock)
ASC_LOAD_FORMS(asc_loadalign_brc_v2, LoadBrcBlock)
ASC_LOAD_FORMS(asc_loadalign_brc_elem2datablock, LoadElem2Block)
ASC_LOAD_FORMS(asc_loadalign_brc_v3, LoadElem2Block)
ASC_LOAD_FORMS(asc_loadalign_unpack, LoadUnpack)
ASC_LOAD_FORMS(asc_loadalign_unpack4, LoadUnpack4)
ASC_LOAD_FORMS(asc_loadalign_unpack_v2, LoadUnpack4)
ASC_LOAD_FORMS(asc_loadalign_upsample, LoadUp)
ASC_LOAD_FORMS(asc_loadalign_downsample, LoadDown)
#undef ASC_LOAD_FORMS

// The built-in under these loads; the distribution is a word of its own. A word that is not here is a compile error.
namespace asc_sim {
template <class Mode, int Size>
struct Dist {};  // Size: bytes per element the word is for, 0 = any
template <class Mode, int Size, class T>
inline constexpr bool dist_fits = Size == 0 || Size == sizeof(T);
}  // namespace asc_sim
inline constexpr asc_sim::Dist<asc_sim::LoadNorm, 0> NORM{};
inline constexpr asc_sim::Dist<asc_sim::LoadBrc, 1> BRC_B8{};
inline constexpr asc_sim::Dist<asc_sim::LoadBrc, 2> BRC_B16{};
inline constexpr asc_sim::Dist<asc_sim::LoadBrc, 4> BRC_B32{};
inline constexpr asc_sim::Dist<asc_sim::LoadBrcBlock, 0> BLK{};
inline constexpr asc_sim::Dist<asc_sim::LoadElem2Block, 2> E2B_B16{};
inline constexpr asc_sim::Dist<asc_sim::LoadElem2Block, 4> E2B_B32{};
inline constexpr asc_sim::Dist<asc_sim::LoadUnpack, 1> UNPK_B8{};
inline constexpr asc_sim::Dist<asc_sim::LoadUnpack, 2> UNPK_B16{};
inline constexpr asc_sim::Dist<asc_sim::LoadUnpack, 4> UNPK_B32{};
inline constexpr asc_sim::Dist<asc_sim::LoadUnpack4, 1> UNPK4_B8{};
inline constexpr asc_sim::Dist<asc_sim::LoadUp, 1> US_B8{};
inline constexpr asc_sim::Dist<asc_sim::LoadUp, 2> US_B16{};
inline constexpr asc_sim::Dist<asc_sim::LoadDown, 1> DS_B8{};
inline constexpr asc_sim::Dist<asc_sim::LoadDown, 2> DS_B16{};
template <class T, class I, class Mode, int Size, class = std::enable_if_t<std::is_integral_v<I>>>
inline void vlds(asc_vector<T>& dst, T* src, I offset, asc_sim::Dist<Mode, Size>, ASC_LOC) {
    static_assert(asc_sim::dist_fits<Mode, Size, T>, "this distribution is for elements of another width");
    Mode::to(dst, src + static_cast<int32_t>(offset), asc_loc);
}
template <class T, class I, class Mode, int Size, class = std::enable_if_t<std::is_integral_v<I>>>
inline void vlds(asc_vector<T>& dst, T*& src, I offset, asc_sim::Dist<Mode, Size>, asc_sim::PostUpdate, ASC_LOC) {
    static_assert(asc_sim::dist_fits<Mode, Size, T>, "this distribution is for elements of another width");
    Mode::to(dst, src, asc_loc);
    src += static_cast<int32_t>(offset);
}

// Reads two registers full; even elements go to dst0, odd ones to dst1.
template <class T>
inline void asc_loadalign_deintlv(asc_vector<T>& dst0, asc_vector<T>& dst1, T* src, ASC_LOC) {
    asc_sim::ub_read(src, 512, 32, "asc_loadalign_deintlv", asc_loc);
    for (int i = 0; i < asc_vector<T>::lanes; ++i) {
        dst0.v[i] = src[2 * i];
        dst1.v[i] = src[2 * i + 1];
    }
}
template <class T, class I, class = std::enable_if_t<std::is_integral_v<I>>>
inline void asc_loadalign_deintlv(asc_vector<T>& dst0, asc_vector<T>& dst1, T* src, I offset, ASC_LOC) {
    asc_loadalign_deintlv(dst0, dst1, src + static_cast<int32_t>(offset), asc_loc);
}
template <class T>
inline void asc_loadalign_deintlv_postupdate(asc_vector<T>& dst0, asc_vector<T>& dst1, T*& src, int32_t offset, ASC_LOC) {
    asc_loadalign_deintlv(dst0, dst1, src, asc_loc);
    src += offset;
}

// Strided by datablocks, strides in 32-byte units; repeat_stride moves the start (or the pointer, when post-updating).
template <class T>
inline void asc_loadalign(asc_vector<T>& dst, T* src, uint16_t block_stride, uint16_t repeat_stride, vector_bool mask,
                          ASC_LOC) {
    asc_sim::load_strided(dst, src + repeat_stride * (32 / sizeof(T)), block_stride, mask, asc_loc);
}
template <class T>
inline asc_vector<T> asc_loadalign_datablock_strided(T* src, uint16_t block_stride, uint16_t repeat_stride,
                                                     vector_bool mask, ASC_LOC) {
    asc_vector<T> d;
    asc_sim::load_strided(d, src + repeat_stride * (32 / sizeof(T)), block_stride, mask, asc_loc);
    return d;
}
template <class T>
inline void asc_loadalign_postupdate(asc_vector<T>& dst, T*& src, uint16_t block_stride, uint16_t repeat_stride,
                                     vector_bool mask, ASC_LOC) {
    asc_sim::load_strided(dst, src, block_stride, mask, asc_loc);
    src += repeat_stride * (32 / sizeof(T));
}

// Mask registers: 32 bytes of memory are the 256 bits.
inline void asc_loadalign(vector_bool& dst, uint32_t* src, ASC_LOC) {
    std::memcpy(dst.w, asc_sim::ub_read(src, 32, 32, "asc_loadalign (mask)", asc_loc), 32);
}
inline vector_bool asc_loadalign_mask(uint32_t* src, ASC_LOC) {
    vector_bool m;
    asc_loadalign(m, src, asc_loc);
    return m;
}

// Unaligned loads: element-aligned address; `pre` caches the 32-byte block the address lies in.
template <class T>
inline void asc_load(asc_vector<T>& dst, T* src, ASC_LOC) {
    std::memcpy(dst.v, asc_sim::ub_read(src, 256, sizeof(T), "asc_load", asc_loc), 256);
}
template <class T>
inline void asc_loadunalign_pre(vector_load_unalign& reg, T* src, ASC_LOC) {
    asc_sim::ub_touch(reinterpret_cast<const char*>(src) - reinterpret_cast<uintptr_t>(src) % 32, 32, 32, false,
                      "asc_loadunalign_pre", asc_loc);
    reg.at = src;
}
template <class T>
inline void asc_loadunalign(asc_vector<T>& dst, vector_load_unalign& reg, T* src, ASC_LOC) {
    if (reg.at != src) asc_sim::fail("asc_loadunalign", "the address differs from the one given to the _pre call", asc_loc);
    std::memcpy(dst.v, asc_sim::ub_read(src, 256, sizeof(T), "asc_loadunalign", asc_loc), 256);
}
template <class T>
inline void asc_loadunalign_postupdate(asc_vector<T>& dst, vector_load_unalign& reg, T*& src, uint32_t count, ASC_LOC) {
    asc_loadunalign(dst, reg, src, asc_loc);
    src += count;
    reg.at = src;
}

// Gathers: dst lane i = src[index i]; masked lanes read nothing and give 0.
template <class T, class I>
inline void asc_gather(asc_vector<T>& dst, T* src, asc_vector<I> index, vector_bool mask, ASC_LOC) {
    static_assert(sizeof(I) == sizeof(T), "the index register must have as many lanes as the data register");
    asc_sim::each(dst, mask, [&](int i) {
        asc_sim::ub_touch(src + index.v[i], sizeof(T), sizeof(T), false, "asc_gather", asc_loc, 0.125);
        return src[index.v[i]];
    });
}
// Bytes are gathered into 16-bit lanes.
inline void asc_gather(vector_uint16_t& dst, uint8_t* src, vector_uint16_t index, vector_bool mask, ASC_LOC) {
    asc_sim::each(dst, mask, [&](int i) {
        asc_sim::ub_touch(src + index.v[i], 1, 1, false, "asc_gather", asc_loc, 0.125);
        return src[index.v[i]];
    });
}
