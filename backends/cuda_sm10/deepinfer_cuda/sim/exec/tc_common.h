// Shared by the tcgen05 instructions.
#pragma once
#include "core/access.h"
#include "isa/decode.h"
#include "tensor/tc_desc.h"

namespace ptxsim {

struct TmemAddr {
    u32 lane, col;
};
// Splits and checks a tensor-memory address; scale addresses may carry an id in bits 30-31.
TmemAddr tmem_address(X& x, const Inst& in, u64 value, bool scale = false);
int parse_cta_group(Dec& d);
void use_tensor_memory(X& x, const Inst& in, int cta_group);  // target, and one cta_group per kernel
Cta& pair_cta(X& x, const Inst& in, u32 which);               // 0 even, 1 odd rank of this CTA's pair

}  // namespace ptxsim
