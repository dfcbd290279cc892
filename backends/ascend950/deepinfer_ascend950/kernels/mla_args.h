// Arguments of the latent attention kernels, the jobs they make, and which keys a query sees.
//
// A job is up to 64 rows of queries that share their keys: heads of one token, heads of a few tokens (dense attention),
// or tokens of one head (keys per head). Rows 0 .. 31 belong to AIV0, rows 32 .. 63 to AIV1. Jobs are numbered the same
// way by all three scalar programs of a core, each of which reads lists, lengths and offsets for itself.
//
// A "slot" numbers a cached row: block * page + place in the block. A slot that is out of range, or stands past the end,
// is a hole: its row is zeros and its weight is 0.
#pragma once
#include "codec.h"

enum MlaMode : int32_t { MLA_SPARSE = 0, MLA_PAGED = 1, MLA_ROWS = 2, MLA_HEADS = 3 };
enum MlaKind : int32_t { ROWS_BF16 = 0, ROWS_FP8 = 1, ROWS_FP4 = 2, ROWS_F32 = 3 };

// One pool of rows. A row comes in up to three pieces: `len` bytes at block + off + place * pitch go to byte `to` of the
// raw row in UB. Raw rows hold codes at 0, scales at scale_at, plain channels at plain_at; float32 scales are the third
// piece and go to a table of their own.
struct MlaPool {
    int64_t block_stride, slots;
    int64_t index_b, index_s, index_k, length_b, length_s;
    int64_t off[3], pitch[3];
    int32_t len[3], to[3];
    int32_t page, topk, index_bytes, length_bytes;
    int32_t kind, coded, plain, tile_log, scale_kind, scale_at, plain_at, raw_pitch;
};
// Channels times float32 scales do not fit bf16, codes do: the cube multiplies codes, the scale of a key and tile of 128
// channels enters S and P.
__aicore__ inline bool mla_tiled(const MlaPool& o) { return o.kind == ROWS_FP8 && o.scale_kind == SCALE_F32; }
__aicore__ inline int32_t mla_tiles(const MlaPool& o) { return mla_tiled(o) ? o.coded / 128 : 0; }

struct MlaArgs {
    __gm__ uint8_t* q;
    __gm__ uint8_t* cache[2];   // keys per head: [0] keys, [1] values
    __gm__ uint8_t* index[2];   // slots; paged: blocks of the request
    __gm__ uint8_t* length[2];  // or null
    __gm__ float* sink;         // or null
    __gm__ uint8_t* out;
    __gm__ uint8_t* lse;
    __gm__ uint8_t* top;   // or null
    __gm__ uint8_t* cu_q;  // or null: batch x s_q tokens
    __gm__ uint8_t* cu_k;  // or null
    int64_t q_b, q_s, q_h, out_b, out_s, out_h, lse_b, lse_s, lse_h;  // strides in bytes
    int64_t out_n, lse_n;                                             // of partial results
    int64_t cu_q_step, cu_k_step, head_k, head_v, rows_q, rows_k;
    int32_t batch, s_q, heads, d_qk, d_v, v_at, mode, causal, pools, splits, cu_q_bytes, cu_k_bytes, out_f32;
    int32_t rest;  // more channels of q: what rounding left of the last ones before
    float scale;
    MlaPool pool[2];
};

constexpr int32_t ROWS = 64, HALF = 32;  // of a job; of a vector core
constexpr int32_t TILE = 128, TILES = 4;  // channels that share a float32 scale; at most, of a row: 4, or 1 (INDEX_FP8)
constexpr int32_t NO_LIMIT = 0x3FFFFFFF;

struct MlaJob {
    int32_t r, split, head, tokens[2], heads[2];  // request; heads and tokens of each vector core
    int64_t b, token;                             // first query row: [b][token][head]
    int32_t low, step;                            // keys that the job's token i sees: low + step * i
    int32_t first[2], limit[2], blocks[2];        // blocks of keys per pool, from block `first`; keys in all
    int64_t key0;
    int32_t number;                               // counts this core's jobs that have keys
    bool wide;                                    // more than 32 heads: both vector cores hold heads of one token
    __aicore__ inline int32_t total() const { return blocks[0] + blocks[1]; }
    __aicore__ inline int32_t rows(int32_t aiv) const { return tokens[aiv] * heads[aiv]; }
    __aicore__ inline int32_t m() const { return rows(1) > 0 ? ROWS : rows(0); }
    __aicore__ inline int32_t first_head(int32_t aiv) const { return head + (aiv == 1 && wide ? HALF : 0); }
    // First token of a vector core, counted from the job's first.
    __aicore__ inline int32_t token_of(int32_t aiv) const { return aiv == 1 && !wide ? tokens[0] : 0; }
    // Tokens that may see different keys.
    __aicore__ inline int32_t shared() const { return wide ? 1 : tokens[0] + tokens[1]; }
    // Token i alone, over the same blocks; one that sees none of them keeps the first, all holes.
    __aicore__ inline MlaJob alone(int32_t i, int32_t keys) const {
        MlaJob one = *this;
        one.token += i;
        one.low += step * (MUTANT(51) ? 0 : i);
        one.tokens[0] = 1;
        one.tokens[1] = 0;
        one.limit[0] = di::max(one.low, 0);
        one.blocks[0] = di::max(di::min(blocks[0], di::div_up(one.limit[0], keys) - first[0]), 1);
        return one;
    }
};

__aicore__ inline int64_t mla_int(__gm__ uint8_t* p, int32_t bytes) {
    return bytes == 8 ? gm::load((__gm__ int64_t*)p) : int64_t(gm::load((__gm__ int32_t*)p));
}

// Running offsets of ragged rows: a falling offset means an empty segment.
struct Edges {
    int64_t low = 0, high = 0;
    __aicore__ inline void move(__gm__ uint8_t* cu, int64_t step, int32_t bytes, int64_t rows, int32_t i) {
        const int64_t edge = di::max(di::min(mla_int(cu + i * step, bytes), rows), int64_t(0));
        low = high;
        high = di::max(high, edge);
    }
};

// The jobs of one core in order; T is the element type of queries.
template <class T>
struct Jobs {
    static constexpr int32_t KEYS = 128 / int32_t(sizeof(T));  // of a block
    const MlaArgs& p;
    int64_t at = int64_t(get_block_idx()), before = 0;  // number of the next job; jobs of the requests before r
    int32_t r = -1, n_q = 0, groups, per_job;
    Edges q, k;
    __aicore__ inline explicit Jobs(const MlaArgs& args) : p(args) {
        groups = p.mode == MLA_HEADS ? p.heads : di::div_up(p.heads, ROWS);
        per_job = p.mode == MLA_SPARSE || (p.mode != MLA_HEADS && p.heads > HALF) ? 1 : 2 * (HALF / (p.mode == MLA_HEADS ? 1 : p.heads));
        if (p.cu_q != nullptr) q.move(p.cu_q, p.cu_q_step, p.cu_q_bytes, p.rows_q, 0);
        if (p.cu_k != nullptr) k.move(p.cu_k, p.cu_k_step, p.cu_k_bytes, p.rows_k, 0);
        enter();
    }
    __aicore__ inline int64_t jobs_of_request() const { return int64_t(di::div_up(n_q, per_job)) * groups * p.splits; }
    __aicore__ inline void enter() {  // request r + 1
        if (++r >= p.batch) return;
        n_q = p.s_q;
        if (p.cu_q != nullptr) {
            q.move(p.cu_q, p.cu_q_step, p.cu_q_bytes, p.rows_q, r + 1);
            n_q = int32_t(q.high - q.low);
        }
        if (p.cu_k != nullptr) k.move(p.cu_k, p.cu_k_step, p.cu_k_bytes, p.rows_k, r + 1);
    }
    __aicore__ inline bool next(MlaJob& j) {
        while (r < p.batch && at >= before + jobs_of_request()) {
            before += jobs_of_request();
            enter();
        }
        if (r >= p.batch) return false;
        int32_t u = int32_t(at - before);
        j.r = r;
        j.split = u % p.splits;
        u /= p.splits;
        rows_of(j, u % groups, u / groups * per_job);
        keys_of(j, u / groups * per_job);
        at += int64_t(get_block_num());
        return true;
    }
    __aicore__ inline void rows_of(MlaJob& j, int32_t group, int32_t token) {
        const int32_t n = di::min(per_job, n_q - token), heads = p.mode == MLA_HEADS ? 1 : di::min(ROWS, p.heads - group * ROWS);
        j.head = p.mode == MLA_HEADS ? group : group * ROWS;
        j.b = p.cu_q != nullptr ? 0 : r;
        j.token = token + (p.cu_q != nullptr ? q.low : 0);
        j.wide = heads > HALF;
        j.heads[0] = j.wide ? HALF : heads;
        j.heads[1] = j.wide ? heads - HALF : heads;
        j.tokens[0] = di::min(n, HALF / j.heads[0]);
        j.tokens[1] = j.wide ? 1 : n - j.tokens[0];
    }
    __aicore__ inline void keys_of(MlaJob& j, int32_t token) {
        j.key0 = k.low;
        j.low = NO_LIMIT;
        j.step = 0;
        for (int32_t i = 0; i < 2; ++i) {
            j.first[i] = j.limit[i] = j.blocks[i] = 0;
            if (i >= p.pools) continue;
            const MlaPool& o = p.pool[i];
            int64_t n = p.cu_k != nullptr ? k.high - k.low : o.topk;
            if (p.length[i] != nullptr) n = mla_int(p.length[i] + r * o.length_b + token * o.length_s, o.length_bytes);
            if (p.cu_k == nullptr) n = di::max(di::min(n, int64_t(o.topk)), int64_t(0));
            if (p.causal != 0) {
                j.low = int32_t(n) - n_q + token + 1;
                j.step = 1;
                n = di::max(int64_t(j.low + j.tokens[0] - 1 + (j.wide ? 0 : j.tokens[1])), int64_t(0));
            }
            j.limit[i] = int32_t(n);
            const int32_t all = di::div_up(j.limit[i], KEYS), share = di::div_up(all, p.splits);
            j.first[i] = di::min(j.split * share, all);
            j.blocks[i] = di::min(share, all - j.first[i]);
        }
    }
};

// Jobs of a window whose tokens must be computed one by one.
#ifndef DEEPINFER_MLA_WINDOW  // of another size only in a test
#define DEEPINFER_MLA_WINDOW 4096
#endif
constexpr int32_t WINDOW = DEEPINFER_MLA_WINDOW;
struct Marks {
    uint64_t word[WINDOW / 64];
    bool any;
    __aicore__ inline void clear() {
        any = false;
        for (int32_t i = 0; i < WINDOW / 64; ++i) word[i] = 0;
    }
    __aicore__ inline void set(int32_t i) {
        any = true;
        word[i / 64] |= uint64_t(1) << i % 64;
    }
    __aicore__ inline bool has(int32_t i) const { return (word[i / 64] >> i % 64 & 1) != 0; }
};

// Walks the blocks of keys of a core's jobs, one after the other, in windows of jobs; jobs without keys are skipped. With
// marks it walks the tokens of marked jobs instead, each as a job of its own.
template <class T>
struct Cursor {
    Jobs<T> jobs;
    MlaJob j, whole;
    const Marks* marks;
    int32_t t = 0, n = 0, made = 0, place, token = 0;  // block of the job; block and job of the walk; job of the window
    bool more, cut = false;                            // whether another window follows
    __aicore__ inline Cursor(const MlaArgs& p, int32_t window, const Marks* only) : jobs(p), marks(only), place(-window * WINDOW) {
        whole.tokens[0] = whole.tokens[1] = 0;
        whole.wide = false;
        more = find();
    }
    __aicore__ inline bool single() {
        j = whole.alone(token++, Jobs<T>::KEYS);
        j.number = made++;
        return true;
    }
    __aicore__ inline bool find() {
        t = 0;
        if (token < whole.shared()) return single();
        while (jobs.next(j)) {
            if (j.total() == 0 || place++ < 0) continue;
            if (place > WINDOW) {
                cut = true;
                return false;
            }
            if (marks == nullptr) {
                j.number = made++;
                return true;
            }
            if (!marks->has(place - 1)) continue;
            whole = j;
            token = 0;
            return single();
        }
        return false;
    }
    __aicore__ inline bool last() const { return t + 1 == j.total(); }
    __aicore__ inline int32_t pool() const { return t < j.blocks[0] ? 0 : 1; }
    __aicore__ inline int32_t first_key() const { return (pool() == 0 ? j.first[0] + t : j.first[1] + t - j.blocks[0]) * Jobs<T>::KEYS; }
    // Keys of this block that every token of the job sees.
    __aicore__ inline int32_t common() const { return j.shared() > 1 && j.step > 0 ? di::max(di::min(j.low - first_key(), Jobs<T>::KEYS), 0) : Jobs<T>::KEYS; }
    __aicore__ inline void advance() {
        ++n;
        if (++t == j.total()) more = find();
    }
};
