// Launches, their attributes, occupancy, and tensor maps.
//
// A launch is checked when it is made, as the driver does; faults while it runs stick to the context and come back from the next
// call that waits. A kernel may touch the memory of its own device, of enabled peers, and pinned host memory.
#include <cstring>

#include "fakecuda/state.h"
#include "tensor/tensor_map.h"

using namespace fakecuda;

namespace {

struct Request {
    di_cuda_config config{};
    Handle stream = nullptr;
    std::vector<Handle> record;  // events of attributes, recorded behind the kernel
};

Request plain(const unsigned (&grid)[3], const unsigned (&block)[3], unsigned shared, Handle stream) {
    Request r;
    r.config = {sizeof r.config, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, {0, 0, 0}, shared, 0, 0};
    r.stream = stream;
    return r;
}

Request with_attributes(const CUlaunchConfig* c) {
    need(c, "config");
    Request r = plain(c->grid, c->block, c->shared_bytes, c->stream);
    if (c->attribute_count) need(c->attributes, "config->attrs");
    for (unsigned i = 0; i < c->attribute_count; ++i) {
        const CUlaunchAttribute& a = c->attributes[i];
        switch (a.id) {
            case kCooperative: r.config.cooperative = a.value.number != 0; break;
            case kClusterDimension:
                if (!a.value.dim.x || !a.value.dim.y || !a.value.dim.z) fail(CUDA_ERROR_INVALID_VALUE, "a cluster dimension is 0");
                r.config.cluster = {a.value.dim.x, a.value.dim.y, a.value.dim.z};
                break;
            case kProgrammaticSerialization: r.config.programmatic = a.value.number != 0; break;
            case kProgrammaticEvent: case kLaunchCompletionEvent: r.record.push_back(a.value.event.event); break;
            case kIgnore: case kAccessPolicyWindow: case kSynchronizationPolicy: case kClusterScheduling: case kPriority: case kMemSyncDomainMap:
            case kMemSyncDomain: case kPreferredClusterDimension: case kSharedCarveout: case kNvlinkScheduling: break;  // hints
            case kDeviceUpdatable: fail(CUDA_ERROR_NOT_SUPPORTED, "kernel nodes that kernels update are not modelled");
            default: fail(CUDA_ERROR_INVALID_VALUE, "launch attribute " + std::to_string(a.id) + " is unknown");
        }
    }
    return r;
}

// A copy of the parameter bytes, one entry per parameter.
std::vector<std::vector<u8>> parameters(const ptxsim::Program& p, void** pointers, void** extra) {
    std::vector<std::vector<u8>> values;
    const u8* buffer = nullptr;
    size_t bytes = 0;
    for (size_t i = 0; extra && extra[i]; i += 2) {
        u64 key = u64(extra[i]);
        if (key == 1) buffer = static_cast<const u8*>(extra[i + 1]);
        else if (key == 2) need(extra[i + 1], "extra size"), bytes = *static_cast<const size_t*>(extra[i + 1]);
        else fail(CUDA_ERROR_INVALID_VALUE, "entry of `extra` is unknown");
    }
    if (buffer && pointers) fail(CUDA_ERROR_INVALID_VALUE, "both kernelParams and extra are given");
    for (size_t i = 0; i < p.params.size(); ++i) {
        auto [offset, size] = p.params[i];
        const u8* from = nullptr;
        if (buffer) {
            if (offset + size > bytes) fail(CUDA_ERROR_INVALID_VALUE, "the parameter buffer of " + std::to_string(bytes) + " bytes ends before parameter " + std::to_string(i));
            from = buffer + offset;
        } else {
            if (!pointers || !mapped(pointers + i, sizeof(void*))) fail(CUDA_ERROR_INVALID_VALUE, "kernel '" + p.name + "' takes " + std::to_string(p.params.size()) + " parameters, none are given");
            from = static_cast<const u8*>(pointers[i]);
        }
        if (!mapped(from, size)) fail(CUDA_ERROR_INVALID_VALUE, "parameter " + std::to_string(i) + " of kernel '" + p.name + "' points outside the memory of this process");
        values.emplace_back(from, from + size);
    }
    return values;
}

void check(Driver& d, const Function& f, const di_cuda_config& c) {
    const ptxsim::Function& source = *d.sim.kernel(f.sim).program->function;
    if (c.smem_bytes > f.max_dynamic)
        fail(CUDA_ERROR_INVALID_VALUE, "kernel '" + f.name + "' is launched with " + std::to_string(c.smem_bytes) + " bytes of dynamic shared memory, its limit is " + std::to_string(f.max_dynamic) +
             " (raise it with cuFuncSetAttribute)");
    u64 size = c.cluster.x ? u64(c.cluster.x) * c.cluster.y * c.cluster.z : source.cluster[0] ? u64(source.cluster[0]) * source.cluster[1] * source.cluster[2] : 1;
    if (size > 16 || (size > 8 && !f.non_portable_cluster))
        fail(CUDA_ERROR_INVALID_CLUSTER_SIZE, "a cluster of " + std::to_string(size) + " blocks; 8 are portable, 16 need the kernel's non-portable attribute");
    if (c.cooperative) {
        u64 blocks = u64(c.grid.x) * c.grid.y * c.grid.z, fit = d.sim.max_clusters(f.sim, c) * size;
        if (blocks > fit) fail(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "a cooperative grid of " + std::to_string(blocks) + " blocks, " + std::to_string(fit) + " fit at once");
    }
}

// Memory that kernels of context `c` may touch, as arguments that only announce it.
std::vector<di_arg> reachable(Driver& d, const Context& c) {
    static u8 nothing;
    std::vector<di_arg> spans = {{DI_ARG_SPAN, 0, nullptr, u64(&nothing), 1, 0, 0}};  // never empty: an empty list would allow everything
    for (auto& s : d.sim.machine.allocations.all()) {
        auto owner = d.owner_of.find(s.base);
        if (owner == d.owner_of.end()) continue;
        int device = d.contexts[owner->second]->device;
        if (device == c.device || c.peers.count(device)) spans.push_back({DI_ARG_SPAN, 0, nullptr, s.base, s.size, 1, 0});
    }
    for (auto& [base, h] : d.host) spans.push_back({DI_ARG_SPAN, 0, nullptr, base, h.bytes, h.flags & 8 ? 0u : 1u, 0});
    return spans;
}

void launch(Driver& d, Handle function, const Request& request, void** pointers, void** extra) {
    Handle context = d.current_handle();
    Function& f = d.function(function);
    if (f.context != context) fail(CUDA_ERROR_INVALID_CONTEXT, "kernel '" + f.name + "' was loaded in another context");
    Handle stream = d.stream_handle(request.stream);
    if (d.streams[stream]->context != context) fail(CUDA_ERROR_INVALID_HANDLE, "the stream belongs to another context");
    check(d, f, request.config);
    auto values = parameters(*d.sim.kernel(f.sim).program, pointers, extra);
    d.submit(stream, [&d, context, sim = f.sim, config = request.config, values = std::move(values)](Handle h) {
        Context& c = *d.contexts[context];
        if (c.error) return;  // nothing runs any more
        std::vector<di_arg> args = reachable(d, c);
        for (auto& v : values) args.push_back({DI_ARG_SCALAR, u32(v.size()), v.data(), 0, 0, 0, 0});
        try {
            d.sim.launch(sim, config, args.data(), u32(args.size()), d.streams[h]->sim);
        } catch (const ptxsim::DriverError& e) {
            if (e.status != DI_LAUNCH_FAILED) throw;
            d.stick(c, fault_code(e.what()), e.what());
        }
    });
}

int active_blocks(Driver& d, Handle function, int block, size_t shared) {
    Function& f = d.function(function);
    if (block < 1 || block > 1024) fail(CUDA_ERROR_INVALID_VALUE, "a block of " + std::to_string(block) + " threads");
    const ptxsim::Profile& chip = d.profile(d.contexts[f.context]->device);
    if (shared > chip.shared_per_block) return 0;
    di_cuda_config c{sizeof c, {1, 1, 1}, {u32(block), 1, 1}, {1, 1, 1}, u32(shared), 0, 0};
    return int(d.sim.max_clusters(f.sim, c) / chip.sms);
}

}  // namespace

extern "C" CUresult cuEventRecord(Handle event, Handle stream);

FAKECUDA_API cuLaunchKernelEx(const CUlaunchConfig* config, Handle function, void** pointers, void** extra) {
    return guard(__func__, [&](Driver& d) {
        Request r = with_attributes(config);
        launch(d, function, r, pointers, extra);
        for (Handle e : r.record)
            if (CUresult code = cuEventRecord(e, r.stream)) fail(code, "an event of the launch attributes cannot be recorded");
    });
}

FAKECUDA_API cuLaunchKernel(Handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, Handle stream,
                            void** pointers, void** extra) {
    return guard(__func__, [&](Driver& d) { launch(d, function, plain({gx, gy, gz}, {bx, by, bz}, shared, stream), pointers, extra); });
}

FAKECUDA_API cuLaunchCooperativeKernel(Handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                       Handle stream, void** pointers) {
    return guard(__func__, [&](Driver& d) {
        Request r = plain({gx, gy, gz}, {bx, by, bz}, shared, stream);
        r.config.cooperative = 1;
        launch(d, function, r, pointers, nullptr);
    });
}

FAKECUDA_API cuLaunchHostFunc(Handle stream, CUhostFn function, void* data) {
    return guard(__func__, [&](Driver& d) { need(reinterpret_cast<void*>(function), "fn"), d.enqueue(d.stream_handle(stream), [=] { function(data); }); });
}

FAKECUDA_API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Handle function, int block, size_t shared) {
    return guard(__func__, [&](Driver& d) { need(blocks, "numBlocks"), *blocks = active_blocks(d, function, block, shared); });
}

FAKECUDA_API cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, Handle function, int block, size_t shared, unsigned) {
    return guard(__func__, [&](Driver& d) { need(blocks, "numBlocks"), *blocks = active_blocks(d, function, block, shared); });
}

FAKECUDA_API cuOccupancyMaxActiveClusters(int* clusters, Handle function, const CUlaunchConfig* config) {
    return guard(__func__, [&](Driver& d) {
        need(clusters, "numClusters");
        Request r = with_attributes(config);
        *clusters = int(d.sim.max_clusters(d.function(function).sim, r.config));
    });
}

FAKECUDA_API cuOccupancyMaxPotentialClusterSize(int* size, Handle function, const CUlaunchConfig* config) {
    return guard(__func__, [&](Driver& d) { need(size, "clusterSize"), with_attributes(config), *size = d.function(function).non_portable_cluster ? 16 : 8; });
}

FAKECUDA_API cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, Handle function, int blocks, int) {
    return guard(__func__, [&](Driver& d) {
        need(bytes, "dynamicSmemSize");
        Function& f = d.function(function);
        const ptxsim::Profile& chip = d.profile(d.contexts[f.context]->device);
        if (blocks < 1) fail(CUDA_ERROR_INVALID_VALUE, "numBlocks must be positive");
        u64 used = d.sim.kernel(f.sim).program->dynamic_offset, share = std::min<u64>(chip.shared_per_sm / u32(blocks), chip.shared_per_block + 1024);
        *bytes = share - std::min(share, used);
    });
}

FAKECUDA_API cuTensorMapEncodeTiled(void* map, int type, u32 rank, void* address, const u64* sizes, const u64* strides, const u32* box, const u32* steps,
                                    int interleave, int swizzle, int promotion, int fill) {
    return guard(__func__, [&](Driver&) {
        need(map, "tensorMap"), need(sizes, "globalDim"), need(box, "boxDim"), need(steps, "elementStrides");
        if (rank > 1) need(strides, "globalStrides");
        alignas(64) u8 made[128];
        std::string why = ptxsim::encode_tensor_map(made, u32(type), rank, u64(address), sizes, strides, box, steps, u32(interleave), u32(swizzle), u32(promotion), u32(fill));
        if (!why.empty()) fail(CUDA_ERROR_INVALID_VALUE, why);
        std::memcpy(map, made, sizeof made);
    }, false);
}

FAKECUDA_API cuTensorMapEncodeIm2col(void* map, int type, u32 rank, void* address, const u64* sizes, const u64* strides, const int* lower, const int* upper,
                                     u32 channels, u32 pixels, const u32* steps, int interleave, int swizzle, int promotion, int fill) {
    return guard(__func__, [&](Driver&) {
        need(map, "tensorMap"), need(sizes, "globalDim"), need(strides, "globalStrides"), need(steps, "elementStrides");
        need(lower, "pixelBoxLowerCorner"), need(upper, "pixelBoxUpperCorner");
        alignas(64) u8 made[128];
        std::string why = ptxsim::encode_im2col_map(made, u32(type), rank, u64(address), sizes, strides, lower, upper, channels, pixels, steps, u32(interleave),
                                                    u32(swizzle), u32(promotion), u32(fill));
        if (!why.empty()) fail(CUDA_ERROR_INVALID_VALUE, why);
        std::memcpy(map, made, sizeof made);
    }, false);
}

FAKECUDA_API cuTensorMapReplaceAddress(void* map, void* address) {
    return guard(__func__, [&](Driver&) {
        need(map, "tensorMap");
        alignas(64) u8 changed[128];
        std::memcpy(changed, map, sizeof changed);
        std::string why = ptxsim::replace_tensor_map_address(changed, u64(address));
        if (!why.empty()) fail(CUDA_ERROR_INVALID_VALUE, why);
        std::memcpy(map, changed, sizeof changed);
    }, false);
}
