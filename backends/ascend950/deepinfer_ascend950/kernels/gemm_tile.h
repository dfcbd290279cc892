// Work of one launch of the GEMM kernels: which rows of which group against which weights, cut into tiles.
//
// Every core walks the same list of tiles and takes each grid-th one; nobody communicates about it. Group sizes are
// read from device memory by the scalar units, so the host never waits for them.
#pragma once
#include "deepinfer.h"

enum GemmMode : int32_t { GEMM_DENSE = 0, GEMM_GROUPED = 1, GEMM_MASKED = 2 };
enum GemmOut : int32_t { OUT_F32 = 0, OUT_BF16 = 1, OUT_F16 = 2 };

struct GemmArgs {
    __gm__ uint8_t* a;
    __gm__ uint8_t* b;
    __gm__ uint8_t* d;
    __gm__ uint8_t* a_scale;
    __gm__ uint8_t* b_scale;
    __gm__ uint8_t* c;       // addend [M, N], or null
    __gm__ uint8_t* bias;    // [N], or null
    __gm__ uint8_t* counts;  // grouped, masked
    __gm__ uint8_t* starts;  // grouped; null = groups lie one behind another
    int64_t a_row, a_col, a_group;  // strides in bytes; exactly one of row and column is the element size
    int64_t b_row, b_col, b_group;
    int64_t d_row, d_group;
    int64_t c_row;
    int64_t sa_row, sa_col, sa_group;  // scales of A: rows x blocks of K
    int64_t sb_row, sb_col, sb_group;
    int64_t count_stride, start_stride;
    int32_t m, n, k, groups;
    int32_t mode, out, c_type, bias_type;
    int32_t count_bytes, start_bytes;
    int32_t sb_rows;  // rows of B one scale covers (1 or 128; 32 for MX)
    int32_t reserved;
};

struct Tile {
    int32_t group, row, rows, col, cols;  // rows of A counted from its first row (of the group's matrix when masked)
};

__aicore__ inline int64_t read_index(__gm__ uint8_t* p, int64_t i, int64_t stride, int32_t bytes) {
    __gm__ uint8_t* at = p + i * stride;
    return bytes == 8 ? gm::load((__gm__ int64_t*)at) : int64_t(gm::load((__gm__ int32_t*)at));
}

// Zeros for one column block of both operands, on the way L1 -> L0: what a product over no K is made of.
template <class T>
__aicore__ inline void load_zeros(uint64_t a1, uint64_t b1, int32_t ra, int32_t rb) {
    asc_fill_value_config fill;
    fill.repeat = 1;
    fill.blk_num = uint64_t(ra) * 16;
    asc_fill_l1(mem::l1<half>(a1), half(0.0f), fill);
    fill.blk_num = uint64_t(rb) * 16;
    asc_fill_l1(mem::l1<half>(b1), half(0.0f), fill);
    asc_copy_l12l0a(mem::l0a<T>(0), mem::l1<T>(a1), 0, 0, uint8_t(ra), 1, int16_t(ra), uint16_t(ra));
    asc_copy_l12l0b(mem::l0b<T>(0), mem::l1<T>(b1), 0, 0, uint8_t(rb), 1, int16_t(rb), uint16_t(rb));
}

// Walks all tiles in order. BM x BN is the tile shape.
template <int32_t BM, int32_t BN>
struct TileWalk {
    const GemmArgs& p;
    int32_t group = -1, low = 0, high = 0, tiles = 0, first = 0, next, col_tiles;
    int64_t begin = 0;
    __aicore__ inline explicit TileWalk(const GemmArgs& args) : p(args), next(int32_t(get_block_idx())) {
        col_tiles = di::div_up(p.n, BN);
    }
    // Rows [low, high) of group g, cut to the matrix; a count below 0 is 0.
    __aicore__ inline void bounds(int32_t g) {
        if (p.mode == GEMM_DENSE) {
            low = 0;
            high = p.m;
            return;
        }
        int64_t count = read_index(p.counts, g, p.count_stride, p.count_bytes);
        if (count < 0) count = 0;
        if (p.mode == GEMM_MASKED) {
            low = 0;
            high = count < p.m ? int32_t(count) : p.m;
            return;
        }
        if (p.starts != nullptr) begin = read_index(p.starts, g, p.start_stride, p.start_bytes);
        if (begin > p.m) begin = p.m;
        if (count > (int64_t(1) << 40)) count = int64_t(1) << 40;
        int64_t end = begin > -(int64_t(1) << 50) ? begin + count : begin;
        low = begin < 0 ? 0 : int32_t(begin);
        high = end > p.m ? p.m : end < low ? low : int32_t(end);
        if (p.starts == nullptr) begin = end > p.m ? p.m : end;
    }
    __aicore__ inline bool step(Tile& t) {
        while (group < 0 || next >= first + tiles) {
            if (group >= 0) first += tiles;
            if (++group >= p.groups) return false;
            bounds(group);
            tiles = di::div_up(high - low, BM) * col_tiles;
        }
        int32_t i = next - first, mt = i / col_tiles, nt = i % col_tiles;
        t.group = group;
        t.row = low + mt * BM;
        t.rows = di::min(BM, high - t.row);
        t.col = nt * BN;
        t.cols = di::min(BN, p.n - t.col);
        next += int32_t(get_block_num());
        return true;
    }
};
