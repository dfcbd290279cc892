#include "tensor/tensor_map.h"

namespace ptxsim {
namespace {
constexpr u32 kMagic = 0x544d4150;

u32 checksum(TensorMap m) {
    m.checksum = 0;
    const u8* p = reinterpret_cast<const u8*>(&m);
    u32 h = 2166136261u;
    for (size_t i = 0; i < sizeof m; ++i) h = (h ^ p[i]) * 16777619u;
    return h;
}
std::string n(u64 v) { return std::to_string(v); }
}  // namespace

u32 TensorMap::element_bits() const {
    static const u8 bits[] = {8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6};
    return bits[dtype];
}
u32 TensorMap::inner_shared(u32 k) const {
    return type() == MapType::u4_align16 || type() == MapType::u6_align16 ? k : k * element_bits() / 8;
}
u32 TensorMap::inner_global(u32 k) const { return k * element_bits() / 8; }

Ty TensorMap::reduce_type() const {
    static const Ty t[] = {Ty::none, Ty::u16, Ty::u32, Ty::s32, Ty::u64, Ty::s64, Ty::f16, Ty::f32, Ty::f64, Ty::bf16, Ty::f32, Ty::f32, Ty::f32, Ty::none, Ty::none, Ty::none};
    return t[dtype];
}

u32 swizzle_span(Swizzle s) { return s == Swizzle::none ? 0 : s == Swizzle::b32 ? 32 : s == Swizzle::b64 ? 64 : 128; }

u32 swizzle_address(Swizzle s, u32 a) {
    switch (s) {
        case Swizzle::none: return a;
        case Swizzle::b32: return a ^ (a >> 3 & 0x10);
        case Swizzle::b64: return a ^ (a >> 3 & 0x30);
        case Swizzle::b128: return a ^ (a >> 3 & 0x70);
        case Swizzle::b128_atom32: return a ^ (a >> 2 & 0x60);
        case Swizzle::b128_atom32_flip8: return (a ^ (a >> 2 & 0x60)) ^ (a >> 4 & 0x8);
        case Swizzle::b128_atom64: return a ^ (a >> 1 & 0x40);
    }
    return a;
}

std::string check_tensor_map(const TensorMap& m) {
    if (m.rank < 1 || m.rank > 5) return "tensor rank " + n(m.rank) + " is outside 1 to 5";
    bool wide = m.type() == MapType::u4_align16 || m.type() == MapType::u6_align16;
    u32 base_align = wide ? 32 : 16;
    if (m.base % base_align) return "global address must be aligned to " + n(base_align) + " bytes";
    if (m.interleave) return "interleaved layouts are not modelled";
    for (u32 i = 0; i < m.rank; ++i) {
        if (!m.dims[i] || m.dims[i] > (1ull << 32)) return "dimension " + n(i) + " is " + n(m.dims[i]) + ", allowed are 1 to 2^32";
        if (!m.im2col && (!m.box[i] || m.box[i] > 256)) return "box dimension " + n(i) + " is " + n(m.box[i]) + ", allowed are 1 to 256";
        if (!m.element_stride[i] || m.element_stride[i] > 8) return "element stride " + n(i) + " is " + n(m.element_stride[i]) + ", allowed are 1 to 8";
        if (i + 1 < m.rank) {
            u64 s = m.strides[i];
            if (s % base_align || s >= (1ull << 40)) return "stride " + n(i) + " of " + n(s) + " bytes must be a multiple of " + n(base_align) + " below 2^40";
        }
    }
    if (m.im2col && (!m.box[0] || m.box[0] > 256 || !m.box[1] || m.box[1] > 1024)) return "an im2col map takes 1 to 256 channels and 1 to 1024 pixels";
    if (m.type() == MapType::u4_align16 && m.box[0] != 128) return "box dimension 0 must be 128 for 16U4_ALIGN16B";
    if (m.type() == MapType::u6_align16 && m.box[0] != 128) return "box dimension 0 must be 128 for 16U6_ALIGN16B";
    if (wide && m.dims[0] % 128) return "dimension 0 must be a multiple of 128 for this type";
    if (m.type() == MapType::u4_align8 && m.dims[0] % 2) return "dimension 0 must be even for 16U4_ALIGN8B";
    u32 inner = m.inner_shared(m.box[0]);
    if (inner % 16) return "inner box dimension of " + n(inner) + " bytes is not a multiple of 16";
    u32 span = swizzle_span(Swizzle(m.swizzle));
    if (span && inner > span) return "inner box dimension of " + n(inner) + " bytes exceeds the swizzle span of " + n(span);
    return "";
}

std::string encode_tensor_map(void* out, u32 dtype, u32 rank, u64 base, const u64* dims, const u64* strides, const u32* box, const u32* es, u32 interleave,
                              u32 swizzle, u32 l2, u32 oob) {
    if (dtype > 15) return "unknown tensor data type " + n(dtype);
    if (swizzle > 6) return "unknown swizzle " + n(swizzle);
    if (rank < 1 || rank > 5) return "tensor rank " + n(rank) + " is outside 1 to 5";
    if (oob > 1 || l2 > 3 || interleave > 2) return "fill, promotion or interleave value is unknown";
    if (reinterpret_cast<u64>(out) % 64) return "the map itself must be aligned to 64 bytes";
    TensorMap m;
    std::memset(&m, 0, sizeof m);  // padding takes part in the checksum
    m.magic = kMagic, m.base = base, m.dtype = u8(dtype), m.rank = u8(rank), m.interleave = u8(interleave), m.swizzle = u8(swizzle), m.oob = u8(oob), m.l2 = u8(l2);
    for (u32 i = 0; i < 5; ++i) {
        m.dims[i] = i < rank ? dims[i] : 1;
        if (i < rank && (box[i] > 256 || es[i] > 8)) return "box dimension " + n(box[i]) + " or element stride " + n(es[i]) + " is too large (256 and 8 at most)";
        m.box[i] = i < rank ? u16(box[i]) : 1, m.element_stride[i] = i < rank ? u8(es[i]) : 1;
        if (i < 4) m.strides[i] = i + 1 < rank ? strides[i] : 0;
    }
    std::string why = check_tensor_map(m);
    if (!why.empty()) return why;
    store_tensor_map(out, m);
    return "";
}

std::string encode_im2col_map(void* out, u32 dtype, u32 rank, u64 base, const u64* dims, const u64* strides, const i32* lower, const i32* upper, u32 channels,
                              u32 pixels, const u32* es, u32 interleave, u32 swizzle, u32 l2, u32 oob) {
    if (rank < 3 || rank > 5) return "an im2col map has rank 3 to 5, not " + n(rank);
    if (channels > 256 || pixels > 1024) return "an im2col map takes 1 to 256 channels and 1 to 1024 pixels";
    u32 box[5] = {channels, 1, 1, 1, 1};
    TensorMap m;
    alignas(64) u8 bytes[128];
    std::string why = encode_tensor_map(bytes, dtype, rank, base, dims, strides, box, es, interleave, swizzle, l2, oob);
    if (!why.empty()) return why;
    if (reinterpret_cast<u64>(out) % 64) return "the map itself must be aligned to 64 bytes";
    load_tensor_map(bytes, m);
    m.im2col = 1, m.box[1] = u16(pixels);
    i32 limit = rank == 3 ? 32768 : rank == 4 ? 128 : 8;  // 16, 8 or 4 bits per corner
    for (u32 i = 0; i + 2 < rank; ++i) {
        if (lower[i] < -limit || lower[i] >= limit || upper[i] < -limit || upper[i] >= limit)
            return "corner " + n(i) + " of the pixel box is outside " + std::to_string(-limit) + " to " + std::to_string(limit - 1) + " for rank " + n(rank);
        m.lower[i] = i16(lower[i]), m.upper[i] = i16(upper[i]);
    }
    why = check_tensor_map(m);
    if (why.empty()) store_tensor_map(out, m);
    return why;
}

std::string replace_tensor_map_address(void* map, u64 base) {
    TensorMap m;
    if (!load_tensor_map(map, m)) return "the map was not encoded by this driver";
    m.base = base;
    std::string why = check_tensor_map(m);
    if (why.empty()) store_tensor_map(map, m);
    return why;
}

bool load_tensor_map(const void* bytes, TensorMap& out) {
    std::memcpy(&out, bytes, sizeof out);
    return out.magic == kMagic && out.checksum == checksum(out);
}

void store_tensor_map(void* bytes, TensorMap m) {
    m.checksum = checksum(m);
    std::memset(bytes, 0, 128);
    std::memcpy(bytes, &m, sizeof m);
}

}  // namespace ptxsim
