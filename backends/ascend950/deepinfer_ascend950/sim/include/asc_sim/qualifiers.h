// Keywords of the device language and the pipe and event names, as an ordinary C++ compiler can take them.
//
// The vendor's compiler gives every memory its own address space; g++ cannot, so the qualifiers vanish here and the
// runtime checks at every access which memory an address belongs to. Values follow the vendor's enumerations.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#define __gm__
#define __ubuf__
#define __cbuf__
#define __ca__
#define __cb__
#define __cc__
#define __fbuf__
#define __ssbuf__
#define __aicore__
#define __global__
#define __cube__
#define __vector__
#define __mix__(aic, aiv)
#define __simd_vf__
#define __simd_callee__

#ifndef __NPU_ARCH__
#define __NPU_ARCH__ 3510
#endif
#define ASCEND_SIMULATOR 1

// Both must be usable as `if ASC_IS_AIC {`; they are run-time facts here, as in the vendor's CPU twin.
#define ASC_IS_AIC (::asc_sim::is_aic())
#define ASC_IS_AIV (::asc_sim::is_aiv())
#define ASCEND_IS_AIC ASC_IS_AIC
#define ASCEND_IS_AIV ASC_IS_AIV

enum pipe_t : int {
    PIPE_S = 0,
    PIPE_V = 1,
    PIPE_M = 2,
    PIPE_MTE1 = 3,
    PIPE_MTE2 = 4,
    PIPE_MTE3 = 5,
    PIPE_ALL = 6,
    PIPE_FIX = 10,
};

enum event_t : int { EVENT_ID0, EVENT_ID1, EVENT_ID2, EVENT_ID3, EVENT_ID4, EVENT_ID5, EVENT_ID6, EVENT_ID7 };

enum mem_dsb_t : int { DSB_ALL = 0, DSB_DDR = 1, DSB_UB = 2, DSB_SEQ = 3 };

enum MEM_TYPE : int { VV_ALL, VST_VLD, VLD_VST, VST_VST, VS_ALL, VST_LD, VLD_ST, VST_ST, SV_ALL, ST_VLD, LD_VST, ST_VST };

enum asc_mutex_execute_mode : int { ASC_LOCK_BLOCK = 0, ASC_LOCK_NON_BLOCK = 1 };

enum Pat : int {
    PAT_ALL = 0,
    PAT_VL1,
    PAT_VL2,
    PAT_VL3,
    PAT_VL4,
    PAT_VL8,
    PAT_VL16,
    PAT_VL32,
    PAT_VL64,
    PAT_VL128,
    PAT_M3,
    PAT_M4,
    PAT_H,
    PAT_Q,
    PAT_ALLF = 15,
};

enum class asc_load_l2_cache_mode : uint8_t {
    NORMAL_FIRST_VICTIM = 0,
    NORMAL_LAST_VICTIM = 1,
    NORMAL_PERSISTENT = 2,
    NOTALLOC_KEEP = 4,
    NOTALLOC_CLEAN = 5,
    NOTALLOC_DROP = 6,
};
enum class asc_store_l2_cache_mode : uint8_t {
    NORMAL_FIRST_VICTIM = 0,
    NORMAL_LAST_VICTIM = 1,
    NORMAL_PERSISTENT = 2,
    NOTALLOC_CLEAN = 4,
};
enum class LD_L2CacheType : uint32_t { L2_CACHE_HINT_NORMAL_FV = 0 };
enum class ST_L2CacheType : uint32_t { L2_CACHE_HINT_NORMAL_FV = 0 };
enum class asc_unit_flag_mode : uint8_t { DISABLE = 0, ENABLE_KEEP = 2, ENABLE_UPDATE = 3 };
enum class asc_dual_dst_mode : uint8_t { DUAL_DST_DISABLE = 0, DUAL_DST_SPLIT_M = 1, DUAL_DST_SPLIT_N = 2 };
enum class asc_relu_pre_mode : uint8_t { NONE = 0, NORMAL = 1, SCALAR = 2, VECTOR = 3 };
enum class asc_channel_pad_mode : uint8_t { NONE = 0, EXPAND_1B, EXPAND_2B, EXPAND_4B, EXPAND_8B, EXPAND_16B, COMPACT_4B, COMPACT_8B, COMPACT_16B };
enum class asc_hf32_round_mode : uint8_t { NEAREST_AWAY = 0, NEAREST_EVEN = 1, NEAREST_ZERO = NEAREST_AWAY };

// Only the names are documented; a kernel must use the names, never the numbers.
enum QuantMode_t : uint64_t {
    NoQuant = 0,
    F322F16,
    F322BF16,
    QF322F16_PRE,
    VQF322F16_PRE,
    QF322BF16_PRE,
    VQF322BF16_PRE,
    QF322FP8_PRE,
    VQF322FP8_PRE,
    QF322HIF8_PRE,
    VQF322HIF8_PRE,
    QF322HIF8_PRE_HYBRID,
    VQF322HIF8_PRE_HYBRID,
    QF322F32_PRE,
    VQF322F32_PRE,
    QF322B8_PRE,
    VQF322B8_PRE,
    DEQF16,
    VDEQF16,
    REQ8,
    VREQ8,
    QS322BF16_PRE,
    VQS322BF16_PRE,
};
enum QuantMode_post : uint64_t { NoConv = 0 };
using asc_quant_mode = QuantMode_t;

enum class asc_position_mode { EVEN = 0, ODD };
enum class asc_position_quarter_mode {
    DISPERSE_FIRST_QUARTER = 0,
    DISPERSE_SECOND_QUARTER,
    DISPERSE_THIRD_QUARTER,
    DISPERSE_FOURTH_QUARTER,
};
template <asc_position_mode M>
using asc_position = std::integral_constant<asc_position_mode, M>;
template <asc_position_quarter_mode M>
using asc_quarter = std::integral_constant<asc_position_quarter_mode, M>;
inline constexpr asc_position<asc_position_mode::EVEN> ASC_POSITION_EVEN{};
inline constexpr asc_position<asc_position_mode::ODD> ASC_POSITION_ODD{};
inline constexpr asc_quarter<asc_position_quarter_mode::DISPERSE_FIRST_QUARTER> ASC_DISPERSE_FIRST_QUARTER{};
inline constexpr asc_quarter<asc_position_quarter_mode::DISPERSE_SECOND_QUARTER> ASC_DISPERSE_SECOND_QUARTER{};
inline constexpr asc_quarter<asc_position_quarter_mode::DISPERSE_THIRD_QUARTER> ASC_DISPERSE_THIRD_QUARTER{};
inline constexpr asc_quarter<asc_position_quarter_mode::DISPERSE_FOURTH_QUARTER> ASC_DISPERSE_FOURTH_QUARTER{};

union asc_fill_value_config {
    uint64_t config = 0;
    struct {
        uint64_t repeat : 15;
        uint64_t reserved1 : 1;
        uint64_t blk_num : 15;
        uint64_t reserved2 : 1;
        uint64_t dst_gap : 15;
        uint64_t reserved3 : 17;
    };
};

// Strides of the built-in vsstb, in 32-byte units; `config` is what the built-in takes.
union asc_store_align_config {
    uint32_t config = 0;
    struct {
        uint32_t repeat_stride : 16;
        uint32_t block_stride : 16;
    };
};
union asc_store_align_config_post {
    int32_t config = 0;
    struct {
        uint32_t repeat_stride : 16;
        uint32_t block_stride : 16;
    };
};

// The device language has these without a namespace.
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
constexpr std::common_type_t<A, B> min(A a, B b) {
    return a < b ? a : b;
}
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
constexpr std::common_type_t<A, B> max(A a, B b) {
    return a < b ? b : a;
}

namespace __cce_simd {}    // the vendor's compiler keeps its built-ins in these; here everything is global
namespace __cce_scalar {}

namespace asc_sim {
bool is_aic();
bool is_aiv();

// Where in the kernel's source an API call stands; every call takes it as its last, defaulted argument.
struct Loc {
    const char* file = "";
    int line = 0;
    // A constructor call, because g++ takes the line of a braced list from the template instead of from the caller.
    // Explicit, so that no surplus argument of a call becomes a place.
    constexpr explicit Loc(const char* f = "", int l = 0) : file(f), line(l) {}
};
}  // namespace asc_sim

#define ASC_LOC ::asc_sim::Loc asc_loc = ::asc_sim::Loc(__builtin_FILE(), __builtin_LINE())
