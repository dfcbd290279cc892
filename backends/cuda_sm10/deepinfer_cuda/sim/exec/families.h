// Decode functions, one per mnemonic family; families.cpp maps mnemonics to them.
#pragma once
#include "isa/decode.h"

namespace ptxsim {

void decode_abs_float(Dec& d);
void decode_abs_int(Dec& d);
void decode_activemask(Dec& d);
void decode_add_float(Dec& d);
void decode_add_int(Dec& d);
void decode_addc(Dec& d);
void decode_and(Dec& d);
void decode_approx(Dec& d);
void decode_atomic(Dec& d);
void decode_bar(Dec& d);
void decode_barrier(Dec& d);
void decode_bfe(Dec& d);
void decode_bfi(Dec& d);
void decode_bfind(Dec& d);
void decode_bmsk(Dec& d);
void decode_bra(Dec& d);
void decode_brx(Dec& d);
void decode_bulk_group(Dec& d);
void decode_bulk_plain(Dec& d, bool reduce);
void decode_call(Dec& d);
void decode_clc(Dec& d);
void decode_copysign(Dec& d);
void decode_cp(Dec& d);
void decode_cp_async_plain(Dec& d);
void decode_createpolicy(Dec& d);
void decode_cvt(Dec& d);
void decode_cvta(Dec& d);
void decode_div_float(Dec& d);
void decode_div_int(Dec& d);
void decode_dp(Dec& d);
void decode_elect(Dec& d);
void decode_fence(Dec& d);
void decode_fma_float(Dec& d);
void decode_fns(Dec& d);
void decode_getctarank(Dec& d);
void decode_griddep(Dec& d);
void decode_half(Dec& d);
void decode_hint(Dec& d);
void decode_isspacep(Dec& d);
void decode_ld(Dec& d);
void decode_ldmatrix(Dec& d);
void decode_lop3(Dec& d);
void decode_mad_int(Dec& d);
void decode_madc(Dec& d);
void decode_mapa(Dec& d);
void decode_match(Dec& d);
void decode_max_float(Dec& d);
void decode_max_int(Dec& d);
void decode_mbarrier(Dec& d);
void decode_membar(Dec& d);
void decode_min_float(Dec& d);
void decode_min_int(Dec& d);
void decode_mma(Dec& d);
void decode_mov(Dec& d);
void decode_movmatrix(Dec& d);
void decode_mul_float(Dec& d);
void decode_mul_int(Dec& d);
void decode_multimem(Dec& d);
void decode_nanosleep(Dec& d);
void decode_neg_float(Dec& d);
void decode_neg_int(Dec& d);
void decode_not(Dec& d);
void decode_nothing(Dec& d);
void decode_or(Dec& d);
void decode_prefetch(Dec& d);
void decode_prmt(Dec& d);
void decode_redux(Dec& d);
void decode_rem(Dec& d);
void decode_ret(Dec& d);
void decode_sad(Dec& d);
void decode_selp(Dec& d);
void decode_set(Dec& d);
void decode_setmaxnreg(Dec& d);
void decode_setp(Dec& d);
void decode_shf(Dec& d);
void decode_shfl(Dec& d);
void decode_shl(Dec& d);
void decode_shr(Dec& d);
void decode_slct(Dec& d);
void decode_st(Dec& d);
void decode_stmatrix(Dec& d);
void decode_store_async(Dec& d);
void decode_sub_float(Dec& d);
void decode_sub_int(Dec& d);
void decode_subc(Dec& d);
void decode_tc_cp(Dec& d);
void decode_tc_memory(Dec& d);
void decode_tc_mma(Dec& d);
void decode_tcgen05(Dec& d);
void decode_tensormap(Dec& d);
void decode_testp(Dec& d);
void decode_tma(Dec& d, bool reduce);
void decode_trap(Dec& d);
void decode_unary_bits(Dec& d);
void decode_vote(Dec& d);
void decode_warp_sync(Dec& d);
void decode_wgmma(Dec& d);
void decode_xor(Dec& d);

// Turns branch targets from statements into instructions, after all of them are decoded.
void fix_branches(Program& p);

}  // namespace ptxsim
