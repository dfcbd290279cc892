// mbarrier, named barriers and cluster barriers. PTX ISA 8.0+, sections "mbarrier", "bar", "barrier.cluster".
//
// An mbarrier's phase ends when its pending arrivals and its pending transaction bytes are both zero. wait(parity)
// returns once the phase of that parity has ended; a fresh barrier counts as having ended the phase of parity 1.
#pragma once

#include "ptx/types.cuh"

namespace di {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

struct Barrier {
    uint64_t state;

    __device__ __forceinline__ void init(uint32_t arrivals) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(arrivals) : "memory");
    }

    // One arrival that also announces `bytes` of asynchronous writes for this phase.
    __device__ __forceinline__ void arrive_expect(uint32_t bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)), "r"(bytes)
                     : "memory");
    }

    __device__ __forceinline__ void arrive() {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
    }

    // Arrives at the barrier that lies at the same place in CTA `rank` of the cluster. The default semantics (release at
    // CTA scope) suffice to give back a buffer that asynchronous copies refill; cluster scope costs a third of the speed.
    __device__ __forceinline__ void arrive_remote(uint32_t rank) {
        asm volatile(
            "{\n"
            ".reg .b32 remote;\n"
            "mapa.shared::cluster.u32 remote, %0, %1;\n"
            "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
            "}\n" ::"r"(shared_address(this)), "r"(rank)
            : "memory");
    }

    __device__ __forceinline__ bool try_wait(uint32_t parity) {
        uint32_t done;
        asm volatile(
            "{\n"
            ".reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n"
            "}\n"
            : "=r"(done)
            : "r"(shared_address(this)), "r"(parity)
            : "memory");
        return done != 0;
    }

    __device__ __forceinline__ void wait(uint32_t parity) {
        while (!try_wait(parity)) {
        }
    }

    // As arrive_remote and wait, but for data that threads of several CTAs hand to each other: what the arriving thread has
    // written or knows to be written is visible to whoever has waited.
    __device__ __forceinline__ void arrive_cluster(uint32_t rank) {
        asm volatile(
            "{\n"
            ".reg .b32 remote;\n"
            "mapa.shared::cluster.u32 remote, %0, %1;\n"
            "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n"
            "}\n" ::"r"(shared_address(this)), "r"(rank)
            : "memory");
    }

    __device__ __forceinline__ void wait_cluster(uint32_t parity) {
        uint32_t done = 0;
        while (!done)
            asm volatile(
                "{\n"
                ".reg .pred p;\n"
                "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                "selp.u32 %0, 1, 0, p;\n"
                "}\n"
                : "=r"(done)
                : "r"(shared_address(this)), "r"(parity)
                : "memory");
    }
};

// Makes initialised barriers visible to the asynchronous proxy and to the other CTAs of the cluster.
__device__ __forceinline__ void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Orders this thread's ordinary shared-memory writes before later asynchronous-proxy reads (TMA stores, wgmma).
__device__ __forceinline__ void fence_async_shared() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Barrier `id` (1..15; 0 is __syncthreads) among `threads` threads, a multiple of 32.
__device__ __forceinline__ void named_sync(uint32_t id, uint32_t threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The address in CTA `rank` of the cluster of what lies at `p` in this one.
__device__ __forceinline__ uint32_t map_shared(const void* p, uint32_t rank) {
    uint32_t remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(p)), "r"(rank));
    return remote;
}

__device__ __forceinline__ float4 load_cluster(uint32_t address) {
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

// Number of CTAs in the cluster.
__device__ __forceinline__ uint32_t cluster_size() {
    uint32_t size;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}

// Rank of this CTA in its cluster.
__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

}  // namespace di
