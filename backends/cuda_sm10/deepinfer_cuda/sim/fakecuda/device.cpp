// Initialisation, devices, their attributes, and the names of error codes.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "fakecuda/state.h"

namespace fakecuda {
namespace {

constexpr int kDriverVersion = 13000;

struct Named {
    CUresult code;
    const char *name, *text;
};
#define CODE(name, text) {name, #name, text}
const Named kCodes[] = {
    CODE(CUDA_SUCCESS, "no error"),
    CODE(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    CODE(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    CODE(CUDA_ERROR_NOT_INITIALIZED, "the driver is not initialised in this process"),
    CODE(CUDA_ERROR_NO_DEVICE, "no device is visible"),
    CODE(CUDA_ERROR_INVALID_DEVICE, "no such device"),
    CODE(CUDA_ERROR_INVALID_CONTEXT, "no valid context is current"),
    CODE(CUDA_ERROR_NO_BINARY_FOR_GPU, "the image holds nothing that this device can run"),
    CODE(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "these devices cannot reach each other's memory"),
    CODE(CUDA_ERROR_INVALID_PTX, "the PTX text is not valid for this device"),
    CODE(CUDA_ERROR_FILE_NOT_FOUND, "file not found"),
    CODE(CUDA_ERROR_INVALID_HANDLE, "invalid handle"),
    CODE(CUDA_ERROR_ILLEGAL_STATE, "not possible in the present state"),
    CODE(CUDA_ERROR_NOT_FOUND, "name not found"),
    CODE(CUDA_ERROR_NOT_READY, "work is still under way"),
    CODE(CUDA_ERROR_ILLEGAL_ADDRESS, "a kernel touched memory that is not its own"),
    CODE(CUDA_ERROR_LAUNCH_TIMEOUT, "a kernel never ends"),
    CODE(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is enabled already"),
    CODE(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access is not enabled"),
    CODE(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "the primary context is in use"),
    CODE(CUDA_ERROR_CONTEXT_IS_DESTROYED, "the context was destroyed"),
    CODE(CUDA_ERROR_ASSERT, "a device assertion failed"),
    CODE(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "the host memory is registered already"),
    CODE(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "the host memory is not registered"),
    CODE(CUDA_ERROR_MISALIGNED_ADDRESS, "a kernel used a misaligned address"),
    CODE(CUDA_ERROR_LAUNCH_FAILED, "a kernel failed, or the checker found a fault in it"),
    CODE(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "a cooperative grid does not fit the device"),
    CODE(CUDA_ERROR_TENSOR_MEMORY_LEAK, "a kernel left tensor memory allocated"),
    CODE(CUDA_ERROR_NOT_PERMITTED, "not permitted"),
    CODE(CUDA_ERROR_NOT_SUPPORTED, "not supported by the simulated driver"),
    CODE(CUDA_ERROR_SYSTEM_NOT_READY, "the simulated driver cannot serve this process"),
    CODE(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "not allowed while a stream is captured"),
    CODE(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture is invalid because of an earlier error"),
    CODE(CUDA_ERROR_STREAM_CAPTURE_MERGE, "two captures would merge"),
    CODE(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "the capture began in another stream"),
    CODE(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "a stream of the capture was not joined"),
    CODE(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "a capture depends on work outside"),
    CODE(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "the legacy stream would wait for a captured one"),
    CODE(CUDA_ERROR_CAPTURED_EVENT, "the event belongs to a capture"),
    CODE(CUDA_ERROR_INVALID_CLUSTER_SIZE, "invalid cluster size"),
    CODE(CUDA_ERROR_UNKNOWN, "unknown error"),
};
#undef CODE

const Named* lookup(CUresult code) {
    for (auto& n : kCodes)
        if (n.code == code) return &n;
    return nullptr;
}

bool loaded(const char* soname) {
    void* handle = dlopen(soname, RTLD_LAZY | RTLD_NOLOAD);
    if (handle) dlclose(handle);
    return handle != nullptr;
}

// CUDA_VISIBLE_DEVICES as the driver reads it: ordinals in the wanted order, cut at the first that does not exist.
std::vector<int> visible(int count) {
    std::vector<int> all;
    const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
    if (!text) {
        for (int i = 0; i < count; ++i) all.push_back(i);
        return all;
    }
    for (const char* at = text; *at;) {
        char* end = nullptr;
        long n = std::strtol(at, &end, 10);
        if (end == at || n < 0 || n >= count) break;
        all.push_back(int(n));
        at = *end == ',' ? end + 1 : end + std::string(end).size();
    }
    return all;
}

void initialise(Driver& d) {
    for (const char* library : {"libtorch_cuda.so", "libc10_cuda.so", "libcudart.so.13", "libcudart.so.12"})
        if (loaded(library))
            fail(CUDA_ERROR_SYSTEM_NOT_READY, std::string("this process has loaded ") + library + ": the simulated driver does not serve the CUDA runtime or a CUDA build of torch");
    d.options = parse_options(std::getenv("DEEPINFER_FAKECUDA"));
    const void* control = nullptr;
    if (di_get_driver(DI_ABI_MAJOR)->extension("sim.control", &control)) fail(CUDA_ERROR_UNKNOWN, "the simulator has no control table");
    for (auto& [key, value] : d.options.simulator)
        if (static_cast<const di_sim_control*>(control)->set(key.c_str(), value.c_str()))
            fail(CUDA_ERROR_INVALID_VALUE, std::string("DEEPINFER_FAKECUDA: ") + di_get_driver(DI_ABI_MAJOR)->last_error());
    u32 first = 0;
    while (first < d.sim.machine.profiles.size() && std::string(d.sim.machine.profiles[first].arch) != (d.options.profile == "sm90" ? "sm_90" : "sm_100")) ++first;
    for (int i : visible(d.options.devices)) d.devices.push_back(first + u32(i));
    if (d.devices.empty()) fail(CUDA_ERROR_NO_DEVICE, "DEEPINFER_FAKECUDA and CUDA_VISIBLE_DEVICES leave no device");
    for (size_t i = 0; i < d.devices.size(); ++i) {
        Handle h = d.add();
        d.contexts[h] = std::make_unique<Context>();
        d.contexts[h]->device = int(i), d.contexts[h]->primary = true;
        d.primary.push_back(h);
    }
    d.owner = getpid(), d.ready = true;
}

// Attributes by number (CUdevice_attribute). Values that depend on the profile are computed; the rest are those of both chips.
int attribute(const ptxsim::Profile& p, int which, int ordinal) {
    static const std::map<int, int> fixed = {
        {1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535}, {8, 49152}, {9, 65536}, {10, 32}, {11, 2147483647},
        {12, 65536}, {14, 512}, {15, 1}, {19, 1}, {31, 1}, {32, 1}, {40, 3}, {41, 1}, {51, 32}, {78, 1}, {79, 1}, {80, 1}, {82, 65536}, {83, 0},
        {87, 2}, {90, 1}, {91, 1}, {95, 1}, {99, 1}, {111, 1024}, {115, 1}, {120, 1}, {127, 1}};
    switch (which) {
        case 13: return int(p.clock_khz);
        case 16: return int(p.sms);
        case 34: return ordinal;  // PCI device id
        case 36: return int(p.bandwidth * 8 / 2 / 1000 / (p.tcgen05 ? 8192 : 6144));  // memory clock that gives the data sheet's bandwidth
        case 37: return p.tcgen05 ? 8192 : 6144;
        case 38: return int(p.l2_bytes);
        case 39: return int(p.threads_per_sm);
        case 75: return p.major;
        case 76: return p.minor;
        case 81: return int(p.shared_per_sm);
        case 97: return int(p.shared_per_block);
        case 106: return int(p.ctas_per_sm);
    }
    auto it = fixed.find(which);
    return it == fixed.end() ? 0 : it->second;
}

}  // namespace
}  // namespace fakecuda

using namespace fakecuda;

FAKECUDA_API cuInit(unsigned flags) {
    return guard(__func__, [&](Driver& d) {
        if (flags) fail(CUDA_ERROR_INVALID_VALUE, "flags must be 0");
        if (d.ready && d.owner != getpid()) fail(CUDA_ERROR_NOT_INITIALIZED, "the driver was initialised before this process was forked");
        if (!d.ready) initialise(d);
    }, false);
}

FAKECUDA_API cuDriverGetVersion(int* version) {
    return guard(__func__, [&](Driver&) { need(version, "driverVersion"), *version = kDriverVersion; }, false);
}

FAKECUDA_API cuGetErrorName(CUresult code, const char** text) {
    if (!text) return CUDA_ERROR_INVALID_VALUE;
    const Named* n = lookup(code);
    *text = n ? n->name : nullptr;
    return n ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FAKECUDA_API cuGetErrorString(CUresult code, const char** text) {
    if (!text) return CUDA_ERROR_INVALID_VALUE;
    const Named* n = lookup(code);
    *text = n ? n->text : nullptr;
    return n ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// The sentence behind the latest failure of any entry point; the driver API has no place for it.
extern "C" __attribute__((visibility("default"))) const char* fakecuda_last_error() { return Driver::get().last_error.c_str(); }

FAKECUDA_API cuDeviceGetCount(int* count) {
    return guard(__func__, [&](Driver& d) { need(count, "count"), *count = int(d.devices.size()); });
}

FAKECUDA_API cuDeviceGet(CUdevice* device, int ordinal) {
    return guard(__func__, [&](Driver& d) { need(device, "device"), *device = d.device(ordinal); });
}

FAKECUDA_API cuDeviceGetName(char* name, int length, CUdevice device) {
    return guard(__func__, [&](Driver& d) {
        need(name, "name");
        if (length < 1) fail(CUDA_ERROR_INVALID_VALUE, "length must be positive");
        std::snprintf(name, size_t(length), "%s", d.profile(device).name);
    });
}

FAKECUDA_API cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
    return guard(__func__, [&](Driver& d) {
        need(uuid, "uuid");
        std::snprintf(uuid->bytes, sizeof uuid->bytes, "%-14s%d", d.profile(device).arch, device);
    });
}

FAKECUDA_API cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
    return guard(__func__, [&](Driver& d) { need(bytes, "bytes"), *bytes = d.profile(device).memory_bytes; });
}

FAKECUDA_API cuDeviceGetAttribute(int* value, int which, CUdevice device) {
    return guard(__func__, [&](Driver& d) {
        need(value, "pi");
        const ptxsim::Profile& p = d.profile(device);
        if (which < 1 || which > 200) fail(CUDA_ERROR_INVALID_VALUE, "attribute " + std::to_string(which) + " is unknown");
        *value = attribute(p, which, device);
    });
}

FAKECUDA_API cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
    return guard(__func__, [&](Driver& d) {
        need(id, "pciBusId");
        d.device(device);
        if (length < 13) fail(CUDA_ERROR_INVALID_VALUE, "length must be at least 13");
        std::snprintf(id, size_t(length), "0000:00:%02x.0", device);
    });
}

FAKECUDA_API cuDeviceGetByPCIBusId(CUdevice* device, const char* id) {
    return guard(__func__, [&](Driver& d) {
        need(device, "dev"), need(id, "pciBusId");
        unsigned number = 0;
        if (std::sscanf(id, "0000:00:%x.0", &number) != 1) fail(CUDA_ERROR_INVALID_VALUE, std::string("'") + id + "' is no bus id of this driver");
        *device = d.device(int(number));
    });
}

FAKECUDA_API cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
    return guard(__func__, [&](Driver& d) {
        need(major, "major"), need(minor, "minor");
        *major = d.profile(device).major, *minor = d.profile(device).minor;
    });
}

FAKECUDA_API cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
    return guard(__func__, [&](Driver& d) { need(can, "canAccessPeer"), *can = d.device(device) != d.device(peer); });
}

FAKECUDA_API cuDeviceGetP2PAttribute(int* value, int which, CUdevice from, CUdevice to) {
    return guard(__func__, [&](Driver& d) {
        need(value, "value");
        if (d.device(from) == d.device(to)) fail(CUDA_ERROR_INVALID_DEVICE, "source and destination are the same device");
        if (which < 1 || which > 4) fail(CUDA_ERROR_INVALID_VALUE, "attribute " + std::to_string(which) + " is unknown");
        *value = which == 1 || which == 4 ? 0 : 1;
    });
}
