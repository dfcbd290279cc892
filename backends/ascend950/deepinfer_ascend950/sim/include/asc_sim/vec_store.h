// Stores from registers to UB. A masked-off lane keeps its bytes in memory.
#pragma once
#include "vec_types.h"

namespace asc_sim {

// Writes lanes [0, lanes) of `bytes`-wide elements taken from `from` at `step` bytes apart, if their mask bit is set.
inline void store_lanes(char* to, const char* from, int lanes, int bytes, int step, const vector_bool& m, Loc loc,
                        const char* what) {
    if (all_lanes(m, step)) {
        ub_touch(to, static_cast<uint32_t>(lanes * bytes), 32, true, what, loc);
        if (bytes == step) std::memcpy(to, from, static_cast<size_t>(lanes * bytes));
        else
            for (int i = 0; i < lanes; ++i) std::memcpy(to + i * bytes, from + i * step, static_cast<size_t>(bytes));
        return;
    }
    ub_touch(to, 0, 32, true, what, loc);
    for (int i = 0; i < lanes;) {
        if (!lane(m, i, step)) {
            ++i;
            continue;
        }
        int j = i;
        for (; j < lanes && lane(m, j, step); ++j)
            std::memcpy(to + j * bytes, from + j * step, static_cast<size_t>(bytes));
        ub_touch(to + i * bytes, static_cast<uint32_t>((j - i) * bytes), 1, true, what, loc, 0);
        i = j;
    }
}
template <class T>
inline void store_norm(T* p, const asc_vector<T>& s, const vector_bool& m, Loc loc) {
    store_lanes(reinterpret_cast<char*>(p), reinterpret_cast<const char*>(s.v), asc_vector<T>::lanes, sizeof(T),
                sizeof(T), m, loc, "asc_storealign");
}
// Low `to` bytes of every element, packed.
template <class T>
inline void store_pack(T* p, const asc_vector<T>& s, const vector_bool& m, int to, Loc loc) {
    store_lanes(reinterpret_cast<char*>(p), reinterpret_cast<const char*>(s.v), asc_vector<T>::lanes, to, sizeof(T), m,
                loc, "asc_storealign_pack");
}
template <class T>
inline void store_first(T* p, const asc_vector<T>& s, Loc loc) {
    ub_touch(p, sizeof(T), sizeof(T), true, "asc_storealign_1st", loc);
    *p = s.v[0];
}
template <class T>
inline void store_intlv(T* p, const asc_vector<T>& a, const asc_vector<T>& b, Loc loc) {
    ub_touch(p, 512, 32, true, "asc_storealign_intlv", loc, 2);
    for (int i = 0; i < asc_vector<T>::lanes; ++i) {
        p[2 * i] = a.v[i];
        p[2 * i + 1] = b.v[i];
    }
}
template <class T>
inline void store_strided(T* p, const asc_vector<T>& s, uint32_t block_stride, const vector_bool& m, Loc loc) {
    for (int b = 0; b < 8; ++b) {
        const uint32_t on = static_cast<uint32_t>(m.w[b / 2] >> (32 * (b % 2)));
        if (!on) continue;
        char* to = reinterpret_cast<char*>(p) + 32 * static_cast<size_t>(block_stride) * static_cast<size_t>(b);
        const char* from = reinterpret_cast<const char*>(s.v) + 32 * b;
        for (int i = 0; i < 32; i += static_cast<int>(sizeof(T))) {
            if (!((on >> i) & 1)) continue;
            std::memcpy(to + i, from + i, sizeof(T));
        }
        const uint32_t need = static_cast<uint32_t>(kLaneBits[sizeof(T)]);
        if ((on & need) == need) {
            ub_touch(to, 32, 32, true, "asc_storealign (datablock strided)", loc, 0.125);
        } else {
            ub_touch(to, 0, 32, true, "asc_storealign (datablock strided)", loc, 0.125);
            for (int i = 0; i < 32; i += static_cast<int>(sizeof(T)))
                if ((on >> i) & 1) ub_touch(to + i, sizeof(T), 1, true, "asc_storealign (datablock strided)", loc, 0);
        }
    }
}

}  // namespace asc_sim

template <class T>
inline void asc_storealign(T* dst, asc_vector<T> src, vector_bool mask, ASC_LOC) {
    asc_sim::store_norm(dst, src, mask, asc_loc);
}
template <class T, class I, class = std::enable_if_t<std::is_integral_v<I>>>
inline void asc_storealign(T* dst, asc_vector<T> src, I offset, vector_bool mask, ASC_LOC) {
    asc_sim::store_norm(dst + static_cast<int32_t>(offset), src, mask, asc_loc);
}
template <class T>
inline void asc_storealign(T* dst, asc_vector<T> src, addr_reg offset, vector_bool mask, ASC_LOC) {
    asc_sim::store_norm(dst + offset.offset, src, mask, asc_loc);
}
template <class T>
inline void asc_storealign_postupdate(T*& dst, asc_vector<T> src, int32_t offset, vector_bool mask, ASC_LOC) {
    asc_sim::store_norm(dst, src, mask, asc_loc);
    dst += offset;
}
template <class T>
inline void asc_storealign_1st(T* dst, asc_vector<T> src, ASC_LOC) {
    asc_sim::store_first(dst, src, asc_loc);
}
template <class T>
inline void asc_storealign_1st(T* dst, asc_vector<T> src, int32_t offset, ASC_LOC) {
    asc_sim::store_first(dst + offset, src, asc_loc);
}
template <class T>
inline void asc_storealign_1st_postupdate(T*& dst, asc_vector<T> src, int32_t offset, ASC_LOC) {
    asc_sim::store_first(dst, src, asc_loc);
    dst += offset;
}
template <class T>
inline void asc_storealign_pack(T* dst, asc_vector<T> src, vector_bool mask, ASC_LOC) {
    asc_sim::store_pack(dst, src, mask, static_cast<int>(sizeof(T) / 2), asc_loc);
}
template <class T>
inline void asc_storealign_pack_postupdate(T*& dst, asc_vector<T> src, int32_t offset, vector_bool mask, ASC_LOC) {
    asc_sim::store_pack(dst, src, mask, static_cast<int>(sizeof(T) / 2), asc_loc);
    dst += offset;
}
template <class T>
inline void asc_storealign_pack_quarter(T* dst, asc_vector<T> src, vector_bool mask, ASC_LOC) {
    static_assert(sizeof(T) == 4);
    asc_sim::store_pack(dst, src, mask, 1, asc_loc);
}
template <class T>
inline void asc_storealign_pack_quarter_postupdate(T*& dst, asc_vector<T> src, int32_t offset, vector_bool mask, ASC_LOC) {
    asc_storealign_pack_quarter(dst, src, mask, asc_loc);
    dst += offset;
}
template <class T>
inline void asc_storealign_pack_v2(T* dst, asc_vector<T> src, vector_bool mask, ASC_LOC) {
    static_assert(sizeof(T) == 4);
    asc_sim::store_pack(dst, src, mask, 1, asc_loc);
}
template <class T>
inline void asc_storealign_intlv(T* dst, asc_vector<T> src0, asc_vector<T> src1, ASC_LOC) {
    asc_sim::store_intlv(dst, src0, src1, asc_loc);
}
template <class T>
inline void asc_storealign_intlv(T* dst, asc_vector<T> src0, asc_vector<T> src1, int32_t offset, ASC_LOC) {
    asc_sim::store_intlv(dst + offset, src0, src1, asc_loc);
}
template <class T>
inline void asc_storealign_intlv_postupdate(T*& dst, asc_vector<T> src0, asc_vector<T> src1, int32_t offset, ASC_LOC) {
    asc_sim::store_intlv(dst, src0, src1, asc_loc);
    dst += offset;
}
template <class T>
inline void asc_storealign(T* dst, asc_vector<T> src, uint16_t block_stride, uint16_t repeat_stride, vector_bool mask,
                           ASC_LOC) {
    asc_sim::store_strided(dst + repeat_stride * (32 / sizeof(T)), src, block_stride, mask, asc_loc);
}
template <class T>
inline void asc_storealign_postupdate(T*& dst, asc_vector<T> src, uint16_t block_stride, uint16_t repeat_stride,
                                      vector_bool mask, ASC_LOC) {
    asc_sim::store_strided(dst, src, block_stride, mask, asc_loc);
    dst += repeat_stride * (32 / sizeof(T));
}
// The built-in under the two calls above, for kernels that use it: config = block stride << 16 | repeat stride, the repeat
// stride moves the address (or, when post-updating, the pointer afterwards).
template <class T>
inline void vsstb(asc_vector<T> src, T* dst, int32_t config, vector_bool mask, ASC_LOC) {
    const auto c = static_cast<uint32_t>(config);
    asc_sim::store_strided(dst + (c & 0xFFFF) * (32 / sizeof(T)), src, c >> 16, mask, asc_loc);
}
template <class T>
inline void vsstb(asc_vector<T> src, T*& dst, int32_t config, vector_bool mask, asc_sim::PostUpdate, ASC_LOC) {
    const auto c = static_cast<uint32_t>(config);
    asc_sim::store_strided(dst, src, c >> 16, mask, asc_loc);
    dst += (c & 0xFFFF) * (32 / sizeof(T));
}
inline void asc_storealign(uint32_t* dst, vector_bool src, ASC_LOC) {
    asc_sim::ub_touch(dst, 32, 32, true, "asc_storealign (mask)", asc_loc);
    std::memcpy(dst, src.w, 32);
}

// Unaligned stores. The register holds a tail back until the _post call, so nothing of it may be read before that.
template <class T>
inline void asc_storeunalign_postupdate(T*& dst, vector_store_unalign& reg, asc_vector<T> src, uint32_t count, ASC_LOC) {
    char held[32 + 256];
    char* at = reinterpret_cast<char*>(dst) - reg.count;
    std::memcpy(held, reg.held, reg.count);
    std::memcpy(held + reg.count, src.v, count * sizeof(T));
    const uint32_t total = reg.count + static_cast<uint32_t>(count * sizeof(T));
    uint32_t tail = static_cast<uint32_t>((reinterpret_cast<uintptr_t>(at) + total) % 32);
    if (tail > total) tail = total;
    asc_sim::ub_touch(at, total - tail, 1, true, "asc_storeunalign", asc_loc);
    std::memcpy(at, held, total - tail);
    std::memcpy(reg.held, held + total - tail, tail);
    reg.count = tail;
    dst += count;
}
template <class T>
inline void asc_storeunalign_post_postupdate(T*& dst, vector_store_unalign& reg, int32_t offset, ASC_LOC) {
    char* at = reinterpret_cast<char*>(dst) - reg.count;
    asc_sim::ub_touch(at, reg.count, 1, true, "asc_storeunalign_post", asc_loc);
    std::memcpy(at, reg.held, reg.count);
    reg.count = 0;
    dst += offset;
}

template <class T, class I>
inline void asc_scatter(T* dst, asc_vector<T> src, asc_vector<I> index, vector_bool mask, ASC_LOC) {
    static_assert(sizeof(I) == sizeof(T), "the index register must have as many lanes as the data register");
    for (int i = 0; i < asc_vector<T>::lanes; ++i) {
        if (!asc_sim::lane(mask, i, sizeof(T))) continue;
        asc_sim::ub_touch(dst + index.v[i], sizeof(T), sizeof(T), true, "asc_scatter", asc_loc, 0.125);
        dst[index.v[i]] = src.v[i];
    }
}

// Orders UB accesses inside one vector function; registers alone do not.
inline void asc_mem_bar(MEM_TYPE kind, ASC_LOC) { asc_sim::vf_mem_bar(kind, asc_loc); }
inline void mem_bar(MEM_TYPE kind, ASC_LOC) { asc_sim::vf_mem_bar(kind, asc_loc); }
