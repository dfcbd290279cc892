// Row groups of a grouped product, read on the device, and the walk over their tiles.
//
// A product is G groups of rows, each with its own weights; a dense product is one group. Groups lie one behind another,
// at given starts, or each in its own slab ("masked"). Counts below 0 count as 0; a group is cut to the rows that exist.
#pragma once

#include "layout/raster.cuh"

namespace di {

struct Groups {
    const void* counts;  // [groups] int32 or int64, null = one group with all rows
    const void* starts;  // [groups] of the same type, null = one behind another
    uint32_t groups;
    uint32_t rows;   // rows of A, or of each slab when masked
    uint32_t cols;   // N
    uint32_t depth;  // K
    uint32_t band;   // tile rows per raster band
    uint32_t flags;  // kWide, kMasked, rows of A << kBoxShift
};

constexpr uint32_t kWide = 1;    // counts and starts are int64
constexpr uint32_t kMasked = 2;  // group g is slab g of A and D
// From this bit on: rows of A that one copy brings, 0 = 64. Rows past the end that TMA would fill with zeros cost as much time
// as rows that are there, 7 us of 25 at 1 row of A.
constexpr uint32_t kBoxShift = 8;

// One output tile: its group, first row (in A, or in the slab), end of the group's rows, first column.
struct GroupTile {
    uint32_t group, row, row_end, col;
};

// Finds the group of a tile index that only grows; every thread of a role walks by itself, reading through L1.
template <uint32_t kBlockM, uint32_t kBlockN>
struct GroupWalk {
    const Groups& problem;
    const uint32_t tiles_n;
    uint32_t group = 0, first = 0, tiles_m = 0;  // current group, its first tile index, its tile rows
    int64_t low = 0, high = 0, next = 0;         // its row range; where the next one starts by default

    __device__ __forceinline__ explicit GroupWalk(const Groups& p) : problem(p), tiles_n(ceil_div(p.cols, kBlockN)) {
        if (problem.groups) enter();
    }

    __device__ __forceinline__ int64_t read(const void* list, uint32_t g) const {
        return problem.flags & kWide ? static_cast<const int64_t*>(list)[g] : static_cast<const int32_t*>(list)[g];
    }

    __device__ __forceinline__ void enter() {
        const int64_t rows = problem.rows;
        int64_t count = problem.counts ? read(problem.counts, group) : rows;
        count = count < 0 ? 0 : count;
        const int64_t start = problem.flags & kMasked ? 0 : (problem.starts ? read(problem.starts, group) : next);
        // Counts and starts may be any 64-bit number: a negative plus a count, and rows minus a start in range, fit.
        int64_t end = rows;
        if (start < 0) end = start + count < rows ? start + count : rows;
        else if (start < rows && count <= rows - start) end = start + count;
        low = start < 0 ? 0 : (start > rows ? rows : start);
        high = end < low ? low : end;
        next = high;
        tiles_m = high > low ? ceil_div(static_cast<uint32_t>(high - low), kBlockM) : 0;
    }

    // Moves to the group that holds tile `index`; false when there is none.
    __device__ __forceinline__ bool seek(uint32_t index) {
        while (group < problem.groups && index - first >= tiles_m * tiles_n) {
            first += tiles_m * tiles_n;
            if (++group < problem.groups) enter();
        }
        return group < problem.groups;
    }

    // Of a grid that takes `step` tiles at a time.
    __device__ __forceinline__ GroupTile tile(uint32_t index, uint32_t step) const {
        const TileCoord at = raster(index - first, tiles_m, tiles_n, problem.band, first, step);
        return {group, static_cast<uint32_t>(low) + at.m * kBlockM, static_cast<uint32_t>(high), at.n * kBlockN};
    }
};

}  // namespace di
