// The simulated driver: handles, streams and launches over one machine. abi.cpp wraps this in C.
#pragma once
#include <mutex>

#include "core/machine.h"
#include "driver/extensions.h"

namespace ptxsim {

// A refusal with its status code.
struct DriverError : std::runtime_error {
    di_status status;
    DriverError(di_status s, const std::string& what) : std::runtime_error(what), status(s) {}
};

struct Context {
    u32 device = 0;
    u64 default_stream = 0;
};
struct LoadedModule {
    u64 ctx = 0;
    std::shared_ptr<Module> ast;
    std::map<const Variable*, u64> addresses;
    std::vector<std::pair<void*, u64>> memory;
    std::map<std::string, std::shared_ptr<Program>> programs;
    std::map<std::string, u64> functions;
    ~LoadedModule();
};
struct Kernel {
    u64 module = 0, ctx = 0;
    std::shared_ptr<Program> program;
};
struct Event {
    bool recorded = false;  // a record is queued or done
    bool reached = true;
    double when = 0;        // milliseconds of simulation
};
struct Work {
    enum class Kind { launch, action, record, wait } kind;
    std::unique_ptr<Grid> grid;
    Grid* running = nullptr;
    std::function<void()> action;
    u64 event = 0;
};
struct Stream {
    u64 ctx = 0;
    std::deque<Work> work;
    std::string error;
};

class Runtime {
   public:
    static Runtime& get();
    std::recursive_mutex lock;
    Machine machine;
    std::string text;  // returned strings of extensions

    u64 open(u32 device);
    void release(u64 handle);
    Context& context(u64 h);
    Stream& stream(u64 ctx, u64 h);
    u64 make_stream(u64 ctx);
    u64 make_event(u64 ctx);
    Event& event(u64 h);
    LoadedModule& module(u64 h);
    Kernel& kernel(u64 h);
    u64 allocate(u64 ctx, u64 bytes, u64 align);
    void free(u64 ctx, u64 addr);
    u64 used(u32 device) const;
    u64 load(u64 ctx, const std::string& ptx);
    u64 function(u64 module, const char* name);
    void enqueue(u64 ctx, u64 stream, std::function<void()> action);
    void record(u64 ctx, u64 event, u64 stream);
    void wait(u64 ctx, u64 event, u64 stream);
    void synchronize(u64 ctx, u64 stream);
    void synchronize_event(u64 event);
    void launch(u64 fn, const di_cuda_config& c, const di_arg* args, u32 n, u64 stream);
    u32 max_clusters(u64 fn, const di_cuda_config& c);

   private:
    Runtime();
    std::unique_ptr<Grid> prepare(Kernel& k, const di_cuda_config& c, const di_arg* args, u32 n);
    void pump();
    void finish(Stream& s, Grid& g);

    u64 next_ = 1;
    std::map<u64, Context> contexts_;
    std::map<u64, std::unique_ptr<Stream>> streams_;
    std::map<u64, Event> events_;
    std::map<u64, std::unique_ptr<LoadedModule>> modules_;
    std::map<u64, Kernel> kernels_;
    struct Allocation {
        u32 device;
        u64 bytes;
        void* raw;
    };
    std::map<u64, Allocation> allocations_;
};

}  // namespace ptxsim
