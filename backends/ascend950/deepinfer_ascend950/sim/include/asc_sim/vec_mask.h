// Mask registers: creation from patterns and counts, logic, packing.
#pragma once
#include "vec_types.h"

namespace asc_sim {

inline vector_bool mask_of(int pat, int size) {
    static constexpr int low[11] = {0, 1, 2, 3, 4, 8, 16, 32, 64, 128, 0};
    vector_bool m{};
    const int n = 256 / size;
    for (int i = 0; i < n; ++i) {
        bool on = false;
        if (pat == PAT_ALL) on = true;
        else if (pat >= PAT_VL1 && pat <= PAT_VL128) on = i < low[pat];
        else if (pat == PAT_M3) on = i % 3 == 0;
        else if (pat == PAT_M4) on = i % 4 == 0;
        else if (pat == PAT_H) on = i < n / 2;
        else if (pat == PAT_Q) on = i < n / 4;
        set_lane(m, i, size, on);
    }
    return m;
}
inline vector_bool mask_count(uint32_t& count, int size) {
    vector_bool m{};
    const uint32_t n = 256u / static_cast<uint32_t>(size), take = count < n ? count : n;
    for (uint32_t i = 0; i < take; ++i) set_lane(m, static_cast<int>(i), size, true);
    count -= take;
    return m;
}
template <class F>
inline void mask_bits(vector_bool& dst, const vector_bool& m, F f) {
    for (int i = 0; i < 4; ++i) dst.w[i] = f(i) & m.w[i];
}
inline bool bit(const vector_bool& m, int i) { return (m.w[i >> 6] >> (i & 63)) & 1; }

}  // namespace asc_sim

inline vector_bool asc_create_mask_b8(int pat) { return asc_sim::mask_of(pat, 1); }
inline vector_bool asc_create_mask_b16(int pat) { return asc_sim::mask_of(pat, 2); }
inline vector_bool asc_create_mask_b32(int pat) { return asc_sim::mask_of(pat, 4); }
inline vector_bool pset_b8(int pat) { return asc_sim::mask_of(pat, 1); }
inline vector_bool pset_b16(int pat) { return asc_sim::mask_of(pat, 2); }
inline vector_bool pset_b32(int pat) { return asc_sim::mask_of(pat, 4); }
// Sets the lowest `value` lanes (at most a register full) and takes them off `value`.
inline vector_bool asc_update_mask_b8(uint32_t& value) { return asc_sim::mask_count(value, 1); }
inline vector_bool asc_update_mask_b16(uint32_t& value) { return asc_sim::mask_count(value, 2); }
inline vector_bool asc_update_mask_b32(uint32_t& value) { return asc_sim::mask_count(value, 4); }

inline void asc_and(vector_bool& d, vector_bool a, vector_bool b, vector_bool m) {
    asc_sim::mask_bits(d, m, [&](int i) { return a.w[i] & b.w[i]; });
}
inline void asc_or(vector_bool& d, vector_bool a, vector_bool b, vector_bool m) {
    asc_sim::mask_bits(d, m, [&](int i) { return a.w[i] | b.w[i]; });
}
inline void asc_xor(vector_bool& d, vector_bool a, vector_bool b, vector_bool m) {
    asc_sim::mask_bits(d, m, [&](int i) { return a.w[i] ^ b.w[i]; });
}
inline void asc_not(vector_bool& d, vector_bool a, vector_bool m) {
    asc_sim::mask_bits(d, m, [&](int i) { return ~a.w[i]; });
}
inline void asc_copy(vector_bool& d, vector_bool a, vector_bool m) {
    asc_sim::mask_bits(d, m, [&](int i) { return a.w[i]; });
}
inline void asc_select(vector_bool& d, vector_bool a, vector_bool b, vector_bool m) {
    for (int i = 0; i < 4; ++i) d.w[i] = (a.w[i] & m.w[i]) | (b.w[i] & ~m.w[i]);
}
// The lower (upper) half of the bits, each widened to two places; the inverse takes every second bit.
inline void asc_unpack_lower(vector_bool& d, vector_bool s) {
    vector_bool r{};
    for (int i = 0; i < 128; ++i) asc_sim::set_lane(r, 2 * i, 1, asc_sim::bit(s, i));
    d = r;
}
inline void asc_unpack_upper(vector_bool& d, vector_bool s) {
    vector_bool r{};
    for (int i = 0; i < 128; ++i) asc_sim::set_lane(r, 2 * i, 1, asc_sim::bit(s, 128 + i));
    d = r;
}
inline void asc_pack_to_low(vector_bool& d, vector_bool s) {
    vector_bool r{};
    for (int i = 0; i < 128; ++i) asc_sim::set_lane(r, i, 1, asc_sim::bit(s, 2 * i));
    d = r;
}
inline void asc_pack_to_high(vector_bool& d, vector_bool s) {
    vector_bool r{};
    for (int i = 0; i < 128; ++i) asc_sim::set_lane(r, 128 + i, 1, asc_sim::bit(s, 2 * i));
    d = r;
}
