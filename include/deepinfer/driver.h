/* The narrow waist: what every accelerator runtime, real or simulated, offers to deepinfer.
 *
 * One shared library exports one function, di_get_driver, which returns a table of C functions. The Python
 * Protocol deepinfer.hal.driver.Driver mirrors this table one to one; a test compares both.
 *
 * Contract
 *  - Tables and structs are append-only. Each begins with struct_size; a reader uses a field only when
 *    struct_size covers it. No C++ type, exception or ownership of host memory crosses the boundary.
 *  - Every function returns a di_status. On anything but DI_OK, last_error() gives a message for the calling
 *    thread, valid until that thread's next call. Output arguments are written only on DI_OK.
 *  - Handles are opaque non-zero 64-bit numbers; 0 means "none". Stream 0 is the context's default stream.
 *    release() ends the life of any handle (context, stream, event, module); functions die with their module.
 *  - All functions are thread-safe. Work on one stream runs in order; streams are unordered among each other
 *    except through events. launch, memcpy_async and memset_async return before the work is done (a simulator
 *    may finish it first).
 *  - probe() creates no context, never blocks longer than 50 ms and reports trouble in its result, not by status.
 *  - Addresses are device addresses as kernels see them. On simulated devices (DI_KIND_SIMULATOR) memory is host
 *    memory: any host address that the process owns is valid, whether or not mem_alloc returned it.
 *  - Graph capture, cluster launch, tensor maps, peer memory, profiling and checkers live in extension tables, so
 *    that this one never widens.
 */
#ifndef DEEPINFER_DRIVER_H
#define DEEPINFER_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "version.h"

#if defined(_WIN32)
#define DI_EXPORT __declspec(dllexport)
#else
#define DI_EXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef uint64_t di_handle;
typedef uint64_t di_addr;

typedef enum di_status {
    DI_OK = 0,
    DI_INVALID_ARGUMENT = 1,
    DI_OUT_OF_MEMORY = 2,
    DI_NOT_FOUND = 3,      /* no such device, symbol or extension */
    DI_UNSUPPORTED = 4,    /* understood, but this driver cannot do it */
    DI_UNAVAILABLE = 5,    /* no device or runtime on this machine */
    DI_LAUNCH_FAILED = 6,  /* the kernel stopped: fault, trap, checker finding, deadlock */
    DI_TIMEOUT = 7,
    DI_INTERNAL = 8
} di_status;

typedef enum di_kind { DI_KIND_HARDWARE = 1, DI_KIND_SIMULATOR = 2, DI_KIND_HOST = 3 } di_kind;

typedef enum di_copy { DI_COPY_H2D = 1, DI_COPY_D2H = 2, DI_COPY_D2D = 3 } di_copy;

/* Bits of di_device_props.caps, in the order of deepinfer.hal.types.Cap. */
typedef enum di_cap {
    DI_CAP_BF16 = 0,
    DI_CAP_FP16 = 1,
    DI_CAP_FP8_E4M3 = 2,
    DI_CAP_MXFP8 = 3,
    DI_CAP_MXFP4 = 4,
    DI_CAP_GRAPHS = 5,
    DI_CAP_PEER_MEMORY = 6,
    DI_CAP_TENSOR_MAPS = 7,
    DI_CAP_CLUSTERS = 8,
    DI_CAP_ASYNC_STREAMS = 9,
    DI_CAP_DEVICE_TIMER = 10,
    DI_CAP_RACE_CHECKER = 11
} di_cap;

typedef struct di_probe {
    uint32_t struct_size;
    uint32_t available;    /* 1 = at least one device can be opened */
    uint32_t device_count;
    char reason[512];      /* why not available, or a remark; NUL-terminated UTF-8 */
    char version[128];     /* runtime version text */
} di_probe;

typedef struct di_device_props {
    uint32_t struct_size;
    uint32_t kind;            /* di_kind */
    char name[96];
    char arch[32];            /* "sm_90", "sm_100", "ascend950", ... */
    uint32_t compute_units;   /* SMs or AI cores */
    uint32_t clock_khz;       /* highest core clock, 0 = unknown */
    uint64_t memory_bytes;
    uint64_t l2_bytes;
    uint64_t scratch_bytes;   /* most fast local memory one block may use */
    uint64_t caps;            /* bit i = di_cap i */
    uint64_t memory_bandwidth;/* bytes per second by datasheet, 0 = unknown */
} di_device_props;

typedef enum di_arg_kind {
    DI_ARG_SCALAR = 1, /* size bytes at data are one kernel parameter */
    DI_ARG_BUFFER = 2, /* data points at one di_addr, the kernel parameter; bytes [base, base+span) may be touched */
    DI_ARG_SPAN = 3    /* no parameter: only announces that bytes [base, base+span) may be touched */
} di_arg_kind;

typedef struct di_arg {
    uint32_t kind;  /* di_arg_kind */
    uint32_t size;  /* bytes at data */
    const void* data;
    di_addr base;
    uint64_t span;
    uint32_t writable; /* 1 = the kernel may write the span */
    uint32_t reserved; /* 0 */
} di_arg;

typedef struct di_dim3 {
    uint32_t x, y, z;
} di_dim3;

typedef struct di_driver {
    uint32_t struct_size;
    uint16_t abi_major;
    uint16_t abi_minor;
    const char* name; /* "cuda/sim", "ascend950/sim", ... */
    uint32_t kind;    /* di_kind of every device of this driver */
    uint32_t reserved;

    const char* (*last_error)(void);
    di_status (*probe)(di_probe* out);
    di_status (*device_props)(uint32_t index, di_device_props* out);
    di_status (*open)(uint32_t index, di_handle* ctx);
    di_status (*release)(di_handle handle);
    di_status (*mem_info)(di_handle ctx, uint64_t* free_bytes, uint64_t* total_bytes);
    di_status (*mem_alloc)(di_handle ctx, uint64_t bytes, uint64_t align, di_addr* out);
    di_status (*mem_free)(di_handle ctx, di_addr addr);
    di_status (*memcpy_async)(di_handle ctx, di_addr dst, di_addr src, uint64_t bytes, uint32_t copy, di_handle stream);
    di_status (*memset_async)(di_handle ctx, di_addr dst, uint8_t value, uint64_t bytes, di_handle stream);
    di_status (*stream_create)(di_handle ctx, di_handle* out);
    di_status (*stream_synchronize)(di_handle ctx, di_handle stream);
    di_status (*event_create)(di_handle ctx, di_handle* out);
    di_status (*event_record)(di_handle ctx, di_handle event, di_handle stream);
    di_status (*event_wait)(di_handle ctx, di_handle event, di_handle stream);
    di_status (*event_synchronize)(di_handle ctx, di_handle event);
    di_status (*event_elapsed_ms)(di_handle ctx, di_handle start, di_handle stop, double* out);
    /* fmt names the image: "ptx", "cubin", "elf" (host shared object bytes), "path" (UTF-8 file name). */
    di_status (*module_load)(di_handle ctx, const void* image, uint64_t bytes, const char* fmt, di_handle* out);
    di_status (*function)(di_handle module, const char* name, di_handle* out);
    di_status (*launch)(di_handle fn, di_dim3 grid, di_dim3 block, uint32_t smem_bytes, const di_arg* args,
                        uint32_t arg_count, di_handle stream);
    /* The table's layout is fixed by the extension's name; DI_NOT_FOUND when the driver has no such extension. */
    di_status (*extension)(const char* name, const void** table);
} di_driver;

/* Returns the table for the given major version, or NULL when the library does not speak it. */
typedef const di_driver* (*di_get_driver_fn)(uint32_t abi_major);
DI_EXPORT const di_driver* di_get_driver(uint32_t abi_major);

#ifdef __cplusplus
}
#endif
#endif
