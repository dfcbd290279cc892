// The C tables of driver.h and extensions.h over Runtime. No exception leaves this file.
#include <cstdio>

#include "driver/profiles.h"
#include "driver/runtime.h"
#include "isa/decode.h"
#include "tensor/tensor_map.h"

namespace ptxsim {
namespace {

thread_local std::string last_error_text;

// Messages quote PTX text, which may hold any bytes; what crosses the boundary is UTF-8.
std::string utf8(const std::string& s) {
    std::string out;
    for (size_t i = 0; i < s.size();) {
        unsigned char c = (unsigned char)s[i];
        size_t n = c < 0x80 ? 1 : c >= 0xc2 && c < 0xe0 ? 2 : c >= 0xe0 && c < 0xf0 ? 3 : c >= 0xf0 && c < 0xf5 ? 4 : 0;
        bool ok = n && i + n <= s.size();
        for (size_t k = 1; ok && k < n; ++k) ok = ((unsigned char)s[i + k] & 0xc0) == 0x80;
        if (ok && n == 3) ok = !(c == 0xe0 && (unsigned char)s[i + 1] < 0xa0) && !(c == 0xed && (unsigned char)s[i + 1] >= 0xa0);
        if (ok && n == 4) ok = !(c == 0xf0 && (unsigned char)s[i + 1] < 0x90) && !(c == 0xf4 && (unsigned char)s[i + 1] >= 0x90);
        if (ok) out += s.substr(i, n), i += n;
        else out += '?', ++i;
    }
    return out;
}

template <class F>
di_status guard(F&& f) {
    Runtime& r = Runtime::get();
    std::lock_guard<std::recursive_mutex> hold(r.lock);
    try {
        f(r);
        return DI_OK;
    } catch (const DriverError& e) {
        last_error_text = utf8(e.what());
        return e.status;
    } catch (const SimError& e) {
        last_error_text = utf8(e.what());
        return DI_UNSUPPORTED;
    } catch (const std::bad_alloc&) {
        last_error_text = "host memory is exhausted";
        return DI_OUT_OF_MEMORY;
    } catch (const std::exception& e) {
        last_error_text = std::string("internal error: ") + e.what();
        return DI_INTERNAL;
    }
}

[[noreturn]] void refuse(const std::string& what) { throw DriverError(DI_INVALID_ARGUMENT, what); }
void need(const void* p, const char* what) {
    if (!p) refuse(std::string(what) + " is NULL");
}

const char* last_error() { return last_error_text.c_str(); }

di_status probe(di_probe* out) {
    return guard([&](Runtime& r) {
        need(out, "out");
        out->struct_size = sizeof *out, out->available = 1, out->device_count = u32(r.machine.profiles.size());
        std::snprintf(out->reason, sizeof out->reason, "PTX interpreter on this CPU; no GPU is used");
        std::snprintf(out->version, sizeof out->version, "deepinfer ptx simulator, PTX ISA 9.0");
    });
}

di_status device_props(uint32_t i, di_device_props* o) {
    return guard([&](Runtime& r) {
        need(o, "out");
        if (i >= r.machine.profiles.size()) throw DriverError(DI_NOT_FOUND, "device index " + std::to_string(i) + " of " + std::to_string(r.machine.profiles.size()));
        const Profile& p = r.machine.profiles[i];
        o->struct_size = sizeof *o, o->kind = DI_KIND_SIMULATOR;
        std::snprintf(o->name, sizeof o->name, "%s", p.name);
        std::snprintf(o->arch, sizeof o->arch, "%s", p.arch);
        o->compute_units = p.sms, o->clock_khz = p.clock_khz, o->memory_bytes = p.memory_bytes, o->l2_bytes = p.l2_bytes;
        o->scratch_bytes = p.shared_per_block, o->memory_bandwidth = p.bandwidth;
        u64 caps = 0;
        for (int c : {DI_CAP_BF16, DI_CAP_FP16, DI_CAP_FP8_E4M3, DI_CAP_PEER_MEMORY, DI_CAP_TENSOR_MAPS, DI_CAP_CLUSTERS, DI_CAP_RACE_CHECKER}) caps |= 1ull << c;
        if (p.tcgen05) caps |= 1ull << DI_CAP_MXFP8 | 1ull << DI_CAP_MXFP4;
        o->caps = caps;
    });
}

di_status open_device(uint32_t i, di_handle* out) { return guard([&](Runtime& r) { need(out, "ctx"); *out = r.open(i); }); }
di_status release(di_handle h) { return guard([&](Runtime& r) { r.release(h); }); }
di_status mem_info(di_handle c, uint64_t* f, uint64_t* t) {
    return guard([&](Runtime& r) {
        need(f, "free_bytes"), need(t, "total_bytes");
        u32 d = r.context(c).device;
        *t = r.machine.profiles[d].memory_bytes;
        *f = *t - std::min(*t, r.used(d));
    });
}
di_status mem_alloc(di_handle c, uint64_t n, uint64_t align, di_addr* out) { return guard([&](Runtime& r) { need(out, "out"); *out = r.allocate(c, n, align ? align : 256); }); }
di_status mem_free(di_handle c, di_addr a) { return guard([&](Runtime& r) { r.free(c, a); }); }
di_status memcpy_async(di_handle c, di_addr dst, di_addr src, uint64_t n, uint32_t kind, di_handle st) {
    return guard([&](Runtime& r) {
        if (kind < DI_COPY_H2D || kind > DI_COPY_D2D) refuse("copy kind " + std::to_string(kind) + " is none of H2D, D2H, D2D");
        if (n && (!dst || !src)) refuse("copy of " + std::to_string(n) + " bytes from or to address 0");
        r.enqueue(c, st, [=] { std::memmove(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), n); });
    });
}
di_status memset_async(di_handle c, di_addr dst, uint8_t v, uint64_t n, di_handle st) {
    return guard([&](Runtime& r) {
        if (n && !dst) refuse("memset at address 0");
        r.enqueue(c, st, [=] { std::memset(reinterpret_cast<void*>(dst), v, n); });
    });
}
di_status stream_create(di_handle c, di_handle* out) { return guard([&](Runtime& r) { need(out, "out"); *out = r.make_stream(c); }); }
di_status stream_synchronize(di_handle c, di_handle s) { return guard([&](Runtime& r) { r.synchronize(c, s); }); }
di_status event_create(di_handle c, di_handle* out) { return guard([&](Runtime& r) { need(out, "out"); *out = r.make_event(c); }); }
di_status event_record(di_handle c, di_handle e, di_handle s) { return guard([&](Runtime& r) { r.record(c, e, s); }); }
di_status event_wait(di_handle c, di_handle e, di_handle s) { return guard([&](Runtime& r) { r.wait(c, e, s); }); }
di_status event_synchronize(di_handle c, di_handle e) { return guard([&](Runtime& r) { r.context(c); r.synchronize_event(e); }); }
di_status elapsed(di_handle c, di_handle a, di_handle b, double* out) {
    return guard([&](Runtime& r) {
        need(out, "out");
        r.context(c);
        Event &x = r.event(a), &y = r.event(b);
        if (!x.recorded || !y.recorded || !x.reached || !y.reached) refuse("both events must have been recorded and reached");
        *out = y.when - x.when;  // host time of the simulation, not a device time
    });
}
di_status module_load(di_handle c, const void* image, uint64_t n, const char* fmt, di_handle* out) {
    return guard([&](Runtime& r) {
        need(image, "image"), need(fmt, "fmt"), need(out, "out");
        if (std::string(fmt) != "ptx") throw DriverError(DI_UNSUPPORTED, std::string("image format '") + fmt + "': the simulator executes \"ptx\" only");
        r.context(c);
        *out = r.load(c, std::string(static_cast<const char*>(image), n));
    });
}
di_status function(di_handle m, const char* name, di_handle* out) { return guard([&](Runtime& r) { need(name, "name"), need(out, "out"); *out = r.function(m, name); }); }
di_status launch_ex(di_handle fn, const di_cuda_config* c, const di_arg* args, uint32_t n, di_handle st) {
    return guard([&](Runtime& r) {
        need(c, "config");
        if (n) need(args, "args");
        r.launch(fn, *c, args, n, st);
    });
}
di_status launch(di_handle fn, di_dim3 grid, di_dim3 block, uint32_t smem, const di_arg* args, uint32_t n, di_handle st) {
    di_cuda_config c{sizeof(di_cuda_config), grid, block, {0, 0, 0}, smem, 0, 0};
    return launch_ex(fn, &c, args, n, st);
}
di_status max_active_clusters(di_handle fn, const di_cuda_config* c, uint32_t* out) { return guard([&](Runtime& r) { need(c, "config"), need(out, "out"); *out = r.max_clusters(fn, *c); }); }

di_status encode_tiled(void* map, uint32_t dtype, uint32_t rank, di_addr base, const uint64_t* dims, const uint64_t* strides, const uint32_t* box,
                       const uint32_t* es, uint32_t interleave, uint32_t swizzle, uint32_t l2, uint32_t oob) {
    return guard([&](Runtime&) {
        need(map, "map128"), need(dims, "dims"), need(box, "box"), need(es, "element_strides");
        if (rank > 1) need(strides, "strides_bytes");
        std::string why = encode_tensor_map(map, dtype, rank, base, dims, strides, box, es, interleave, swizzle, l2, oob);
        if (!why.empty()) refuse(why);
    });
}
di_status encode_im2col(void* map, uint32_t dtype, uint32_t rank, di_addr base, const uint64_t* dims, const uint64_t* strides, const int32_t* lower,
                        const int32_t* upper, uint32_t channels, uint32_t pixels, const uint32_t* es, uint32_t interleave, uint32_t swizzle, uint32_t l2, uint32_t oob) {
    return guard([&](Runtime&) {
        need(map, "map128"), need(dims, "dims"), need(strides, "strides_bytes"), need(lower, "lower"), need(upper, "upper"), need(es, "element_strides");
        std::string why = encode_im2col_map(map, dtype, rank, base, dims, strides, lower, upper, channels, pixels, es, interleave, swizzle, l2, oob);
        if (!why.empty()) refuse(why);
    });
}
di_status replace_address(void* map, di_addr base) {
    return guard([&](Runtime&) {
        need(map, "map128");
        std::string why = replace_tensor_map_address(map, base);
        if (!why.empty()) refuse(why);
    });
}
di_status module_global(di_handle m, const char* name, di_addr* addr, uint64_t* bytes) {
    return guard([&](Runtime& r) {
        need(name, "name");
        LoadedModule& lm = r.module(m);
        auto v = lm.ast->vars.find(name);
        if (v == lm.ast->vars.end() || !lm.addresses.count(v->second.get())) throw DriverError(DI_NOT_FOUND, std::string("module has no variable '") + name + "'");
        if (addr) *addr = lm.addresses[v->second.get()];
        if (bytes) *bytes = v->second->size;
    });
}
di_status module_kernels(di_handle m, const char** names) {
    return guard([&](Runtime& r) {
        need(names, "names");
        r.text.clear();
        for (auto& f : r.module(m).ast->functions)
            if (f.second->entry) r.text += (r.text.empty() ? "" : "\n") + f.first;
        *names = r.text.c_str();
    });
}
di_status decode_all(di_handle m, uint64_t* out) {
    return guard([&](Runtime& r) {
        u64 n = 0;
        LoadedModule& lm = r.module(m);
        for (auto& f : lm.ast->functions)
            if (f.second->entry) n += decode_kernel(lm.ast, f.first, lm.addresses)->static_instructions();
        if (out) *out = n;
    });
}
di_status multicast_create(const di_addr* addrs, uint32_t n, uint64_t bytes, di_addr* out) {
    return guard([&](Runtime& r) {
        need(addrs, "addrs"), need(out, "out");
        if (!n || !bytes) refuse("a multicast object needs at least one replica and one byte");
        void* p = std::aligned_alloc(256, (bytes + 255) / 256 * 256);  // never read: only its address range is used
        if (!p) throw DriverError(DI_OUT_OF_MEMORY, "host memory is exhausted");
        *out = u64(p);
        r.machine.multicast[u64(p)] = {std::vector<u64>(addrs, addrs + n), bytes};
        r.machine.multicast_spans.add({u64(p), bytes, true});
    });
}
di_status multicast_destroy(di_addr a) {
    return guard([&](Runtime& r) {
        if (!r.machine.multicast.erase(a)) refuse("address is no multicast object");
        r.machine.multicast_spans.remove(a);
        std::free(reinterpret_cast<void*>(a));
    });
}

bool on_off(const std::string& v) {
    if (v == "on") return true;
    if (v == "off") return false;
    refuse("value '" + v + "' is neither on nor off");
}
u64 number(const std::string& v) {
    char* e = nullptr;
    u64 n = std::strtoull(v.c_str(), &e, 10);
    if (v.empty() || *e) refuse("value '" + v + "' is not a number");
    return n;
}
di_status sim_set(const char* key, const char* value) {
    return guard([&](Runtime& r) {
        need(key, "key"), need(value, "value");
        Config& c = r.machine.config;
        std::string k = key, v = value;
        if (k == "seed") c.seed = number(v);
        else if (k == "schedule" && v == "eager") c.schedule = Schedule::eager;
        else if (k == "schedule" && v == "lazy") c.schedule = Schedule::lazy;
        else if (k == "schedule" && v == "random") c.schedule = Schedule::random;
        else if (k == "schedule") refuse("schedule '" + v + "' is none of eager, lazy, random");
        else if (k == "checker") c.checker = on_off(v);
        else if (k == "findings" && (v == "fail" || v == "report")) c.findings_fail = v == "fail";
        else if (k == "findings") refuse("findings '" + v + "' is neither fail nor report");
        else if (k == "spurious_waits") c.spurious_waits = on_off(v);
        else if (k == "drift") c.drift = on_off(v);
        else if (k == "strict") c.strict = on_off(v);
        else if (k == "stall_instructions") c.stall_instructions = number(v);
        else if (k == "resident_ctas") c.resident_ctas = u32(number(v));
        else refuse("unknown key '" + k + "'; known: seed schedule checker findings spurious_waits drift strict stall_instructions resident_ctas");
    });
}
uint32_t finding_count() { return u32(Runtime::get().machine.findings.size()); }
const char* finding(uint32_t i) {
    thread_local std::string text;
    auto& f = Runtime::get().machine.findings;
    if (i >= f.size()) return nullptr;
    text = utf8(f[i]);
    return text.c_str();
}
void sim_clear() {
    guard([](Runtime& r) { r.machine.findings.clear(), r.machine.print_out.clear(), r.machine.stats = {}; });
}
void statistics(di_sim_statistics* o) {
    guard([&](Runtime& r) {
        need(o, "out");
        const Statistics& s = r.machine.stats;
        *o = {sizeof *o, s.launches, s.warp_instructions, s.thread_instructions, s.async_steps, s.mma_macs, s.seconds};
    });
}
const char* printed() {
    thread_local std::string text;
    text = utf8(Runtime::get().machine.print_out);
    return text.c_str();
}

const di_cuda_launch launch_table = {sizeof(di_cuda_launch), launch_ex, max_active_clusters};
const di_cuda_tensor_map map_table = {sizeof(di_cuda_tensor_map), encode_tiled, replace_address, encode_im2col};
const di_cuda_module module_table = {sizeof(di_cuda_module), module_global, module_kernels, decode_all};
const di_cuda_peer peer_table = {sizeof(di_cuda_peer), multicast_create, multicast_destroy};
const di_sim_control control_table = {sizeof(di_sim_control), sim_set, finding_count, finding, sim_clear, statistics, printed};

di_status extension(const char* name, const void** table) {
    static const std::map<std::string, const void*> tables = {{"cuda.launch", &launch_table}, {"cuda.tensor_map", &map_table}, {"cuda.module", &module_table},
                                                              {"cuda.peer", &peer_table}, {"sim.control", &control_table}};
    return guard([&](Runtime&) {
        need(name, "name"), need(table, "table");
        auto it = tables.find(name);
        if (it == tables.end()) throw DriverError(DI_NOT_FOUND, std::string("no extension '") + name + "'; known: cuda.launch cuda.tensor_map cuda.module cuda.peer sim.control");
        *table = it->second;
    });
}

const di_driver table = {sizeof(di_driver), DI_ABI_MAJOR, DI_ABI_MINOR, "cuda/sim", DI_KIND_SIMULATOR, 0, last_error, probe, device_props, open_device, release,
                         mem_info, mem_alloc, mem_free, memcpy_async, memset_async, stream_create, stream_synchronize, event_create, event_record,
                         event_wait, event_synchronize, elapsed, module_load, function, launch, extension};

}  // namespace
}  // namespace ptxsim

extern "C" DI_EXPORT const di_driver* di_get_driver(uint32_t abi_major) { return abi_major == DI_ABI_MAJOR ? &ptxsim::table : nullptr; }
