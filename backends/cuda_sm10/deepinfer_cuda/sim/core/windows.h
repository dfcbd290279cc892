// Where the address spaces lie in the 64-bit generic space.
//
// Global memory keeps its host addresses (below 2^47). The other windows lie above, with 32 zero low bits, so that
// cvta.to.shared followed by a truncation gives the 32-bit shared address, as compiled code assumes.
// A shared::cluster address is (cta rank << 24) | offset; a CTA's own addresses carry its own rank (PTX ISA, mapa; CUTLASS
// masks bit 24 to reach the even CTA of a pair). The first kSharedReserved bytes belong to the system, as on hardware.
#pragma once
#include <cstdint>

namespace ptxsim {
constexpr uint64_t kSharedWindow = 1ull << 52;
constexpr uint64_t kLocalWindow = 2ull << 52;
constexpr uint64_t kParamWindow = 3ull << 52;
constexpr uint64_t kWindowMask = ~0ull << 52;
constexpr uint32_t kSharedReserved = 1024;
constexpr uint32_t kRankShift = 24;
constexpr uint32_t kOffsetMask = (1u << kRankShift) - 1;
}  // namespace ptxsim
