// SM90 shared-memory matrix descriptors. PTX ISA "Matrix Descriptor Format" of wgmma.
//
// bits 0-13 start >> 4, 16-29 leading byte offset >> 4, 32-45 stride byte offset >> 4, 49-51 base offset,
// 62-63 swizzle: 0 none, 1 128 B, 2 64 B, 3 32 B.
#pragma once

#include "ptx/barrier.cuh"

namespace di {

// K-major operand with 128-byte swizzle: rows of 128 bytes, 8-row atoms of 1024 bytes, atoms stacked along rows.
// Stepping K by 16 two-byte elements adds 32 bytes to the start address; the hardware swizzles the final address.
__device__ __forceinline__ uint64_t descriptor_k128(const void* tile) {
    constexpr uint64_t atom = 1024;
    return static_cast<uint64_t>((shared_address(tile) & 0x3FFFF) >> 4) | (1ull << 16) | ((atom >> 4) << 32) | (1ull << 62);
}

}  // namespace di
