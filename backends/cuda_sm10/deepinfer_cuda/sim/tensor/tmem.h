// Tensor memory of one SM: 128 lanes x 512 columns x 32 bit, allocated by columns (PTX ISA, tcgen05 "Tensor Memory").
#pragma once
#include <array>
#include <vector>

#include "check/checker.h"
#include "isa/types.h"

namespace ptxsim {

constexpr u32 kTmemLanes = 128, kTmemColumns = 512;

struct Tmem {
    std::vector<u32> cells = std::vector<u32>(kTmemLanes * kTmemColumns, 0xffffffffu);
    std::vector<Cell> shadow = std::vector<Cell>(kTmemLanes / 16 * kTmemColumns);  // one per 16 lanes x 1 column
    std::array<u16, kTmemColumns> owner{};  // allocation number, 0 free
    u16 next = 1;
    bool relinquished = false;
    int cta_group = 0;                      // fixed by the first tcgen05 instruction
    u32& at(u32 lane, u32 col) { return cells[lane * kTmemColumns + col]; }
    bool allocated(u32 col, u32 n) const {
        for (u32 c = col; c < col + n; ++c)
            if (c >= kTmemColumns || !owner[c]) return false;
        return true;
    }
};

}  // namespace ptxsim
