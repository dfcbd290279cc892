// Bulk copies of contiguous bytes by the TMA unit, without a tensor map. PTX ISA, "cp.async.bulk".
#pragma once

#include "ptx/barrier.cuh"

namespace di {

// Copies `bytes` to this CTA's shared memory and completes on `done` with as many. Both addresses and `bytes` are
// multiples of 16.
__device__ __forceinline__ void bulk_load(void* dst, const void* src, uint32_t bytes, Barrier* done) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(dst)),
                 "l"(reinterpret_cast<uint64_t>(src)), "r"(bytes), "r"(shared_address(done))
                 : "memory");
}

}  // namespace di
