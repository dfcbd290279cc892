// Vector registers (256 bytes), mask registers (one bit per byte of a register) and address registers.
#pragma once
#include "core.h"
#include "scalar.h"

template <class T>
struct asc_vector {
    using value_type = T;
    static constexpr int lanes = 256 / static_cast<int>(sizeof(T));
    T v[lanes];
};

using vector_int8_t = asc_vector<int8_t>;
using vector_uint8_t = asc_vector<uint8_t>;
using vector_int16_t = asc_vector<int16_t>;
using vector_uint16_t = asc_vector<uint16_t>;
using vector_int32_t = asc_vector<int32_t>;
using vector_uint32_t = asc_vector<uint32_t>;
using vector_int64_t = asc_vector<int64_t>;
using vector_uint64_t = asc_vector<uint64_t>;
using vector_half = asc_vector<half>;
using vector_float = asc_vector<float>;
using vector_bfloat16_t = asc_vector<bfloat16_t>;
using vector_fp8_e4m3fn_t = asc_vector<fp8_e4m3fn_t>;
using vector_fp8_e5m2_t = asc_vector<fp8_e5m2_t>;
using vector_fp8_e8m0_t = asc_vector<fp8_e8m0_t>;
using vector_hifloat8_t = asc_vector<hifloat8_t>;
using vector_fp4x2_e2m1_t = asc_vector<fp4x2_e2m1_t>;
using vector_fp4x2_e1m2_t = asc_vector<fp4x2_e1m2_t>;
using vector_int4x2_t = asc_vector<int4b_t>;
using vector_s8 = vector_int8_t;
using vector_u8 = vector_uint8_t;
using vector_s16 = vector_int16_t;
using vector_u16 = vector_uint16_t;
using vector_s32 = vector_int32_t;
using vector_u32 = vector_uint32_t;
using vector_s64 = vector_int64_t;
using vector_u64 = vector_uint64_t;
using vector_f16 = vector_half;
using vector_f32 = vector_float;
using vector_bf16 = vector_bfloat16_t;
using vector_f8e4m3 = vector_fp8_e4m3fn_t;
using vector_f8e5m2 = vector_fp8_e5m2_t;

struct vector_bool {
    uint64_t w[4];
};
// Holds the elements of an unaligned load or store that have not been moved yet.
struct vector_align {
    const void* at = nullptr;
    uint8_t held[32];
    uint32_t count = 0;
};
using vector_load_unalign = vector_align;
using vector_store_unalign = vector_align;
// The mode word of built-ins that move their pointer.
namespace asc_sim {
struct PostUpdate {};
}
inline constexpr asc_sim::PostUpdate POST_UPDATE{};
struct vector_address {
    int64_t offset = 0;
};
using addr_reg = vector_address;
using iter_reg = vector_address;

inline constexpr int64_t asc_get_vf_len() { return 256; }

namespace asc_sim {

// Lane i of a register with elements of `size` bytes is governed by mask bit i*size.
inline bool lane(const vector_bool& m, int i, int size) {
    const int b = i * size;
    return (m.w[b >> 6] >> (b & 63)) & 1;
}
inline void set_lane(vector_bool& m, int i, int size, bool on) {
    const int b = i * size;
    if (on) m.w[b >> 6] |= uint64_t{1} << (b & 63);
}
inline constexpr uint64_t kLaneBits[9] = {0, ~uint64_t{0}, 0x5555555555555555u, 0, 0x1111111111111111u, 0, 0, 0,
                                          0x0101010101010101u};
inline bool all_lanes(const vector_bool& m, int size) {
    const uint64_t need = kLaneBits[size];
    return (m.w[0] & need) == need && (m.w[1] & need) == need && (m.w[2] & need) == need && (m.w[3] & need) == need;
}

template <class T>
inline T zero_of() {
    T z;
    std::memset(&z, 0, sizeof z);
    return z;
}

// dst lane = f(lane) where the mask is set, zero elsewhere (the device's default mode is zeroing, not merging).
template <class D, class F>
inline void each(asc_vector<D>& dst, const vector_bool& m, F f) {
    constexpr int n = asc_vector<D>::lanes, size = static_cast<int>(sizeof(D));
    alu_op();
    if (all_lanes(m, size)) {
        for (int i = 0; i < n; ++i) dst.v[i] = f(i);
        return;
    }
    for (int i = 0; i < n; ++i) dst.v[i] = lane(m, i, size) ? D(f(i)) : zero_of<D>();
}
// The same for arithmetic: float results are flushed to zero when subnormal if the launch asks for it.
template <class D, class F>
inline void each_ftz(asc_vector<D>& dst, const vector_bool& m, F f) {
    each(dst, m, f);
    if constexpr (std::is_same_v<D, float>) {
        if (!flush()) return;
        for (float& x : dst.v)
            if (x != 0.0f && std::fabs(x) < 1.17549435e-38f) x = std::copysign(0.0f, x);
    }
}

}  // namespace asc_sim
