// Contexts: the primary one of each device, contexts of their own, the calling thread's stack, limits, peer access.
#include "fakecuda/state.h"

using namespace fakecuda;

namespace {

void end(Driver& d, Handle context) {
    d.deactivate(context);
    for (Handle& h : context_stack())
        if (h == context && !d.contexts[context]->primary) h = nullptr;
}

}  // namespace

FAKECUDA_API cuDevicePrimaryCtxRetain(Handle* context, CUdevice device) {
    return guard(__func__, [&](Driver& d) {
        need(context, "pctx");
        Handle h = d.primary[size_t(d.device(device))];
        Context& c = *d.contexts[h];
        if (!c.sim) d.activate(c);
        ++c.retained;
        *context = h;
    });
}

FAKECUDA_API cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return guard(__func__, [&](Driver& d) {
        Handle h = d.primary[size_t(d.device(device))];
        Context& c = *d.contexts[h];
        if (!c.retained) fail(CUDA_ERROR_INVALID_CONTEXT, "the primary context is not retained");
        if (--c.retained == 0) end(d, h);
    });
}

FAKECUDA_API cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return guard(__func__, [&](Driver& d) {
        Handle h = d.primary[size_t(d.device(device))];
        Context& c = *d.contexts[h];
        if (!c.sim) return;
        end(d, h);
        if (c.retained) d.activate(c);
    });
}

FAKECUDA_API cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
    return guard(__func__, [&](Driver& d) {
        need(flags, "flags"), need(active, "active");
        Context& c = *d.contexts[d.primary[size_t(d.device(device))]];
        *flags = c.flags, *active = c.sim != 0;
    });
}

FAKECUDA_API cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    return guard(__func__, [&](Driver& d) {
        if (flags > 0xff) fail(CUDA_ERROR_INVALID_VALUE, "unknown context flags");
        d.contexts[d.primary[size_t(d.device(device))]]->flags = flags;
    });
}

FAKECUDA_API cuCtxCreate_v4(Handle* context, void* parameters, unsigned flags, CUdevice device) {
    return guard(__func__, [&](Driver& d) {
        need(context, "pctx");
        if (parameters) fail(CUDA_ERROR_NOT_SUPPORTED, "execution affinity and graphics contexts are not modelled");
        Handle h = d.add();
        auto c = std::make_unique<Context>();
        c->device = d.device(device), c->flags = flags;
        d.activate(*c);
        d.contexts[h] = std::move(c);
        context_stack().push_back(h);
        *context = h;
    });
}

FAKECUDA_API cuCtxCreate_v2(Handle* context, unsigned flags, CUdevice device) { return cuCtxCreate_v4(context, nullptr, flags, device); }

FAKECUDA_API cuCtxDestroy_v2(Handle context) {
    return guard(__func__, [&](Driver& d) {
        Context& c = d.live(context);
        if (c.primary) fail(CUDA_ERROR_INVALID_CONTEXT, "a primary context is released, not destroyed");
        end(d, context);
        auto& stack = context_stack();
        if (!stack.empty() && !stack.back()) stack.pop_back();
    });
}

FAKECUDA_API cuCtxSetCurrent(Handle context) {
    return guard(__func__, [&](Driver& d) {
        if (context) d.live(context);
        auto& stack = context_stack();
        if (!stack.empty()) stack.pop_back();
        if (context) stack.push_back(context);
    });
}

FAKECUDA_API cuCtxPushCurrent_v2(Handle context) {
    return guard(__func__, [&](Driver& d) { d.live(context), context_stack().push_back(context); });
}

FAKECUDA_API cuCtxPopCurrent_v2(Handle* context) {
    return guard(__func__, [&](Driver&) {
        auto& stack = context_stack();
        if (stack.empty()) fail(CUDA_ERROR_INVALID_CONTEXT, "no context is current in this thread");
        if (context) *context = stack.back();
        stack.pop_back();
    });
}

FAKECUDA_API cuCtxGetCurrent(Handle* context) {
    return guard(__func__, [&](Driver&) {
        need(context, "pctx");
        auto& stack = context_stack();
        *context = stack.empty() ? nullptr : stack.back();
    });
}

FAKECUDA_API cuCtxGetDevice(CUdevice* device) {
    return guard(__func__, [&](Driver& d) {
        need(device, "device");
        auto& stack = context_stack();
        if (stack.empty()) fail(CUDA_ERROR_INVALID_CONTEXT, "no context is current in this thread");
        *device = d.live(stack.back()).device;
    });
}

FAKECUDA_API cuCtxGetFlags(unsigned* flags) {
    return guard(__func__, [&](Driver& d) { need(flags, "flags"), *flags = d.current().flags; });
}

FAKECUDA_API cuCtxGetId(Handle context, unsigned long long* id) {
    return guard(__func__, [&](Driver& d) {
        need(id, "ctxId");
        Handle h = context ? context : d.current_handle();
        d.live(h), *id = reinterpret_cast<u64>(h);
    });
}

FAKECUDA_API cuCtxGetApiVersion(Handle context, unsigned* version) {
    return guard(__func__, [&](Driver& d) {
        need(version, "version");
        if (context) d.live(context);
        *version = 3020;
    });
}

FAKECUDA_API cuCtxSynchronize() {
    return guard(__func__, [&](Driver& d) { d.synchronize_context(d.current_handle()); });
}

FAKECUDA_API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    return guard(__func__, [&](Driver& d) {
        d.current_handle();
        if (least) *least = 0;
        if (greatest) *greatest = -5;
    });
}

FAKECUDA_API cuCtxGetLimit(size_t* value, int limit) {
    return guard(__func__, [&](Driver& d) {
        static const std::map<int, size_t> defaults = {{0, 1024}, {1, 1 << 20}, {2, 8 << 20}, {3, 2}, {4, 2048}, {5, 128}, {6, 0}};
        need(value, "pvalue");
        Context& c = d.current();
        auto known = defaults.find(limit);
        if (known == defaults.end()) fail(CUDA_ERROR_INVALID_VALUE, "limit " + std::to_string(limit) + " is unknown");
        auto set = c.limits.find(limit);
        *value = set == c.limits.end() ? known->second : set->second;
    });
}

FAKECUDA_API cuCtxSetLimit(int limit, size_t value) {
    return guard(__func__, [&](Driver& d) {
        if (limit < 0 || limit > 6) fail(CUDA_ERROR_INVALID_VALUE, "limit " + std::to_string(limit) + " is unknown");
        d.current().limits[limit] = value;
    });
}

FAKECUDA_API cuCtxEnablePeerAccess(Handle peer, unsigned flags) {
    return guard(__func__, [&](Driver& d) {
        if (flags) fail(CUDA_ERROR_INVALID_VALUE, "flags must be 0");
        Context &c = d.current(), &p = d.live(peer);
        if (p.device == c.device) fail(CUDA_ERROR_INVALID_DEVICE, "a device needs no access to itself");
        if (!c.peers.insert(p.device).second) fail(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "access to device " + std::to_string(p.device) + " is enabled already");
    });
}

FAKECUDA_API cuCtxDisablePeerAccess(Handle peer) {
    return guard(__func__, [&](Driver& d) {
        Context &c = d.current(), &p = d.live(peer);
        if (!c.peers.erase(p.device)) fail(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "access to device " + std::to_string(p.device) + " is not enabled");
    });
}
