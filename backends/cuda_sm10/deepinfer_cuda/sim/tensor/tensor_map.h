// CUtensorMap as this simulator encodes it, with the checks of cuTensorMapEncodeTiled (CUDA driver API, "Tensor Map Object").
//
// The 128 bytes are opaque to kernels, so the layout is ours; magic and checksum catch maps that were never encoded or were torn.
#pragma once
#include <string>

#include "isa/types.h"

namespace ptxsim {

enum class MapType : u8 { u8_, u16_, u32_, s32_, u64_, s64_, f16, f32, f64, bf16, f32_ftz, tf32, tf32_ftz, u4_align8, u4_align16, u6_align16 };
enum class Swizzle : u8 { none, b32, b64, b128, b128_atom32, b128_atom32_flip8, b128_atom64 };

struct TensorMap {
    u32 magic, checksum;
    u64 base;
    u64 dims[5];
    u64 strides[4];  // bytes, of dimensions 1..4
    u16 box[5];
    u8 element_stride[5];
    u8 dtype, rank, interleave, swizzle, oob, l2;
    u8 im2col;               // box is then channels and pixels per column
    i16 lower[3], upper[3];  // corners of the pixels' bounding box: W, H, D; the upper one relative to the last pixel

    MapType type() const { return MapType(dtype); }
    u32 element_bits() const;
    // Bytes of shared memory that n inner elements take, and bytes of global memory.
    u32 inner_shared(u32 n) const;
    u32 inner_global(u32 n) const;
    Ty reduce_type() const;
};
static_assert(sizeof(TensorMap) <= 128);

// Empty string on success, else the rule that is broken.
std::string encode_tensor_map(void* out, u32 dtype, u32 rank, u64 base, const u64* dims, const u64* strides, const u32* box, const u32* element_strides,
                              u32 interleave, u32 swizzle, u32 l2, u32 oob);
std::string encode_im2col_map(void* out, u32 dtype, u32 rank, u64 base, const u64* dims, const u64* strides, const i32* lower, const i32* upper, u32 channels,
                              u32 pixels, const u32* element_strides, u32 interleave, u32 swizzle, u32 l2, u32 oob);
std::string replace_tensor_map_address(void* map, u64 base);
std::string check_tensor_map(const TensorMap& m);          // rules on the decoded fields
bool load_tensor_map(const void* bytes, TensorMap& out);   // false: not an encoded map
void store_tensor_map(void* bytes, TensorMap m);           // recomputes the checksum

u32 swizzle_address(Swizzle s, u32 address);  // absolute shared byte address -> where the byte lies
u32 swizzle_span(Swizzle s);                  // bytes, 0 for none

}  // namespace ptxsim
