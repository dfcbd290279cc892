// mbarrier objects: 64 bits in shared memory, as kernels see them.
//
// bits 0-19 pending arrivals, 20-39 expected arrivals, 40-61 pending transaction bytes (signed), 62 phase parity, 63 valid.
// The phase ends when pending arrivals and transaction bytes are both zero (PTX ISA, mbarrier "phase completion").
#pragma once
#include "core/machine.h"

namespace ptxsim {

struct MbarState {
    u32 pending, expected;
    i32 tx;
    bool phase, valid;
};

// Access at an offset of a CTA's shared memory. All throw SimError with `who` on misuse.
MbarState mbar_read(const Cta& c, u32 offset);
void mbar_init(Cta& c, u32 offset, u32 count, const std::string& who);
// expect first, then arrivals; a message is what the arriver publishes.
u64 mbar_update(Machine& m, Cta& c, u32 offset, i64 expect, u32 arrivals, i64 complete, const Message* msg, const std::string& who);

}  // namespace ptxsim
