// The table from mnemonics to families. Arithmetic mnemonics are split by the type they end in.
#include "exec/families.h"

#include <algorithm>

namespace ptxsim {

void decode_stack(Dec& d);
void decode_video(Dec& d);
void decode_wmma(Dec& d);

namespace {

enum class Kind { integer, floating, half };

Kind kind_of(const Dec& d) {
    Kind k = Kind::integer;
    for (auto it = d.st.mods.rbegin(); it != d.st.mods.rend(); ++it) {
        Ty t = parse_type(*it);
        if (t == Ty::f32 || t == Ty::f64 || t == Ty::f32x2) return Kind::floating;  // also mixed .f32.bf16
        if (t == Ty::f16 || t == Ty::bf16 || t == Ty::f16x2 || t == Ty::bf16x2) k = Kind::half;
    }
    return k;
}

template <DecodeFn Integer, DecodeFn Float>
void by_type(Dec& d) {
    switch (kind_of(d)) {
        case Kind::integer: return Integer(d);
        case Kind::floating: return Float(d);
        case Kind::half: return decode_half(d);
    }
}

// st.async and red.async with an mbarrier share nothing with their synchronous namesakes but the name.
template <DecodeFn Plain>
void async_or(Dec& d) {
    bool global = std::find(d.st.mods.begin(), d.st.mods.end(), "global") != d.st.mods.end();
    if (!d.st.mods.empty() && d.st.mods[0] == "async" && !global) return decode_store_async(d);
    return Plain(d);
}

void no_integer(Dec& d) { d.fail("has no integer form"); }

}  // namespace

const std::unordered_map<std::string, DecodeFn>& families() {
    static const std::unordered_map<std::string, DecodeFn> table = {
        // arithmetic
        {"add", by_type<decode_add_int, decode_add_float>}, {"sub", by_type<decode_sub_int, decode_sub_float>},
        {"mul", by_type<decode_mul_int, decode_mul_float>}, {"mad", by_type<decode_mad_int, decode_fma_float>},
        {"fma", by_type<no_integer, decode_fma_float>}, {"div", by_type<decode_div_int, decode_div_float>},
        {"min", by_type<decode_min_int, decode_min_float>}, {"max", by_type<decode_max_int, decode_max_float>},
        {"abs", by_type<decode_abs_int, decode_abs_float>}, {"neg", by_type<decode_neg_int, decode_neg_float>},
        {"ex2", by_type<no_integer, decode_approx>}, {"tanh", by_type<no_integer, decode_approx>},
        {"rem", decode_rem}, {"sad", decode_sad}, {"addc", decode_addc}, {"subc", decode_subc}, {"madc", decode_madc},
        {"mul24", decode_mul24}, {"mad24", decode_mul24}, {"dp4a", decode_dp}, {"dp2a", decode_dp}, {"rcp", decode_approx}, {"sqrt", decode_approx}, {"rsqrt", decode_approx},
        {"sin", decode_approx}, {"cos", decode_approx}, {"lg2", decode_approx}, {"testp", decode_testp}, {"copysign", decode_copysign},
        {"vadd", decode_video}, {"vsub", decode_video}, {"vabsdiff", decode_video}, {"vmin", decode_video}, {"vmax", decode_video},
        {"vshl", decode_video}, {"vshr", decode_video}, {"vmad", decode_video}, {"vset", decode_video}, {"vadd2", decode_video},
        {"vsub2", decode_video}, {"vavrg2", decode_video}, {"vabsdiff2", decode_video}, {"vmin2", decode_video}, {"vmax2", decode_video},
        {"vset2", decode_video}, {"vadd4", decode_video}, {"vsub4", decode_video}, {"vavrg4", decode_video}, {"vabsdiff4", decode_video},
        {"vmin4", decode_video}, {"vmax4", decode_video}, {"vset4", decode_video},
        // bits
        {"and", decode_and}, {"or", decode_or}, {"xor", decode_xor}, {"not", decode_not}, {"cnot", decode_unary_bits},
        {"popc", decode_unary_bits}, {"clz", decode_unary_bits}, {"brev", decode_unary_bits}, {"shl", decode_shl}, {"shr", decode_shr},
        {"shf", decode_shf}, {"bfe", decode_bfe}, {"bfi", decode_bfi}, {"prmt", decode_prmt}, {"lop3", decode_lop3},
        {"bfind", decode_bfind}, {"fns", decode_fns}, {"bmsk", decode_bmsk}, {"szext", decode_szext},
        // data movement
        {"mov", decode_mov}, {"cvt", decode_cvt}, {"cvta", decode_cvta}, {"isspacep", decode_isspacep}, {"mapa", decode_mapa},
        {"getctarank", decode_getctarank}, {"ld", decode_ld}, {"ldu", decode_ld}, {"st", async_or<decode_st>}, {"prefetch", decode_prefetch},
        {"prefetchu", decode_prefetch}, {"createpolicy", decode_createpolicy}, {"alloca", decode_stack}, {"stacksave", decode_stack}, {"stackrestore", decode_stack}, {"applypriority", decode_hint}, {"discard", decode_hint},
        {"atom", decode_atomic}, {"red", async_or<decode_atomic>}, {"cp", decode_cp},
        {"tensormap", decode_tensormap},
        // comparison and control
        {"setp", decode_setp}, {"set", decode_set}, {"selp", decode_selp}, {"slct", decode_slct}, {"bra", decode_bra}, {"brx", decode_brx},
        {"ret", decode_ret}, {"exit", decode_ret}, {"trap", decode_trap}, {"brkpt", decode_nothing}, {"call", decode_call},
        {"nanosleep", decode_nanosleep}, {"pmevent", decode_nothing},
        // warp and block
        {"shfl", decode_shfl}, {"vote", decode_vote}, {"match", decode_match}, {"redux", decode_redux}, {"elect", decode_elect},
        {"activemask", decode_activemask}, {"bar", decode_bar}, {"barrier", decode_barrier}, {"fence", decode_fence},
        {"membar", decode_membar}, {"mbarrier", decode_mbarrier},
        // matrices
        {"ldmatrix", decode_ldmatrix}, {"stmatrix", decode_stmatrix}, {"movmatrix", decode_movmatrix}, {"mma", decode_mma}, {"wmma", decode_wmma}, {"wgmma", decode_wgmma},
        {"tcgen05", decode_tcgen05}, {"clusterlaunchcontrol", decode_clc}, {"griddepcontrol", decode_griddep}, {"setmaxnreg", decode_setmaxnreg},
        {"multimem", decode_multimem},
    };
    return table;
}

}  // namespace ptxsim
