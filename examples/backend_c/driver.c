/* A driver in plain C: the smallest complete implementation of deepinfer/driver.h.
 *
 * Two "devices" on host memory. Work runs at once on the calling thread, so streams and events only keep order and
 * wall time. A module is a shared object; its kernels are C functions with the signature of kernel_fn below.
 * Handles are addresses of records kept in one list, so that a stale or foreign handle is refused, not followed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "deepinfer/driver.h"

#define DEVICES 2
#define MAX_PARAMS 64

/* params[i] points at the bytes of parameter i, as in a CUDA launch. */
typedef void (*kernel_fn)(di_dim3 grid, di_dim3 block, void* const* params);

typedef enum { CONTEXT = 1, STREAM, EVENT, MODULE, FUNCTION } record_kind;

typedef struct record {
    record_kind kind;
    di_handle owner; /* context of streams, events and modules; module of functions */
    void* pointer;   /* dlopen handle or kernel_fn */
    double seconds;  /* event time, < 0 before it was recorded */
    struct record* next;
} record;

static record* records;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local char error_text[512];

static di_status fail(di_status status, const char* what, const char* detail) {
    snprintf(error_text, sizeof error_text, "%s%s%s", what, detail ? ": " : "", detail ? detail : "");
    return status;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static record* find(di_handle handle, record_kind kind) {
    pthread_mutex_lock(&lock);
    record* r = records;
    while (r && (di_handle)(uintptr_t)r != handle) r = r->next;
    pthread_mutex_unlock(&lock);
    return r && r->kind == kind ? r : NULL;
}

static di_status add(record_kind kind, di_handle owner, void* pointer, di_handle* out) {
    record* r = malloc(sizeof *r);
    if (!r) return fail(DI_OUT_OF_MEMORY, "no memory for a handle", NULL);
    *r = (record){kind, owner, pointer, -1.0, NULL};
    pthread_mutex_lock(&lock);
    r->next = records;
    records = r;
    pthread_mutex_unlock(&lock);
    *out = (di_handle)(uintptr_t)r;
    return DI_OK;
}

static const char* last_error(void) { return error_text; }

static di_status probe(di_probe* out) {
    out->available = 1;
    out->device_count = DEVICES;
    snprintf(out->reason, sizeof out->reason, "example driver on host memory");
    snprintf(out->version, sizeof out->version, "example 1");
    return DI_OK;
}

static di_status device_props(uint32_t index, di_device_props* out) {
    if (index >= DEVICES) return fail(DI_NOT_FOUND, "device index out of range", NULL);
    const uint32_t size = out->struct_size;
    memset(out, 0, sizeof *out);
    out->struct_size = size;
    out->kind = DI_KIND_HOST;
    snprintf(out->name, sizeof out->name, "example device %u", index);
    snprintf(out->arch, sizeof out->arch, "example_c");
    out->compute_units = 1;
    out->memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGE_SIZE);
    out->caps = 1ull << DI_CAP_BF16;
    return DI_OK;
}

static di_status open_device(uint32_t index, di_handle* ctx) {
    if (index >= DEVICES) return fail(DI_NOT_FOUND, "device index out of range", NULL);
    return add(CONTEXT, 0, NULL, ctx);
}

/* Unlinks one record under the lock; the caller frees it. */
static record* unlink_record(di_handle handle) {
    record** link = &records;
    while (*link && (di_handle)(uintptr_t)*link != handle) link = &(*link)->next;
    record* r = *link;
    if (r) *link = r->next;
    return r;
}

static void destroy(record* r) {
    if (r->kind == MODULE) dlclose(r->pointer);
    free(r);
}

static di_status release_handle(di_handle handle) {
    pthread_mutex_lock(&lock);
    record* r = unlink_record(handle);
    if (r) {
        for (record* child = records; child;) { /* what it owns dies with it; restart after each removal */
            record* next = child->next;
            if (child->owner == handle) {
                const int is_module = child->kind == MODULE;
                const di_handle id = (di_handle)(uintptr_t)child;
                destroy(unlink_record(id));
                if (is_module)
                    for (record* fn = records; fn;) {
                        record* after = fn->next;
                        if (fn->owner == id) destroy(unlink_record((di_handle)(uintptr_t)fn));
                        fn = after;
                    }
                next = records;
            }
            child = next;
        }
        destroy(r);
    }
    pthread_mutex_unlock(&lock);
    return r ? DI_OK : fail(DI_INVALID_ARGUMENT, "release: not a live handle", NULL);
}

static di_status mem_info(di_handle ctx, uint64_t* free_bytes, uint64_t* total_bytes) {
    if (!find(ctx, CONTEXT)) return fail(DI_INVALID_ARGUMENT, "mem_info: not a context", NULL);
    const uint64_t page = (uint64_t)sysconf(_SC_PAGE_SIZE);
    *free_bytes = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page;
    *total_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * page;
    return DI_OK;
}

static di_status mem_alloc(di_handle ctx, uint64_t bytes, uint64_t align, di_addr* out) {
    if (!find(ctx, CONTEXT)) return fail(DI_INVALID_ARGUMENT, "mem_alloc: not a context", NULL);
    if (align == 0 || (align & (align - 1))) return fail(DI_INVALID_ARGUMENT, "mem_alloc: align must be a power of two", NULL);
    if (align < sizeof(void*)) align = sizeof(void*);
    void* p = NULL;
    if (bytes > (uint64_t)PTRDIFF_MAX || posix_memalign(&p, align, bytes ? bytes : 1))
        return fail(DI_OUT_OF_MEMORY, "mem_alloc: the system has no such block", NULL);
    *out = (di_addr)(uintptr_t)p;
    return DI_OK;
}

static di_status mem_free(di_handle ctx, di_addr addr) {
    if (!find(ctx, CONTEXT)) return fail(DI_INVALID_ARGUMENT, "mem_free: not a context", NULL);
    free((void*)(uintptr_t)addr);
    return DI_OK;
}

static di_status check_stream(di_handle stream, const char* who) {
    return !stream || find(stream, STREAM) ? DI_OK : fail(DI_INVALID_ARGUMENT, who, "not a stream");
}

static di_status memcpy_async(di_handle ctx, di_addr dst, di_addr src, uint64_t bytes, uint32_t copy, di_handle stream) {
    if (!find(ctx, CONTEXT) || copy < DI_COPY_H2D || copy > DI_COPY_D2D)
        return fail(DI_INVALID_ARGUMENT, "memcpy_async: bad context or copy kind", NULL);
    if (check_stream(stream, "memcpy_async")) return DI_INVALID_ARGUMENT;
    if (bytes) memmove((void*)(uintptr_t)dst, (const void*)(uintptr_t)src, bytes);
    return DI_OK;
}

static di_status memset_async(di_handle ctx, di_addr dst, uint8_t value, uint64_t bytes, di_handle stream) {
    if (!find(ctx, CONTEXT)) return fail(DI_INVALID_ARGUMENT, "memset_async: not a context", NULL);
    if (check_stream(stream, "memset_async")) return DI_INVALID_ARGUMENT;
    if (bytes) memset((void*)(uintptr_t)dst, value, bytes);
    return DI_OK;
}

static di_status stream_create(di_handle ctx, di_handle* out) {
    if (!find(ctx, CONTEXT)) return fail(DI_INVALID_ARGUMENT, "stream_create: not a context", NULL);
    return add(STREAM, ctx, NULL, out);
}

static di_status stream_synchronize(di_handle ctx, di_handle stream) {
    if (!find(ctx, CONTEXT)) return fail(DI_INVALID_ARGUMENT, "stream_synchronize: not a context", NULL);
    return check_stream(stream, "stream_synchronize");
}

static di_status event_create(di_handle ctx, di_handle* out) {
    if (!find(ctx, CONTEXT)) return fail(DI_INVALID_ARGUMENT, "event_create: not a context", NULL);
    return add(EVENT, ctx, NULL, out);
}

static di_status event_record(di_handle ctx, di_handle event, di_handle stream) {
    record* e = find(event, EVENT);
    if (!find(ctx, CONTEXT) || !e) return fail(DI_INVALID_ARGUMENT, "event_record: not a context or event", NULL);
    if (check_stream(stream, "event_record")) return DI_INVALID_ARGUMENT;
    e->seconds = now();
    return DI_OK;
}

static di_status event_wait(di_handle ctx, di_handle event, di_handle stream) {
    if (!find(ctx, CONTEXT) || !find(event, EVENT))
        return fail(DI_INVALID_ARGUMENT, "event_wait: not a context or event", NULL);
    return check_stream(stream, "event_wait");
}

static di_status event_synchronize(di_handle ctx, di_handle event) {
    if (!find(ctx, CONTEXT) || !find(event, EVENT))
        return fail(DI_INVALID_ARGUMENT, "event_synchronize: not a context or event", NULL);
    return DI_OK;
}

static di_status event_elapsed_ms(di_handle ctx, di_handle start, di_handle stop, double* out) {
    record *a = find(start, EVENT), *b = find(stop, EVENT);
    if (!find(ctx, CONTEXT) || !a || !b) return fail(DI_INVALID_ARGUMENT, "event_elapsed_ms: not events", NULL);
    if (a->seconds < 0 || b->seconds < 0)
        return fail(DI_INVALID_ARGUMENT, "event_elapsed_ms: an event was never recorded", NULL);
    *out = (b->seconds - a->seconds) * 1e3;
    return DI_OK;
}

static di_status module_load(di_handle ctx, const void* image, uint64_t bytes, const char* fmt, di_handle* out) {
    char path[4096];
    if (!find(ctx, CONTEXT)) return fail(DI_INVALID_ARGUMENT, "module_load: not a context", NULL);
    if (strcmp(fmt, "path")) return fail(DI_UNSUPPORTED, "module_load: format must be \"path\", got", fmt);
    if (bytes >= sizeof path) return fail(DI_INVALID_ARGUMENT, "module_load: path too long", NULL);
    memcpy(path, image, bytes);
    path[bytes] = 0;
    void* lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib) return fail(DI_INVALID_ARGUMENT, "module_load", dlerror());
    const di_status status = add(MODULE, ctx, lib, out);
    if (status) dlclose(lib);
    return status;
}

static di_status function(di_handle module, const char* name, di_handle* out) {
    record* m = find(module, MODULE);
    if (!m) return fail(DI_INVALID_ARGUMENT, "function: not a module", NULL);
    void* symbol = dlsym(m->pointer, name);
    if (!symbol) return fail(DI_NOT_FOUND, "function", dlerror());
    return add(FUNCTION, module, symbol, out);
}

static di_status launch(di_handle fn, di_dim3 grid, di_dim3 block, uint32_t smem_bytes, const di_arg* args,
                        uint32_t arg_count, di_handle stream) {
    void* params[MAX_PARAMS];
    uint32_t count = 0;
    (void)smem_bytes;
    record* f = find(fn, FUNCTION);
    if (!f) return fail(DI_INVALID_ARGUMENT, "launch: not a function", NULL);
    if (check_stream(stream, "launch")) return DI_INVALID_ARGUMENT;
    for (uint32_t i = 0; i < arg_count; ++i) {
        if (args[i].kind == DI_ARG_SPAN) continue;
        if (count == MAX_PARAMS) return fail(DI_INVALID_ARGUMENT, "launch: more than 64 parameters", NULL);
        params[count++] = (void*)args[i].data;
    }
    kernel_fn kernel;
    memcpy(&kernel, &f->pointer, sizeof kernel); /* object to function pointer, as POSIX dlsym asks */
    kernel(grid, block, params);
    return DI_OK;
}

static di_status extension(const char* name, const void** table) {
    (void)table;
    return fail(DI_NOT_FOUND, "extension", name);
}

static const di_driver driver = {
    sizeof(di_driver), DI_ABI_MAJOR, DI_ABI_MINOR, "example_c", DI_KIND_HOST, 0,
    last_error, probe, device_props, open_device, release_handle, mem_info, mem_alloc, mem_free, memcpy_async,
    memset_async, stream_create, stream_synchronize, event_create, event_record, event_wait, event_synchronize,
    event_elapsed_ms, module_load, function, launch, extension,
};

DI_EXPORT const di_driver* di_get_driver(uint32_t abi_major) { return abi_major == DI_ABI_MAJOR ? &driver : NULL; }
