// Synchronisation and system calls: the C style names, the built-ins they stand for, and the few classic names that
// C-style kernels use (cross-core flags, InitSocState).
#pragma once
#include <cstdio>
#include <string>

#include "core.h"

namespace asc_sim {
void sync_set(int src, int dst, int id, Loc loc);
void sync_wait(int src, int dst, int id, Loc loc);
void sync_pipe(int pipe, Loc loc);
void sync_drain(int pipe, Loc loc);  // the scalar program waits for one pipe and later work is ordered after it
void buf_get(int pipe, int id, int mode, Loc loc);
void buf_release(int pipe, int id, int mode, Loc loc);
void cross_set(int mode, int pipe, uint64_t id, Loc loc);
void cross_wait(int mode, int pipe, uint64_t id, Loc loc);
void data_barrier(Loc loc);
void cache_invalidate(Loc loc);
void reset_state(Loc loc);
int64_t block_idx();
int64_t block_num();
int64_t subblock_id();
int64_t subblock_num();
int64_t cycle(Loc loc);
void set_ctrl(uint64_t v);
uint64_t get_ctrl();
void set_atomic(int op, int type);
void gm_store_release(void* p, const void* value, uint32_t bytes, Loc loc);
void trap(Loc loc);
template <class... A>
inline void assert_failed(const char* condition, Loc loc, const char* format = "", A... values) {
    char text[512];
    if constexpr (sizeof...(A) > 0) std::snprintf(text, sizeof text, format, values...);
    else std::snprintf(text, sizeof text, "%s", format);
    fail("ascendc_assert", (std::string("the kernel's assertion ") + condition + " does not hold: " + text).c_str(), loc);
}
}  // namespace asc_sim

inline void set_flag(pipe_t src, pipe_t dst, int id, ASC_LOC) { asc_sim::sync_set(src, dst, id, asc_loc); }
inline void wait_flag(pipe_t src, pipe_t dst, int id, ASC_LOC) { asc_sim::sync_wait(src, dst, id, asc_loc); }
inline void asc_sync_notify(pipe_t src, pipe_t dst, int id, ASC_LOC) { asc_sim::sync_set(src, dst, id, asc_loc); }
inline void asc_sync_wait(pipe_t src, pipe_t dst, int id, ASC_LOC) { asc_sim::sync_wait(src, dst, id, asc_loc); }
inline void pipe_barrier(pipe_t pipe, ASC_LOC) { asc_sim::sync_pipe(pipe, asc_loc); }
inline void asc_sync_pipe(pipe_t pipe, ASC_LOC) { asc_sim::sync_pipe(pipe, asc_loc); }
inline void asc_sync(ASC_LOC) { asc_sim::sync_pipe(PIPE_ALL, asc_loc); }
inline void asc_sync_vec(int, ASC_LOC) { asc_sim::sync_drain(PIPE_V, asc_loc); }
inline void asc_sync_mte2(int, ASC_LOC) { asc_sim::sync_drain(PIPE_MTE2, asc_loc); }
inline void asc_sync_mte3(int, ASC_LOC) { asc_sim::sync_drain(PIPE_MTE3, asc_loc); }
// Buffer ids: get blocks the pipe until every release of that id that stands earlier in the program has executed.
inline void get_buf(pipe_t pipe, int id, int mode, ASC_LOC) { asc_sim::buf_get(pipe, id, mode, asc_loc); }
inline void rls_buf(pipe_t pipe, int id, int mode, ASC_LOC) { asc_sim::buf_release(pipe, id, mode, asc_loc); }
inline void asc_lock(pipe_t pipe, uint8_t id, asc_mutex_execute_mode mode = ASC_LOCK_BLOCK, ASC_LOC) {
    asc_sim::buf_get(pipe, id, mode, asc_loc);
}
inline void asc_unlock(pipe_t pipe, uint8_t id, asc_mutex_execute_mode mode = ASC_LOCK_BLOCK, ASC_LOC) {
    asc_sim::buf_release(pipe, id, mode, asc_loc);
}
// Cross-core flags. Mode 0: all AIC (or all AIV) of the launch; 1: the AIVs of one AI core; 2: AIC with its AIVs;
// 4: AIC with one AIV (the AIC names AIV1 by id + 16).
inline void asc_sync_inter_arrive(pipe_t pipe, int64_t id, ASC_LOC) { asc_sim::cross_set(0, pipe, static_cast<uint64_t>(id), asc_loc); }
inline void asc_sync_inter_wait(pipe_t pipe, int64_t id, ASC_LOC) { asc_sim::cross_wait(0, pipe, static_cast<uint64_t>(id), asc_loc); }
inline void asc_sync_subblock_arrive(pipe_t pipe, int64_t id, ASC_LOC) { asc_sim::cross_set(1, pipe, static_cast<uint64_t>(id), asc_loc); }
inline void asc_sync_subblock_wait(pipe_t pipe, int64_t id, ASC_LOC) { asc_sim::cross_wait(1, pipe, static_cast<uint64_t>(id), asc_loc); }
inline void asc_sync_block_arrive(pipe_t pipe, int64_t id, ASC_LOC) { asc_sim::cross_set(2, pipe, static_cast<uint64_t>(id), asc_loc); }
inline void asc_sync_block_wait(pipe_t pipe, int64_t id, ASC_LOC) { asc_sim::cross_wait(2, pipe, static_cast<uint64_t>(id), asc_loc); }
inline void asc_sync_intra_arrive(pipe_t pipe, uint64_t id, ASC_LOC) { asc_sim::cross_set(4, pipe, id, asc_loc); }
inline void asc_sync_intra_wait(pipe_t pipe, uint64_t id, ASC_LOC) { asc_sim::cross_wait(4, pipe, id, asc_loc); }

// Built-ins under the calls above. An AIC names AIV1 by the flag id + 16; config of the last: bits 4-5 mode, 8-11 id.
inline void set_intra_block(pipe_t pipe, uint64_t id, ASC_LOC) { asc_sim::cross_set(4, pipe, id, asc_loc); }
inline void wait_intra_block(pipe_t pipe, uint64_t id, ASC_LOC) { asc_sim::cross_wait(4, pipe, id, asc_loc); }
inline void ffts_cross_core_sync(pipe_t pipe, uint64_t config, ASC_LOC) {
    asc_sim::cross_set(static_cast<int>((config >> 4) & 3), pipe, (config >> 8) & 15, asc_loc);
}
inline void wait_flag_dev(pipe_t pipe, int64_t id, ASC_LOC) { asc_sim::cross_wait(2, pipe, static_cast<uint64_t>(id), asc_loc); }

inline void asc_sync_data_barrier(mem_dsb_t, ASC_LOC) { asc_sim::data_barrier(asc_loc); }
inline void dsb(mem_dsb_t, ASC_LOC) { asc_sim::data_barrier(asc_loc); }
namespace __asc_aicore {
inline void asc_dcci_single(void*, ASC_LOC) { asc_sim::cache_invalidate(asc_loc); }
inline void asc_nop() {}
}  // namespace __asc_aicore
using namespace __asc_aicore;
inline void asc_dcci_entire_all(ASC_LOC) { asc_sim::cache_invalidate(asc_loc); }
inline void asc_dcci_entire_out(ASC_LOC) { asc_sim::cache_invalidate(asc_loc); }
inline void dcci(void*, uint64_t = 0, uint64_t = 0, ASC_LOC) { asc_sim::cache_invalidate(asc_loc); }

inline void asc_init(ASC_LOC) { asc_sim::reset_state(asc_loc); }
inline void asc_set_ctrl(uint64_t v) { asc_sim::set_ctrl(v); }
inline int64_t asc_get_ctrl() { return static_cast<int64_t>(asc_sim::get_ctrl()); }
inline void set_ctrl(uint64_t v) { asc_sim::set_ctrl(v); }
inline uint64_t get_ctrl() { return asc_sim::get_ctrl(); }
inline int64_t get_block_idx() { return asc_sim::block_idx(); }
inline int64_t asc_get_block_idx() { return asc_sim::block_idx(); }
inline int64_t get_block_num() { return asc_sim::block_num(); }
inline int64_t get_subblockid() { return asc_sim::subblock_id(); }
inline int64_t get_subblockdim() { return asc_sim::subblock_num(); }
inline int64_t asc_get_block_num() { return asc_sim::block_num(); }
inline int64_t asc_get_sub_block_id() { return asc_sim::subblock_id(); }
inline int64_t asc_get_sub_block_num() { return asc_sim::subblock_num(); }
inline int64_t asc_get_system_cycle(ASC_LOC) { return asc_sim::cycle(asc_loc); }
inline void trap(ASC_LOC) { asc_sim::trap(asc_loc); }

// Writes a scalar to global memory past the data cache; a reader that sees it is ordered after the writer's program.
template <class T>
inline void asc_store_dev(T* addr, T value, ASC_LOC) {
    asc_sim::gm_store_release(addr, &value, sizeof(T), asc_loc);
}

namespace asc_sim {
enum AtomicType { AtomF32 = 0, AtomF16, AtomBf16, AtomI8, AtomI16, AtomI32 };
}
// State: stays on for every later UB/L0C to GM copy of this core until switched off.
#define ASC_ATOMIC(suffix, type)                                                        \
    inline void asc_set_atomic_add_##suffix() { asc_sim::set_atomic(1, asc_sim::type); } \
    inline void asc_set_atomic_max_##suffix() { asc_sim::set_atomic(2, asc_sim::type); } \
    inline void asc_set_atomic_min_##suffix() { asc_sim::set_atomic(3, asc_sim::type); }
ASC_ATOMIC(float, AtomF32)
ASC_ATOMIC(float16, AtomF16)
ASC_ATOMIC(bfloat, AtomBf16)
ASC_ATOMIC(int8, AtomI8)
ASC_ATOMIC(int16, AtomI16)
ASC_ATOMIC(int32, AtomI32)
ASC_ATOMIC(int, AtomI32)
#undef ASC_ATOMIC
inline void asc_set_atomic_none() { asc_sim::set_atomic(0, 0); }
inline void asc_disable_dma_atomic() { asc_sim::set_atomic(0, 0); }

namespace AscendC {
inline void InitSocState(ASC_LOC) { asc_sim::reset_state(asc_loc); }
inline int64_t GetBlockIdx() { return asc_sim::is_aic() ? asc_sim::block_idx() : asc_sim::block_idx() * asc_sim::subblock_num() + asc_sim::subblock_id(); }
inline int64_t GetBlockNum() { return asc_sim::block_num(); }
inline int64_t GetSubBlockIdx() { return asc_sim::subblock_id(); }
template <uint8_t Mode, pipe_t Pipe>
inline void CrossCoreSetFlag(uint16_t id, ASC_LOC) {
    asc_sim::cross_set(Mode, Pipe, id, asc_loc);
}
template <uint8_t Mode, pipe_t Pipe>
inline void CrossCoreWaitFlag(uint16_t id, ASC_LOC) {
    asc_sim::cross_wait(Mode, Pipe, id, asc_loc);
}
// The classic spelling of flags between pipes: the pair is part of the name.
enum class HardEvent : int {
    MTE2_V, V_MTE2, MTE2_MTE1, MTE1_MTE2, MTE2_MTE3, MTE3_MTE2, MTE2_S, S_MTE2, MTE3_V, V_MTE3, MTE3_S, S_MTE3,
    MTE1_M, M_MTE1, M_FIX, FIX_M, FIX_MTE2, MTE2_FIX, FIX_S, S_FIX, V_S, S_V, M_S, S_M, MTE1_FIX, FIX_MTE1, MTE3_MTE1, MTE1_MTE3,
};
}  // namespace AscendC
namespace asc_sim {
constexpr pipe_t kEventPipes[][2] = {
    {PIPE_MTE2, PIPE_V}, {PIPE_V, PIPE_MTE2}, {PIPE_MTE2, PIPE_MTE1}, {PIPE_MTE1, PIPE_MTE2}, {PIPE_MTE2, PIPE_MTE3},
    {PIPE_MTE3, PIPE_MTE2}, {PIPE_MTE2, PIPE_S}, {PIPE_S, PIPE_MTE2}, {PIPE_MTE3, PIPE_V}, {PIPE_V, PIPE_MTE3},
    {PIPE_MTE3, PIPE_S}, {PIPE_S, PIPE_MTE3}, {PIPE_MTE1, PIPE_M}, {PIPE_M, PIPE_MTE1}, {PIPE_M, PIPE_FIX},
    {PIPE_FIX, PIPE_M}, {PIPE_FIX, PIPE_MTE2}, {PIPE_MTE2, PIPE_FIX}, {PIPE_FIX, PIPE_S}, {PIPE_S, PIPE_FIX},
    {PIPE_V, PIPE_S}, {PIPE_S, PIPE_V}, {PIPE_M, PIPE_S}, {PIPE_S, PIPE_M}, {PIPE_MTE1, PIPE_FIX},
    {PIPE_FIX, PIPE_MTE1}, {PIPE_MTE3, PIPE_MTE1}, {PIPE_MTE1, PIPE_MTE3}};
}  // namespace asc_sim
namespace AscendC {
template <HardEvent Event>
inline void SetFlag(int id, ASC_LOC) {
    constexpr auto* p = asc_sim::kEventPipes[static_cast<int>(Event)];
    asc_sim::sync_set(p[0], p[1], id, asc_loc);
}
template <HardEvent Event>
inline void WaitFlag(int id, ASC_LOC) {
    constexpr auto* p = asc_sim::kEventPipes[static_cast<int>(Event)];
    asc_sim::sync_wait(p[0], p[1], id, asc_loc);
}
template <pipe_t Pipe>
inline void PipeBarrier(ASC_LOC) {
    asc_sim::sync_pipe(Pipe, asc_loc);
}
// Address of the scratch that the scalar units of an AI core share.
inline void* GetSsbufBaseAddr() { return asc_sim::mem_base(asc_sim::Mem::SSBUF); }
}  // namespace AscendC

// The vendor's spellings without parentheses: names that a kernel may shadow, hence objects and not macros.
namespace asc_sim {
struct BlockIdx {
    operator int64_t() const { return block_idx(); }
};
struct BlockNum {
    operator int64_t() const { return block_num(); }
};
}  // namespace asc_sim
inline constexpr asc_sim::BlockIdx block_idx{};
inline constexpr asc_sim::BlockNum block_num{};

// Prints and stops the launch; the text is the kernel's.
#define ascendc_assert(condition, ...)                                                                     \
    do {                                                                                                   \
        if (!(condition)) ::asc_sim::assert_failed(#condition, ::asc_sim::Loc(__FILE__, __LINE__), ##__VA_ARGS__); \
    } while (false)
