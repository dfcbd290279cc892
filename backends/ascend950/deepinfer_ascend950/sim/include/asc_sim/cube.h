// Matrix multiply-accumulate and the way out of L0C (FixPipe).
#pragma once
#include "core.h"
#include "scalar.h"

namespace asc_sim {

enum class Elem : uint8_t { bf16, f16, f32, e4m3, e5m2, hif8, i8, e2m1, e1m2, u8, i32 };
template <class T>
struct ElemOf;
#define ASC_ELEM(T, E)                    \
    template <>                           \
    struct ElemOf<T> {                    \
        static constexpr Elem e = Elem::E; \
    };
ASC_ELEM(bfloat16_t, bf16)
ASC_ELEM(half, f16)
ASC_ELEM(float, f32)
ASC_ELEM(fp8_e4m3fn_t, e4m3)
ASC_ELEM(fp8_e5m2_t, e5m2)
ASC_ELEM(hifloat8_t, hif8)
ASC_ELEM(int8_t, i8)
ASC_ELEM(uint8_t, u8)
ASC_ELEM(int32_t, i32)
ASC_ELEM(fp4x2_e2m1_t, e2m1)
ASC_ELEM(fp4x2_e1m2_t, e1m2)
#undef ASC_ELEM

struct MmadArgs {
    void* c;
    const void *a, *b;
    Elem ea, eb;
    uint32_t m, k, n;
    uint8_t unit_flag;
    bool mx, disable_gemv, bias, init;
    uint64_t bias_addr;
};
void mmad(const MmadArgs& args, Loc loc);

struct FixArgs {
    void* dst;
    const void* src;
    Elem to;
    bool from_int;
    uint8_t target;  // 0 GM, 1 UB, 2 L1
    uint32_t n, m, dst_stride, src_stride;
    uint8_t dual, sub, unit_flag;
    QuantMode_t quant;
    uint8_t relu;
    bool channel_split, nz2nd, nz2dn, clip;
};
void fixpipe(const FixArgs& args, Loc loc);
void set_l0c_nz(uint32_t num, uint32_t src_stride, uint32_t dst_stride);
void set_l0c_channel(uint32_t stride);
void set_prequant_bits(uint64_t bits);
void set_l0c_config(uint64_t quant_addr, bool clean_unit_flag, Loc loc);
void set_direction(bool n);
void set_hf32(bool on);
void set_hf32_round(bool even);

template <class A>
inline constexpr bool is_fp8 = std::is_same_v<A, fp8_e4m3fn_t> || std::is_same_v<A, fp8_e5m2_t>;
template <class A>
inline constexpr bool is_fp4 = std::is_same_v<A, fp4x2_e2m1_t> || std::is_same_v<A, fp4x2_e1m2_t>;
// Pairs the cube takes without and with scales.
template <class C, class A, class B>
inline constexpr bool plain_pair =
    (std::is_same_v<A, int8_t> && std::is_same_v<B, int8_t> && std::is_same_v<C, int32_t>) ||
    (std::is_same_v<C, float> && ((is_fp8<A> && is_fp8<B>) ||
                                  (std::is_same_v<A, B> && (std::is_same_v<A, bfloat16_t> || std::is_same_v<A, half> ||
                                                            std::is_same_v<A, float> || std::is_same_v<A, hifloat8_t>))));
}  // namespace asc_sim

// C[m][n] (+)= A[m][k] * B[k][n]; c_matrix_init_val starts from zero, else c_matrix_source picks L0C or the bias table.
#define ASC_MMAD(name, mx, Flag)                                                                                             \
    template <class C, class A, class B>                                                                                     \
    inline void name(C* c, A* a, B* b, uint16_t m, uint16_t k, uint16_t n, Flag unit_flag, bool disable_gemv, bool c_source, \
                     bool c_init, ASC_LOC) {                                                                                 \
        static_assert(mx ? (asc_sim::is_fp8<A> && asc_sim::is_fp8<B>) || (asc_sim::is_fp4<A> && asc_sim::is_fp4<B>)           \
                         : asc_sim::plain_pair<C, A, B>, "the cube does not take this combination of types");                \
        asc_sim::mmad({c, a, b, asc_sim::ElemOf<A>::e, asc_sim::ElemOf<B>::e, m, k, n, static_cast<uint8_t>(unit_flag), mx,   \
                       disable_gemv, !c_init && c_source, c_init, 0}, asc_loc);                                              \
    }                                                                                                                        \
    template <class C, class A, class B>                                                                                     \
    inline void name(C* c, A* a, B* b, uint64_t bias, uint16_t m, uint16_t k, uint16_t n, Flag unit_flag, bool disable_gemv,  \
                     ASC_LOC) {                                                                                              \
        asc_sim::mmad({c, a, b, asc_sim::ElemOf<A>::e, asc_sim::ElemOf<B>::e, m, k, n, static_cast<uint8_t>(unit_flag), mx,   \
                       disable_gemv, true, false, bias}, asc_loc);                                                           \
    }
ASC_MMAD(asc_mmad, false, asc_unit_flag_mode)
ASC_MMAD(asc_mmad, false, uint8_t)
ASC_MMAD(asc_mmad_mx, true, asc_unit_flag_mode)
ASC_MMAD(asc_mmad_mx, true, uint8_t)
#undef ASC_MMAD

inline void asc_set_mmad_direction_m() { asc_sim::set_direction(false); }
inline void asc_set_mmad_direction_n() { asc_sim::set_direction(true); }
inline void asc_enable_hf32() { asc_sim::set_hf32(true); }
inline void asc_disable_hf32() { asc_sim::set_hf32(false); }
inline void asc_set_fp32_mode() { asc_sim::set_hf32(false); }
inline void asc_set_hf32_round_mode(asc_hf32_round_mode mode) { asc_sim::set_hf32_round(mode == asc_hf32_round_mode::NEAREST_EVEN); }
// The operand types of a call say which 8-bit format is meant, so these mode bits need no state here.
inline void asc_enable_fp8() {}
inline void asc_enable_hif8() {}
inline void asc_disable_hif8() {}

inline void asc_set_l0c_copy_nz_para(uint16_t matrix_num, uint16_t src_nz_matrix_stride, uint32_t dst_matrix_stride) {
    asc_sim::set_l0c_nz(matrix_num, src_nz_matrix_stride, dst_matrix_stride);
}
inline void asc_set_l0c2gm_nz2nd(uint64_t nd_num, uint64_t src_nd_stride, uint64_t dst_nd_stride) {
    asc_sim::set_l0c_nz(static_cast<uint32_t>(nd_num), static_cast<uint32_t>(src_nd_stride), static_cast<uint32_t>(dst_nd_stride));
}
// Distance of the rows of a source block, for transposing (NZ2DN) copies; 0 and 1 mean one after the other.
inline void asc_set_l0c_copy_channel_para(uint16_t stride) { asc_sim::set_l0c_channel(stride); }
inline void asc_set_l0c_copy_prequant(uint64_t config) { asc_sim::set_prequant_bits(config); }
inline void asc_set_l0c_copy_prequant(float scale, uint16_t offset, bool is_signed) {
    asc_sim::set_prequant_bits(asc_sim::float_bits(scale) | (static_cast<uint64_t>(offset & 0x1FF) << 37) | (uint64_t{is_signed} << 46));
}
// The address of the table of a vector quantisation, in units of 128 bytes.
inline void asc_set_l0c_copy_config(uint64_t, uint64_t quant_pre_addr, bool clean_unit_flag, ASC_LOC) {
    asc_sim::set_l0c_config(quant_pre_addr, clean_unit_flag, asc_loc);
}
inline void asc_set_l0c2gm_config(uint64_t, uint64_t quant_pre_addr, bool clean_unit_flag, ASC_LOC) {
    asc_sim::set_l0c_config(quant_pre_addr, clean_unit_flag, asc_loc);
}
// Repeats of two-dimensional L0 loads: one, which kernels set before they load, is all that is modelled.
inline void asc_set_l3d_rpt_b(uint64_t config, ASC_LOC) {
    if (config != (uint64_t{1} << 16))
        asc_sim::fail("asc_set_l3d_rpt_b", "only one repeat without a stride (1 << 16) is modelled", asc_loc);
}

#define ASC_FIX_TAIL                                                                                                           \
    uint64_t, uint8_t, bool, uint8_t, bool, bool, bool
// Strides: destination in elements (row pitch for ND, distance of column blocks for NZ), source in rows of 16 elements.
template <class D, class S>
inline void asc_copy_l0c2gm(D* dst, S* src, uint16_t n, uint16_t m, uint32_t dst_stride, uint16_t src_stride, uint8_t, uint8_t clip,
                            uint8_t unit_flag, uint64_t quant, uint8_t relu, bool channel_split, bool nz2nd, ASC_FIX_TAIL, bool nz2dn,
                            ASC_LOC) {
    asc_sim::fixpipe({dst, src, asc_sim::ElemOf<D>::e, std::is_same_v<S, int32_t>, 0, n, m, dst_stride, src_stride, 0, 0, unit_flag,
                      static_cast<QuantMode_t>(quant), relu, channel_split, nz2nd, nz2dn, clip != 0}, asc_loc);
}
template <class D, class S>
inline void asc_copy_l0c2gm(D* dst, S* src, uint16_t n, uint16_t m, uint32_t dst_stride, uint16_t src_stride, asc_store_l2_cache_mode,
                            asc_unit_flag_mode unit_flag, QuantMode_t quant, asc_relu_pre_mode relu, bool channel_split, bool nz2nd,
                            bool nz2dn, bool clip, ASC_LOC) {
    asc_sim::fixpipe({dst, src, asc_sim::ElemOf<D>::e, std::is_same_v<S, int32_t>, 0, n, m, dst_stride, src_stride, 0, 0,
                      static_cast<uint8_t>(unit_flag), quant, static_cast<uint8_t>(relu), channel_split, nz2nd, nz2dn, clip}, asc_loc);
}
template <class D, class S>
inline void asc_copy_l0c2ub(D* dst, S* src, uint16_t n, uint16_t m, uint32_t dst_stride, uint16_t src_stride, uint8_t dual_dst_ctrl,
                            bool sub_blockid, uint8_t clip, uint8_t unit_flag, uint64_t quant, uint8_t relu, bool channel_split, bool nz2nd,
                            ASC_FIX_TAIL, bool nz2dn, ASC_LOC) {
    asc_sim::fixpipe({dst, src, asc_sim::ElemOf<D>::e, std::is_same_v<S, int32_t>, 1, n, m, dst_stride, src_stride, dual_dst_ctrl,
                      static_cast<uint8_t>(sub_blockid), unit_flag, static_cast<QuantMode_t>(quant), relu, channel_split, nz2nd, nz2dn, clip != 0},
                     asc_loc);
}
template <class D, class S>
inline void asc_copy_l0c2ub(D* dst, S* src, uint16_t n, uint16_t m, uint32_t dst_stride, uint16_t src_stride, int8_t sub_blockid,
                            asc_dual_dst_mode dual, asc_unit_flag_mode unit_flag, QuantMode_t quant, asc_relu_pre_mode relu,
                            bool channel_split, bool nz2nd, bool nz2dn, bool clip, ASC_LOC) {
    asc_sim::fixpipe({dst, src, asc_sim::ElemOf<D>::e, std::is_same_v<S, int32_t>, 1, n, m, dst_stride, src_stride,
                      static_cast<uint8_t>(dual), static_cast<uint8_t>(sub_blockid), static_cast<uint8_t>(unit_flag), quant,
                      static_cast<uint8_t>(relu), channel_split, nz2nd, nz2dn, clip}, asc_loc);
}
template <class D, class S>
inline void asc_copy_l0c2l1(D* dst, S* src, uint16_t n, uint16_t m, uint32_t dst_stride, uint16_t src_stride, uint8_t clip,
                            uint8_t unit_flag, uint64_t quant, uint8_t relu, bool channel_split, bool nz2nd, uint64_t, uint8_t, bool,
                            uint8_t, uint8_t, bool, ASC_LOC) {
    asc_sim::fixpipe({dst, src, asc_sim::ElemOf<D>::e, std::is_same_v<S, int32_t>, 2, n, m, dst_stride, src_stride, 0, 0, unit_flag,
                      static_cast<QuantMode_t>(quant), relu, channel_split, nz2nd, false, clip != 0}, asc_loc);
}
template <class D, class S>
inline void asc_copy_l0c2l1(D* dst, S* src, uint16_t n, uint16_t m, uint32_t dst_stride, uint16_t src_stride,
                            asc_unit_flag_mode unit_flag, QuantMode_t quant, asc_relu_pre_mode relu, bool channel_split, bool nz2nd,
                            bool nz2dn, bool clip, ASC_LOC) {
    asc_sim::fixpipe({dst, src, asc_sim::ElemOf<D>::e, std::is_same_v<S, int32_t>, 2, n, m, dst_stride, src_stride, 0, 0,
                      static_cast<uint8_t>(unit_flag), quant, static_cast<uint8_t>(relu), channel_split, nz2nd, nz2dn, clip}, asc_loc);
}
#undef ASC_FIX_TAIL
