// Reduction operators shared by atomics, bulk reductions and multimem.
#pragma once
#include "isa/decode.h"

namespace ptxsim {

enum class RedOp : u8 { add, min, max, inc, dec, and_, or_, xor_, exch, cas };

// old value a, operand b, (cas: compare b, new c) -> new value, raw bits.
// `flush`: f32 addition on global memory by atom and red takes and gives subnormals as zeros.
u64 reduce_value(RedOp op, Ty t, u64 a, u64 b, u64 c = 0, bool flush = false);
bool parse_red_op(Dec& d, RedOp& op, bool atom);

}  // namespace ptxsim
