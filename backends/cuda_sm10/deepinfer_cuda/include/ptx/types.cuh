// Integer names and the opaque tensor map, so that kernels compile with NVRTC and no standard headers.
#pragma once

#if defined(__CUDACC_RTC__)
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;
using uint16_t = unsigned short;
using uint8_t = unsigned char;
#else
#include <cstdint>
#endif

namespace di {

// A CUtensorMap: 128 opaque bytes that must lie on a 64-byte boundary (CUDA driver API, cuTensorMapEncodeTiled).
struct alignas(64) TensorMap {
    uint64_t opaque[16];
};

template <typename A, typename B>
__device__ __forceinline__ constexpr auto ceil_div(A a, B b) {
    return (a + b - 1) / b;
}

}  // namespace di
