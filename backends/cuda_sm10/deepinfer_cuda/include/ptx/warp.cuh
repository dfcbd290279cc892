// Warp-level odds and ends: one elected lane, register budgets, 8x8 matrix stores, programmatic dependent launch.
#pragma once

#include "ptx/types.cuh"

namespace di {

// True in one lane of the warp. The compiler then knows that what follows is uniform, which single-thread instructions such
// as tcgen05.mma need to be issued without a loop over lanes. PTX ISA "elect.sync" (sm_90).
__device__ __forceinline__ bool elect_one() {
    uint32_t chosen;
    asm volatile(
        "{\n"
        ".reg .pred elected;\n"
        ".reg .b32 leader;\n"
        "elect.sync leader|elected, 0xffffffff;\n"
        "selp.u32 %0, 1, 0, elected;\n"
        "}\n"
        : "=r"(chosen));
    return chosen != 0;
}

// Registers per thread of this warpgroup, a multiple of 8 in [24, 256]. PTX ISA "setmaxnreg" (sm_90a).
template <int N>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// Stores four 8x8 matrices of 16-bit elements; lane 8*i + r gives the shared address of row r of matrix i.
__device__ __forceinline__ void store_matrix_x4(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

// Two floats to packed bf16, round to nearest even; `low` lands in bits 0-15.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    uint32_t out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

__device__ __forceinline__ float from_f16(uint16_t bits) {
    float out;
    asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(bits));
    return out;
}

// Waits for the grid this one depends on to finish writing; a no-op without programmatic dependent launch.
__device__ __forceinline__ void wait_previous_grid() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ __forceinline__ void launch_next_grid() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace di
