// Shared-memory matrix descriptors of wgmma (sm_90) and tcgen05 (sm_100), and the canonical layouts they address.
//
// Sources: PTX ISA "Shared Memory Matrix Layout" / "Matrix Descriptor" of both families; CuTe mma_sm90_desc.hpp, mma_sm100_desc.hpp for
// field positions. Addresses are computed unswizzled, then the XOR of the swizzle is applied to the absolute shared byte address.
#pragma once
#include <string>

#include "isa/types.h"
#include "tensor/tensor_map.h"

namespace ptxsim {

struct MatrixDesc {
    u32 start = 0;        // byte offset in shared memory
    u32 lbo = 0, sbo = 0; // bytes
    u32 base_offset = 0;
    Swizzle swizzle = Swizzle::none;
    bool k_major = true;
    u32 element_bytes = 2;
    bool packed_low = false;  // sub-byte elements: 16 per 16-byte chunk

    // Byte address of the 16-byte chunk that holds element (r, k), r along M or N; `within` is the byte in that chunk (after the swizzle
    // the chunk stays whole for all but the 8-byte flip mode, which has no matrix form).
    u32 chunk(u32 r, u32 k_bytes) const;         // K-major: k_bytes a multiple of 16
    u32 address(u32 r, u32 k) const;             // any element, by index
};

// Throws nothing; returns the broken rule or "".
std::string decode_desc_sm90(u64 raw, MatrixDesc& out);
std::string decode_desc_sm100(u64 raw, MatrixDesc& out);

}  // namespace ptxsim
