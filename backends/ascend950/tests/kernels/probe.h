// The argument struct and the frames of test kernels.
#pragma once
#include "deepinfer.h"

struct ProbeArgs {
    __gm__ uint8_t* p[4];
    int64_t v[8];
};
#define PROBE(name, aic, aiv)                               \
    static void name##_body(const ProbeArgs& t);            \
    DEEPINFER_KERNEL(name, ProbeArgs, aic, aiv)             \
    static void name##_body(const ProbeArgs& t)

// A vector probe: 1 KiB of p[0] lies at `in`, 1 KiB of p[1] at `out`; the body runs as one vector function and `out` goes
// back to p[2].
#define VECTOR_PROBE(name, ...)                                                            \
    __simd_vf__ static void name##_vf(__ubuf__ uint8_t* in, __ubuf__ uint8_t* out) {       \
        [[maybe_unused]] const vector_bool all8 = asc_create_mask_b8(PAT_ALL);             \
        [[maybe_unused]] const vector_bool all16 = asc_create_mask_b16(PAT_ALL);           \
        [[maybe_unused]] const vector_bool all32 = asc_create_mask_b32(PAT_ALL);           \
        [[maybe_unused]] auto* fi = (float*)in;                                            \
        [[maybe_unused]] auto* fo = (float*)out;                                           \
        __VA_ARGS__                                                                        \
    }                                                                                      \
    PROBE(name, 0, 1) {                                                                    \
        AscendC::InitSocState();                                                           \
        asc_copy_gm2ub(mem::ub<uint8_t>(0), t.p[0], 1024);                                 \
        asc_copy_gm2ub(mem::ub<uint8_t>(8192), t.p[1], 1024);                              \
        set_flag(PIPE_MTE2, PIPE_V, 0);                                                    \
        wait_flag(PIPE_MTE2, PIPE_V, 0);                                                   \
        VF_CALL(name##_vf, mem::ub<uint8_t>(0), mem::ub<uint8_t>(8192));                   \
        set_flag(PIPE_V, PIPE_MTE3, 0);                                                    \
        wait_flag(PIPE_V, PIPE_MTE3, 0);                                                   \
        asc_copy_ub2gm(t.p[2], mem::ub<uint8_t>(8192), 1024);                              \
    }

// Probes of single calls: `in` has 2 KiB of p[0], each PUT (register) or put_mask appends to `out`, v[0] bytes of which go
// to p[1].
namespace {
[[maybe_unused]] __simd_callee__ inline void put(__ubuf__ uint8_t*& to, const vector_u8& v) {
    asc_storealign_postupdate(to, v, 256, asc_create_mask_b8(PAT_ALL));
}
[[maybe_unused]] __simd_callee__ inline void put_mask(__ubuf__ uint8_t*& to, vector_bool m) {
    asc_storealign((uint32_t*)to, m);
    to += 32;
}
}  // namespace
#define PUT(reg) put(out, AS(vector_u8, reg))
#define SUBSET(name, ...)                                                                  \
    __simd_vf__ static void name##_vf(__ubuf__ uint8_t* in, __ubuf__ uint8_t* out) {       \
        [[maybe_unused]] const vector_bool all8 = asc_create_mask_b8(PAT_ALL);             \
        [[maybe_unused]] const vector_bool all16 = asc_create_mask_b16(PAT_ALL);           \
        [[maybe_unused]] const vector_bool all32 = asc_create_mask_b32(PAT_ALL);           \
        __VA_ARGS__                                                                        \
    }                                                                                      \
    PROBE(name, 0, 1) {                                                                    \
        asc_init();                                                                        \
        asc_copy_gm2ub_sync(mem::ub<uint8_t>(0), t.p[0], 2048);                            \
        VF_CALL(name##_vf, mem::ub<uint8_t>(0), mem::ub<uint8_t>(8192));                   \
        asc_sync();                                                                        \
        asc_copy_ub2gm_sync(t.p[1], mem::ub<uint8_t>(8192), uint32_t(t.v[0]));             \
    }
