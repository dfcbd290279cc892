// Tensor memory: 128 lanes x 512 columns of 32 bits per SM; an address is lane << 16 | column. PTX ISA, "Tensor Memory".
//
// One warp (with a pair: the same warp of both CTAs) allocates and later frees a power of two of at least 32 columns. Warp w
// of a block reaches lanes 32 * (w % 4) to 32 * (w % 4) + 31 only.
#pragma once

#include "ptx/tcgen05.cuh"

namespace di::sm100 {

// Writes the address of `columns` columns to shared memory at `out`; waits while there are not enough. All lanes call.
template <int kCtas>
__device__ __forceinline__ void tmem_allocate(uint32_t* out, uint32_t columns) {
    if constexpr (kCtas == 2)
        asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;\n"
                     "tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;" ::"r"(shared_address(out)),
                     "r"(columns)
                     : "memory");
    else
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;\n"
                     "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::"r"(shared_address(out)),
                     "r"(columns)
                     : "memory");
}

// Must come before the block ends, after every use by any thread. All lanes call.
template <int kCtas>
__device__ __forceinline__ void tmem_free(uint32_t address, uint32_t columns) {
    if constexpr (kCtas == 2)
        asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" ::"r"(address), "r"(columns) : "memory");
    else
        asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address), "r"(columns) : "memory");
}

// Column address + i of this thread's lane (first lane of the address + lane in the warp) into v[i]; v is undefined until
// tmem_load_wait. All lanes call.
__device__ __forceinline__ void tmem_load_x32(uint32_t address, uint32_t* v) {
    asm volatile(
        "tcgen05.ld.sync.aligned.32x32b.x32.b32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];"
        : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]), "=r"(v[7]), "=r"(v[8]),
          "=r"(v[9]), "=r"(v[10]), "=r"(v[11]), "=r"(v[12]), "=r"(v[13]), "=r"(v[14]), "=r"(v[15]), "=r"(v[16]),
          "=r"(v[17]), "=r"(v[18]), "=r"(v[19]), "=r"(v[20]), "=r"(v[21]), "=r"(v[22]), "=r"(v[23]), "=r"(v[24]),
          "=r"(v[25]), "=r"(v[26]), "=r"(v[27]), "=r"(v[28]), "=r"(v[29]), "=r"(v[30]), "=r"(v[31])
        : "r"(address)
        : "memory");
}

// Until all earlier loads of this warp have arrived; `v` passes through so that no use moves ahead of the wait.
template <int N>
__device__ __forceinline__ void tmem_load_wait(uint32_t (&v)[N]) {
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+r"(v[i])::"memory");
}

}  // namespace di::sm100
