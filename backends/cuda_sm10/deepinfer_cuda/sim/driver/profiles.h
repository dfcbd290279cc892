// Device profiles of the simulator.
#pragma once
#include "core/machine.h"

namespace ptxsim {
extern const Profile kSm90, kSm100;
constexpr u32 kDevicesPerProfile = 8;  // devices 0-7 are sm_90, 8-15 are sm_100
}  // namespace ptxsim
