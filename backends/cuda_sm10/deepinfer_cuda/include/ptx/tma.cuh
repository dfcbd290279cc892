// Tensor memory accelerator: tile loads and stores; coordinates innermost first. PTX ISA, "cp.async.bulk.tensor".
//
// Loads complete on an mbarrier with the bytes of the whole box, out-of-range elements (read as zero) included.
// Stores belong to the issuing thread's bulk group and clip at the tensor's edge. Destination and source tiles lie on
// 128-byte boundaries (1024 with 128-byte swizzle).
#pragma once

#include "ptx/barrier.cuh"

namespace di {

// L2 policies of the createpolicy encoding that CUTLASS documents as TMA::CacheHintSm90.
constexpr uint64_t kEvictNormal = 0x1000000000000000ull;

__device__ __forceinline__ void prefetch_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(map)) : "memory");
}

__device__ __forceinline__ void tma_load_3d(void* dst, const TensorMap* map, Barrier* done, int32_t x, int32_t y, int32_t z,
                                            uint64_t policy = kEvictNormal) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(dst)),
        "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(done)), "r"(x), "r"(y), "r"(z), "l"(policy)
        : "memory");
}

// Writes the tile to the same offset in every CTA of `mask` and completes on each one's barrier.
__device__ __forceinline__ void tma_load_3d_multicast(void* dst, const TensorMap* map, Barrier* done, int32_t x, int32_t y,
                                                      int32_t z, uint16_t mask, uint64_t policy = kEvictNormal) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::"r"(shared_address(dst)),
        "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(done)), "r"(x), "r"(y), "r"(z), "h"(mask), "l"(policy)
        : "memory");
}

// As tma_load_3d, into this CTA's shared memory, completing on the barrier at `done`'s place in the even CTA of the pair
// (the rank is bit 24 of a shared::cluster address). .cta_group::2, sm_100a.
__device__ __forceinline__ void tma_load_3d_pair(void* dst, const TensorMap* map, Barrier* done, int32_t x, int32_t y,
                                                 int32_t z, uint64_t policy = kEvictNormal) {
    asm volatile(
        "cp.async.bulk.tensor.3d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(dst)),
        "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(done) & 0xFEFFFFFFu), "r"(x), "r"(y), "r"(z), "l"(policy)
        : "memory");
}

__device__ __forceinline__ void tma_store_3d(const TensorMap* map, const void* src, int32_t x, int32_t y, int32_t z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(
                     reinterpret_cast<uint64_t>(map)),
                 "r"(shared_address(src)), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until at most N of this thread's store groups still read their shared-memory source.
template <int N>
__device__ __forceinline__ void tma_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

// Until at most N of this thread's store groups are not yet complete in global memory.
template <int N>
__device__ __forceinline__ void tma_store_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}

}  // namespace di
