// Device and host memory: allocation, pools, copies, fills, what a pointer is.
//
// Device memory is host memory here, but an address only counts as device memory inside a live allocation: a copy past its end
// is CUDA_ERROR_INVALID_VALUE, as in CUDA. Host pointers are probed before they are used.
#include <cstdlib>
#include <cstring>

#include "fakecuda/state.h"

using namespace fakecuda;

namespace {

CUdeviceptr allocate(Driver& d, Handle context, size_t bytes) {
    if (!bytes) fail(CUDA_ERROR_INVALID_VALUE, "0 bytes asked");
    Context& c = d.live(context);
    CUdeviceptr p = d.sim.allocate(c.sim, bytes, 256);
    c.memory.insert(p), d.owner_of[p] = context;
    return p;
}

void release(Driver& d, CUdeviceptr p) {
    if (!p) return;
    auto it = d.owner_of.find(p);
    if (it == d.owner_of.end()) fail(CUDA_ERROR_INVALID_VALUE, "address was not returned by an allocation, or is freed already");
    d.synchronize_context(it->second);  // cuMemFree waits for the device
    d.freed.push_back(p);
    d.reclaim();
}

std::string hex(u64 v) {
    char b[32];
    std::snprintf(b, sizeof b, "0x%llx", (unsigned long long)v);
    return b;
}

// `device`: the address must lie in device (or mapped host) memory; else any mapped host memory will do as well.
void check(Driver& d, u64 p, size_t n, bool device, const char* what) {
    if (!n) return;
    if (allocation(d, p, n)) return;
    if (auto v = d.sim.machine.module_memory.find(p, n)) return (void)v;
    auto h = d.host.upper_bound(p);
    if (h != d.host.begin() && (--h)->first + h->second.bytes >= p + n && h->first <= p) return;
    const ptxsim::Span* near = allocation(d, p, 1);
    if (near) fail(CUDA_ERROR_INVALID_VALUE, std::string(what) + " " + hex(p) + " + " + std::to_string(n) + " bytes leaves its allocation of " + std::to_string(near->size) + " bytes at " + hex(near->base));
    if (device) fail(CUDA_ERROR_INVALID_VALUE, std::string(what) + " " + hex(p) + " is not device memory");
    if (!mapped(reinterpret_cast<void*>(p), n)) fail(CUDA_ERROR_INVALID_VALUE, std::string(what) + " " + hex(p) + " + " + std::to_string(n) + " bytes is no memory of this process");
}

enum Side { any, device_only, host_only };

void copy(Driver& d, u64 dst, u64 src, size_t n, Side to, Side from, Handle stream, bool wait) {
    Handle s = d.stream_handle(stream);
    check(d, dst, n, to == device_only, "destination"), check(d, src, n, from == device_only, "source");
    if (n) d.enqueue(s, [=] { std::memmove(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), n); });
    if (wait) d.synchronize(s);
}

template <class T>
void fill(Driver& d, CUdeviceptr dst, size_t pitch, T value, size_t width, size_t height, Handle stream, bool wait) {
    Handle s = d.stream_handle(stream);
    if (dst % sizeof(T) || (height > 1 && (pitch % sizeof(T) || pitch < width * sizeof(T)))) fail(CUDA_ERROR_INVALID_VALUE, "destination or pitch does not fit the element size");
    if (width && height) {
        check(d, dst, pitch * (height - 1) + width * sizeof(T), true, "destination");
        d.enqueue(s, [=] {
            for (size_t y = 0; y < height; ++y) std::fill_n(reinterpret_cast<T*>(dst + y * pitch), width, value);
        });
    }
    if (wait) d.synchronize(s);
}

void copy_2d(Driver& d, const CUDA_MEMCPY2D* c, Handle stream, bool wait) {
    need(c, "pCopy");
    if (c->src_type == 3 || c->dst_type == 3) fail(CUDA_ERROR_NOT_SUPPORTED, "arrays are not modelled");
    u64 src = c->src_type == 1 ? u64(c->src_host) : c->src_device, dst = c->dst_type == 1 ? u64(c->dst_host) : c->dst_device;
    if (c->height > 1 && (c->src_pitch < c->width || c->dst_pitch < c->width)) fail(CUDA_ERROR_INVALID_VALUE, "pitch is smaller than the width");
    Handle s = d.stream_handle(stream);
    src += c->src_y * c->src_pitch + c->src_x, dst += c->dst_y * c->dst_pitch + c->dst_x;
    size_t width = c->width, height = c->height, sp = c->src_pitch, dp = c->dst_pitch;
    if (width && height) {
        check(d, src, sp * (height - 1) + width, c->src_type == 2, "source");
        check(d, dst, dp * (height - 1) + width, c->dst_type == 2, "destination");
        d.enqueue(s, [=] {
            for (size_t y = 0; y < height; ++y) std::memmove(reinterpret_cast<void*>(dst + y * dp), reinterpret_cast<const void*>(src + y * sp), width);
        });
    }
    if (wait) d.synchronize(s);
}

Handle new_pool(Driver& d, int device, bool is_default) {
    Handle h = d.add();
    d.pools[h] = std::make_unique<Pool>();
    d.pools[h]->device = device, d.pools[h]->is_default = is_default;
    d.pools[h]->attributes = {{1, 1}, {2, 1}, {3, 1}, {4, 0}};
    return h;
}

Handle pool_of(Driver& d, int device) {
    Handle& h = d.device_pool[d.device(device)];
    if (!h) h = d.default_pool[device] = new_pool(d, device, true);
    return h;
}

u64 pool_used(Driver& d, const Pool& p) { return d.sim.used(d.devices[size_t(p.device)]); }

void pointer_attribute(Driver& d, void* data, int which, CUdeviceptr p, bool quiet) {
    const ptxsim::Span* span = allocation(d, p, 1);
    auto owner = span ? d.owner_of.find(span->base) : d.owner_of.end();
    auto h = d.host.upper_bound(p);
    bool host = h != d.host.begin() && (--h)->first + h->second.bytes > p;
    if (owner == d.owner_of.end() && !host) {
        if (!quiet) fail(CUDA_ERROR_INVALID_VALUE, hex(p) + " is not memory of this driver");
        std::memset(data, 0, which == 1 || which == 3 || which == 4 || which == 7 || which == 11 || which == 12 ? 8 : 4);
        if (which == 9) *static_cast<int*>(data) = -2;
        return;
    }
    u64 base = host ? h->first : span->base, size = host ? h->second.bytes : span->size;
    Handle context = host ? nullptr : owner->second;
    switch (which) {
        case 1: *static_cast<Handle*>(data) = context; return;
        case 2: *static_cast<unsigned*>(data) = host ? 1 : 2; return;
        case 3: *static_cast<CUdeviceptr*>(data) = p; return;
        case 4:
            if (!host && !quiet) fail(CUDA_ERROR_INVALID_VALUE, "device memory has no host pointer");
            *static_cast<u64*>(data) = host ? p : 0;
            return;
        case 6: case 8: *static_cast<unsigned char*>(data) = 0; return;
        case 7: *static_cast<u64*>(data) = base; return;
        case 9: *static_cast<int*>(data) = host ? 0 : d.contexts[context]->device; return;
        case 10: case 15: *static_cast<unsigned char*>(data) = 0; return;
        case 11: *static_cast<CUdeviceptr*>(data) = base; return;
        case 12: *static_cast<size_t*>(data) = size; return;
        case 13: *static_cast<unsigned char*>(data) = 1; return;
        case 16: *static_cast<int*>(data) = 3; return;
        case 17: *static_cast<Handle*>(data) = nullptr; return;
        default: fail(CUDA_ERROR_INVALID_VALUE, "pointer attribute " + std::to_string(which) + " is not modelled");
    }
}

}  // namespace

FAKECUDA_API cuMemGetInfo_v2(size_t* available, size_t* total) {
    return guard(__func__, [&](Driver& d) {
        need(available, "free"), need(total, "total");
        Context& c = d.current();
        *total = d.profile(c.device).memory_bytes;
        *available = *total - std::min<u64>(*total, d.sim.used(d.devices[size_t(c.device)]));
    });
}

FAKECUDA_API cuMemAlloc_v2(CUdeviceptr* p, size_t bytes) {
    return guard(__func__, [&](Driver& d) { need(p, "dptr"), d.forbid_capture("cuMemAlloc"), *p = allocate(d, d.current_handle(), bytes); });
}

FAKECUDA_API cuMemAllocPitch_v2(CUdeviceptr* p, size_t* pitch, size_t width, size_t height, unsigned element) {
    return guard(__func__, [&](Driver& d) {
        need(p, "dptr"), need(pitch, "pPitch");
        if (element != 4 && element != 8 && element != 16) fail(CUDA_ERROR_INVALID_VALUE, "element size must be 4, 8 or 16");
        *pitch = (width + 511) / 512 * 512;
        *p = allocate(d, d.current_handle(), *pitch * height);
    });
}

FAKECUDA_API cuMemFree_v2(CUdeviceptr p) {
    return guard(__func__, [&](Driver& d) { d.current_handle(), d.forbid_capture("cuMemFree"), release(d, p); });
}

FAKECUDA_API cuMemAllocManaged(CUdeviceptr*, size_t, unsigned) {
    return guard(__func__, [&](Driver&) { fail(CUDA_ERROR_NOT_SUPPORTED, "managed memory is not modelled"); });
}

FAKECUDA_API cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr p) {
    return guard(__func__, [&](Driver& d) {
        d.current_handle();
        const ptxsim::Span* s = allocation(d, p, 1);
        if (!s) fail(CUDA_ERROR_NOT_FOUND, hex(p) + " is not device memory");
        if (base) *base = s->base;
        if (size) *size = s->size;
    });
}

FAKECUDA_API cuMemHostAlloc(void** p, size_t bytes, unsigned flags) {
    return guard(__func__, [&](Driver& d) {
        need(p, "pp"), d.current_handle();
        if (!bytes || flags > 7) fail(CUDA_ERROR_INVALID_VALUE, "size must be positive and flags known");
        void* raw = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
        if (!raw) throw std::bad_alloc();
        d.host[u64(raw)] = {bytes, flags, false};
        *p = raw;
    });
}

FAKECUDA_API cuMemAllocHost_v2(void** p, size_t bytes) { return cuMemHostAlloc(p, bytes, 0); }

FAKECUDA_API cuMemFreeHost(void* p) {
    return guard(__func__, [&](Driver& d) {
        auto it = d.host.find(u64(p));
        if (it == d.host.end() || it->second.registered) fail(CUDA_ERROR_INVALID_VALUE, "address was not returned by cuMemHostAlloc");
        d.synchronize_context(d.current_handle());
        d.host.erase(it), std::free(p);
    });
}

FAKECUDA_API cuMemHostRegister_v2(void* p, size_t bytes, unsigned flags) {
    return guard(__func__, [&](Driver& d) {
        d.current_handle();
        if (!p || !bytes || flags > 15 || !mapped(p, bytes)) fail(CUDA_ERROR_INVALID_VALUE, "address range is no memory of this process, or the flags are unknown");
        auto it = d.host.upper_bound(u64(p) + bytes - 1);
        if (it != d.host.begin() && (--it)->first + it->second.bytes > u64(p)) fail(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part of the range is registered already");
        d.host[u64(p)] = {bytes, flags, true};
    });
}

FAKECUDA_API cuMemHostUnregister(void* p) {
    return guard(__func__, [&](Driver& d) {
        auto it = d.host.find(u64(p));
        if (it == d.host.end() || !it->second.registered) fail(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "address is not registered");
        d.synchronize_context(d.current_handle());
        d.host.erase(it);
    });
}

FAKECUDA_API cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* p, unsigned flags) {
    return guard(__func__, [&](Driver& d) {
        need(device, "pdptr");
        auto h = d.host.upper_bound(u64(p));
        if (flags || h == d.host.begin() || (--h)->first + h->second.bytes <= u64(p)) fail(CUDA_ERROR_INVALID_VALUE, "address is not pinned host memory");
        *device = u64(p);
    });
}

FAKECUDA_API cuMemHostGetFlags(unsigned* flags, void* p) {
    return guard(__func__, [&](Driver& d) {
        need(flags, "pFlags");
        auto it = d.host.find(u64(p));
        if (it == d.host.end()) fail(CUDA_ERROR_INVALID_VALUE, "address is not pinned host memory");
        *flags = it->second.flags;
    });
}

FAKECUDA_API cuMemAllocAsync(CUdeviceptr* p, size_t bytes, Handle stream) {
    return guard(__func__, [&](Driver& d) { need(p, "dptr"), *p = allocate(d, d.stream(stream).context, bytes); });
}

FAKECUDA_API cuMemAllocFromPoolAsync(CUdeviceptr* p, size_t bytes, Handle pool, Handle stream) {
    return guard(__func__, [&](Driver& d) {
        need(p, "dptr"), d.find(d.pools, pool, "memory pool");
        *p = allocate(d, d.stream(stream).context, bytes);
    });
}

// In stream order. Inside a capture the memory stays until the context ends, so that the graph can be launched again.
FAKECUDA_API cuMemFreeAsync(CUdeviceptr p, Handle stream) {
    return guard(__func__, [&](Driver& d) {
        Handle s = d.stream_handle(stream);
        if (!d.owner_of.count(p)) fail(CUDA_ERROR_INVALID_VALUE, "address was not returned by an allocation, or is freed already");
        if (!d.streams[s]->capture) d.enqueue(s, [&d, p] { d.freed.push_back(p); });
    });
}

FAKECUDA_API cuDeviceGetDefaultMemPool(Handle* pool, CUdevice device) {
    return guard(__func__, [&](Driver& d) { need(pool, "pool_out"), pool_of(d, device), *pool = d.default_pool[device]; });
}

FAKECUDA_API cuDeviceGetMemPool(Handle* pool, CUdevice device) {
    return guard(__func__, [&](Driver& d) { need(pool, "pool"), *pool = pool_of(d, device); });
}

FAKECUDA_API cuDeviceSetMemPool(CUdevice device, Handle pool) {
    return guard(__func__, [&](Driver& d) {
        pool_of(d, device);
        if (d.find(d.pools, pool, "memory pool").device != device) fail(CUDA_ERROR_INVALID_VALUE, "the pool lies on another device");
        d.device_pool[device] = pool;
    });
}

FAKECUDA_API cuMemPoolCreate(Handle* pool, const void* properties) {
    return guard(__func__, [&](Driver& d) {
        struct Properties {  // CUmemPoolProps, the part that is read
            int allocation, handles, location, id;
        };
        need(pool, "pool"), need(properties, "poolProps");
        auto& p = *static_cast<const Properties*>(properties);
        if (p.allocation != 1 || p.location != 1) fail(CUDA_ERROR_NOT_SUPPORTED, "only pinned pools of a device are modelled");
        if (p.handles) fail(CUDA_ERROR_NOT_SUPPORTED, "pools that other processes open are not modelled");
        *pool = new_pool(d, d.device(p.id), false);
    });
}

FAKECUDA_API cuMemPoolDestroy(Handle pool) {
    return guard(__func__, [&](Driver& d) {
        if (d.find(d.pools, pool, "memory pool").is_default) fail(CUDA_ERROR_INVALID_VALUE, "a default pool cannot be destroyed");
        for (auto& p : d.device_pool)
            if (p.second == pool) p.second = d.default_pool[p.first];
        d.pools.erase(pool);
    });
}

FAKECUDA_API cuMemPoolSetAttribute(Handle pool, int which, void* value) {
    return guard(__func__, [&](Driver& d) {
        need(value, "value");
        Pool& p = d.find(d.pools, pool, "memory pool");
        if (which >= 1 && which <= 3) p.attributes[which] = u64(*static_cast<int*>(value));
        else if (which == 4) p.attributes[which] = *static_cast<u64*>(value);
        else if ((which == 6 || which == 8) && !*static_cast<u64*>(value)) return;  // resets of the high-water marks
        else fail(CUDA_ERROR_INVALID_VALUE, "pool attribute " + std::to_string(which) + " cannot be set to this value");
    });
}

FAKECUDA_API cuMemPoolGetAttribute(Handle pool, int which, void* value) {
    return guard(__func__, [&](Driver& d) {
        need(value, "value");
        Pool& p = d.find(d.pools, pool, "memory pool");
        if (which >= 1 && which <= 3) *static_cast<int*>(value) = int(p.attributes[which]);
        else if (which == 4) *static_cast<u64*>(value) = p.attributes[which];
        else if (which >= 5 && which <= 8) *static_cast<u64*>(value) = pool_used(d, p);
        else fail(CUDA_ERROR_INVALID_VALUE, "pool attribute " + std::to_string(which) + " is unknown");
    });
}

FAKECUDA_API cuMemPoolTrimTo(Handle pool, size_t) {
    return guard(__func__, [&](Driver& d) { d.find(d.pools, pool, "memory pool"); });
}

FAKECUDA_API cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t n) {
    return guard(__func__, [&](Driver& d) { copy(d, dst, src, n, any, any, nullptr, true); });
}
FAKECUDA_API cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, Handle stream) {
    return guard(__func__, [&](Driver& d) { copy(d, dst, src, n, any, any, stream, false); });
}
FAKECUDA_API cuMemcpyHtoD_v2(CUdeviceptr dst, const void* src, size_t n) {
    return guard(__func__, [&](Driver& d) { copy(d, dst, u64(src), n, device_only, host_only, nullptr, true); });
}
FAKECUDA_API cuMemcpyDtoH_v2(void* dst, CUdeviceptr src, size_t n) {
    return guard(__func__, [&](Driver& d) { copy(d, u64(dst), src, n, host_only, device_only, nullptr, true); });
}
FAKECUDA_API cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t n) {
    return guard(__func__, [&](Driver& d) { copy(d, dst, src, n, device_only, device_only, nullptr, true); });
}
FAKECUDA_API cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void* src, size_t n, Handle stream) {
    return guard(__func__, [&](Driver& d) { copy(d, dst, u64(src), n, device_only, host_only, stream, false); });
}
FAKECUDA_API cuMemcpyDtoHAsync_v2(void* dst, CUdeviceptr src, size_t n, Handle stream) {
    return guard(__func__, [&](Driver& d) { copy(d, u64(dst), src, n, host_only, device_only, stream, false); });
}
FAKECUDA_API cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t n, Handle stream) {
    return guard(__func__, [&](Driver& d) { copy(d, dst, src, n, device_only, device_only, stream, false); });
}
FAKECUDA_API cuMemcpyPeer(CUdeviceptr dst, Handle to, CUdeviceptr src, Handle from, size_t n) {
    return guard(__func__, [&](Driver& d) { d.live(to), d.live(from), copy(d, dst, src, n, device_only, device_only, nullptr, true); });
}
FAKECUDA_API cuMemcpyPeerAsync(CUdeviceptr dst, Handle to, CUdeviceptr src, Handle from, size_t n, Handle stream) {
    return guard(__func__, [&](Driver& d) { d.live(to), d.live(from), copy(d, dst, src, n, device_only, device_only, stream, false); });
}
FAKECUDA_API cuMemcpy2D_v2(const CUDA_MEMCPY2D* c) {
    return guard(__func__, [&](Driver& d) { copy_2d(d, c, nullptr, true); });
}
FAKECUDA_API cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* c, Handle stream) {
    return guard(__func__, [&](Driver& d) { copy_2d(d, c, stream, false); });
}

FAKECUDA_API cuMemsetD8_v2(CUdeviceptr p, unsigned char v, size_t n) {
    return guard(__func__, [&](Driver& d) { fill<uint8_t>(d, p, 0, v, n, 1, nullptr, true); });
}
FAKECUDA_API cuMemsetD16_v2(CUdeviceptr p, unsigned short v, size_t n) {
    return guard(__func__, [&](Driver& d) { fill<uint16_t>(d, p, 0, v, n, 1, nullptr, true); });
}
FAKECUDA_API cuMemsetD32_v2(CUdeviceptr p, unsigned v, size_t n) {
    return guard(__func__, [&](Driver& d) { fill<uint32_t>(d, p, 0, v, n, 1, nullptr, true); });
}
FAKECUDA_API cuMemsetD8Async(CUdeviceptr p, unsigned char v, size_t n, Handle stream) {
    return guard(__func__, [&](Driver& d) { fill<uint8_t>(d, p, 0, v, n, 1, stream, false); });
}
FAKECUDA_API cuMemsetD16Async(CUdeviceptr p, unsigned short v, size_t n, Handle stream) {
    return guard(__func__, [&](Driver& d) { fill<uint16_t>(d, p, 0, v, n, 1, stream, false); });
}
FAKECUDA_API cuMemsetD32Async(CUdeviceptr p, unsigned v, size_t n, Handle stream) {
    return guard(__func__, [&](Driver& d) { fill<uint32_t>(d, p, 0, v, n, 1, stream, false); });
}
FAKECUDA_API cuMemsetD2D8_v2(CUdeviceptr p, size_t pitch, unsigned char v, size_t width, size_t height) {
    return guard(__func__, [&](Driver& d) { fill<uint8_t>(d, p, pitch, v, width, height, nullptr, true); });
}

FAKECUDA_API cuPointerGetAttribute(void* data, int which, CUdeviceptr p) {
    return guard(__func__, [&](Driver& d) { need(data, "data"), pointer_attribute(d, data, which, p, false); });
}

FAKECUDA_API cuPointerGetAttributes(unsigned count, int* which, void** data, CUdeviceptr p) {
    return guard(__func__, [&](Driver& d) {
        if (count) need(which, "attributes"), need(data, "data");
        for (unsigned i = 0; i < count; ++i) need(data[i], "data[i]"), pointer_attribute(d, data[i], which[i], p, true);
    });
}
