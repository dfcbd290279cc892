#include "tensor/descriptor.h"

namespace ptxsim {
namespace {
void common(u64 raw, MatrixDesc& d) {
    d.start = u32(raw & 0x3fff) << 4;
    d.lbo = u32(raw >> 16 & 0x3fff) << 4;
    d.sbo = u32(raw >> 32 & 0x3fff) << 4;
    d.base_offset = u32(raw >> 49 & 7);
}
}  // namespace

std::string decode_desc_sm90(u64 raw, MatrixDesc& d) {
    common(raw, d);
    static const Swizzle modes[] = {Swizzle::none, Swizzle::b128, Swizzle::b64, Swizzle::b32};
    d.swizzle = modes[raw >> 62 & 3];
    if (raw >> 52 & 0x3ff) return "reserved bits 52-61 of the matrix descriptor are not zero";
    if ((raw >> 14 & 3) || (raw >> 30 & 3) || (raw >> 46 & 7)) return "reserved bits 14-15, 30-31 or 46-48 of the matrix descriptor are not zero";
    if (d.base_offset) return "a base offset in the matrix descriptor is not modelled";
    return "";
}

std::string decode_desc_sm100(u64 raw, MatrixDesc& d) {
    common(raw, d);
    if ((raw >> 46 & 7) != 1) return "bits 46-48 of the matrix descriptor must be 0b001";
    if (raw >> 53 & 0xff) return "bits 53-60 of the matrix descriptor must be zero";
    if (raw >> 52 & 1) return "absolute leading-dimension mode of the matrix descriptor is not modelled";
    if ((raw >> 14 & 3) || (raw >> 30 & 3)) return "reserved bits 14-15 or 30-31 of the matrix descriptor are not zero";
    if (d.base_offset) return "a base offset in the matrix descriptor is not modelled";
    switch (raw >> 61 & 7) {
        case 0: d.swizzle = Swizzle::none; break;
        case 1: d.swizzle = Swizzle::b128_atom32; break;
        case 2: d.swizzle = Swizzle::b128; break;
        case 4: d.swizzle = Swizzle::b64; break;
        case 6: d.swizzle = Swizzle::b32; break;
        default: return "swizzle code " + std::to_string(raw >> 61 & 7) + " of the matrix descriptor is invalid";
    }
    return "";
}

u32 MatrixDesc::chunk(u32 r, u32 kb) const {
    u32 sw = swizzle_span(swizzle);
    u32 a;
    if (!sw) a = start + r % 8 * 16 + r / 8 * sbo + kb / 16 * lbo;
    else a = start + r % 8 * sw + r / 8 * sbo + kb % sw + kb / sw * lbo;
    return swizzle_address(swizzle, a);
}

u32 MatrixDesc::address(u32 r, u32 k) const {
    u32 sz = element_bytes, sw = swizzle_span(swizzle);
    if (k_major) {
        u32 kb = k * sz;
        return chunk(r, kb & ~15u) + kb % 16;
    }
    u32 rb = r * sz, a;
    if (!sw) {
        a = start + rb % 16 + rb / 16 * sbo + k % 8 * 16 + k / 8 * lbo;
    } else {
        u32 lines = swizzle == Swizzle::b128_atom32 ? 4 : 8;
        a = start + rb % sw + rb / sw * lbo + k % lines * sw + k / lines * sbo;
    }
    return swizzle_address(swizzle, a & ~15u) + a % 16;
}

}  // namespace ptxsim
