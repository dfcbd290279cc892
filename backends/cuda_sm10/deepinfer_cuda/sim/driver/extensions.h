/* Extension tables of the CUDA drivers, reached through di_driver.extension(name, &table).
 *
 * Same rules as driver.h: append-only, struct_size first, C types only. The names are the keys:
 *   "cuda.launch"      di_cuda_launch      clusters and launch attributes
 *   "cuda.tensor_map"  di_cuda_tensor_map  TMA descriptors
 *   "cuda.module"      di_cuda_module      module variables, kernel names and resources
 *   "cuda.peer"        di_cuda_peer        multicast objects over peer devices
 *   "sim.control"      di_sim_control      checker and scheduler of the simulator
 */
#ifndef DEEPINFER_CUDA_SIM_EXTENSIONS_H
#define DEEPINFER_CUDA_SIM_EXTENSIONS_H

#include "deepinfer/driver.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct di_cuda_config {
    uint32_t struct_size;
    di_dim3 grid;    /* in CTAs, also with clusters */
    di_dim3 block;
    di_dim3 cluster; /* 0,0,0: what the kernel declares, else 1,1,1 */
    uint32_t smem_bytes;
    uint32_t programmatic; /* 1 = may start before the previous kernel ends (PDL); the simulator runs them one after another */
    uint32_t cooperative;  /* 1 = all CTAs must be resident at once, or the launch is refused */
} di_cuda_config;

typedef struct di_cuda_launch {
    uint32_t struct_size;
    di_status (*launch)(di_handle fn, const di_cuda_config* config, const di_arg* args, uint32_t arg_count, di_handle stream);
    /* Largest number of clusters of this shape that can be resident at once. */
    di_status (*max_active_clusters)(di_handle fn, const di_cuda_config* config, uint32_t* out);
} di_cuda_launch;

/* Values of dtype, interleave, swizzle, l2_promotion and oob_fill are those of CUtensorMapDataType and friends in cuda.h. */
typedef struct di_cuda_tensor_map {
    uint32_t struct_size;
    di_status (*encode_tiled)(void* map128, uint32_t dtype, uint32_t rank, di_addr base, const uint64_t* dims, const uint64_t* strides_bytes,
                              const uint32_t* box, const uint32_t* element_strides, uint32_t interleave, uint32_t swizzle,
                              uint32_t l2_promotion, uint32_t oob_fill);
    di_status (*replace_address)(void* map128, di_addr base);
    /* Corners of the pixels' bounding box have rank - 2 values, W first. */
    di_status (*encode_im2col)(void* map128, uint32_t dtype, uint32_t rank, di_addr base, const uint64_t* dims, const uint64_t* strides_bytes,
                               const int32_t* lower, const int32_t* upper, uint32_t channels_per_pixel, uint32_t pixels_per_column,
                               const uint32_t* element_strides, uint32_t interleave, uint32_t swizzle, uint32_t l2_promotion, uint32_t oob_fill);
} di_cuda_tensor_map;

typedef struct di_cuda_module {
    uint32_t struct_size;
    di_status (*global)(di_handle module, const char* name, di_addr* addr, uint64_t* bytes);
    /* Newline-separated kernel names, valid until the thread's next call. */
    di_status (*kernels)(di_handle module, const char** names);
    /* Decodes every kernel of the module; fails with the first unknown instruction. */
    di_status (*decode_all)(di_handle module, uint64_t* instructions);
} di_cuda_module;

typedef struct di_cuda_peer {
    uint32_t struct_size;
    /* A multimem address of `bytes` bytes whose accesses reach addrs[0..count). */
    di_status (*multicast_create)(const di_addr* addrs, uint32_t count, uint64_t bytes, di_addr* out);
    di_status (*multicast_destroy)(di_addr addr);
} di_cuda_peer;

typedef struct di_sim_statistics {
    uint32_t struct_size;
    uint64_t launches, warp_instructions, thread_instructions, async_steps, mma_macs;
    double seconds; /* spent executing kernels */
} di_sim_statistics;

typedef struct di_sim_control {
    uint32_t struct_size;
    /* Keys: seed (integer), schedule (eager, lazy, random), checker (on, off), findings (fail, report), spurious_waits (on, off),
     * drift (on, off), strict (on, off), stall_instructions (integer), resident_ctas (integer, 0 = by occupancy). */
    di_status (*set)(const char* key, const char* value);
    uint32_t (*finding_count)(void);
    const char* (*finding)(uint32_t index); /* NULL past the end; valid until this thread's next call */
    void (*clear)(void);
    void (*statistics)(di_sim_statistics* out);
    const char* (*printed)(void); /* what kernels printed since clear() */
} di_sim_control;

#ifdef __cplusplus
}
#endif
#endif
