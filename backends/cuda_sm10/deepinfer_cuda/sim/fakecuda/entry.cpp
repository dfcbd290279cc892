// cuGetProcAddress: a name of the driver API to the function of the newest version that this library has.
#include <dlfcn.h>

#include <string>

#include "fakecuda/state.h"

using namespace fakecuda;

namespace {

// The library itself, whatever name it was loaded under.
void* self() {
    static void* handle = [] {
        Dl_info info{};
        dladdr(reinterpret_cast<void*>(&fakecuda::parse_options), &info);
        return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    }();
    return handle;
}

// Functions whose meaning of the bare name changed with the API version the caller was compiled for.
struct Versioned {
    const char* name;
    int since;
    const char* symbol;
};
const Versioned kVersioned[] = {
    {"cuCtxCreate", 12050, "cuCtxCreate_v4"}, {"cuCtxCreate", 3020, "cuCtxCreate_v2"},
    {"cuStreamGetCaptureInfo", 12030, "cuStreamGetCaptureInfo_v3"}, {"cuStreamGetCaptureInfo", 11030, "cuStreamGetCaptureInfo_v2"},
    {"cuStreamGetCtx", 12050, "cuStreamGetCtx_v2"}, {"cuStreamGetCtx", 9020, "cuStreamGetCtx"},
    {"cuGraphInstantiate", 11040, "cuGraphInstantiateWithFlags"},
};

void* look_up(const std::string& name, int version) {
    bool known = false;
    for (auto& v : kVersioned)
        if (name == v.name) {
            known = true;
            if (version >= v.since) return dlsym(self(), v.symbol);
        }
    if (known) return nullptr;
    for (const char* suffix : {"_v4", "_v3", "_v2", ""})
        if (void* p = dlsym(self(), (name + suffix).c_str())) return p;
    return nullptr;
}

}  // namespace

FAKECUDA_API cuGetProcAddress_v2(const char* symbol, void** function, int version, u64 flags, int* status) {
    return guard(__func__, [&](Driver&) {
        need(symbol, "symbol"), need(function, "pfn");
        *function = nullptr;
        if (status) *status = 1;
        bool own = std::string(symbol).rfind("cu", 0) == 0;
        if (own && !(flags & 2)) *function = look_up(symbol, version);
        if (*function && status) *status = 0;
    }, false);
}

FAKECUDA_API cuGetProcAddress(const char* symbol, void** function, int version, u64 flags) {
    int status = 0;
    CUresult code = cuGetProcAddress_v2(symbol, function, version, flags, &status);
    return code ? code : status ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
