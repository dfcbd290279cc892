// The narrow waist over the simulator: N devices whose memory is host memory, kernels in shared objects.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "asc_sim/extension.h"
#include "runtime.h"

namespace asc_sim {
namespace {

constexpr uint32_t kDevices = 16;
constexpr uint64_t kMemory = 128ull << 30;

thread_local std::string last_error;
thread_local Options options;
thread_local Counters last_counters;
thread_local std::string last_warnings;

di_status set_error(di_status s, const std::string& text) {
    last_error = text;
    return s;
}

enum class Type { Context, Stream, Event, Module, Function };
struct Object {
    Type type;
    uint32_t device = 0;
    void* library = nullptr;               // Module
    const KernelEntry* kernels = nullptr;  // Module: list
    const KernelEntry* kernel = nullptr;   // Function
    di_handle owner = 0;
    int fd = -1;  // Module: its memory file. Open as long as the module: dlopen takes a reused path for the old library
    std::chrono::steady_clock::time_point time{};
    bool recorded = false;
};

std::mutex lock;
std::unordered_map<di_handle, Object> objects;
std::unordered_map<di_addr, uint64_t> allocations;
di_handle next_handle = 1;

di_handle add(Object o) {
    std::lock_guard<std::mutex> guard(lock);
    const di_handle h = next_handle++;
    objects.emplace(h, o);
    return h;
}
bool find(di_handle h, Type type, Object* out) {
    std::lock_guard<std::mutex> guard(lock);
    auto it = objects.find(h);
    if (it == objects.end() || it->second.type != type) return false;
    *out = it->second;
    return true;
}
template <class F>
di_status guarded(F f) {
    try {
        return f();
    } catch (const SimError& e) {
        return set_error(e.timeout ? DI_TIMEOUT : DI_LAUNCH_FAILED, e.what());
    } catch (const std::bad_alloc&) {
        return set_error(DI_OUT_OF_MEMORY, "out of host memory");
    } catch (const std::exception& e) {
        return set_error(DI_INTERNAL, e.what());
    }
}
di_status need(di_handle h, Type type, Object* o, const char* what) {
    if (find(h, type, o)) return DI_OK;
    return set_error(DI_INVALID_ARGUMENT, std::string(what) + ": " + std::to_string(h) + " is not a live handle of that kind");
}

const char* error_text() { return last_error.c_str(); }

di_status probe(di_probe* out) {
    out->available = 1;
    out->device_count = kDevices;
    std::snprintf(out->reason, sizeof out->reason, "simulated devices, always available");
    std::snprintf(out->version, sizeof out->version, "ascend950 simulator 1");
    return DI_OK;
}

di_status device_props(uint32_t index, di_device_props* p) {
    if (index >= kDevices) return set_error(DI_NOT_FOUND, "device " + std::to_string(index) + " of " + std::to_string(kDevices));
    const uint32_t size = p->struct_size;
    std::memset(p, 0, size < sizeof *p ? size : sizeof *p);
    p->struct_size = size;
    p->kind = DI_KIND_SIMULATOR;
    std::snprintf(p->name, sizeof p->name, "Ascend 950 simulator");
    std::snprintf(p->arch, sizeof p->arch, "ascend950");
    p->compute_units = options.ai_cores;
    p->clock_khz = 1650000;
    p->memory_bytes = kMemory;
    p->l2_bytes = 128u << 20;
    p->scratch_bytes = 253952;
    p->caps = (1u << DI_CAP_BF16) | (1u << DI_CAP_FP16) | (1u << DI_CAP_FP8_E4M3) | (1u << DI_CAP_MXFP8) | (1u << DI_CAP_MXFP4) |
              (1u << DI_CAP_PEER_MEMORY) | (1u << DI_CAP_RACE_CHECKER);
    p->memory_bandwidth = 1600000000000ull;
    return DI_OK;
}

di_status open_ctx(uint32_t index, di_handle* ctx) {
    if (index >= kDevices) return set_error(DI_NOT_FOUND, "device " + std::to_string(index) + " of " + std::to_string(kDevices));
    *ctx = add({Type::Context, index});
    return DI_OK;
}

di_status release(di_handle h) {
    void* library = nullptr;
    int fd = -1;
    {
        std::lock_guard<std::mutex> guard(lock);
        auto it = objects.find(h);
        if (it == objects.end()) return set_error(DI_INVALID_ARGUMENT, "release: not a live handle");
        library = it->second.library;
        fd = it->second.fd;
        objects.erase(it);
        for (auto o = objects.begin(); o != objects.end();) o = o->second.owner == h ? objects.erase(o) : std::next(o);
    }
    if (library) dlclose(library);
    if (fd >= 0) close(fd);
    return DI_OK;
}

di_status mem_info(di_handle ctx, uint64_t* free_bytes, uint64_t* total) {
    Object o;
    if (di_status s = need(ctx, Type::Context, &o, "mem_info")) return s;
    uint64_t used = 0;
    std::lock_guard<std::mutex> guard(lock);
    for (auto& a : allocations) used += a.second;
    *free_bytes = kMemory - (used < kMemory ? used : kMemory);
    *total = kMemory;
    return DI_OK;
}
di_status mem_alloc(di_handle ctx, uint64_t bytes, uint64_t align, di_addr* out) {
    Object o;
    if (di_status s = need(ctx, Type::Context, &o, "mem_alloc")) return s;
    if (align == 0) align = 512;
    if (align & (align - 1)) return set_error(DI_INVALID_ARGUMENT, "align must be a power of two");
    if (align < 64) align = 64;
    if (bytes > kMemory) return set_error(DI_OUT_OF_MEMORY, std::to_string(bytes) + " bytes asked, the device has " + std::to_string(kMemory));
    void* p = std::aligned_alloc(align, (std::max<uint64_t>(bytes, 1) + align - 1) / align * align);
    if (!p) return set_error(DI_OUT_OF_MEMORY, std::to_string(bytes) + " bytes");
    std::memset(p, 0xFF, bytes);  // nothing a kernel has not written may look like a number
    *out = reinterpret_cast<di_addr>(p);
    std::lock_guard<std::mutex> guard(lock);
    allocations[*out] = bytes;
    return DI_OK;
}
di_status mem_free(di_handle, di_addr a) {
    {
        std::lock_guard<std::mutex> guard(lock);
        if (!allocations.erase(a)) return set_error(DI_INVALID_ARGUMENT, "mem_free: the address was not returned by mem_alloc");
    }
    std::free(reinterpret_cast<void*>(a));
    return DI_OK;
}
di_status memcpy_async(di_handle, di_addr dst, di_addr src, uint64_t bytes, uint32_t, di_handle) {
    std::memmove(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), bytes);
    return DI_OK;
}
di_status memset_async(di_handle, di_addr dst, uint8_t value, uint64_t bytes, di_handle) {
    std::memset(reinterpret_cast<void*>(dst), value, bytes);
    return DI_OK;
}
di_status stream_create(di_handle ctx, di_handle* out) {
    Object o;
    if (di_status s = need(ctx, Type::Context, &o, "stream_create")) return s;
    *out = add({Type::Stream, o.device, nullptr, nullptr, nullptr, ctx});
    return DI_OK;
}
di_status stream_synchronize(di_handle, di_handle stream) {
    Object o;
    return stream ? need(stream, Type::Stream, &o, "stream_synchronize") : DI_OK;
}
di_status event_create(di_handle ctx, di_handle* out) {
    Object o;
    if (di_status s = need(ctx, Type::Context, &o, "event_create")) return s;
    *out = add({Type::Event, o.device, nullptr, nullptr, nullptr, ctx});
    return DI_OK;
}
di_status event_record(di_handle, di_handle event, di_handle) {
    std::lock_guard<std::mutex> guard(lock);
    auto it = objects.find(event);
    if (it == objects.end() || it->second.type != Type::Event) return set_error(DI_INVALID_ARGUMENT, "event_record: not an event");
    it->second.time = std::chrono::steady_clock::now();
    it->second.recorded = true;
    return DI_OK;
}
di_status event_wait(di_handle, di_handle event, di_handle) {
    Object o;
    return need(event, Type::Event, &o, "event_wait");
}
di_status event_synchronize(di_handle, di_handle event) {
    Object o;
    return need(event, Type::Event, &o, "event_synchronize");
}
di_status event_elapsed_ms(di_handle, di_handle start, di_handle end, double* out) {
    Object a, b;
    if (di_status s = need(start, Type::Event, &a, "event_elapsed_ms")) return s;
    if (di_status s = need(end, Type::Event, &b, "event_elapsed_ms")) return s;
    if (!a.recorded || !b.recorded) return set_error(DI_INVALID_ARGUMENT, "event_elapsed_ms: both events must have been recorded");
    *out = std::chrono::duration<double, std::milli>(b.time - a.time).count();
    return DI_OK;
}

// Kernels call back into this library; its symbols must be visible to what dlopen loads next.
void promote_self() {
    static std::once_flag once;
    std::call_once(once, [] {
        Dl_info info;
        if (dladdr(reinterpret_cast<void*>(&promote_self), &info) && info.dli_fname)
            dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
    });
}

di_status module_load(di_handle ctx, const void* image, uint64_t bytes, const char* fmt, di_handle* out) {
    Object o;
    if (di_status s = need(ctx, Type::Context, &o, "module_load")) return s;
    promote_self();
    void* lib = nullptr;
    int fd = -1;
    if (std::strcmp(fmt, "path") == 0) {
        lib = dlopen(std::string(static_cast<const char*>(image), bytes).c_str(), RTLD_NOW | RTLD_LOCAL);
    } else if (std::strcmp(fmt, "elf") == 0) {
        fd = memfd_create("deepinfer-kernel", MFD_CLOEXEC);
        if (fd < 0) return set_error(DI_INTERNAL, "memfd_create failed");
        const auto* p = static_cast<const char*>(image);
        for (uint64_t done = 0; done < bytes;) {
            const ssize_t n = write(fd, p + done, bytes - done);
            if (n <= 0) {
                close(fd);
                return set_error(DI_INTERNAL, "cannot copy the image");
            }
            done += static_cast<uint64_t>(n);
        }
        lib = dlopen(("/proc/self/fd/" + std::to_string(fd)).c_str(), RTLD_NOW | RTLD_LOCAL);
    } else {
        return set_error(DI_UNSUPPORTED, std::string("image format \"") + fmt + "\": the simulator loads \"path\" or \"elf\" shared objects built from AscendC sources");
    }
    if (!lib) {
        const di_status s = set_error(DI_INVALID_ARGUMENT, std::string("module_load: ") + dlerror());
        if (fd >= 0) close(fd);
        return s;
    }
    auto* entry = reinterpret_cast<const KernelEntry* (*)()>(dlsym(lib, "deepinfer_sim_kernels"));
    if (!entry) {
        dlclose(lib);
        if (fd >= 0) close(fd);
        return set_error(DI_INVALID_ARGUMENT, "module_load: the shared object declares no simulator kernels (deepinfer_sim_kernels is missing)");
    }
    Object m{Type::Module, o.device, lib, entry(), nullptr, ctx, fd};
    *out = add(m);
    return DI_OK;
}

di_status function(di_handle module, const char* name, di_handle* out) {
    Object m;
    if (di_status s = need(module, Type::Module, &m, "function")) return s;
    std::string all;
    for (const KernelEntry* k = m.kernels; k; k = k->next) {
        if (std::strcmp(k->name, name) == 0) {
            *out = add({Type::Function, m.device, nullptr, nullptr, k, module});
            return DI_OK;
        }
        all += std::string(all.empty() ? "" : ", ") + k->name;
    }
    return set_error(DI_NOT_FOUND, std::string("no kernel \"") + name + "\"; the module has: " + all);
}

std::unique_ptr<Launch> make_launch(const Object& fn, uint32_t grid, const di_arg* args, uint32_t count) {
    auto l = std::make_unique<Launch>();
    l->kernel = fn.kernel;
    l->grid = grid;
    l->device = fn.device;
    std::vector<Span> spans;
    for (uint32_t i = 0; i < count; ++i) {
        const di_arg& a = args[i];
        if (a.kind == DI_ARG_SCALAR || a.kind == DI_ARG_BUFFER) {
            const size_t align = std::min<size_t>(8, std::max<uint32_t>(a.size, 1));
            while (l->args.size() % align) l->args.push_back(0);
            const auto* p = static_cast<const unsigned char*>(a.data);
            l->args.insert(l->args.end(), p, p + a.size);
        }
        if (a.kind != DI_ARG_SCALAR) spans.push_back({a.base, a.span, a.writable != 0, nullptr});
    }
    if (l->args.size() != fn.kernel->args_size)
        throw SimError(std::string("kernel ") + fn.kernel->name + " takes " + std::to_string(fn.kernel->args_size) + " bytes of arguments, " + std::to_string(l->args.size()) + " given");
    l->spans = merge_spans(std::move(spans));
    return l;
}

void run_launches(std::vector<std::unique_ptr<Launch>> launches) {
    Scheduler s(std::move(launches), options);
    last_warnings.clear();
    try {
        s.run();
    } catch (...) {
        last_counters = s.counters;
        throw;
    }
    last_counters = s.counters;
    for (auto& w : s.warnings) last_warnings += w + "\n";
}

di_status launch(di_handle fn, di_dim3 grid, di_dim3, uint32_t, const di_arg* args, uint32_t count, di_handle) {
    Object f;
    if (di_status s = need(fn, Type::Function, &f, "launch")) return s;
    if (grid.y > 1 || grid.z > 1) return set_error(DI_INVALID_ARGUMENT, "launch: grids of this device have one dimension");
    return guarded([&] {
        if (grid.x == 0) return DI_OK;
        std::vector<std::unique_ptr<Launch>> l;
        l.push_back(make_launch(f, grid.x, args, count));
        run_launches(std::move(l));
        return DI_OK;
    });
}

di_status launch_group(const asc_sim_launch* launches, uint32_t count) {
    return guarded([&]() -> di_status {
        std::vector<std::unique_ptr<Launch>> l;
        for (uint32_t i = 0; i < count; ++i) {
            Object f;
            if (di_status s = need(launches[i].fn, Type::Function, &f, "launch_group")) return s;
            if (launches[i].grid) l.push_back(make_launch(f, launches[i].grid, launches[i].args, launches[i].arg_count));
        }
        run_launches(std::move(l));
        return DI_OK;
    });
}

struct Option {
    const char* name;
    double (*get)();
    void (*set)(double);
};
const Option kOptions[] = {
    {"policy", [] { return double(options.policy); }, [](double v) { options.policy = int(v); }},
    {"seed", [] { return double(options.seed); }, [](double v) { options.seed = uint64_t(v); }},
    {"race", [] { return double(options.race); }, [](double v) { options.race = v != 0; }},
    {"ftz", [] { return double(options.ftz); }, [](double v) { options.ftz = v != 0; }},
    {"uninit", [] { return double(options.check_uninit); }, [](double v) { options.check_uninit = v != 0; }},
    {"strict", [] { return double(options.strict); }, [](double v) { options.strict = v != 0; }},
    {"deadline_s", [] { return options.deadline_s; }, [](double v) { options.deadline_s = v; }},
    {"ai_cores", [] { return double(options.ai_cores); }, [](double v) { options.ai_cores = uint32_t(v < 1 ? 1 : v); }},
    {"ub_usable", [] { return double(options.ub_usable); }, [](double v) { options.ub_usable = uint32_t(std::min(v, 262144.0)); }},
};
const Option* option(const char* name) {
    for (const Option& o : kOptions)
        if (std::strcmp(o.name, name) == 0) return &o;
    set_error(DI_NOT_FOUND, std::string("option \"") + name + "\" does not exist");
    return nullptr;
}
di_status set_option(const char* name, double v) {
    const Option* o = option(name);
    if (!o) return DI_NOT_FOUND;
    o->set(v);
    return DI_OK;
}
di_status get_option(const char* name, double* v) {
    const Option* o = option(name);
    if (!o) return DI_NOT_FOUND;
    *v = o->get();
    return DI_OK;
}
di_status counters(asc_sim_counters* out) {
    uint64_t all = 0;
    for (uint64_t n : last_counters.ops) all += n;
    *out = {last_counters.macs, last_counters.vf, last_counters.bytes[4], last_counters.bytes[5], last_counters.bytes[3], last_counters.bytes[6], all};
    return DI_OK;
}
const char* warnings() { return last_warnings.c_str(); }

di_status timeline(double* cycles, double* busy) {
    *cycles = last_counters.cycles;
    std::copy(last_counters.busy, last_counters.busy + kActors, busy);
    return DI_OK;
}
const asc_sim_extension kExtension{sizeof(asc_sim_extension), 0, set_option, get_option, counters, warnings, launch_group, timeline};

di_status extension(const char* name, const void** table) {
    if (std::strcmp(name, "ascend950.sim.v1") == 0) {
        *table = &kExtension;
        return DI_OK;
    }
    return set_error(DI_NOT_FOUND, std::string("no extension \"") + name + "\"");
}

}  // namespace
}  // namespace asc_sim

extern "C" DI_EXPORT const di_driver* di_get_driver(uint32_t abi_major) {
    using namespace asc_sim;
    static const di_driver table{sizeof(di_driver), DI_ABI_MAJOR, DI_ABI_MINOR, "ascend950/sim", DI_KIND_SIMULATOR, 0,
                                 error_text, probe, device_props, open_ctx, release, mem_info, mem_alloc, mem_free,
                                 memcpy_async, memset_async, stream_create, stream_synchronize, event_create, event_record,
                                 event_wait, event_synchronize, event_elapsed_ms, module_load, function, launch, extension};
    return abi_major == DI_ABI_MAJOR ? &table : nullptr;
}
