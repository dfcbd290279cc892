// The walk over the tiles of a masked product, whose groups are slabs with a count each: highest tiles first.
//
// A group's rows are cut into tiles of one height, a multiple of kStep and kRows at most. CTAs take every grid-th tile, so tiles
// of equal height one behind another are equal work for all of them, and the last round, which does not fill the grid, has the
// lowest tiles. Every CTA sorts the groups for itself, by the same keys, so all have the same order.
#pragma once

#include "layout/groups.cuh"

namespace di {

template <uint32_t kRows, uint32_t kStep>
struct MaskedRows {
    // Rows of slab g that count: below 0 is 0, and no more than there are.
    static __device__ __forceinline__ uint32_t of(const Groups& problem, uint32_t g) {
        const int64_t count = problem.flags & kWide ? static_cast<const int64_t*>(problem.counts)[g]
                                                    : static_cast<const int32_t*>(problem.counts)[g];
        return count < 0 ? 0 : count < problem.rows ? static_cast<uint32_t>(count) : problem.rows;
    }

    static __device__ __forceinline__ uint32_t height(uint32_t rows) {
        return rows ? ceil_div(ceil_div(rows, ceil_div(rows, kRows)), kStep) * kStep : 0;
    }
};

// Which groups are walked and in which order: the first kSorted by the height of their tiles, the others as they come.
template <uint32_t kRows, uint32_t kStep, uint32_t kSorted>
struct MaskedOrder {
    const uint16_t* sorted;  // in shared memory, as many as `used`
    uint32_t used;           // groups with rows among the first kSorted

    static constexpr int kBytes = kSorted * 2;

    // For all threads of a CTA of kSorted threads; `keys` is room for kSorted words until it returns.
    __device__ __forceinline__ MaskedOrder(uint16_t* list, uint32_t* keys, const Groups& problem) : sorted(list) {
        using Rows = MaskedRows<kRows, kStep>;
        const uint32_t g = threadIdx.x, groups = problem.groups < kSorted ? problem.groups : kSorted;
        const uint32_t key = g < groups ? Rows::height(Rows::of(problem, g)) << 16 | (0xFFFF - g) : 0;
        keys[g] = key;
        used = __syncthreads_count(key >> 16);
        uint32_t place = 0;
        for (uint32_t i = 0; i < groups; ++i) place += keys[i] > key;
        if (key >> 16) list[place] = static_cast<uint16_t>(g);
        __syncthreads();
    }

    __device__ __forceinline__ uint32_t size(const Groups& problem) const {
        return used + (problem.groups > kSorted ? problem.groups - kSorted : 0);
    }
    __device__ __forceinline__ uint32_t group(uint32_t place) const {
        return place < used ? sorted[place] : place - used + kSorted;
    }
};

// Finds the tile of an index that only grows; every warp of a role walks by itself, with those of its lanes that are in `lanes`.
// What comes from shared memory is reduced over the lanes, which all have the same: the compiler then knows that the walk is
// uniform and keeps what depends on it, such as descriptors, in uniform registers. Without that a full tile takes a tenth longer.
template <uint32_t kRows, uint32_t kCols, uint32_t kStep, uint32_t kSorted>
struct MaskedWalk {
    using Rows = MaskedRows<kRows, kStep>;
    using Order = MaskedOrder<kRows, kStep, kSorted>;
    const Groups& problem;
    const Order& order;
    const uint32_t lanes, tiles_n, size;
    uint32_t place = 0, group = 0, rows = 0, first = 0, tiles_m = 0;  // of the current group; its first tile's index

    __device__ __forceinline__ MaskedWalk(const Groups& p, const Order& o, uint32_t who)
        : problem(p), order(o), lanes(who), tiles_n(ceil_div(p.cols, kCols)), size(uniform(o.size(p))) {
        enter();
    }

    __device__ __forceinline__ uint32_t uniform(uint32_t value) const { return __reduce_or_sync(lanes, value); }

    __device__ __forceinline__ void enter() {
        if (place >= size) return;
        group = uniform(order.group(place));
        rows = Rows::of(problem, group);
        tiles_m = ceil_div(rows, kRows);
    }

    // Moves to the group that holds tile `index`; false when there is none.
    __device__ __forceinline__ bool seek(uint32_t index) {
        while (place < size && index - first >= tiles_m * tiles_n) {
            first += tiles_m * tiles_n;
            ++place;
            enter();
        }
        return place < size;
    }

    // Of the current group's tiles.
    __device__ __forceinline__ uint32_t height() const { return Rows::height(rows); }

    // Of a grid that takes `step` tiles at a time. `row_end` is the end of the tile.
    __device__ __forceinline__ GroupTile tile(uint32_t index, uint32_t step) const {
        const TileCoord at = raster(index - first, tiles_m, tiles_n, problem.band, first, step);
        const uint32_t row = at.m * height();
        return {group, row, rows - row < height() ? rows : row + height(), at.n * kCols};
    }
};

}  // namespace di
