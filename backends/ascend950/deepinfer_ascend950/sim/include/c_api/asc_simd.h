// The C-style kernel API under the vendor's include name, for an ordinary C++ compiler. A call that is not here is a
// compile error; a mode that is here but not modelled stops the launch with a message.
#pragma once
#include "../asc_sim/cube.h"
#include "../asc_sim/dma.h"
#include "../asc_sim/vec_convert.h"
#include "../asc_sim/vec_load.h"
#include "../asc_sim/vec_logic.h"
#include "../asc_sim/vec_mask.h"
#include "../asc_sim/vec_permute.h"
#include "../asc_sim/vec_round.h"
#include "../asc_sim/vec_select.h"
#include "../asc_sim/vec_store.h"
#include "../asc_sim/scalar_ops.h"
#include "../asc_sim/sync.h"
// Macros and built-ins over all of the above.
#include "../asc_sim/spellings.h"
