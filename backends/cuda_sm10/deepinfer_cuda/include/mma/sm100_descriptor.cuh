// SM100 descriptors: operands in shared memory and the shape and types of one tcgen05.mma. PTX ISA, "tcgen05 Matrix
// Descriptors" and "Instruction descriptor".
//
// Matrix (64 bits): 0-13 start >> 4, 16-29 leading byte offset >> 4, 32-45 stride byte offset >> 4, 46-48 the constant 1,
// 49-51 base offset, 61-63 swizzle: 0 none, 2 128 B, 4 64 B, 6 32 B.
// Instruction, kind::f16 (32 bits): 4-5 type of D (1 float32), 7-9 and 10-12 types of A and B (1 bf16), 15 and 16 their
// major dimensions (0 K), 17-22 N >> 3, 24-28 M >> 4.
#pragma once

#include "ptx/barrier.cuh"

namespace di::sm100 {

// K-major operand with 128-byte swizzle: rows of 128 bytes, 8-row atoms of 1024 bytes, atoms stacked along rows; the leading
// offset has no meaning. Stepping K by 32 bytes inside the atom adds 2 to the start field: the swizzle applies to the sum.
__device__ __forceinline__ uint64_t descriptor_k128(const void* tile) {
    constexpr uint64_t atom = 1024;
    return static_cast<uint64_t>((shared_address(tile) & 0x3FFFF) >> 4) | (1ull << 16) | ((atom >> 4) << 32) |
           (1ull << 46) | (2ull << 61);
}

// bf16 operands, both K-major, float32 accumulators. M is 64 or 128 (256 with a CTA pair), N a multiple of 16 up to 256.
__device__ __forceinline__ constexpr uint32_t instruction_bf16(uint32_t m, uint32_t n) {
    return (1u << 4) | (1u << 7) | (1u << 10) | ((n >> 3) << 17) | ((m >> 4) << 24);
}

}  // namespace di::sm100
