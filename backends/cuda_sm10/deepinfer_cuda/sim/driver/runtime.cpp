#include "driver/runtime.h"

#include <chrono>
#include <cstdlib>

#include "driver/profiles.h"
#include "isa/decode.h"

namespace ptxsim {
namespace {
double now_ms() {
    using namespace std::chrono;
    return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}
template <class Map>
auto& look_up(Map& m, u64 h, const char* what) {
    auto it = m.find(h);
    if (it == m.end()) throw DriverError(DI_INVALID_ARGUMENT, std::string("handle ") + std::to_string(h) + " is not a live " + what);
    return it->second;
}
}  // namespace

LoadedModule::~LoadedModule() {
    for (auto& m : memory) {
        Runtime::get().machine.module_memory.remove(u64(m.first));
        std::free(m.first);
    }
}

Runtime& Runtime::get() {
    static Runtime* r = new Runtime;  // never destroyed: modules may outlive static destruction order
    return *r;
}

Runtime::Runtime() {
    for (u32 i = 0; i < kDevicesPerProfile; ++i) machine.profiles.push_back(kSm90);
    for (u32 i = 0; i < kDevicesPerProfile; ++i) machine.profiles.push_back(kSm100);
}

u64 Runtime::open(u32 device) {
    if (device >= machine.profiles.size())
        throw DriverError(DI_NOT_FOUND, "device index " + std::to_string(device) + " of " + std::to_string(machine.profiles.size()));
    u64 h = next_++;
    contexts_[h].device = device;
    contexts_[h].default_stream = make_stream(h);
    return h;
}

void Runtime::release(u64 h) {
    if (contexts_.count(h)) {
        for (auto it = modules_.begin(); it != modules_.end();) it = it->second->ctx == h ? modules_.erase(it) : std::next(it);
        for (auto it = kernels_.begin(); it != kernels_.end();) it = it->second.ctx == h ? kernels_.erase(it) : std::next(it);
        for (auto it = streams_.begin(); it != streams_.end();) it = it->second->ctx == h ? streams_.erase(it) : std::next(it);
        contexts_.erase(h);
        return;
    }
    if (auto s = streams_.find(h); s != streams_.end()) {
        synchronize(s->second->ctx, h);
        streams_.erase(h);
        return;
    }
    if (modules_.count(h)) {
        for (auto it = kernels_.begin(); it != kernels_.end();) it = it->second.module == h ? kernels_.erase(it) : std::next(it);
        modules_.erase(h);
        return;
    }
    if (events_.erase(h)) return;
    throw DriverError(DI_INVALID_ARGUMENT, "handle " + std::to_string(h) + " is not live");
}

Context& Runtime::context(u64 h) { return look_up(contexts_, h, "context"); }
LoadedModule& Runtime::module(u64 h) { return *look_up(modules_, h, "module"); }
Kernel& Runtime::kernel(u64 h) { return look_up(kernels_, h, "function"); }
Event& Runtime::event(u64 h) { return look_up(events_, h, "event"); }
Stream& Runtime::stream(u64 ctx, u64 h) {
    if (!h) h = context(ctx).default_stream;
    Stream& s = *look_up(streams_, h, "stream");
    if (s.ctx != ctx) throw DriverError(DI_INVALID_ARGUMENT, "stream belongs to another context");
    return s;
}

u64 Runtime::make_stream(u64 ctx) {
    context(ctx);
    u64 h = next_++;
    streams_[h] = std::make_unique<Stream>();
    streams_[h]->ctx = ctx;
    return h;
}
u64 Runtime::make_event(u64 ctx) {
    context(ctx);
    events_[next_] = {};
    return next_++;
}

u64 Runtime::used(u32 device) const {
    u64 n = 0;
    for (auto& a : allocations_)
        if (a.second.device == device) n += a.second.bytes;
    return n;
}

u64 Runtime::allocate(u64 ctx, u64 bytes, u64 align) {
    u32 dev = context(ctx).device;
    if (align & (align - 1)) throw DriverError(DI_INVALID_ARGUMENT, "align " + std::to_string(align) + " is not a power of two");
    align = std::max<u64>(align, 256);
    if (bytes > machine.profiles[dev].memory_bytes - std::min(used(dev), machine.profiles[dev].memory_bytes))
        throw DriverError(DI_OUT_OF_MEMORY, std::to_string(bytes) + " bytes asked, the device has " + std::to_string(machine.profiles[dev].memory_bytes - used(dev)) + " left");
    u64 size = (std::max<u64>(bytes, 1) + align - 1) / align * align;
    void* p = std::aligned_alloc(align, size);
    if (!p) throw DriverError(DI_OUT_OF_MEMORY, "host memory is exhausted");
    std::memset(p, 0xff, size);  // NaN in every floating-point format
    u64 addr = reinterpret_cast<u64>(p);
    allocations_[addr] = {dev, bytes, p};
    machine.allocations.add({addr, bytes, true});
    return addr;
}

void Runtime::free(u64 ctx, u64 addr) {
    context(ctx);
    auto it = allocations_.find(addr);
    if (it == allocations_.end()) throw DriverError(DI_INVALID_ARGUMENT, "address was not returned by mem_alloc or is freed already");
    pump();
    machine.allocations.remove(addr);
    std::free(it->second.raw);
    allocations_.erase(it);
}

u64 Runtime::load(u64 ctx, const std::string& ptx) {
    const Profile& pr = machine.profiles[context(ctx).device];
    auto lm = std::make_unique<LoadedModule>();
    lm->ctx = ctx;
    lm->ast = parse_module(ptx);
    const std::string& t = lm->ast->target;
    if (t.rfind("sm_", 0) == 0) {
        int cc = std::atoi(t.c_str() + 3);
        bool exact = t.back() == 'a', family = t.back() == 'f';
        int have = pr.major * 10 + pr.minor;
        if ((exact && cc != have) || (family && cc / 10 != pr.major) || cc > have)
            throw DriverError(DI_UNSUPPORTED, "module targets " + t + ", this device is " + pr.arch);
    }
    for (auto& [name, v] : lm->ast->vars) {
        if (v->space == Space::shared) continue;
        if (v->is_extern && !v->size) throw DriverError(DI_NOT_FOUND, "module needs the external variable '" + name + "'");
        u64 align = std::max<u64>(v->align, 64), size = (std::max<u64>(v->size, 1) + align - 1) / align * align;
        void* p = std::aligned_alloc(align, size);
        std::memset(p, 0, size);
        if (!v->init.empty()) std::memcpy(p, v->init.data(), v->init.size());
        lm->memory.push_back({p, size});
        lm->addresses[v.get()] = u64(p);
        machine.module_memory.add({u64(p), v->size, v->space == Space::global});
    }
    for (auto& f : lm->ast->functions)
        for (auto& v : f.second->vars)
            if (v->space == Space::global || v->space == Space::constant) {
                u64 size = (std::max<u64>(v->size, 1) + 63) / 64 * 64;
                void* p = std::aligned_alloc(64, size);
                std::memset(p, 0, size);
                if (!v->init.empty()) std::memcpy(p, v->init.data(), v->init.size());
                lm->memory.push_back({p, size});
                lm->addresses[v.get()] = u64(p);
                machine.module_memory.add({u64(p), v->size, v->space == Space::global});
            }
    for (auto& [name, v] : lm->ast->vars)
        for (auto& fx : v->fixups) {
            auto to = lm->ast->vars.find(fx.symbol);
            if (to == lm->ast->vars.end() || !lm->addresses.count(to->second.get())) throw DriverError(DI_NOT_FOUND, "initialiser names unknown variable '" + fx.symbol + "'");
            u64 value = lm->addresses[to->second.get()] + u64(fx.offset);
            std::memcpy(reinterpret_cast<u8*>(lm->addresses[v.get()]) + fx.at, &value, 8);
        }
    modules_[next_] = std::move(lm);
    return next_++;
}

u64 Runtime::function(u64 mod, const char* name) {
    LoadedModule& m = module(mod);
    if (auto f = m.functions.find(name); f != m.functions.end()) return f->second;
    auto ast = m.ast->functions.find(name);
    if (ast == m.ast->functions.end() || !ast->second->entry) {
        std::string known;
        for (auto& f : m.ast->functions)
            if (f.second->entry) known += " " + f.first;
        throw DriverError(DI_NOT_FOUND, std::string("module has no kernel '") + name + "'; it has:" + (known.empty() ? " none" : known));
    }
    Kernel k;
    k.module = mod, k.ctx = m.ctx;
    k.program = decode_kernel(m.ast, name, m.addresses);
    m.programs[name] = k.program;
    kernels_[next_] = k;
    return m.functions[name] = next_++;
}

void Runtime::enqueue(u64 ctx, u64 st, std::function<void()> action) {
    Work w;
    w.kind = Work::Kind::action, w.action = std::move(action);
    stream(ctx, st).work.push_back(std::move(w));
    pump();
}
void Runtime::record(u64 ctx, u64 ev, u64 st) {
    Event& e = event(ev);
    e.recorded = true, e.reached = false;
    Work w;
    w.kind = Work::Kind::record, w.event = ev;
    stream(ctx, st).work.push_back(std::move(w));
    pump();
}
void Runtime::wait(u64 ctx, u64 ev, u64 st) {
    event(ev);
    Work w;
    w.kind = Work::Kind::wait, w.event = ev;
    stream(ctx, st).work.push_back(std::move(w));
    pump();
}

// Runs everything that can run: heads of streams, and all grids together, so that kernels of several devices may wait for each other.
void Runtime::pump() {
    for (bool moved = true; moved;) {
        moved = false;
        for (auto& [h, s] : streams_) {
            while (!s->work.empty()) {
                Work& w = s->work.front();
                if (w.kind == Work::Kind::launch && !w.running) {
                    w.running = w.grid.get();
                    machine.active.push_back(std::move(w.grid));
                    moved = true;
                    break;
                }
                if (w.kind == Work::Kind::launch) {
                    if (!w.running->done()) break;
                    finish(*s, *w.running);
                } else if (w.kind == Work::Kind::action) {
                    w.action();
                } else if (w.kind == Work::Kind::record) {
                    if (auto e = events_.find(w.event); e != events_.end()) e->second.reached = true, e->second.when = now_ms();
                } else if (auto e = events_.find(w.event); e != events_.end() && !e->second.reached) {
                    break;
                }
                s->work.pop_front();
                moved = true;
            }
        }
        if (!machine.active.empty()) {
            double t = now_ms();
            u64 before = machine.progress;
            run_machine(machine);
            machine.stats.seconds += (now_ms() - t) / 1000;
            moved |= machine.progress != before;
        }
    }
}

void Runtime::finish(Stream& s, Grid& g) {
    if (!g.error.empty() && s.error.empty()) s.error = g.error;
    for (size_t i = 0; i < machine.active.size(); ++i)
        if (machine.active[i].get() == &g) {
            machine.active.erase(machine.active.begin() + i);
            break;
        }
}

void Runtime::synchronize(u64 ctx, u64 st) {
    Stream& s = stream(ctx, st);
    pump();
    if (!s.work.empty()) {
        std::string dump;
        for (auto& g : machine.active)
            if (!g->done()) dump += "\nkernel " + g->program->name + " on device " + std::to_string(g->device) + ":" + dump_waiters(*g);
        for (auto& g : machine.active) machine.engine.drop_grid(g.get());
        machine.active.clear();
        for (auto& [h, t] : streams_) t->work.clear();
        s.error.clear();
        throw DriverError(DI_LAUNCH_FAILED, "deadlock: nothing can move any more" + dump);
    }
    if (!s.error.empty()) {
        std::string e = s.error;
        s.error.clear();
        throw DriverError(DI_LAUNCH_FAILED, e);
    }
}

void Runtime::synchronize_event(u64 ev) {
    if (!event(ev).recorded) return;
    pump();
    if (!event(ev).reached)
        for (auto& [h, s] : streams_)
            if (!s->work.empty()) return synchronize(s->ctx, h);
}

}  // namespace ptxsim
