// Order in which a persistent grid walks the tiles of a matrix, chosen for reuse in L2.
#pragma once

#include "ptx/types.cuh"

namespace di {

struct TileCoord {
    uint32_t m, n;
};

// Tiles in bands of `group` rows: inside a band, rows run fastest, so that concurrently running tiles share few
// distinct A and B panels. `tiles_m` need not be a multiple of `group`; the last band is narrower. `origin` tiles were
// walked before, and the grid takes `step` at a time: columns of every other round run bottom up. A ragged last row is
// less work; if the same CTAs had it in each round they would run ahead of those that share their panels of B, until
// these are read from memory twice.
__device__ __forceinline__ TileCoord raster(uint32_t index, uint32_t tiles_m, uint32_t tiles_n, uint32_t group,
                                            uint32_t origin, uint32_t step) {
    const uint32_t band_tiles = group * tiles_n;
    const uint32_t band = index / band_tiles;
    const uint32_t inside = index - band * band_tiles;
    const uint32_t first = band * group;
    const uint32_t rows = tiles_m - first < group ? tiles_m - first : group;
    const uint32_t row = inside % rows;
    const bool upward = (origin + index - row) / step & 1;
    return {first + (upward ? rows - 1 - row : row), inside / rows};
}

}  // namespace di
