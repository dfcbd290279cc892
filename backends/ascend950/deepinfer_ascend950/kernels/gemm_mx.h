// The multiplication of block-scaled operands, shared by the kernels that end in the FixPipe (gemm_mx) and in the vector
// cores (gemm_vec): slabs of 512 of K through L1 and L0 into one L0C tile. B is e4m3, or e2m1 that the vector cores widen to
// e4m3 (exact: every e2m1 value is one) and push into L1.
//
//   AIC:  GM --MTE2--> L1 [2 x (A 128 x 512 | B BN x 512 | their scales)] --MTE1--> L0A/L0B + scales [2 x 128 of K] --M--> L0C
//   AIVs, e2m1 only, half of B's rows each:  GM --MTE2--> UB codes [2] --V--> UB fractals of 256 of K [2] --MTE3--> L1 B
//
// The cube wants scales as [16 rows][64 of K] blocks of 32 bytes: row r holds the scales of its two halves. Read as 16-bit
// pairs, a row-major scale matrix becomes that by the transposing copy, so rows must hold whole pairs that lie
// at even addresses: other scale matrices are copied first (mx_expand). A ragged end of K is filled up with zeros.
//
// B_FULL says that a slab of B is there, B_FREE + slot that its place may be filled again.
#pragma once
#include "gemm_tile.h"

constexpr int32_t MX_KS = 512, MX_KL = 128, MX_PIECE = 256;
constexpr int32_t MX_L1 = 0, MX_L0 = 2, MX_IN = 8, MX_OUT = 10;  // buffer ids: cube core, vector cores
constexpr int32_t B_FULL = 4, B_FREE = 5;                        // cross-core flags
constexpr uint32_t MX_A = 0, MX_SA = 131072, MX_SB = 139264, MX_B = 262144;

// Rows of B in a tile that vector core `v` brings.
template <int32_t BN>
__aicore__ inline int32_t fed_rows(const Tile& t, int32_t v) { return v == 0 ? di::min(t.cols, BN / 2) : di::max(t.cols - BN / 2, 0); }

template <int32_t BN, bool FP4>
struct MxSlabs {
    using E4 = fp8_e4m3fn_t;
    const GemmArgs& p;
    int32_t slab = 0, step = 0;
    __aicore__ inline explicit MxSlabs(const GemmArgs& args) : p(args) {}

    __aicore__ inline void load(uint64_t off, __gm__ uint8_t* src, int64_t row, int64_t col, int32_t rows, int32_t kk) {
        asc_set_gm2l1_nz_para(1, 1, uint16_t(di::round_up(rows, 16)), 0);
        if (col == 1) asc_copy_gm2l1_nd2nz(mem::l1<E4>(off), (__gm__ E4*)src, uint64_t(row), uint8_t(0), uint16_t(rows), uint32_t(kk), uint64_t(0), false);
        else asc_copy_gm2l1_dn2nz(mem::l1<E4>(off), (__gm__ E4*)src, uint64_t(col), uint8_t(0), uint16_t(rows), uint32_t(kk), uint64_t(0), false);
    }
    __aicore__ inline void load_scales(uint64_t off, __gm__ uint8_t* src, int64_t row, int32_t rows, int32_t kk) {
        asc_set_gm2l1_nz_para(1, 1, uint16_t(MX_KS / 64), 0);
        asc_copy_gm2l1_dn2nz(mem::l1<half>(off), (__gm__ half*)src, uint64_t(row), uint8_t(0), uint16_t(di::div_up(kk, 64)), uint32_t(rows), uint64_t(0), false);
    }
    // `count` runs of `blocks` times 32 zero bytes.
    __aicore__ inline void zeros(uint64_t off, int32_t blocks, int32_t count, int32_t pitch) {
        asc_fill_value_config fill;
        fill.repeat = uint64_t(count);
        fill.blk_num = uint64_t(blocks);
        fill.dst_gap = uint64_t(pitch - blocks);
        asc_fill_l1(mem::l1<half>(off), half(0.0f), fill);
    }
    // Slab [k0, k0 + kk) into L1, apart from e2m1 weights. Columns up to `wide` get scales of 2^-127.
    __aicore__ inline void fetch(const Tile& t, int32_t k0, int32_t kk, int32_t wide) {
        const bool masked = p.mode == GEMM_MASKED;
        __gm__ uint8_t* a = p.a + (masked ? t.group * p.a_group : 0) + int64_t(t.row) * p.a_row;
        __gm__ uint8_t* sa = p.a_scale + (masked ? t.group * p.sa_group : 0) + int64_t(t.row) * p.sa_row;
        __gm__ uint8_t* b = p.b + t.group * p.b_group + int64_t(t.col) * p.b_row;
        __gm__ uint8_t* sb = p.b_scale + t.group * p.sb_group + int64_t(t.col) * p.sb_row;
        const int32_t odd = slab % 2;
        const uint8_t lb = uint8_t(MX_L1 + odd);
        const uint64_t sb1 = MX_SB + uint64_t(odd) * 4096;
        if (wide > t.cols) {
            asc_lock(PIPE_MTE1, lb);
            zeros(sb1 + uint64_t(t.cols / 16) * (MX_KS / 64) * 32, MX_KS / 64, 1, MX_KS / 64);
            asc_unlock(PIPE_MTE1, lb);
        }
        asc_lock(PIPE_MTE2, lb);
        load(MX_A + uint64_t(odd) * 65536, a + k0 * p.a_col, p.a_row, p.a_col, t.rows, kk);
        if (!FP4) load(MX_B + uint64_t(odd) * 131072, b + k0 * p.b_col, p.b_row, p.b_col, t.cols, kk);
        load_scales(MX_SA + uint64_t(odd) * 2048, sa + k0 / 32, p.sa_row, t.rows, kk);
        load_scales(sb1, sb + (MUTANT(20) ? 0 : k0 / 32), p.sb_row, t.cols, kk);
        asc_unlock(PIPE_MTE2, lb);
    }
    __aicore__ inline void wait_fed(const Tile& t) {
        for (int32_t v = 0; FP4 && !MUTANT(26) && v < 2; ++v)
            if (fed_rows<BN>(t, v) > 0) asc_sync_intra_wait(PIPE_MTE1, uint64_t(B_FULL + 16 * v));
    }
    __aicore__ inline void free_fed(const Tile& t) {
        for (int32_t v = 0; FP4 && v < 2; ++v)
            if (fed_rows<BN>(t, v) > 0) asc_sync_intra_arrive(PIPE_MTE1, uint64_t(B_FREE + slab % 2 + 16 * v));
    }

    // Tile x all of K (> 0) into L0C at c_off; `wide` >= t.cols columns, the last ones zero.
    __aicore__ inline void multiply(const Tile& t, uint64_t c_off, int32_t wide, bool bias) {
        const int32_t ra = di::div_up(t.rows, 16), rb = di::div_up(t.cols, 16);
        for (int32_t k0 = 0; k0 < p.k; k0 += MX_KS, ++slab) {
            const int32_t kk = di::min(MX_KS, p.k - k0), whole = di::round_up(kk, 64), blocks = di::div_up(kk, 32), odd = slab % 2;
            const uint8_t lb = uint8_t(MX_L1 + odd);
            const uint64_t a1 = MX_A + uint64_t(odd) * 65536, b1 = MX_B + uint64_t(odd) * 131072;
            const uint64_t sa1 = MX_SA + uint64_t(odd) * 2048, sb1 = MX_SB + uint64_t(odd) * 4096;
            fetch(t, k0, kk, wide);
            if (!MUTANT(21)) asc_lock(PIPE_MTE1, lb);
            wait_fed(t);
            if (blocks % 2 && !MUTANT(25)) {  // the second half of the last 64 of K, when only the first exists
                zeros(a1 + uint64_t(blocks) * uint64_t(ra) * 512, ra * 16, 1, ra * 16);
                if (!FP4) zeros(b1 + uint64_t(blocks) * uint64_t(rb) * 512, rb * 16, 1, rb * 16);
            }
            if (wide > t.cols && !MUTANT(27)) zeros(b1 + uint64_t(t.cols) * 32, wide - t.cols, whole / 32, rb * 16);
            for (int32_t kl = 0; kl < whole; kl += MX_KL, ++step) {
                const int32_t depth = di::min(MX_KL, whole - kl);
                const uint8_t zb = uint8_t(MX_L0 + step % 2), cols = uint8_t(depth / 32), pairs = uint8_t(depth / 64);
                const uint64_t a0 = uint64_t(step % 2) * 32768, b0 = uint64_t(step % 2) * 32768;
                asc_lock(PIPE_MTE1, zb);
                asc_copy_l12l0a(mem::l0a<E4>(a0), mem::l1<E4>(a1), 0, uint16_t(kl / 32), uint8_t(ra), cols, int16_t(ra), uint16_t(ra));
                asc_copy_l12l0b(mem::l0b<E4>(b0), mem::l1<E4>(b1), 0, uint16_t(kl / 32), uint8_t(rb), cols, int16_t(rb), uint16_t(rb));
                asc_copy_l12l0a_mx(mem::scale_address(mem::l0a<uint8_t>(a0)), mem::l1<fp8_e8m0_t>(sa1), 0, uint16_t(MUTANT(22) ? 0 : kl / 64), uint8_t(ra), pairs, uint16_t(MX_KS / 64), uint16_t(pairs));
                asc_copy_l12l0b_mx(mem::scale_address(mem::l0b<uint8_t>(b0)), mem::l1<fp8_e8m0_t>(sb1), 0, uint16_t(kl / 64), uint8_t(rb), pairs, uint16_t(MUTANT(23) ? pairs : MX_KS / 64), uint16_t(pairs));
                asc_unlock(PIPE_MTE1, zb);
                if (!MUTANT(24)) asc_lock(PIPE_M, zb);
                const bool first = k0 == 0 && kl == 0;
                asc_mmad_mx(mem::l0c<float>(c_off), mem::l0a<E4>(a0), mem::l0b<E4>(b0), uint16_t(t.rows), uint16_t(depth), uint16_t(wide), uint8_t(0), true, first && bias, first && !bias);
                if ((t.rows / 16) * (wide / 16) < 10) pipe_barrier(PIPE_M);
                if (!MUTANT(24)) asc_unlock(PIPE_M, zb);
            }
            if (!MUTANT(21)) asc_unlock(PIPE_MTE1, lb);
            free_fed(t);
        }
    }
};

// Two e2m1 codes of each 16-bit lane, one per byte, become e4m3: with m the code without its sign, 0x30 + 4 m, but 0 and
// 0x30 for the two values below 1.
__simd_callee__ inline void e2m1_to_e4m3(vector_u16& x, const vector_u16& sign, const vector_u16& magnitude, const vector_u16& ones, const vector_u16& base) {
    const vector_bool all = asc_create_mask_b16(PAT_ALL), bytes = asc_create_mask_b8(PAT_ALL);
    vector_u16 m, s, big, low, part;
    asc_and(s, x, sign, all);
    asc_shiftleft_scalar(s, s, 4, all);
    asc_and(m, x, magnitude, all);
    asc_shiftleft_scalar(big, m, 2, all);
    asc_add(big, big, base, all);
    asc_and(low, m, ones, all);
    asc_shiftleft_scalar(part, low, 5, all);
    asc_shiftleft_scalar(low, low, 4, all);
    asc_add(low, low, part, all);
    const vector_bool above = asc_ge_scalar(AS(vector_u8, m), uint8_t(MUTANT(28) ? 1 : 2), bytes);
    asc_select(AS(vector_u8, big), AS(vector_u8, big), AS(vector_u8, low), above);
    asc_or(x, big, s, all);
}
// `pairs` times two rows of 128 bytes of codes into fractals of 32 columns, `pitch` rows apart.
__simd_vf__ inline void expand_fp4(__ubuf__ uint8_t* nz, __ubuf__ uint8_t* raw, uint16_t pairs, uint16_t pitch) {
    const vector_bool all = asc_create_mask_b16(PAT_ALL), bytes = asc_create_mask_b8(PAT_ALL);
    vector_u16 nibble, sign, magnitude, ones, base;
    asc_duplicate_scalar(nibble, 0x0F0F, all);
    asc_duplicate_scalar(sign, 0x0808, all);
    asc_duplicate_scalar(magnitude, 0x0707, all);
    asc_duplicate_scalar(ones, 0x0101, all);
    asc_duplicate_scalar(base, 0x3030, all);
    for (uint16_t i = 0; i < pairs; ++i) {
        vector_u16 even = asc_loadalign((__ubuf__ uint16_t*)(raw + i * 256)), odd;
        asc_shiftright_scalar(odd, even, 4, all);
        asc_and(even, even, nibble, all);
        asc_and(odd, odd, nibble, all);
        e2m1_to_e4m3(even, sign, magnitude, ones, base);
        e2m1_to_e4m3(odd, sign, magnitude, ones, base);
        vector_u8 first, second;
        asc_intlv(first, second, AS(vector_u8, even), AS(vector_u8, odd));
        asc_storealign(nz + i * 64, first, pitch, uint16_t(0), bytes);
        asc_storealign(nz + i * 64 + 32, second, pitch, uint16_t(0), bytes);
    }
}

// A vector core's part of the weights: walks the same slabs as MxSlabs. `at` is the first of UB_BYTES bytes of UB it uses.
template <int32_t BN>
struct Fp4Feed {
    static constexpr int32_t HALF = BN / 2, PITCH = HALF + 1;
    static constexpr uint32_t IN_SLOT = HALF * 128, OUT_SLOT = 8 * PITCH * 32, UB_BYTES = 2 * (IN_SLOT + OUT_SLOT);
    const GemmArgs& p;
    const uint64_t in_at, out_at;
    int32_t me = int32_t(get_subblockid()), slab = 0, turn = 0;
    bool used[2] = {false, false};
    __aicore__ inline Fp4Feed(const GemmArgs& args, uint64_t in_, uint64_t out_) : p(args), in_at(in_), out_at(out_) { asc_set_copy_pad_val(uint8_t(0)); }

    __aicore__ inline void load(uint64_t ub, __gm__ uint8_t* src, int32_t rows, int32_t bytes) {
        if (p.b_col == 1) {
            asc_copy_gm2ub_align(mem::ub<uint8_t>(ub), src, uint32_t(rows), uint32_t(bytes), uint8_t(0), uint8_t(di::round_up(bytes, 32) - bytes), true, uint8_t(0), uint64_t(p.b_row), 128u);
            return;
        }
        for (int32_t r = 0; r < rows; ++r)
            asc_copy_gm2ub_align(mem::ub<uint8_t>(ub + uint64_t(r) * 128), src + r * p.b_row, uint32_t(bytes), 1u, uint8_t(0), uint8_t(0), false, uint8_t(0), uint64_t(p.b_col), 1u);
    }
    __aicore__ inline void tile(const Tile& t) {
        const int32_t rows = fed_rows<BN>(t, me), rb = di::round_up(t.cols, 16);
        __gm__ uint8_t* src = p.b + t.group * p.b_group + int64_t(t.col + HALF * me) * p.b_row;
        for (int32_t k0 = 0; k0 < p.k; k0 += MX_KS, ++slab) {
            if (rows == 0) continue;
            const int32_t kk = di::min(MX_KS, p.k - k0), odd = slab % 2;
            for (int32_t kl = 0; kl < kk; kl += MX_PIECE, ++turn) {
                const int32_t n = di::min(MX_PIECE, kk - kl), slot = turn % 2;
                const uint64_t in = in_at + uint64_t(slot) * IN_SLOT, out = out_at + uint64_t(slot) * OUT_SLOT;
                asc_lock(PIPE_MTE2, uint8_t(MX_IN + slot));
                load(in, src + int64_t(k0 + kl) / 2 * p.b_col, rows, n / 2);
                asc_unlock(PIPE_MTE2, uint8_t(MX_IN + slot));
                asc_lock(PIPE_V, uint8_t(MX_IN + slot));
                asc_lock(PIPE_V, uint8_t(MX_OUT + slot));
                VF_CALL(expand_fp4, mem::ub<uint8_t>(out), mem::ub<uint8_t>(in), uint16_t(di::div_up(rows, 2)), uint16_t(PITCH));
                asc_unlock(PIPE_V, uint8_t(MX_OUT + slot));
                asc_unlock(PIPE_V, uint8_t(MX_IN + slot));
                if (kl == 0 && used[odd] && !MUTANT(29)) asc_sync_intra_wait(PIPE_MTE3, uint64_t(B_FREE + odd));
                asc_lock(PIPE_MTE3, uint8_t(MX_OUT + slot));
                asc_copy_ub2l1(mem::l1<uint8_t>(MX_B + uint64_t(odd) * 131072 + uint64_t(kl) * uint64_t(rb) + uint64_t(HALF * me) * 32), mem::ub<uint8_t>(out), uint16_t(di::round_up(n, 64) / 32), uint16_t(rows),
                               uint16_t(PITCH - rows), uint16_t(rb - rows));
                asc_unlock(PIPE_MTE3, uint8_t(MX_OUT + slot));
            }
            asc_sync_intra_arrive(PIPE_MTE3, uint64_t(B_FULL));
            used[odd] = true;
        }
    }
    // Takes back what is still out, so that all counters end where they began.
    __aicore__ inline void drain() {
        for (int32_t i = 0; i < 2; ++i)
            if (used[i]) asc_sync_intra_wait(PIPE_MTE3, uint64_t(B_FREE + i));
    }
};
