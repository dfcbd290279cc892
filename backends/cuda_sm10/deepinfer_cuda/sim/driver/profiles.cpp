// The two device profiles. Sources: CUDA programming guide (compute capabilities 9.0 and 10.0), H200 and B200 data sheets.
#include "driver/profiles.h"

namespace ptxsim {

const Profile kSm90{"NVIDIA H200 (simulated)", "sm_90", 9, 0, 132, 1'980'000, 141ull << 30, 50ull << 20, 4'800'000'000'000ull,
                    233'472, 232'448, 2048, 32, true, false};
const Profile kSm100{"NVIDIA B200 (simulated)", "sm_100", 10, 0, 148, 1'965'000, 180ull << 30, 126ull << 20, 8'000'000'000'000ull,
                     233'472, 232'448, 2048, 32, false, true};

}  // namespace ptxsim
