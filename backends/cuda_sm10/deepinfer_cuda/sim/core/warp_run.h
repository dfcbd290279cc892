// Runs one warp: picks a fragment, executes, splits and merges.
#pragma once
#include "core/machine.h"

namespace ptxsim {

// Executes at most `budget` warp instructions; returns how many ran. Throws SimError on a fault.
u64 run_warp(Warp& w, u64 budget);
bool warp_can_run(const Warp& w);

// Holds the fragment until it contains every live lane of `needed`. True when complete.
bool converge(X& x, u32 lanes, u32 needed);

}  // namespace ptxsim
