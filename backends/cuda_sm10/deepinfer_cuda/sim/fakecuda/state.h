// Everything the fake driver knows: devices, contexts, streams, events, modules, memory, graphs.
//
// Ownership: `Driver` owns all records by opaque handle; a handle is looked up before use, so a stale or foreign one is an error
// code and never a crash. One lock (the simulator's) serialises the entry points. The simulator's own streams run the work;
// this layer adds what CUDA adds: default-stream order, captures, sticky errors, current contexts.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "driver/runtime.h"
#include "fakecuda/abi.h"

namespace fakecuda {

using ptxsim::Runtime;
using ptxsim::u32;
using ptxsim::u64;
using ptxsim::u8;

// An error code with the sentence that explains it; the sentence goes to stderr and to fakecuda_last_error().
struct Failure {
    CUresult code;
    std::string text;
};
[[noreturn]] void fail(CUresult code, const std::string& text);
void need(const void* pointer, const char* name);  // CUDA_ERROR_INVALID_VALUE when NULL

struct Context {
    Handle legacy = nullptr;     // the default stream
    int device = 0;
    u64 sim = 0;                 // the simulator's context, 0 when not alive
    bool primary = false;
    u32 retained = 0, flags = 0;
    std::set<int> peers;         // devices whose memory kernels of this context may touch
    CUresult error = CUDA_SUCCESS;  // sticky, as after a fault on hardware
    std::set<CUdeviceptr> memory;
    std::map<int, size_t> limits;
};

struct Capture {
    u64 id = 0;
    int mode = 0;
    Handle origin = nullptr;
    bool invalid = false;
    std::set<Handle> streams;    // that have joined
    std::set<Handle> unjoined;   // whose last work the origin has not waited for
    std::vector<std::function<void(Handle)>> nodes;  // in issue order, which is a legal order; the argument is the stream
};

struct Stream {
    Handle context = nullptr;
    u64 sim = 0;
    unsigned flags = 0;
    int priority = 0;
    std::shared_ptr<Capture> capture;
};

struct Event {
    Handle context = nullptr;
    unsigned flags = 0;
    u64 sim = 0;                 // of the latest record, 0 = never recorded
    std::vector<u64> earlier;    // of records that streams may still wait for
    std::weak_ptr<Capture> capture;
    Handle captured_stream = nullptr;
    bool captured = false;
};

struct Function {
    Handle module = nullptr, context = nullptr, kernel = nullptr;
    u64 sim = 0;
    std::string name;
    u32 max_dynamic = 0;
    bool non_portable_cluster = false;
};

struct Module {
    Handle context = nullptr, library = nullptr;
    u64 sim = 0;
    std::map<std::string, Handle> functions;
};

struct Library {
    std::string ptx;
    std::map<Handle, Handle> modules;    // by context
    std::map<std::string, Handle> kernels;
};
struct Kernel {
    Handle library = nullptr;
    std::string name;
};

struct HostMemory {
    u64 bytes = 0;
    unsigned flags = 0;
    bool registered = false;     // by the caller, not allocated here
};

struct Graph {
    std::vector<std::function<void(Handle)>> nodes;
};

struct Pool {
    int device = 0;
    bool is_default = false;
    std::map<int, u64> attributes;
};

template <class T>
using Table = std::map<Handle, std::unique_ptr<T>>;

struct Options {
    std::string profile = "sm90";
    int devices = 1;
    std::vector<std::pair<std::string, std::string>> simulator;
};
// DEEPINFER_FAKECUDA=PROFILE[:DEVICES][,KEY=VALUE ...]; keys are those of the simulator's control table. Throws Failure.
Options parse_options(const char* text);

class Driver {
   public:
    static Driver& get();
    Runtime& sim = Runtime::get();
    bool ready = false;
    int owner = 0;               // process that called cuInit
    Options options;
    std::vector<u32> devices;    // simulator's index of each visible device
    std::string last_error;

    Table<Context> contexts;
    Table<Stream> streams;
    Table<Event> events;
    Table<Module> modules;
    Table<Function> functions;
    Table<Library> libraries;
    Table<Kernel> kernels;
    Table<Graph> graphs, executables;
    Table<Pool> pools;
    std::map<u64, HostMemory> host;
    std::vector<CUdeviceptr> freed;  // by streams, not yet given back
    std::vector<u64> passed;         // the simulator's events that only order streams
    std::map<CUdeviceptr, Handle> owner_of;          // allocation -> context
    std::vector<Handle> primary;                     // context of each device
    std::map<int, Handle> device_pool, default_pool;
    u64 captures = 0;

    Handle add() { return reinterpret_cast<Handle>(next_ += 16); }
    template <class T>
    T& find(Table<T>& table, Handle handle, const char* what) {
        auto it = table.find(handle);
        if (it == table.end()) fail(CUDA_ERROR_INVALID_HANDLE, std::string("handle is not a live ") + what);
        return *it->second;
    }

    int device(int ordinal) const;                 // checked
    const ptxsim::Profile& profile(int ordinal) const;
    Handle current_handle();                       // alive and without sticky error, else fails
    Context& current() { return *contexts[current_handle()]; }
    Context& live(Handle context);
    void activate(Context& c);
    void deactivate(Handle context);

    // Streams by the value given to the API: 0 and 1 are the context's legacy stream, 2 the calling thread's own.
    Handle stream_handle(Handle given);
    Stream& stream(Handle given) { return *streams[stream_handle(given)]; }
    void submit(Handle stream, std::function<void(Handle)> node);  // runs it in stream order, or captures it
    void enqueue(Handle stream, std::function<void()> action);
    void synchronize(Handle stream);
    void synchronize_context(Handle context);
    void forbid_capture(const char* what);         // while a global-mode capture is under way
    void reclaim();
    void stick(Context& c, CUresult code, const std::string& text);
    Function& function(Handle given);              // a CUfunction, or a CUkernel of the current context
    Handle load(Handle context, const std::string& ptx, Handle library);
    Handle module_function(Handle module, const std::string& name, Handle kernel);

   private:
    u64 next_ = 0x10000;
    Handle default_stream(Handle context, bool per_thread);
    void order(Handle stream);
};

std::vector<Handle>& context_stack();  // of the calling thread, current one last

CUresult report(const char* function, const Failure& f);
// Maps what the simulator throws to a code.
Failure translate(const ptxsim::DriverError& e);
CUresult fault_code(const std::string& text);

// Body of every entry point. `initialised`: whether cuInit must have run.
template <class F>
CUresult guard(const char* function, F&& body, bool initialised = true) noexcept {
    Driver& d = Driver::get();
    std::lock_guard<std::recursive_mutex> hold(d.sim.lock);
    try {
        if (initialised && !d.ready) fail(CUDA_ERROR_NOT_INITIALIZED, "cuInit has not been called in this process");
        d.reclaim();
        body(d);
        d.reclaim();
        return CUDA_SUCCESS;
    } catch (const Failure& f) {
        return report(function, f);
    } catch (const ptxsim::DriverError& e) {
        return report(function, translate(e));
    } catch (const ptxsim::SimError& e) {
        return report(function, {CUDA_ERROR_NOT_SUPPORTED, e.what()});
    } catch (const std::bad_alloc&) {
        return report(function, {CUDA_ERROR_OUT_OF_MEMORY, "host memory is exhausted"});
    } catch (const std::exception& e) {
        return report(function, {CUDA_ERROR_UNKNOWN, std::string("internal error: ") + e.what()});
    }
}

bool mapped(const void* p, size_t n);  // whether the process can touch these bytes

// A span of device memory: the allocation that holds it, or nullptr.
const ptxsim::Span* allocation(Driver& d, CUdeviceptr p, size_t n);

}  // namespace fakecuda
