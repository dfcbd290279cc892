// The one header between our kernels and the two compilers. Everything else in a kernel is the vendor's API.
//
//   mem::ub<T>(off) ...          address of byte `off` of a local memory
//   VF_CALL(fn, args...)         runs a __simd_vf__ function on the vector pipe
//   DEEPINFER_KERNEL(name, Args, aic, aiv)   declares kernel `name`, body `void name##_body(Args)`
//   gm::load / ss:: / us::load and store     scalar accesses that the simulator's checkers see: GM, SSBuf, UB
//   MUTANT(n)                    true only in the deliberately broken build number n of the mutation suite
//
//   mem::scale_address(p)        what the scale loads of the cube take as address: that of the operand, divided by 16
//
// Device code includes nothing of the standard library beyond <cstdint> and <type_traits>.
#pragma once
#include <cstdint>
#include <type_traits>

#include "c_api/asc_simd.h"
#include "kernel_operator.h"

#ifndef DEEPINFER_MUTANT
#define DEEPINFER_MUTANT 0
#endif
#define MUTANT(n) (DEEPINFER_MUTANT == (n))

#if defined(__NPU_DEVICE__) || defined(__NPU_HOST__)

namespace mem {
template <class T> __aicore__ inline __ubuf__ T* ub(uint64_t off) { return (__ubuf__ T*)off; }
template <class T> __aicore__ inline __cbuf__ T* l1(uint64_t off) { return (__cbuf__ T*)off; }
template <class T> __aicore__ inline __ca__ T* l0a(uint64_t off) { return (__ca__ T*)off; }
template <class T> __aicore__ inline __cb__ T* l0b(uint64_t off) { return (__cb__ T*)off; }
template <class T> __aicore__ inline __cc__ T* l0c(uint64_t off) { return (__cc__ T*)off; }
template <class T> __aicore__ inline __fbuf__ T* fb(uint64_t off) { return (__fbuf__ T*)off; }
}  // namespace mem
namespace gm {
template <class T> __aicore__ inline T load(__gm__ T* p) { return *p; }
}  // namespace gm
namespace ss {
template <class T> __aicore__ inline T load(uint64_t off) { return *(__ssbuf__ T*)((uint64_t)AscendC::GetSsbufBaseAddr() + off); }
template <class T> __aicore__ inline void store(uint64_t off, T v) { *(__ssbuf__ T*)((uint64_t)AscendC::GetSsbufBaseAddr() + off) = v; }
}  // namespace ss
namespace us {
template <class T> __aicore__ inline T load(uint64_t off) { return *mem::ub<T>(off); }
template <class T> __aicore__ inline void store(uint64_t off, T v) { *mem::ub<T>(off) = v; }
}  // namespace us
#define VF_CALL(fn, ...) asc_vf_call<fn>(__VA_ARGS__)
#define DEEPINFER_KERNEL(name, Args, aic, aiv) \
    __global__ __mix__(aic, aiv) void name(Args args) { name##_body(args); }

#else

#define DEEPINFER_SIM_LOC ::asc_sim::Loc(__builtin_FILE(), __builtin_LINE())
namespace mem {
template <class T> inline T* at(asc_sim::Mem m, uint64_t off) { return reinterpret_cast<T*>(asc_sim::mem_base(m) + off); }
template <class T> inline T* ub(uint64_t off) { return at<T>(asc_sim::Mem::UB, off); }
template <class T> inline T* l1(uint64_t off) { return at<T>(asc_sim::Mem::L1, off); }
template <class T> inline T* l0a(uint64_t off) { return at<T>(asc_sim::Mem::L0A, off); }
template <class T> inline T* l0b(uint64_t off) { return at<T>(asc_sim::Mem::L0B, off); }
template <class T> inline T* l0c(uint64_t off) { return at<T>(asc_sim::Mem::L0C, off); }
template <class T> inline T* fb(uint64_t off) { return at<T>(asc_sim::Mem::FB, off); }
}  // namespace mem
namespace gm {
template <class T> inline T load(T* p, asc_sim::Loc loc = DEEPINFER_SIM_LOC) {
    asc_sim::gm_touch(p, sizeof(T), false, loc);
    std::remove_cv_t<T> v;  // a flag may come from a launch on another thread: what it announces is read after it
    __atomic_load(const_cast<std::remove_cv_t<T>*>(p), &v, __ATOMIC_ACQUIRE);
    return v;
}
}  // namespace gm
namespace ss {
template <class T> inline T load(uint64_t off, asc_sim::Loc loc = DEEPINFER_SIM_LOC) {
    T* p = mem::at<T>(asc_sim::Mem::SSBUF, off);
    asc_sim::scalar_touch(p, sizeof(T), false, loc);
    return *p;
}
template <class T> inline void store(uint64_t off, T v, asc_sim::Loc loc = DEEPINFER_SIM_LOC) {
    T* p = mem::at<T>(asc_sim::Mem::SSBUF, off);
    asc_sim::scalar_touch(p, sizeof(T), true, loc);
    *p = v;
}
}  // namespace ss
namespace us {
template <class T> inline T load(uint64_t off, asc_sim::Loc loc = DEEPINFER_SIM_LOC) {
    T* p = mem::ub<T>(off);
    asc_sim::scalar_touch(p, sizeof(T), false, loc);
    return *p;
}
template <class T> inline void store(uint64_t off, T v, asc_sim::Loc loc = DEEPINFER_SIM_LOC) {
    T* p = mem::ub<T>(off);
    asc_sim::scalar_touch(p, sizeof(T), true, loc);
    *p = v;
}
}  // namespace us
#define VF_CALL(fn, ...) ::asc_sim::vf_call<fn>(fn, #fn, ::asc_sim::Loc{__FILE__, __LINE__}, ##__VA_ARGS__)
namespace deepinfer_sim {
__attribute__((visibility("hidden"))) inline const asc_sim::KernelEntry* kernels = nullptr;
struct Registrar {
    asc_sim::KernelEntry entry;
    Registrar(const char* name, void (*run)(const void*), uint32_t size, uint32_t aic, uint32_t aiv)
        : entry{name, run, size, aic, aiv, kernels} { kernels = &entry; }
};
}  // namespace deepinfer_sim
extern "C" __attribute__((used, visibility("default"))) inline const asc_sim::KernelEntry* deepinfer_sim_kernels() {
    return deepinfer_sim::kernels;
}
#define DEEPINFER_KERNEL(name, Args, aic, aiv)                                                       \
    static const ::deepinfer_sim::Registrar name##_registrar{                                        \
        #name, [](const void* a) { name##_body(*static_cast<const Args*>(a)); }, sizeof(Args), aic, aiv};

#endif

namespace mem {
template <class T> __aicore__ inline uint64_t scale_address(T* operand) { return (uint64_t)operand / 16; }
}  // namespace mem

// A register seen with another element type (same 256 bytes).
#define AS(type, reg) (reinterpret_cast<type&>(reg))

namespace di {
template <class T> __aicore__ inline T min(T a, T b) { return a < b ? a : b; }
template <class T> __aicore__ inline T max(T a, T b) { return a > b ? a : b; }
template <class T> __aicore__ inline T div_up(T a, T b) { return (a + b - 1) / b; }
template <class T> __aicore__ inline T round_up(T a, T b) { return div_up(a, b) * b; }
constexpr uint64_t kKeepNan = uint64_t(1) << 48;  // CTRL bit: cube results and FixPipe casts keep inf and NaN
}  // namespace di
