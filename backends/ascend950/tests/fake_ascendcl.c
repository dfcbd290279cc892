/* A stand-in for libascendcl.so: host memory for device memory, a log of every call, and one function that fails at will.
 * -DWITHOUT_PEERS leaves out the functions of peer memory, -DTOO_OLD one that every backend needs. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char log_text[65536], failing[128];
static int failing_status, device = -1;
static uintptr_t next_handle = 0x1000;

static int called(const char* name, const char* format, ...) {
    char line[512];
    va_list values;
    va_start(values, format);
    vsnprintf(line, sizeof line, format, values);
    va_end(values);
    if (strlen(log_text) + strlen(name) + strlen(line) + 4 < sizeof log_text) {
        strcat(log_text, name);
        strcat(log_text, " ");
        strcat(log_text, line);
        strcat(log_text, "\n");
    }
    return strcmp(name, failing) == 0 ? failing_status : 0;
}
#define CALLED(...) \
    int status = called(__func__, __VA_ARGS__); \
    if (status) return status

void fake_fail(const char* name, int status) {
    snprintf(failing, sizeof failing, "%s", name);
    failing_status = status;
}
const char* fake_log(void) { return log_text; }
void fake_forget(void) {
    log_text[0] = failing[0] = 0;
    device = -1;
}

const char* aclGetRecentErrMsg(void) { return failing[0] ? "E19999: the stand-in was told to fail" : NULL; }
const char* aclrtGetSocName(void) { return "Ascend950PR_9599"; }
int aclInit(const char* config) { CALLED("%s", config ? config : "null"); return 0; }
int aclrtSetDevice(int32_t id) { CALLED("%d", id); device = id; return 0; }
int aclrtGetDevice(int32_t* id) { *id = device; return device < 0 ? 107002 : 0; }
int aclrtGetDeviceCount(uint32_t* count) { CALLED(""); *count = 2; return 0; }
int aclrtGetDeviceInfo(uint32_t id, int attribute, int64_t* value) {
    CALLED("%u %d", id, attribute);
    *value = attribute == 101 ? 36 : attribute == 301 ? (int64_t)112 << 30 : 0;
    return attribute == 302 ? 1 : 0;
}
int aclrtGetMemInfo(int kind, size_t* free_bytes, size_t* total) { CALLED("%d", kind); *free_bytes = 5; *total = 7; return 0; }
int aclrtMalloc(void** out, size_t bytes, int policy) { CALLED("%zu %d", bytes, policy); *out = malloc(bytes); return 0; }
int aclrtFree(void* p) { CALLED(""); free(p); return 0; }
int aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t bytes, int kind, void* stream) {
    CALLED("%zu %zu %d %p", room, bytes, kind, stream);
    memcpy(to, from, bytes);
    return 0;
}
int aclrtMemsetAsync(void* to, size_t room, int32_t value, size_t bytes, void* stream) {
    CALLED("%zu %d %zu %p", room, value, bytes, stream);
    memset(to, value, bytes);
    return 0;
}
int aclrtCreateStream(void** out) { CALLED(""); *out = (void*)next_handle++; return 0; }
int aclrtDestroyStream(void* stream) { CALLED("%p", stream); return 0; }
int aclrtSynchronizeStream(void* stream) { CALLED("%p", stream); return 0; }
int aclrtSynchronizeDevice(void) { CALLED(""); return 0; }
int aclrtCreateEvent(void** out) { CALLED(""); *out = (void*)next_handle++; return 0; }
int aclrtDestroyEvent(void* event) { CALLED("%p", event); return 0; }
int aclrtRecordEvent(void* event, void* stream) { CALLED("%p %p", event, stream); return 0; }
int aclrtStreamWaitEvent(void* stream, void* event) { CALLED("%p %p", stream, event); return 0; }
int aclrtSynchronizeEvent(void* event) { CALLED("%p", event); return 0; }
int aclrtEventElapsedTime(float* ms, void* first, void* last) { CALLED("%p %p", first, last); *ms = 1.5f; return 0; }
int aclrtBinaryLoadFromFile(const char* path, void* options, void** out) {
    char head[16] = "";
    FILE* file = fopen(path, "rb");
    if (!file) return 100001;
    if (!fread(head, 1, 5, file)) head[0] = 0;
    fclose(file);
    CALLED("%s %s", head, options ? "options" : "null");
    *out = (void*)next_handle++;
    return 0;
}
int aclrtBinaryUnLoad(void* module) { CALLED("%p", module); return 0; }
int aclrtBinaryGetFunction(void* module, const char* name, void** out) {
    CALLED("%p %s", module, name);
    *out = (void*)next_handle++;
    return 0;
}
#ifndef TOO_OLD
int aclrtLaunchKernelWithHostArgs(void* function, uint32_t blocks, void* stream, void* config, void* args, size_t bytes, void* holders, size_t count) {
    uint64_t first = 0;
    if (bytes >= 8) memcpy(&first, args, 8);
    CALLED("%p %u %p %s %zu %llx %s %zu", function, blocks, stream, config ? "config" : "null", bytes, (unsigned long long)first, holders ? "holders" : "null", count);
    return 0;
}
#endif
#ifndef WITHOUT_PEERS
int aclrtDeviceCanAccessPeer(int32_t* can, int32_t id, int32_t peer) { CALLED("%d %d", id, peer); *can = peer < 2; return 0; }
int aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t flags) { CALLED("%d %u", peer, flags); return 0; }
int aclrtIpcMemGetExportKey(void* p, size_t bytes, char* key, size_t len, uint64_t flags) {
    CALLED("%zu %zu %llu", bytes, len, (unsigned long long)flags);
    snprintf(key, len, "%p", p);
    return 0;
}
int aclrtIpcMemImportByKey(void** out, const char* key, uint64_t flags) {
    CALLED("%llu", (unsigned long long)flags);
    return sscanf(key, "%p", out) == 1 ? 0 : 100000;
}
int aclrtIpcMemClose(const char* key) { CALLED("%s", key[0] ? "key" : "none"); return 0; }
#endif
