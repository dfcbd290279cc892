// Fifth-generation tensor core: products issued by one thread, asynchronous, accumulators in tensor memory. PTX ISA, "tcgen05".
//
// kCtas is the .cta_group of the kernel, the same in every tcgen05 instruction: 1, or 2 for a pair of CTAs (cluster ranks
// 2i and 2i+1) whose tensor cores one thread of the even CTA drives. Products and commits of one thread run in issue order.
#pragma once

#include "ptx/barrier.cuh"

namespace di::sm100 {

// Returns once the phase of that parity has ended, as Barrier::wait. The loop lies inside the statement: so a prover of PTX sees
// that nothing happens between two tries. The predicate's name must be unlike others of the kernel for the same reason.
__device__ __forceinline__ void wait(Barrier& barrier, uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred ended;\n"
        "RETRY:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
        "@ended bra DONE;\n"
        "bra RETRY;\n"
        "DONE:\n"
        "}\n" ::"r"(shared_address(&barrier)), "r"(parity)
        : "memory");
}

// Before an arrive or barrier that hands tensor memory to other threads: earlier tcgen05 operations stay before it.
__device__ __forceinline__ void fence_before_sync() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }

// After a wait or barrier through which tensor memory was handed over: later tcgen05 operations stay behind it.
__device__ __forceinline__ void fence_after_sync() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }

// D[M, N] = A[M, 16] * B[N, 16]^T (+ D when `accumulate` is not 0). `d` is a tensor memory address, `a` and `b` are matrix
// descriptors. With a pair, each CTA holds half of the rows of A and of B at the same place of its shared memory, and
// receives its rows of D.
template <int kCtas>
__device__ __forceinline__ void mma_f16(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction, uint32_t accumulate) {
    if constexpr (kCtas == 2)
        asm volatile(
            "{\n"
            ".reg .pred p;\n"
            "setp.ne.b32 p, %4, 0;\n"
            "tcgen05.mma.cta_group::2.kind::f16 [%0], %1, %2, %3, p;\n"
            "}\n" ::"r"(d), "l"(a), "l"(b), "r"(instruction), "r"(accumulate)
            : "memory");
    else
        asm volatile(
            "{\n"
            ".reg .pred p;\n"
            "setp.ne.b32 p, %4, 0;\n"
            "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n"
            "}\n" ::"r"(d), "l"(a), "l"(b), "r"(instruction), "r"(accumulate)
            : "memory");
}

// One arrival at `done` (with a pair: at the barrier of this place in both CTAs) when all earlier products of this thread
// have finished reading shared memory and writing tensor memory. Implies fence_before_sync.
template <int kCtas>
__device__ __forceinline__ void commit(Barrier* done) {
    if constexpr (kCtas == 2)
        asm volatile(
            "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(
                shared_address(done)),
            "h"(static_cast<uint16_t>(3))
            : "memory");
    else
        asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
                         shared_address(done))
                     : "memory");
}

}  // namespace di::sm100
