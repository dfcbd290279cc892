#include "fakecuda/state.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "driver/profiles.h"

namespace fakecuda {

void fail(CUresult code, const std::string& text) { throw Failure{code, text}; }

void need(const void* pointer, const char* name) {
    if (!pointer) fail(CUDA_ERROR_INVALID_VALUE, std::string(name) + " is NULL");
}

Driver& Driver::get() {
    static Driver* d = new Driver;  // never destroyed: callers' finalizers run late
    return *d;
}

CUresult report(const char* function, const Failure& f) {
    Driver::get().last_error = std::string(function) + ": " + f.text;
    if (f.code != CUDA_ERROR_NOT_READY) std::fprintf(stderr, "deepinfer libcuda: %s: error %d: %s\n", function, int(f.code), f.text.c_str());
    return f.code;
}

CUresult fault_code(const std::string& text) {
    auto has = [&](const char* part) { return text.find(part) != std::string::npos; };
    if (text.rfind("deadlock", 0) == 0 || has("no progress")) return CUDA_ERROR_LAUNCH_TIMEOUT;
    if (has("device assertion")) return CUDA_ERROR_ASSERT;
    if (has("tensor memory is not freed") || has("still allocated")) return CUDA_ERROR_TENSOR_MEMORY_LEAK;
    if (has("misaligned address")) return CUDA_ERROR_MISALIGNED_ADDRESS;
    if (has("out of bounds")) return CUDA_ERROR_ILLEGAL_ADDRESS;
    return CUDA_ERROR_LAUNCH_FAILED;
}

Failure translate(const ptxsim::DriverError& e) {
    switch (e.status) {
        case DI_INVALID_ARGUMENT: return {CUDA_ERROR_INVALID_VALUE, e.what()};
        case DI_OUT_OF_MEMORY: return {CUDA_ERROR_OUT_OF_MEMORY, e.what()};
        case DI_NOT_FOUND: return {CUDA_ERROR_NOT_FOUND, e.what()};
        case DI_UNSUPPORTED: return {CUDA_ERROR_NOT_SUPPORTED, e.what()};
        case DI_UNAVAILABLE: return {CUDA_ERROR_SYSTEM_NOT_READY, e.what()};
        case DI_LAUNCH_FAILED: return {fault_code(e.what()), e.what()};
        case DI_TIMEOUT: return {CUDA_ERROR_LAUNCH_TIMEOUT, e.what()};
        default: return {CUDA_ERROR_UNKNOWN, e.what()};
    }
}

Options parse_options(const char* text) {
    Options o;
    std::string all = text ? text : "", item;
    for (size_t at = 0, part = 0; at <= all.size() && !all.empty(); ++part) {
        size_t comma = std::min(all.find(',', at), all.size());
        item = all.substr(at, comma - at), at = comma + 1;
        if (part == 0) {
            size_t colon = item.find(':');
            o.profile = item.substr(0, colon);
            if (o.profile != "sm90" && o.profile != "sm100") fail(CUDA_ERROR_INVALID_VALUE, "DEEPINFER_FAKECUDA names profile '" + o.profile + "', known are sm90 and sm100");
            if (colon == std::string::npos) continue;
            char* end = nullptr;
            long n = std::strtol(item.c_str() + colon + 1, &end, 10);
            if (*end || n < 0 || n > int(ptxsim::kDevicesPerProfile))
                fail(CUDA_ERROR_INVALID_VALUE, "DEEPINFER_FAKECUDA asks for '" + item.substr(colon + 1) + "' devices, possible are 0 to " + std::to_string(ptxsim::kDevicesPerProfile));
            o.devices = int(n);
        } else {
            size_t equals = item.find('=');
            if (equals == std::string::npos) fail(CUDA_ERROR_INVALID_VALUE, "DEEPINFER_FAKECUDA: '" + item + "' is not KEY=VALUE");
            o.simulator.push_back({item.substr(0, equals), item.substr(equals + 1)});
        }
    }
    return o;
}

int Driver::device(int ordinal) const {
    if (ordinal < 0 || ordinal >= int(devices.size()))
        fail(CUDA_ERROR_INVALID_DEVICE, "device ordinal " + std::to_string(ordinal) + ", there are " + std::to_string(devices.size()) + " devices");
    return ordinal;
}

const ptxsim::Profile& Driver::profile(int ordinal) const { return sim.machine.profiles[devices[device(ordinal)]]; }

std::vector<Handle>& context_stack() {
    thread_local std::vector<Handle> stack;
    return stack;
}

Context& Driver::live(Handle context) {
    auto it = contexts.find(context);
    if (it == contexts.end()) fail(CUDA_ERROR_INVALID_CONTEXT, "handle is not a context");
    if (!it->second->sim) fail(CUDA_ERROR_CONTEXT_IS_DESTROYED, "the context was destroyed or its last retain released");
    return *it->second;
}

Handle Driver::current_handle() {
    auto& stack = context_stack();
    if (stack.empty() || !stack.back()) fail(CUDA_ERROR_INVALID_CONTEXT, "no context is current in this thread");
    Context& c = live(stack.back());
    if (c.error) fail(c.error, "an earlier kernel of this context failed; the error stays until the context is reset");
    return stack.back();
}

void Driver::activate(Context& c) { c.sim = sim.open(devices[c.device]); }

void Driver::deactivate(Handle handle) {
    Context& c = *contexts[handle];
    auto drop = [&](auto& table) {
        for (auto it = table.begin(); it != table.end();) it = it->second->context == handle ? table.erase(it) : std::next(it);
    };
    for (auto& l : libraries) l.second->modules.erase(handle);
    drop(functions), drop(modules), drop(events), drop(streams);
    for (CUdeviceptr p : std::set<CUdeviceptr>(c.memory)) owner_of.erase(p), sim.free(c.sim, p);
    sim.release(c.sim);
    c.sim = 0, c.legacy = nullptr, c.error = CUDA_SUCCESS;
    c.memory.clear(), c.peers.clear();
}

Handle Driver::default_stream(Handle context, bool per_thread) {
    thread_local std::map<Handle, Handle> own;
    Context& c = live(context);
    Handle& slot = per_thread ? own[context] : c.legacy;
    if (slot && streams.count(slot)) return slot;
    slot = add();
    auto s = std::make_unique<Stream>();
    s->context = context, s->sim = sim.make_stream(c.sim);
    streams[slot] = std::move(s);
    return slot;
}

Handle Driver::stream_handle(Handle given) {
    u64 value = reinterpret_cast<u64>(given);
    if (value <= 2) return default_stream(current_handle(), value == 2);
    Stream& s = find(streams, given, "stream");
    Context& c = live(s.context);
    if (c.error) fail(c.error, "an earlier kernel of this stream's context failed; the error stays until the context is reset");
    return given;
}

// The legacy stream and the blocking streams of a context wait for each other's earlier work.
void Driver::order(Handle handle) {
    Stream& s = *streams[handle];
    Context& c = live(s.context);
    auto follow = [&](Stream& other) {
        if (sim.stream(c.sim, other.sim).work.empty()) return;
        u64 e = sim.make_event(c.sim);
        passed.push_back(e);
        sim.record(c.sim, e, other.sim), sim.wait(c.sim, e, s.sim);
    };
    if (handle != c.legacy) {
        if (!(s.flags & 1) && c.legacy) follow(*streams[c.legacy]);
        return;
    }
    for (auto& [h, other] : streams) {
        if (h == handle || other->context != s.context || other->flags & 1) continue;
        if (other->capture && other->capture->mode != 2) {
            other->capture->invalid = true;
            fail(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "work in the legacy stream would wait for a blocking stream that is being captured");
        }
        follow(*other);
    }
}

void Driver::submit(Handle handle, std::function<void(Handle)> node) {
    Stream& s = *streams[handle];
    if (s.capture) {
        if (s.capture->invalid) fail(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture of this stream was invalidated by an earlier error");
        if (handle != s.capture->origin) s.capture->unjoined.insert(handle);
        s.capture->nodes.push_back(std::move(node));
        return;
    }
    order(handle);
    node(handle);
}

void Driver::enqueue(Handle handle, std::function<void()> action) {
    submit(handle, [this, action = std::move(action)](Handle h) {
        Stream& s = *streams[h];
        sim.enqueue(live(s.context).sim, s.sim, action);
    });
}

void Driver::stick(Context& c, CUresult code, const std::string& text) {
    if (!c.error) c.error = code;
    report("kernel", {code, text});
}

void Driver::synchronize(Handle handle) {
    Stream& s = *streams[handle];
    Context& c = live(s.context);
    if (s.capture) {
        s.capture->invalid = true;
        fail(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a stream that is being captured cannot be waited for");
    }
    order(handle);
    try {
        sim.synchronize(c.sim, s.sim);
    } catch (const ptxsim::DriverError& e) {
        if (e.status != DI_LAUNCH_FAILED) throw;
        stick(c, fault_code(e.what()), e.what());
    }
    if (c.error) fail(c.error, "a kernel of this context failed");
}

void Driver::synchronize_context(Handle context) {
    std::vector<Handle> all;
    for (auto& [h, s] : streams)
        if (s->context == context) all.push_back(h);
    for (Handle h : all) synchronize(h);
}

void Driver::forbid_capture(const char* what) {
    for (auto& [h, s] : streams)
        if (s->capture && s->capture->mode == 0) {
            s->capture->invalid = true;
            fail(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, std::string(what) + " is not allowed while a stream is captured in global mode");
        }
}

void Driver::reclaim() {
    for (CUdeviceptr p : std::exchange(freed, {})) {
        auto it = owner_of.find(p);
        if (it == owner_of.end()) continue;
        Context& c = *contexts[it->second];
        c.memory.erase(p), owner_of.erase(it);
        sim.free(c.sim, p);
    }
    for (u64 e : std::exchange(passed, {})) {
        if (sim.event(e).reached) sim.release(e);
        else passed.push_back(e);
    }
}

bool mapped(const void* p, size_t n) {
    if (!n) return true;
    if (!p) return false;
    static const u64 page = u64(sysconf(_SC_PAGESIZE));
    u64 first = u64(p) / page * page;
    if (u64(p) + n < u64(p)) return false;
    return msync(reinterpret_cast<void*>(first), u64(p) + n - first, MS_ASYNC) == 0;
}

const ptxsim::Span* allocation(Driver& d, CUdeviceptr p, size_t n) { return d.sim.machine.allocations.find(p, n); }

}  // namespace fakecuda
