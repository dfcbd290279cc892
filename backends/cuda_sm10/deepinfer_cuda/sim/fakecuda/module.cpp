// Modules, libraries, kernels and their attributes. Images are PTX text; every kernel is decoded at load, as a JIT would.
#include <cstring>
#include <fstream>
#include <sstream>

#include "fakecuda/state.h"

using namespace fakecuda;

namespace {

constexpr u32 kDefaultShared = 48 * 1024;

// The PTX in `image`. A cubin (ELF) or fatbin holds machine code, which nothing here can run.
std::string ptx_of(const void* image) {
    need(image, "image");
    const char* text = static_cast<const char*>(image);
    u32 magic = 0;
    for (int i = 0; i < 4 && text[i]; ++i) magic |= u32(u8(text[i])) << 8 * i;
    if (magic == 0x464c457f) fail(CUDA_ERROR_NO_BINARY_FOR_GPU, "the image is a cubin; the simulated device executes PTX only: compile for compute_90a or compute_100a");
    if (magic == 0xba55ed50 || magic == 0x466243b1) fail(CUDA_ERROR_NO_BINARY_FOR_GPU, "the image is a fatbin; the simulated device executes PTX only: hand over the PTX text itself");
    std::string ptx = text;
    if (ptx.find(".version") == std::string::npos) fail(CUDA_ERROR_INVALID_PTX, "the image is no PTX text: it has no .version");
    return ptx;
}

// Option values of the JIT that the caller reads afterwards: the error log (5) and its size (6).
void write_log(unsigned count, const int* options, void** values, const std::string& text) {
    char* log = nullptr;
    size_t room = 0;
    for (unsigned i = 0; i < count && options && values; ++i) {
        if (options[i] == 5) log = static_cast<char*>(values[i]);
        if (options[i] == 6) room = size_t(values[i]);
    }
    if (log && room) std::snprintf(log, room, "%s", text.c_str());
}

void load_module(Driver& d, Handle* module, const void* image, unsigned count, const int* options, void** values) {
    need(module, "module");
    if (count) need(options, "options"), need(values, "optionValues");
    try {
        *module = d.load(d.current_handle(), ptx_of(image), nullptr);
    } catch (const Failure& f) {
        write_log(count, options, values, f.text);
        throw;
    }
}

Module& module_of(Driver& d, Handle h) { return d.find(d.modules, h, "module"); }

ptxsim::Program& program(Driver& d, const Function& f) { return *d.sim.kernel(f.sim).program; }

u32 static_shared(const ptxsim::Program& p) { return p.dynamic_offset - 1024; }

int function_attribute(Driver& d, Function& f, int which) {
    ptxsim::Program& p = program(d, f);
    const ptxsim::Function& source = *p.function;
    int major = d.profile(d.contexts[f.context]->device).major, minor = d.profile(d.contexts[f.context]->device).minor;
    u64 threads = source.reqntid[0] ? u64(source.reqntid[0]) * source.reqntid[1] * source.reqntid[2]
                : source.maxntid[0] ? u64(source.maxntid[0]) * source.maxntid[1] * source.maxntid[2] : 1024;
    switch (which) {
        case 0: return int(threads);
        case 1: return int(static_shared(p));
        case 2: return 0;
        case 3: return int(p.local_bytes);
        case 4: return source.max_regs ? source.max_regs : 32;
        case 5: case 6: return major * 10 + minor;
        case 7: return 0;
        case 8: return int(f.max_dynamic);
        case 9: return -1;
        case 10: return source.explicit_cluster && !source.cluster[0];
        case 11: case 12: case 13: return source.cluster[which - 11];
        case 14: return f.non_portable_cluster;
        case 15: return 0;
        default: fail(CUDA_ERROR_INVALID_VALUE, "function attribute " + std::to_string(which) + " is unknown");
    }
}

void set_attribute(Driver& d, Function& f, int which, int value) {
    const ptxsim::Profile& chip = d.profile(d.contexts[f.context]->device);
    if (which == 8) {
        int most = int(chip.shared_per_block - static_shared(program(d, f)));
        if (value < 0 || value > most) fail(CUDA_ERROR_INVALID_VALUE, "dynamic shared memory of " + std::to_string(value) + " bytes asked for kernel '" + f.name + "', at most " + std::to_string(most) + " are there");
        f.max_dynamic = u32(value);
    } else if (which == 14) {
        f.non_portable_cluster = value != 0;
    } else if (which != 9 && which != 15) {
        fail(CUDA_ERROR_INVALID_VALUE, "function attribute " + std::to_string(which) + " cannot be set");
    }
}

void global(Driver& d, Handle module, const char* name, CUdeviceptr* address, size_t* bytes) {
    need(name, "name");
    ptxsim::LoadedModule& m = d.sim.module(module_of(d, module).sim);
    auto v = m.ast->vars.find(name);
    if (v == m.ast->vars.end() || !m.addresses.count(v->second.get())) fail(CUDA_ERROR_NOT_FOUND, std::string("the module has no variable '") + name + "'");
    if (address) *address = m.addresses[v->second.get()];
    if (bytes) *bytes = v->second->size;
}

void parameter(Driver& d, Function& f, size_t index, size_t* offset, size_t* size) {
    need(offset, "paramOffset");
    auto& all = program(d, f).params;
    if (index >= all.size()) fail(CUDA_ERROR_INVALID_VALUE, "kernel '" + f.name + "' has " + std::to_string(all.size()) + " parameters");
    *offset = all[index].first;
    if (size) *size = all[index].second;
}

Handle library_module(Driver& d, Library& l, Handle library) {
    Handle& m = l.modules[d.current_handle()];
    if (!m) m = d.load(d.current_handle(), l.ptx, library);
    return m;
}

}  // namespace

namespace fakecuda {

Handle Driver::load(Handle context, const std::string& ptx, Handle library) {
    auto m = std::make_unique<Module>();
    m->context = context, m->library = library;
    try {
        m->sim = sim.load(live(context).sim, ptx);
        for (auto& f : sim.module(m->sim).ast->functions)
            if (f.second->entry) sim.function(m->sim, f.first.c_str());
    } catch (const ptxsim::DriverError& e) {
        if (m->sim) sim.release(m->sim);
        fail(e.status == DI_UNSUPPORTED ? CUDA_ERROR_NO_BINARY_FOR_GPU : e.status == DI_NOT_FOUND ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_PTX, e.what());
    } catch (const ptxsim::SimError& e) {
        if (m->sim) sim.release(m->sim);
        fail(CUDA_ERROR_INVALID_PTX, e.what());
    }
    Handle h = add();
    modules[h] = std::move(m);
    return h;
}

Handle Driver::module_function(Handle module, const std::string& name, Handle kernel) {
    Module& m = find(modules, module, "module");
    Handle& h = m.functions[name];
    if (h) return h;
    auto f = std::make_unique<Function>();
    try {
        f->sim = sim.function(m.sim, name.c_str());
    } catch (...) {
        m.functions.erase(name);
        throw;
    }
    f->module = module, f->context = m.context, f->kernel = kernel, f->name = name;
    f->max_dynamic = kDefaultShared - std::min(kDefaultShared, static_shared(*sim.kernel(f->sim).program));
    h = add();
    functions[h] = std::move(f);
    return h;
}

Function& Driver::function(Handle given) {
    if (auto k = kernels.find(given); k != kernels.end()) {
        Library& l = find(libraries, k->second->library, "library");
        given = module_function(library_module(*this, l, k->second->library), k->second->name, given);
    }
    return find(functions, given, "function or kernel");
}

}  // namespace fakecuda

FAKECUDA_API cuModuleLoadData(Handle* module, const void* image) {
    return guard(__func__, [&](Driver& d) { load_module(d, module, image, 0, nullptr, nullptr); });
}

FAKECUDA_API cuModuleLoadDataEx(Handle* module, const void* image, unsigned count, int* options, void** values) {
    return guard(__func__, [&](Driver& d) { load_module(d, module, image, count, options, values); });
}

FAKECUDA_API cuModuleLoadFatBinary(Handle* module, const void* image) {
    return guard(__func__, [&](Driver& d) { load_module(d, module, image, 0, nullptr, nullptr); });
}

FAKECUDA_API cuModuleLoad(Handle* module, const char* path) {
    return guard(__func__, [&](Driver& d) {
        need(path, "fname");
        std::ifstream in(path, std::ios::binary);
        if (!in) fail(CUDA_ERROR_FILE_NOT_FOUND, std::string("cannot read '") + path + "'");
        std::stringstream all;
        all << in.rdbuf();
        load_module(d, module, all.str().c_str(), 0, nullptr, nullptr);
    });
}

FAKECUDA_API cuModuleUnload(Handle module) {
    return guard(__func__, [&](Driver& d) {
        Module& m = module_of(d, module);
        if (m.library) fail(CUDA_ERROR_NOT_PERMITTED, "the module belongs to a library");
        d.synchronize_context(m.context);
        for (auto& f : m.functions) d.functions.erase(f.second);
        d.sim.release(m.sim);
        d.modules.erase(module);
    });
}

FAKECUDA_API cuModuleGetFunction(Handle* function, Handle module, const char* name) {
    return guard(__func__, [&](Driver& d) { need(function, "hfunc"), need(name, "name"), *function = d.module_function(module, name, nullptr); });
}

FAKECUDA_API cuModuleGetFunctionCount(unsigned* count, Handle module) {
    return guard(__func__, [&](Driver& d) {
        need(count, "count"), *count = 0;
        for (auto& f : d.sim.module(module_of(d, module).sim).ast->functions) *count += f.second->entry;
    });
}

FAKECUDA_API cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, Handle module, const char* name) {
    return guard(__func__, [&](Driver& d) { global(d, module, name, address, bytes); });
}

FAKECUDA_API cuModuleGetLoadingMode(int* mode) {
    return guard(__func__, [&](Driver&) { need(mode, "mode"), *mode = 1; });
}

FAKECUDA_API cuLibraryLoadData(Handle* library, const void* code, int*, void**, unsigned, int*, void**, unsigned) {
    return guard(__func__, [&](Driver& d) {
        need(library, "library");
        auto l = std::make_unique<Library>();
        l->ptx = ptx_of(code);
        try {
            ptxsim::parse_module(l->ptx);
        } catch (const ptxsim::SimError& e) {
            fail(CUDA_ERROR_INVALID_PTX, e.what());
        }
        d.libraries[*library = d.add()] = std::move(l);
    });
}

FAKECUDA_API cuLibraryUnload(Handle library) {
    return guard(__func__, [&](Driver& d) {
        Library& l = d.find(d.libraries, library, "library");
        for (auto& [context, module] : l.modules) {
            if (!d.modules.count(module)) continue;
            d.synchronize_context(context);
            for (auto& f : d.modules[module]->functions) d.functions.erase(f.second);
            d.sim.release(d.modules[module]->sim);
            d.modules.erase(module);
        }
        for (auto& k : l.kernels) d.kernels.erase(k.second);
        d.libraries.erase(library);
    });
}

FAKECUDA_API cuLibraryGetKernel(Handle* kernel, Handle library, const char* name) {
    return guard(__func__, [&](Driver& d) {
        need(kernel, "pKernel"), need(name, "name");
        Library& l = d.find(d.libraries, library, "library");
        auto ast = ptxsim::parse_module(l.ptx);
        auto f = ast->functions.find(name);
        if (f == ast->functions.end() || !f->second->entry) fail(CUDA_ERROR_NOT_FOUND, std::string("the library has no kernel '") + name + "'");
        Handle& h = l.kernels[name];
        if (!h) {
            h = d.add();
            d.kernels[h] = std::make_unique<Kernel>(Kernel{library, name});
        }
        *kernel = h;
    });
}

FAKECUDA_API cuLibraryGetKernelCount(unsigned* count, Handle library) {
    return guard(__func__, [&](Driver& d) {
        need(count, "count"), *count = 0;
        for (auto& f : ptxsim::parse_module(d.find(d.libraries, library, "library").ptx)->functions) *count += f.second->entry;
    });
}

FAKECUDA_API cuLibraryGetModule(Handle* module, Handle library) {
    return guard(__func__, [&](Driver& d) { need(module, "pMod"), *module = library_module(d, d.find(d.libraries, library, "library"), library); });
}

FAKECUDA_API cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, Handle library, const char* name) {
    return guard(__func__, [&](Driver& d) { global(d, library_module(d, d.find(d.libraries, library, "library"), library), name, address, bytes); });
}

FAKECUDA_API cuKernelGetFunction(Handle* function, Handle kernel) {
    return guard(__func__, [&](Driver& d) {
        need(function, "pFunc");
        Kernel& k = d.find(d.kernels, kernel, "kernel");
        *function = d.module_function(library_module(d, d.find(d.libraries, k.library, "library"), k.library), k.name, kernel);
    });
}

FAKECUDA_API cuKernelGetLibrary(Handle* library, Handle kernel) {
    return guard(__func__, [&](Driver& d) { need(library, "pLib"), *library = d.find(d.kernels, kernel, "kernel").library; });
}

FAKECUDA_API cuKernelGetName(const char** name, Handle kernel) {
    return guard(__func__, [&](Driver& d) { need(name, "name"), *name = d.find(d.kernels, kernel, "kernel").name.c_str(); });
}

FAKECUDA_API cuKernelGetAttribute(int* value, int which, Handle kernel, CUdevice device) {
    return guard(__func__, [&](Driver& d) { need(value, "pi"), d.device(device), d.find(d.kernels, kernel, "kernel"), *value = function_attribute(d, d.function(kernel), which); });
}

FAKECUDA_API cuKernelSetAttribute(int which, int value, Handle kernel, CUdevice device) {
    return guard(__func__, [&](Driver& d) { d.device(device), d.find(d.kernels, kernel, "kernel"), set_attribute(d, d.function(kernel), which, value); });
}

FAKECUDA_API cuKernelGetParamInfo(Handle kernel, size_t index, size_t* offset, size_t* size) {
    return guard(__func__, [&](Driver& d) { d.find(d.kernels, kernel, "kernel"), parameter(d, d.function(kernel), index, offset, size); });
}

FAKECUDA_API cuFuncGetAttribute(int* value, int which, Handle function) {
    return guard(__func__, [&](Driver& d) { need(value, "pi"), *value = function_attribute(d, d.function(function), which); });
}

FAKECUDA_API cuFuncSetAttribute(Handle function, int which, int value) {
    return guard(__func__, [&](Driver& d) { set_attribute(d, d.function(function), which, value); });
}

FAKECUDA_API cuFuncSetCacheConfig(Handle function, int) {
    return guard(__func__, [&](Driver& d) { d.function(function); });
}

FAKECUDA_API cuFuncGetModule(Handle* module, Handle function) {
    return guard(__func__, [&](Driver& d) { need(module, "hmod"), *module = d.function(function).module; });
}

FAKECUDA_API cuFuncGetName(const char** name, Handle function) {
    return guard(__func__, [&](Driver& d) { need(name, "name"), *name = d.function(function).name.c_str(); });
}

FAKECUDA_API cuFuncGetParamInfo(Handle function, size_t index, size_t* offset, size_t* size) {
    return guard(__func__, [&](Driver& d) { parameter(d, d.function(function), index, offset, size); });
}

FAKECUDA_API cuFuncLoad(Handle function) {
    return guard(__func__, [&](Driver& d) { d.function(function); });
}

FAKECUDA_API cuFuncIsLoaded(int* state, Handle function) {
    return guard(__func__, [&](Driver& d) { need(state, "state"), d.function(function), *state = 1; });
}
