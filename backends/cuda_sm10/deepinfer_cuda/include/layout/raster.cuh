// Order in which a persistent grid walks the tiles of a matrix, chosen for reuse in L2.
#pragma once

#include "ptx/types.cuh"

namespace di {

struct TileCoord {
    uint32_t m, n;
};

// Tiles in bands of `group` rows: inside a band, rows run fastest, so that concurrently running tiles share few
// distinct A and B panels. `tiles_m` need not be a multiple of `group`; the last band is narrower.
__device__ __forceinline__ TileCoord raster(uint32_t index, uint32_t tiles_m, uint32_t tiles_n, uint32_t group) {
    const uint32_t band_tiles = group * tiles_n;
    const uint32_t band = index / band_tiles;
    const uint32_t inside = index - band * band_tiles;
    const uint32_t first = band * group;
    const uint32_t rows = tiles_m - first < group ? tiles_m - first : group;
    return {first + inside % rows, inside / rows};
}

}  // namespace di
