// From float32 sums of a tile to the result: the epilogue for what TMA cannot store, and for products split along K.
//
// A band of rows has a tile of sums in shared memory and a group of threads that owns it. The threads lay their sums down,
// then walk the tile row by row with neighbouring threads on neighbouring columns: sum (+ C) (+ bias), rounded once, to D of
// any type, stride and alignment.
//
// A product split along K is shared by the CTAs of one cluster ("parts"): each has the sums of its own K blocks for the whole
// tile. When all have laid theirs down (`ready`), part p finishes the p-th share of the rows and adds the parts 0, 1, ... in
// this order, so results do not depend on who came first. `taken` says that all parts have read: the tiles may be refilled.
#pragma once

#include "ptx/barrier.cuh"
#include "ptx/warp.cuh"

namespace di {

// Types of C, bias and D.
constexpr uint32_t kBf16 = 0, kF16 = 1, kF32 = 2;

// Where D lies and what is added to it; steps in bytes. `c` and `bias` may be null.
struct Output {
    uint8_t* data;
    int64_t row_bytes, slab_bytes, col_bytes;
    const uint8_t* c;
    int64_t c_row_bytes, c_col_bytes;
    const uint8_t* bias;
    int64_t bias_bytes;
    uint32_t type, c_type, bias_type, unused;
};

__device__ __forceinline__ float read_number(const uint8_t* at, uint32_t type) {
    if (type == kF32) return *reinterpret_cast<const float*>(at);
    const uint16_t bits = *reinterpret_cast<const uint16_t*>(at);
    return type == kF16 ? from_f16(bits) : __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

__device__ __forceinline__ void write_number(uint8_t* at, uint32_t type, float value) {
    if (type == kF32)
        *reinterpret_cast<float*>(at) = value;
    else
        *reinterpret_cast<uint16_t*>(at) = static_cast<uint16_t>(pack_bf16(value, 0.f));
}

// kRows x kCols sums of one band, owned by kThreads threads (a warp, or warps that share named barrier `id`).
template <int kRows, int kCols, int kThreads>
struct SumBand {
    static constexpr int kBytes = kRows * kCols * 4;
    float* sums;
    Barrier *ready, *taken;  // one arrival per part
    uint32_t id;

    __device__ __forceinline__ void sync() const {
        if constexpr (kThreads == 32)
            __syncwarp();
        else
            named_sync(id, kThreads);
    }

    // Chunks of four columns change places by row: then both a thread that writes along a row (one row per thread) and eight
    // that write a square of 8 x 8 with two columns each meet every bank once.
    static __device__ __forceinline__ uint32_t index(uint32_t row, uint32_t col) {
        const uint32_t r = row % 8;
        return row * kCols + (col ^ (((r * 2 + r / 4) % 8) << 2));
    }

    // Before the sums of another tile are laid down. `phase` is that of this band's exchanges and starts as 0.
    __device__ __forceinline__ void open(uint32_t parts, uint32_t phase) const {
        if (parts > 1) taken->wait_cluster(phase ^ 1);
        sync();
    }

    // After every thread of the band has laid its sums down: writes the rows of this part, cut to `rows` and `cols`.
    __device__ __forceinline__ void close(uint32_t parts, uint32_t rank, uint32_t phase, const Output& out, int64_t slab,
                                          uint32_t row, uint32_t rows, uint32_t col, uint32_t cols, uint32_t thread) const {
        sync();
        if (parts > 1) {
            if (thread < parts) ready->arrive_cluster(thread);
            ready->wait_cluster(phase);
        }
        const uint32_t share = kRows / parts, first = rank * share;
        const uint32_t end = first + share < rows ? first + share : rows;
        for (uint32_t r = first + thread / 32; r < end; r += kThreads / 32)
            finish(parts, rank, out, out.data + slab * out.slab_bytes + (row + r) * out.row_bytes,
                   out.c + (row + r) * out.c_row_bytes, r, col, cols, thread % 32);
        if (parts > 1) {
            sync();
            if (thread < parts) taken->arrive_cluster(thread);
        }
    }

    __device__ __forceinline__ void finish(uint32_t parts, uint32_t rank, const Output& out, uint8_t* d, const uint8_t* c,
                                           uint32_t r, uint32_t col, uint32_t cols, uint32_t lane) const {
        constexpr int kPieces = kCols / 32;
        float total[kPieces] = {};
        for (uint32_t part = 0; part < parts; ++part) {
            if (part == rank) {
#pragma unroll
                for (int i = 0; i < kPieces; ++i) total[i] += sums[index(r, lane + i * 32)];
            } else {
                const uint32_t remote = map_shared(sums, part);
#pragma unroll
                for (int i = 0; i < kPieces; ++i) total[i] += load_cluster(remote + index(r, lane + i * 32) * 4);
            }
        }
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            const int64_t n = col + lane + i * 32;
            if (n < cols) {
                float value = total[i];
                if (out.c) value += read_number(c + n * out.c_col_bytes, out.c_type);
                if (out.bias) value += read_number(out.bias + n * out.bias_bytes, out.bias_type);
                write_number(d + n * out.col_bytes, out.type, value);
            }
        }
    }
};

// The K blocks of part `rank` of `parts`: [begin, end).
struct Share {
    uint32_t begin, end;

    __device__ __forceinline__ Share(uint32_t blocks, uint32_t rank, uint32_t parts)
        : begin(blocks * rank / parts), end(blocks * (rank + 1) / parts) {}

    __device__ __forceinline__ uint32_t size() const { return end - begin; }
};

}  // namespace di
