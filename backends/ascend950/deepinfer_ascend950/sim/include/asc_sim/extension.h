/* Extension table "ascend950.sim.v1" of the simulator's driver: options, counters and launches of several devices that
 * run together (kernels that exchange data through peer memory). Plain C; layout fixed by the name.
 */
#ifndef ASC_SIM_EXTENSION_H
#define ASC_SIM_EXTENSION_H

#include "deepinfer/driver.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct asc_sim_launch {
    di_handle fn;
    uint32_t grid;
    uint32_t arg_count;
    const di_arg* args;
} asc_sim_launch;

typedef struct asc_sim_counters {
    uint64_t macs;           /* multiply-accumulates of the cube */
    uint64_t vf;             /* vector functions started */
    uint64_t mte2_bytes, mte3_bytes, mte1_bytes, fix_bytes;
    uint64_t instructions;   /* over all pipes */
} asc_sim_counters;

typedef struct asc_sim_extension {
    uint32_t struct_size;
    uint32_t reserved;
    /* Options of this thread's later launches: "policy" (0 eager, 1 lazy, 2 random), "seed", "race", "ftz", "uninit", "strict",
     * "deadline_s", "ai_cores", "ub_usable". DI_NOT_FOUND for another name. */
    di_status (*set_option)(const char* name, double value);
    di_status (*get_option)(const char* name, double* value);
    /* Counters and warnings of this thread's last launch. */
    di_status (*last_counters)(asc_sim_counters* out);
    const char* (*last_warnings)(void);
    /* All launches run at once under one scheduler; the race checker sees across them. */
    di_status (*launch_group)(const asc_sim_launch* launches, uint32_t count);
    /* Modelled cycles of this thread's last launch (clock "model"): of the longest AI core, and busy cycles summed over
     * blocks per core (AIC, AIV0, AIV1) and pipe (S V M MTE1 MTE2 MTE3 FIX): 21 numbers. */
    di_status (*last_timeline)(double* cycles, double* busy);
} asc_sim_extension;

#ifdef __cplusplus
}
#endif
#endif
