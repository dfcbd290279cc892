// From an address to bytes: windows, bounds, alignment, and the checker's view of the access.
#pragma once
#include "core/machine.h"

namespace ptxsim {

struct Place {
    u8* p = nullptr;
    Space space = Space::global;
    Cta* cta = nullptr;  // owner of shared memory
    u32 offset = 0;      // in that CTA's window
    u64 addr = 0;
};

// Faults on anything outside the memory the launch was given. `n` is the access size and its required alignment
// (pass align to override).
Place resolve(X& x, const Inst& in, int lane, Space space, u64 addr, u32 n, bool write, u32 align = 0);
void touch(X& x, const Inst& in, int lane, const Place& at, u32 n, Use use, bool strong = false, bool silent = false);

// Shared memory by 32-bit address as asynchronous units and mbarriers use it.
Cta& shared_owner(X& x, const Inst& in, int lane, u32 addr, u32 n, bool own_only);
// Same for operations, which have no execution context. Throws SimError.
u8* global_bytes(Grid& g, const Inst& in, u64 addr, u64 n, bool write, const std::string& who);
std::string explain_global(const Grid& g, u64 addr, u64 n, bool write);

// Generic or windowed address -> 32-bit shared address; faults when it is not shared memory.
u32 shared_address(X& x, const Inst& in, int lane, u64 addr);
// Host pointer of n readable bytes behind a generic address (descriptors in param, const or global memory).
const u8* read_any(X& x, const Inst& in, int lane, u64 addr, u32 n);

}  // namespace ptxsim
