// Instruction descriptor and shapes of tcgen05.mma (PTX ISA "Instruction descriptor"; CuTe mma_sm100_desc.hpp for the field positions).
#pragma once
#include <string>

#include "isa/types.h"

namespace ptxsim {

enum class McKind : u8 { f16, tf32, f8f6f4, i8, mxf8f6f4, mxf4, mxf4nvf4 };

struct InstrDesc {
    u32 m = 0, n = 0, k = 0;
    Ty a = Ty::none, b = Ty::none, d = Ty::none, scale = Ty::none;
    bool neg_a = false, neg_b = false, mn_a = false, mn_b = false, saturate = false;
    u32 sfa_id = 0, sfb_id = 0, block = 0;  // block: K elements per scale, 0 none
    bool sparse = false;  // k counts the columns of B; A holds half of them
    u32 sparse_id = 0;    // sparsity selector: which column of metadata
    u32 depth() const { return sparse ? k / 2 : k; }
};

// Decodes for a kind and checks the shape rules; returns the broken rule or "".
std::string decode_instr_desc(u32 raw, McKind kind, u32 scale_vec, int cta_group, bool ws, bool sparse, InstrDesc& out);

bool is_block_scaled(McKind k);

// Where element (row of this CTA, column) of D lies: lane offset and column offset (CuTe tmem_frg layouts).
struct TmemSpot {
    u32 lane, col;
};
TmemSpot d_spot(const InstrDesc& i, int cta_group, bool ws, u32 row, u32 col);
u32 rows_per_cta(const InstrDesc& i, int cta_group);
u32 d_columns(const InstrDesc& i, int cta_group, bool ws);  // columns that D takes

}  // namespace ptxsim
