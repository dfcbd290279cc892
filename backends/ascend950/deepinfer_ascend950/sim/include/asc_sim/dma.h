// Copies between memories. Types and argument order are the vendor's; the type only decides element sizes. Older
// spellings take plain numbers where newer ones take enumerations; both are here.
#pragma once
#include "core.h"
#include "scalar.h"

namespace asc_sim {
struct AlignCopy {
    uint32_t count, len;
    uint8_t left, right;
    bool constant_pad;
    uint64_t gm_stride;
    uint32_t ub_stride;
    uint32_t esize;
};
void gm2ub(void* dst, const void* src, uint32_t count, uint32_t len, uint64_t src_stride, uint64_t dst_stride, Loc loc);
void ub2gm(void* dst, const void* src, uint32_t count, uint32_t len, uint64_t dst_stride, uint64_t src_stride, Loc loc);
void gm2ub_align(void* dst, const void* src, AlignCopy c, Loc loc);
void ub2gm_align(void* dst, const void* src, AlignCopy c, Loc loc);
void gm2l1_align(void* dst, const void* src, AlignCopy c, Loc loc);
void gm2l1(void* dst, const void* src, uint32_t count, uint32_t len, uint64_t src_stride, uint64_t dst_stride, Loc loc);
void ub2l1(void* dst, const void* src, uint32_t count, uint32_t len32, uint32_t src_gap, uint32_t dst_gap, Loc loc);
void ub2ub(void* dst, const void* src, uint32_t count, uint32_t len32, uint32_t src_gap, uint32_t dst_gap, Loc loc);
void l12ub(void* dst, const void* src, int aiv, uint32_t count, uint32_t len32, uint32_t src_gap, uint32_t dst_gap, Loc loc);
void nd2nz(void* dst, const void* src, uint64_t row_stride, uint32_t n, uint32_t d, uint64_t matrix_stride, bool small_c0,
           uint32_t esize, bool dn, Loc loc);
void fill_l1(void* dst, uint32_t pattern, uint32_t esize, asc_fill_value_config cfg, Loc loc);
void l12l0(bool b, void* dst, const void* src, uint32_t m0, uint32_t k0, uint32_t m_step, uint32_t k_step, int32_t src_stride,
           uint32_t dst_stride, uint32_t bits, bool transpose, Loc loc);
void l12l0_mx(bool b, uint64_t dst, const void* src, uint32_t x0, uint32_t y0, uint32_t x_step, uint32_t y_step,
              uint32_t src_stride, uint32_t dst_stride, Loc loc);
void l12bt(uint64_t dst, const void* src, uint32_t count, uint32_t len, uint32_t src_gap, uint32_t dst_gap, uint32_t from,
           bool widen, Loc loc);
void l12fb(void* dst, const void* src, uint32_t count, uint32_t len, uint32_t src_gap, uint32_t dst_gap, Loc loc);
void set_loop(int path, int which, uint64_t a, uint64_t b, Loc loc);  // path 0 gm2ub 1 ub2gm 2 gm2l1; which 0 sizes 1/2 strides
void set_pad(uint64_t bits);
void set_nz_para(uint64_t config, Loc loc);

// Bits per element; the 4-bit types hold two elements per byte.
template <class T>
inline constexpr uint32_t bits_of = 8 * sizeof(T);
template <>
inline constexpr uint32_t bits_of<fp4x2_e2m1_t> = 4;
template <>
inline constexpr uint32_t bits_of<fp4x2_e1m2_t> = 4;
template <>
inline constexpr uint32_t bits_of<int4b_t> = 4;
}  // namespace asc_sim

// --- UB <-> GM -----------------------------------------------------------------------------------------------------
// Lengths and strides in bytes; strides run from the head of one burst to the head of the next.
inline void asc_copy_gm2ub(void* dst, void* src, uint16_t burst_count, uint16_t burst_len, uint16_t src_stride, uint16_t dst_stride, ASC_LOC) {
    asc_sim::gm2ub(dst, src, burst_count, burst_len, src_stride, dst_stride, asc_loc);
}
inline void asc_copy_gm2ub(void* dst, void* src, uint32_t size, ASC_LOC) { asc_sim::gm2ub(dst, src, 1, size, 0, 0, asc_loc); }
inline void asc_copy_ub2gm(void* dst, void* src, uint16_t burst_count, uint16_t burst_len, uint16_t dst_stride, uint16_t src_stride, ASC_LOC) {
    asc_sim::ub2gm(dst, src, burst_count, burst_len, dst_stride, src_stride, asc_loc);
}
inline void asc_copy_ub2gm(void* dst, void* src, uint32_t size, ASC_LOC) { asc_sim::ub2gm(dst, src, 1, size, 0, 0, asc_loc); }

template <class T>
inline void asc_copy_gm2ub_align(T* dst, T* src, uint32_t burst_count, uint32_t burst_len, uint8_t left_padding_num,
                                 uint8_t right_padding_num, bool enable_constant_pad, asc_load_l2_cache_mode, uint64_t src_stride,
                                 uint32_t dst_stride, ASC_LOC) {
    asc_sim::gm2ub_align(dst, src, {burst_count, burst_len, left_padding_num, right_padding_num, enable_constant_pad, src_stride, dst_stride, sizeof(T)}, asc_loc);
}
template <class T>
inline void asc_copy_gm2ub_align(T* dst, T* src, uint32_t burst_count, uint32_t burst_len, uint8_t left_padding_num,
                                 uint8_t right_padding_num, bool enable_constant_pad, uint8_t, uint64_t src_stride,
                                 uint32_t dst_stride, ASC_LOC) {
    asc_sim::gm2ub_align(dst, src, {burst_count, burst_len, left_padding_num, right_padding_num, enable_constant_pad, src_stride, dst_stride, sizeof(T)}, asc_loc);
}
template <class T>
inline void asc_copy_gm2ub_align(T* dst, T* src, uint32_t size, ASC_LOC) {
    asc_sim::gm2ub_align(dst, src, {1, size, 0, 0, false, 0, 0, sizeof(T)}, asc_loc);
}
template <class T>
inline void asc_copy_ub2gm_align(T* dst, T* src, uint32_t burst_count, uint32_t burst_len, asc_store_l2_cache_mode, uint64_t dst_stride,
                                 uint32_t src_stride, ASC_LOC) {
    asc_sim::ub2gm_align(dst, src, {burst_count, burst_len, 0, 0, false, dst_stride, src_stride, sizeof(T)}, asc_loc);
}
template <class T>
inline void asc_copy_ub2gm_align(T* dst, T* src, uint32_t burst_count, uint32_t burst_len, uint8_t, uint64_t dst_stride,
                                 uint32_t src_stride, ASC_LOC) {
    asc_sim::ub2gm_align(dst, src, {burst_count, burst_len, 0, 0, false, dst_stride, src_stride, sizeof(T)}, asc_loc);
}
template <class T>
inline void asc_copy_ub2gm_align(T* dst, T* src, uint32_t size, ASC_LOC) {
    asc_sim::ub2gm_align(dst, src, {1, size, 0, 0, false, 0, 0, sizeof(T)}, asc_loc);
}
// State of the align copies: outer loops round the bursts, and the padding value. Both stay until set again.
inline void asc_set_gm2ub_loop_size(uint64_t loop1, uint64_t loop2, ASC_LOC) { asc_sim::set_loop(0, 0, loop1, loop2, asc_loc); }
inline void asc_set_gm2ub_loop1_stride(uint64_t src, uint64_t dst, ASC_LOC) { asc_sim::set_loop(0, 1, src, dst, asc_loc); }
inline void asc_set_gm2ub_loop2_stride(uint64_t src, uint64_t dst, ASC_LOC) { asc_sim::set_loop(0, 2, src, dst, asc_loc); }
inline void asc_set_ub2gm_loop_size(uint32_t loop1, uint32_t loop2, ASC_LOC) { asc_sim::set_loop(1, 0, loop1, loop2, asc_loc); }
inline void asc_set_ub2gm_loop1_stride(uint64_t src, uint64_t dst, ASC_LOC) { asc_sim::set_loop(1, 1, src, dst, asc_loc); }
inline void asc_set_ub2gm_loop2_stride(uint64_t src, uint64_t dst, ASC_LOC) { asc_sim::set_loop(1, 2, src, dst, asc_loc); }
inline void asc_set_gm2l1_loop_size(uint64_t loop1, uint64_t loop2, ASC_LOC) { asc_sim::set_loop(2, 0, loop1, loop2, asc_loc); }
inline void asc_set_gm2l1_loop1_stride(uint64_t src, uint64_t dst, ASC_LOC) { asc_sim::set_loop(2, 1, src, dst, asc_loc); }
inline void asc_set_gm2l1_loop2_stride(uint64_t src, uint64_t dst, ASC_LOC) { asc_sim::set_loop(2, 2, src, dst, asc_loc); }
template <class T>
inline void asc_set_copy_pad_val(T value) {
    uint64_t bits = 0;
    for (size_t i = 0; i < 8; i += sizeof(T)) std::memcpy(reinterpret_cast<char*>(&bits) + i, &value, sizeof(T));
    asc_sim::set_pad(bits);
}

// --- UB <-> L1 ------------------------------------------------------------------------------------------------------
// Lengths and gaps in 32-byte units; a gap runs from the end of one burst to the head of the next.
inline void asc_copy_ub2l1(void* dst, void* src, uint16_t burst_count, uint16_t burst_len, uint16_t src_gap, uint16_t dst_gap, ASC_LOC) {
    asc_sim::ub2l1(dst, src, burst_count, burst_len, src_gap, dst_gap, asc_loc);
}
inline void asc_copy_ub2l1(void* dst, void* src, uint32_t size, ASC_LOC) {
    if (size % 32) asc_sim::fail("asc_copy_ub2l1", "size must be a multiple of 32 bytes (the rest would be dropped)", asc_loc);
    asc_sim::ub2l1(dst, src, 1, size / 32, 0, 0, asc_loc);
}
inline void asc_copy_l12ub(void* dst, void* src, int8_t sub_blockid, uint16_t burst_count, uint16_t burst_len, uint16_t src_gap, uint16_t dst_gap, ASC_LOC) {
    asc_sim::l12ub(dst, src, sub_blockid, burst_count, burst_len, src_gap, dst_gap, asc_loc);
}
inline void asc_copy_ub2ub(void* dst, void* src, uint16_t burst_count, uint16_t burst_len, uint16_t src_gap, uint16_t dst_gap, ASC_LOC) {
    asc_sim::ub2ub(dst, src, burst_count, burst_len, src_gap, dst_gap, asc_loc);
}

// --- GM -> L1 -------------------------------------------------------------------------------------------------------
inline void asc_copy_gm2l1(void* dst, void* src, uint32_t size, ASC_LOC) { asc_sim::gm2l1(dst, src, 1, size, 0, 0, asc_loc); }
// Lengths and strides (head to head) in 32-byte units.
inline void asc_copy_gm2l1(void* dst, void* src, uint32_t n_burst, uint32_t len_burst, uint8_t pad_func_mode, uint64_t src_stride,
                           uint32_t dst_stride, ASC_LOC) {
    if (pad_func_mode) asc_sim::fail("asc_copy_gm2l1", "channel padding modes are not modelled; use mode 0", asc_loc);
    asc_sim::gm2l1(dst, src, n_burst, len_burst * 32, src_stride * 32, dst_stride * 32ull, asc_loc);
}
inline void asc_copy_gm2l1(void* dst, void* src, uint32_t n_burst, uint32_t len_burst, asc_channel_pad_mode mode, uint64_t src_stride,
                           uint32_t dst_stride, ASC_LOC) {
    asc_copy_gm2l1(dst, src, n_burst, len_burst, static_cast<uint8_t>(mode), src_stride, dst_stride, asc_loc);
}
template <class T>
inline void asc_copy_gm2l1_align(T* dst, T* src, uint32_t burst_count, uint32_t burst_len, uint8_t left, uint8_t right, bool constant_pad,
                                 asc_load_l2_cache_mode, uint64_t src_stride, uint32_t dst_stride, ASC_LOC) {
    asc_sim::gm2l1_align(dst, src, {burst_count, burst_len, left, right, constant_pad, src_stride, dst_stride, sizeof(T)}, asc_loc);
}
template <class T>
inline void asc_copy_gm2l1_align(T* dst, T* src, uint32_t burst_count, uint32_t burst_len, uint8_t left, uint8_t right, bool constant_pad,
                                 uint8_t, uint64_t src_stride, uint32_t dst_stride, ASC_LOC) {
    asc_sim::gm2l1_align(dst, src, {burst_count, burst_len, left, right, constant_pad, src_stride, dst_stride, sizeof(T)}, asc_loc);
}
// State register: matrices, destination row stride, destination column-block (C0) stride, matrix stride; 32-byte units.
inline void asc_set_gm2l1_nz_para(uint64_t config, ASC_LOC) { asc_sim::set_nz_para(config, asc_loc); }
inline void asc_set_gm2l1_nz_para(uint16_t matrix_num, uint16_t n_stride, uint16_t c0_stride, uint16_t matrix_stride, ASC_LOC) {
    asc_sim::set_nz_para((uint64_t{matrix_stride} << 48) | (uint64_t{c0_stride} << 32) | (uint64_t{n_stride} << 16) | matrix_num, asc_loc);
}
#define ASC_NZ(name, dn)                                                                                                       \
    template <class T>                                                                                                         \
    inline void name(T* dst, T* src, uint64_t src_row_stride, asc_load_l2_cache_mode, uint16_t n_value, uint32_t d_value,      \
                     uint64_t src_matrix_stride, bool small_c0, ASC_LOC) {                                                     \
        asc_sim::nd2nz(dst, src, src_row_stride, n_value, d_value, src_matrix_stride, small_c0, sizeof(T), dn, asc_loc);       \
    }                                                                                                                          \
    template <class T>                                                                                                         \
    inline void name(T* dst, T* src, uint64_t src_row_stride, uint8_t, uint16_t n_value, uint32_t d_value,                     \
                     uint64_t src_matrix_stride, bool small_c0, ASC_LOC) {                                                     \
        asc_sim::nd2nz(dst, src, src_row_stride, n_value, d_value, src_matrix_stride, small_c0, sizeof(T), dn, asc_loc);       \
    }
ASC_NZ(asc_copy_gm2l1_nd2nz, false)
ASC_NZ(asc_copy_gm2l1_dn2nz, true)
#undef ASC_NZ
template <class T, class V>
inline void asc_fill_l1(T* dst, V value, const asc_fill_value_config& config, ASC_LOC) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(V) < 4 ? sizeof(V) : 4);
    if (sizeof(V) == 2 || (sizeof(T) == 2 && sizeof(V) == 4)) bits = (bits & 0xFFFF) * 0x10001u;
    asc_sim::fill_l1(dst, bits, sizeof(T), config, asc_loc);
}

// --- L1 -> L0A, L0B and their scales -----------------------------------------------------------------------------------
// Positions: rows in units of 16, columns in units of 32 bytes; strides in 512-byte fractals.
#define ASC_L0(name, is_b, trans)                                                                                              \
    template <class T>                                                                                                         \
    inline void name(T* dst, T* src, uint16_t m_start_position, uint16_t k_start_position, uint8_t m_step, uint8_t k_step,     \
                     int16_t src_stride, uint16_t dst_stride, ASC_LOC) {                                                       \
        asc_sim::l12l0(is_b, dst, src, m_start_position, k_start_position, m_step, k_step, src_stride, dst_stride,             \
                       asc_sim::bits_of<T>, trans, asc_loc);                                                                   \
    }
ASC_L0(asc_copy_l12l0a, false, false)
ASC_L0(asc_copy_l12l0b, true, false)
ASC_L0(asc_copy_l12l0a_transpose, false, true)
ASC_L0(asc_copy_l12l0b_transpose, true, true)
#undef ASC_L0
inline void asc_copy_l12l0a_mx(uint64_t dst, fp8_e8m0_t* src, uint16_t x_start_pos, uint16_t y_start_pos, uint8_t x_step, uint8_t y_step,
                               uint16_t src_stride, uint16_t dst_stride, ASC_LOC) {
    asc_sim::l12l0_mx(false, dst, src, x_start_pos, y_start_pos, x_step, y_step, src_stride, dst_stride, asc_loc);
}
inline void asc_copy_l12l0b_mx(uint64_t dst, fp8_e8m0_t* src, uint16_t x_start_pos, uint16_t y_start_pos, uint8_t x_step, uint8_t y_step,
                               uint16_t src_stride, uint16_t dst_stride, ASC_LOC) {
    asc_sim::l12l0_mx(true, dst, src, x_start_pos, y_start_pos, x_step, y_step, src_stride, dst_stride, asc_loc);
}
// Bias table: lengths and gaps in 32-byte units of the source (destination gap: of the destination). bfloat16 is always
// widened to float on the way, half only when conv_control is 1.
template <class T>
inline void asc_copy_l12bt(uint64_t dst, T* src, uint16_t conv_control, uint16_t n_burst, uint16_t len_burst, uint16_t source_gap,
                           uint16_t dst_gap, ASC_LOC) {
    if (std::is_same_v<T, half> && !(conv_control & 1))
        asc_sim::fail("asc_copy_l12bt", "half without conversion leaves placeholder bits in the table: not modelled", asc_loc);
    asc_sim::l12bt(dst, src, n_burst, len_burst, source_gap, dst_gap, std::is_same_v<T, half> ? 1 : 0, sizeof(T) == 2, asc_loc);
}
template <class T>
inline void asc_copy_l12bt(uint64_t dst, T* src, uint32_t size, ASC_LOC) {
    asc_copy_l12bt(dst, src, static_cast<uint16_t>(std::is_same_v<T, half>), 1, static_cast<uint16_t>(size / 32), 0, 0, asc_loc);
}
// Quantisation table: length in 64-byte units, gaps in 32-byte units; runs on the FixPipe.
inline void asc_copy_l12fb(void* dst, void* src, uint16_t n_burst, uint16_t len_burst, uint16_t src_gap, uint16_t dst_gap, ASC_LOC) {
    asc_sim::l12fb(dst, src, n_burst, len_burst * 64, src_gap, dst_gap, asc_loc);
}
inline void asc_copy_l12fb(void* dst, void* src, uint32_t size, ASC_LOC) { asc_sim::l12fb(dst, src, 1, size / 32 * 32, 0, 0, asc_loc); }
