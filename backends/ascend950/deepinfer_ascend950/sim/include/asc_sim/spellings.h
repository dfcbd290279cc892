// Other spellings of the calls: the forms that wait for their result, and the compiler built-ins that kernels use where the
// C names are younger than they. Argument orders are those of public kernels.
#pragma once
#include "cube.h"
#include "dma.h"
#include "sync.h"

// name_sync(...) = name(...) and a barrier over all pipes of the core. Macros, so that messages name the caller's line.
#define ASC_SIM_THEN_SYNC(...) ((__VA_ARGS__), asc_sync())
#define asc_copy_gm2ub_sync(...) ASC_SIM_THEN_SYNC(asc_copy_gm2ub(__VA_ARGS__))
#define asc_copy_gm2ub_align_sync(...) ASC_SIM_THEN_SYNC(asc_copy_gm2ub_align(__VA_ARGS__))
#define asc_copy_ub2gm_sync(...) ASC_SIM_THEN_SYNC(asc_copy_ub2gm(__VA_ARGS__))
#define asc_copy_ub2gm_align_sync(...) ASC_SIM_THEN_SYNC(asc_copy_ub2gm_align(__VA_ARGS__))
#define asc_copy_ub2ub_sync(...) ASC_SIM_THEN_SYNC(asc_copy_ub2ub(__VA_ARGS__))
#define asc_copy_ub2l1_sync(...) ASC_SIM_THEN_SYNC(asc_copy_ub2l1(__VA_ARGS__))
#define asc_copy_gm2l1_sync(...) ASC_SIM_THEN_SYNC(asc_copy_gm2l1(__VA_ARGS__))
#define asc_copy_gm2l1_align_sync(...) ASC_SIM_THEN_SYNC(asc_copy_gm2l1_align(__VA_ARGS__))
#define asc_copy_gm2l1_nd2nz_sync(...) ASC_SIM_THEN_SYNC(asc_copy_gm2l1_nd2nz(__VA_ARGS__))
#define asc_copy_gm2l1_dn2nz_sync(...) ASC_SIM_THEN_SYNC(asc_copy_gm2l1_dn2nz(__VA_ARGS__))
#define asc_fill_l1_sync(...) ASC_SIM_THEN_SYNC(asc_fill_l1(__VA_ARGS__))
#define asc_copy_l12l0a_sync(...) ASC_SIM_THEN_SYNC(asc_copy_l12l0a(__VA_ARGS__))
#define asc_copy_l12l0b_sync(...) ASC_SIM_THEN_SYNC(asc_copy_l12l0b(__VA_ARGS__))
#define asc_copy_l12l0a_transpose_sync(...) ASC_SIM_THEN_SYNC(asc_copy_l12l0a_transpose(__VA_ARGS__))
#define asc_copy_l12l0b_transpose_sync(...) ASC_SIM_THEN_SYNC(asc_copy_l12l0b_transpose(__VA_ARGS__))
#define asc_copy_l12l0a_mx_sync(...) ASC_SIM_THEN_SYNC(asc_copy_l12l0a_mx(__VA_ARGS__))
#define asc_copy_l12l0b_mx_sync(...) ASC_SIM_THEN_SYNC(asc_copy_l12l0b_mx(__VA_ARGS__))
#define asc_copy_l12bt_sync(...) ASC_SIM_THEN_SYNC(asc_copy_l12bt(__VA_ARGS__))
#define asc_copy_l12fb_sync(...) ASC_SIM_THEN_SYNC(asc_copy_l12fb(__VA_ARGS__))
#define asc_copy_l12ub_sync(...) ASC_SIM_THEN_SYNC(asc_copy_l12ub(__VA_ARGS__))
#define asc_copy_l0c2ub_sync(...) ASC_SIM_THEN_SYNC(asc_copy_l0c2ub(__VA_ARGS__))
#define asc_copy_l0c2gm_sync(...) ASC_SIM_THEN_SYNC(asc_copy_l0c2gm(__VA_ARGS__))
#define asc_copy_l0c2l1_sync(...) ASC_SIM_THEN_SYNC(asc_copy_l0c2l1(__VA_ARGS__))
#define asc_mmad_sync(...) ASC_SIM_THEN_SYNC(asc_mmad(__VA_ARGS__))
#define asc_mmad_mx_sync(...) ASC_SIM_THEN_SYNC(asc_mmad_mx(__VA_ARGS__))

// Copies between GM and UB; `sid` picks a stream of the DMA engine and changes nothing here.
template <class T>
inline void copy_gm_to_ubuf_align_v2(T* dst, T* src, uint8_t, uint32_t burst_count, uint32_t burst_len, uint8_t left, uint8_t right,
                                     bool constant_pad, uint8_t l2_cache, uint64_t src_stride, uint32_t dst_stride, ASC_LOC) {
    asc_copy_gm2ub_align(dst, src, burst_count, burst_len, left, right, constant_pad, l2_cache, src_stride, dst_stride, asc_loc);
}
template <class T>
inline void copy_ubuf_to_gm_align_v2(T* dst, T* src, uint8_t, uint32_t burst_count, uint32_t burst_len, uint8_t l2_cache,
                                     uint64_t dst_stride, uint32_t src_stride, ASC_LOC) {
    asc_copy_ub2gm_align(dst, src, burst_count, burst_len, l2_cache, dst_stride, src_stride, asc_loc);
}

// Operands of the cube.
inline void set_mte2_nz_para(uint64_t config, ASC_LOC) { asc_set_gm2l1_nz_para(config, asc_loc); }
template <class T>
inline void copy_gm_to_cbuf_multi_nd2nz(T* dst, T* src, uint8_t, uint64_t row_stride, uint8_t l2_cache, uint16_t n, uint32_t d,
                                        uint64_t matrix_stride, bool small_c0, ASC_LOC) {
    asc_copy_gm2l1_nd2nz(dst, src, row_stride, l2_cache, n, d, matrix_stride, small_c0, asc_loc);
}
template <class T>
inline void copy_gm_to_cbuf_multi_dn2nz(T* dst, T* src, uint8_t, uint64_t row_stride, uint8_t l2_cache, uint16_t n, uint32_t d,
                                        uint64_t matrix_stride, bool small_c0, ASC_LOC) {
    asc_copy_gm2l1_dn2nz(dst, src, row_stride, l2_cache, n, d, matrix_stride, small_c0, asc_loc);
}
template <class T>
inline void load_cbuf_to_ca(T* dst, T* src, uint16_t m0, uint16_t k0, uint8_t m_step, uint8_t k_step, int16_t src_stride,
                            uint16_t dst_stride, bool transpose, ASC_LOC) {
    if (transpose) asc_copy_l12l0a_transpose(dst, src, m0, k0, m_step, k_step, src_stride, dst_stride, asc_loc);
    else asc_copy_l12l0a(dst, src, m0, k0, m_step, k_step, src_stride, dst_stride, asc_loc);
}
template <class T>
inline void load_cbuf_to_cb(T* dst, T* src, uint16_t m0, uint16_t k0, uint8_t m_step, uint8_t k_step, int16_t src_stride,
                            uint16_t dst_stride, bool transpose, ASC_LOC) {
    if (transpose) asc_copy_l12l0b_transpose(dst, src, m0, k0, m_step, k_step, src_stride, dst_stride, asc_loc);
    else asc_copy_l12l0b(dst, src, m0, k0, m_step, k_step, src_stride, dst_stride, asc_loc);
}
template <class C, class A, class B>
inline void mad(C* c, A* a, B* b, uint16_t m, uint16_t k, uint16_t n, uint8_t unit_flag, bool disable_gemv, bool c_source, bool c_init,
                ASC_LOC) {
    asc_mmad(c, a, b, m, k, n, unit_flag, disable_gemv, c_source, c_init, asc_loc);
}
template <class C, class A, class B>
inline void mad_mx(C* c, A* a, B* b, uint16_t m, uint16_t k, uint16_t n, uint8_t unit_flag, bool disable_gemv, bool c_source,
                   bool c_init, ASC_LOC) {
    asc_mmad_mx(c, a, b, m, k, n, unit_flag, disable_gemv, c_source, c_init, asc_loc);
}

// The FixPipe. What the part does not have (its documentation and kernels pass zeros) must be zero.
inline void set_loop3_para(uint64_t config) {  // matrices, distance in L0C, distance in the destination
    asc_set_l0c_copy_nz_para(static_cast<uint16_t>(config), static_cast<uint16_t>(config >> 16), static_cast<uint32_t>(config >> 32));
}
namespace asc_sim {
inline void must_be_zero(const char* name, uint64_t all, Loc loc) {
    if (all) fail(name, "post-quantisation, element-wise operations, loop enhancement and padding are not modelled; pass 0", loc);
}
}  // namespace asc_sim
#define ASC_SIM_FIX_REST                                                                                                   \
    uint64_t quant_post, uint8_t relu_post, bool clip_post, bool enhance, uint8_t eltwise, bool antiquant, bool merge, bool pad, \
        bool wino, bool broadcast
#define ASC_SIM_FIX_ZERO quant_post | relu_post | clip_post | enhance | eltwise | antiquant | merge | pad | wino | broadcast
template <class D, class S>
inline void copy_matrix_cc_to_gm(D* dst, S* src, uint8_t, uint16_t n, uint16_t m, uint32_t dst_stride, uint16_t src_stride, uint8_t l2_cache,
                                 uint8_t clip, uint8_t unit_flag, uint64_t quant, uint8_t relu, bool split, bool nz2nd, ASC_SIM_FIX_REST,
                                 bool nz2dn, ASC_LOC) {
    asc_sim::must_be_zero("copy_matrix_cc_to_gm", ASC_SIM_FIX_ZERO, asc_loc);
    asc_copy_l0c2gm(dst, src, n, m, dst_stride, src_stride, l2_cache, clip, unit_flag, quant, relu, split, nz2nd, 0, 0, false, 0, false, false, false,
                    nz2dn, asc_loc);
}
template <class D, class S>
inline void copy_matrix_cc_to_ub(D* dst, S* src, uint8_t, uint16_t n, uint16_t m, uint32_t dst_stride, uint16_t src_stride, uint8_t dual,
                                 bool sub_blockid, uint8_t clip, uint8_t unit_flag, uint64_t quant, uint8_t relu, bool split, bool nz2nd,
                                 ASC_SIM_FIX_REST, bool nz2dn, ASC_LOC) {
    asc_sim::must_be_zero("copy_matrix_cc_to_ub", ASC_SIM_FIX_ZERO, asc_loc);
    asc_copy_l0c2ub(dst, src, n, m, dst_stride, src_stride, dual, sub_blockid, clip, unit_flag, quant, relu, split, nz2nd, 0, 0, false, 0, false,
                    false, false, nz2dn, asc_loc);
}
#undef ASC_SIM_FIX_REST
#undef ASC_SIM_FIX_ZERO
