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
// Output::flags: four neighbouring columns of D (of C) lie side by side on a boundary of their size.
constexpr uint32_t kFoursInD = 1, kFoursInC = 2;

// Where D lies and what is added to it; steps in bytes. `c` and `bias` may be null.
struct Output {
    uint8_t* data;
    int64_t row_bytes, slab_bytes, col_bytes;
    const uint8_t* c;
    int64_t c_row_bytes, c_col_bytes;
    const uint8_t* bias;
    int64_t bias_bytes;
    uint32_t type, c_type, bias_type, flags;
};

__device__ __forceinline__ float read_number(const uint8_t* at, uint32_t type) {
    if (type == kF32) return *reinterpret_cast<const float*>(at);
    const uint16_t bits = *reinterpret_cast<const uint16_t*>(at);
    return type == kF16 ? from_f16(bits) : __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

// Adds `count` neighbours, `step` bytes apart, to v[0..count).
__device__ __forceinline__ void add_numbers(float (&v)[4], const uint8_t* at, int64_t step, uint32_t type, uint32_t count) {
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j)
        if (j < count) v[j] += read_number(at + j * step, type);
}

// As add_numbers, four that lie side by side; bf16 or float32.
__device__ __forceinline__ void add_four(float (&v)[4], const uint8_t* at, uint32_t type) {
    if (type == kF32) {
        const float4 x = *reinterpret_cast<const float4*>(at);
        v[0] += x.x, v[1] += x.y, v[2] += x.z, v[3] += x.w;
    } else {
        const uint2 x = *reinterpret_cast<const uint2*>(at);
        v[0] += __uint_as_float(x.x << 16), v[1] += __uint_as_float(x.x & 0xFFFF0000u);
        v[2] += __uint_as_float(x.y << 16), v[3] += __uint_as_float(x.y & 0xFFFF0000u);
    }
}

__device__ __forceinline__ void write_numbers(const float (&v)[4], uint8_t* at, int64_t step, uint32_t type, uint32_t count) {
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j)
        if (j < count) {
            if (type == kF32)
                *reinterpret_cast<float*>(at + j * step) = v[j];
            else
                *reinterpret_cast<uint16_t*>(at + j * step) = static_cast<uint16_t>(pack_bf16(v[j], 0.f));
        }
}

__device__ __forceinline__ void write_four(const float (&v)[4], uint8_t* at, uint32_t type) {
    if (type == kF32)
        *reinterpret_cast<float4*>(at) = make_float4(v[0], v[1], v[2], v[3]);
    else
        *reinterpret_cast<uint2*>(at) = make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
}

// kRows x kCols sums of one band, owned by kThreads threads (a warp, or warps that share named barrier `id`).
template <int kRows, int kCols, int kThreads>
struct SumBand {
    static constexpr int kBytes = kRows * kCols * 4;
    static constexpr uint32_t kLanes = kCols / 4;  // threads of one row
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
        const uint32_t count = first < rows ? (share < rows - first ? share : rows - first) * kLanes : 0;
#pragma unroll 1
        for (uint32_t i = thread; i < count; i += kThreads) {
            const uint32_t r = first + i / kLanes, c = i % kLanes * 4, n = col + c;
            if (n < cols) {
                float v[4];
                add_parts(v, parts, rank, index(r, c));
                finish(v, out, slab, row + r, n, cols - n < 4 ? cols - n : 4);
            }
        }
        if (parts > 1) {
            sync();
            if (thread < parts) taken->arrive_cluster(thread);
        }
    }

    // The sums of four columns from chunk `at` of every part, in the parts' order.
    __device__ __forceinline__ void add_parts(float (&v)[4], uint32_t parts, uint32_t rank, uint32_t at) const {
        if (parts == 1) {
            const float4 x = *reinterpret_cast<const float4*>(sums + at);
            v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
            return;
        }
        v[0] = v[1] = v[2] = v[3] = 0.f;
        for (uint32_t part = 0; part < parts; part += 2) {  // all loads of a pair are under way before the first is needed
            const float4 x = load_cluster(map_shared(sums + at, part)), y = load_cluster(map_shared(sums + at, part + 1));
            v[0] += x.x, v[1] += x.y, v[2] += x.z, v[3] += x.w;
            v[0] += y.x, v[1] += y.y, v[2] += y.z, v[3] += y.w;
        }
    }

    static __device__ __forceinline__ void finish(float (&v)[4], const Output& out, int64_t slab, int64_t row, int64_t n,
                                                  uint32_t count) {
        if (out.c) {
            const uint8_t* c = out.c + row * out.c_row_bytes + n * out.c_col_bytes;
            if (out.flags & kFoursInC && count == 4)
                add_four(v, c, out.c_type);
            else
                add_numbers(v, c, out.c_col_bytes, out.c_type, count);
        }
        if (out.bias) add_numbers(v, out.bias + n * out.bias_bytes, out.bias_bytes, out.bias_type, count);
        uint8_t* d = out.data + slab * out.slab_bytes + row * out.row_bytes + n * out.col_bytes;
        if (out.flags & kFoursInD && count == 4)
            write_four(v, d, out.type);
        else
            write_numbers(v, d, out.col_bytes, out.type, count);
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
