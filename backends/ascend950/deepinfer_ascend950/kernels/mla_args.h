// Arguments of the latent attention kernels, and which keys a query sees.
//
// A "slot" numbers a cached row: block * page + place in the block. Lists of slots (sparse) or of blocks (dense) are
// read by the scalar units; a slot that is out of range, or stands past the list's length, is a hole: its row is read as
// zeros and its weight is 0.
#pragma once
#include "deepinfer.h"

enum MlaMode : int32_t { MLA_SPARSE = 0, MLA_DENSE = 1, MLA_DENSE_CAUSAL = 2 };
enum MlaKind : int32_t { ROWS_BF16 = 0, ROWS_FP8 = 1, ROWS_FP4 = 2, ROWS_F32 = 3 };
enum MlaScale : int32_t { SCALE_F32 = 0, SCALE_UE8M0 = 1, SCALE_E4M3 = 2 };

// One pool of rows. A row comes in up to three pieces: `len` bytes at block + off + place * pitch go to byte `to` of the
// raw row in UB. Raw rows hold codes at 0, scales at scale_at, plain bf16 channels at plain_at.
struct MlaPool {
    int64_t block_stride, slots;
    int64_t index_b, index_s, index_k, length_b, length_s;
    int64_t off[3], pitch[3];
    int32_t len[3], to[3];
    int32_t page, topk, index_bytes, length_bytes;
    int32_t kind, coded, plain, tile_log, scale_kind, scale_at, plain_at, raw_pitch;
};
// Keys with float32 scales do not fit bf16: they are multiplied as a rounded part plus what rounding left.
__aicore__ inline bool mla_split(const MlaPool& o) { return o.kind != ROWS_BF16 && o.scale_kind == SCALE_F32; }

struct MlaArgs {
    __gm__ uint8_t* q;
    __gm__ uint8_t* cache[2];
    __gm__ uint8_t* index[2];   // slots; dense: blocks of the request
    __gm__ uint8_t* length[2];  // or null
    __gm__ float* sink;         // or null
    __gm__ uint8_t* out;
    __gm__ uint8_t* lse;
    __gm__ uint8_t* top;        // or null
    int64_t q_b, q_s, q_h, out_b, out_s, out_h, lse_b, lse_s, lse_h;
    int32_t batch, s_q, heads, d_qk, d_v, mode;
    float scale;
    int32_t pools;
    MlaPool pool[2];
};

constexpr int32_t HEADS = 64, KEYS = 64;  // of one job; of one block

struct MlaJob {
    int32_t b, s, head, heads;   // heads [head, head + heads)
    int32_t limit[2], blocks[2]; // list entries and blocks of keys per pool
    __aicore__ inline int32_t total() const { return blocks[0] + blocks[1]; }
    __aicore__ inline int32_t rows(int32_t aiv) const { return aiv == 0 ? di::min(heads, 32) : di::max(heads - 32, 0); }
};

__aicore__ inline int64_t mla_int(__gm__ uint8_t* p, int32_t bytes) {
    return bytes == 8 ? gm::load((__gm__ int64_t*)p) : int64_t(gm::load((__gm__ int32_t*)p));
}

__aicore__ inline int32_t mla_jobs(const MlaArgs& p) { return p.batch * p.s_q * di::div_up(p.heads, HEADS); }

__aicore__ inline MlaJob mla_job(const MlaArgs& p, int32_t i) {
    const int32_t splits = di::div_up(p.heads, HEADS), token = i / splits;
    MlaJob j;
    j.b = token / p.s_q;
    j.s = token % p.s_q;
    j.head = i % splits * HEADS;
    j.heads = di::min(HEADS, p.heads - j.head);
    for (int32_t k = 0; k < 2; ++k) {
        j.limit[k] = j.blocks[k] = 0;
        if (k >= p.pools) continue;
        const MlaPool& o = p.pool[k];
        int64_t n = o.topk;
        if (p.length[k] != nullptr) n = mla_int(p.length[k] + j.b * o.length_b + j.s * o.length_s, o.length_bytes);
        n = di::max(di::min(n, int64_t(o.topk)), int64_t(0));
        if (p.mode == MLA_DENSE_CAUSAL) n = di::max(n - p.s_q + j.s + 1, int64_t(0));
        j.limit[k] = int32_t(n);
        j.blocks[k] = di::div_up(j.limit[k], KEYS);
    }
    return j;
}

// Slot of list entry `at`, or -1 for a hole.
__aicore__ inline int64_t mla_slot(const MlaArgs& p, const MlaJob& j, int32_t k, int32_t at) {
    if (at >= j.limit[k]) return -1;
    const MlaPool& o = p.pool[k];
    __gm__ uint8_t* list = p.index[k] + j.b * o.index_b + j.s * o.index_s;
    if (p.mode == MLA_SPARSE) {
        const int64_t slot = mla_int(list + at * o.index_k, o.index_bytes);
        return slot >= 0 && slot < o.slots ? slot : -1;
    }
    const int64_t block = mla_int(list + at / o.page * o.index_k, o.index_bytes);
    return block >= 0 && block < o.slots / o.page ? block * o.page + at % o.page : -1;
}
