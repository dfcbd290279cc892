// pack_rows: copies a [slabs, rows, cols] tensor of any strides to rows that TMA can walk, on 16-byte boundaries.
//
//   threads along the dimension with the smaller step -> 64 x 64 tile in shared memory -> threads along columns, 16 bytes each
//
// Bounds: each element read once and written once. Columns between `cols` and `pitch` become zero.
#pragma once

#include "ptx/types.cuh"

namespace di {

struct PackRows {
    const void* src;
    void* dst;  // [slabs, rows, pitch], dense
    int64_t slab_step, row_step, col_step;  // of src, in elements
    uint32_t slabs, rows, cols, pitch;      // pitch in elements, a multiple of 16 bytes
};

template <typename Element>
struct PackRowsKernel {
    static constexpr uint32_t kTile = 64;
    static constexpr uint32_t kThreads = 256;
    static constexpr uint32_t kChunk = 16 / sizeof(Element);
    static constexpr uint32_t kPadded = kTile + 4 / sizeof(Element);  // one bank more per row: columns meet all banks

    static __device__ __forceinline__ void read(Element (&tile)[kTile][kPadded], const PackRows& p, const Element* src,
                                                uint32_t row, uint32_t col) {
        const bool along_rows = p.row_step < p.col_step;
        for (uint32_t i = threadIdx.x; i < kTile * kTile; i += kThreads) {
            const uint32_t r = along_rows ? i % kTile : i / kTile, c = along_rows ? i / kTile : i % kTile;
            const bool inside = row + r < p.rows && col + c < p.cols;
            tile[r][c] = inside ? src[(row + r) * p.row_step + (col + c) * p.col_step] : Element(0);
        }
    }

    static __device__ __forceinline__ void write(const Element (&tile)[kTile][kPadded], const PackRows& p, Element* dst,
                                                 uint32_t row, uint32_t col) {
        for (uint32_t i = threadIdx.x; i < kTile * kTile / kChunk; i += kThreads) {
            const uint32_t r = i / (kTile / kChunk), c = i % (kTile / kChunk) * kChunk;
            if (row + r < p.rows && col + c < p.pitch) {
                alignas(16) Element chunk[kChunk];
#pragma unroll
                for (uint32_t j = 0; j < kChunk; ++j) chunk[j] = tile[r][c + j];
                *reinterpret_cast<uint4*>(dst + static_cast<int64_t>(row + r) * p.pitch + col + c) =
                    *reinterpret_cast<const uint4*>(chunk);
            }
        }
    }

    static __device__ __forceinline__ void run(const PackRows& p) {
        __shared__ Element tile[kTile][kPadded];
        const uint32_t tiles_m = ceil_div(p.rows, kTile), tiles_n = ceil_div(p.cols, kTile);
        const uint64_t tiles = static_cast<uint64_t>(p.slabs) * tiles_m * tiles_n;
        for (uint64_t index = blockIdx.x; index < tiles; index += gridDim.x) {
            const uint32_t col = static_cast<uint32_t>(index % tiles_n) * kTile;
            const uint32_t row = static_cast<uint32_t>(index / tiles_n % tiles_m) * kTile;
            const int64_t slab = static_cast<int64_t>(index / tiles_n / tiles_m);
            read(tile, p, static_cast<const Element*>(p.src) + slab * p.slab_step, row, col);
            __syncthreads();
            write(tile, p, static_cast<Element*>(p.dst) + slab * p.rows * p.pitch, row, col);
            __syncthreads();
        }
    }
};

}  // namespace di

#define DI_PACK_ROWS(NAME, ELEMENT)                                                                      \
    extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ di::PackRows problem) { \
        di::PackRowsKernel<ELEMENT>::run(problem);                                                       \
    }
