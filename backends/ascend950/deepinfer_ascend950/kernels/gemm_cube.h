// What the cube-only GEMM kernels share: the loop over tiles, the bias table, and the way from L0C to memory.
//
// `Self` provides multiply(tile, l0c_offset). L0C holds two tiles, so that the FixPipe stores one while the cube fills
// the other; buffer ids 4 and 5 pass them on, id 6 the bias.
#pragma once
#include "gemm_tile.h"

constexpr int32_t BM = 128, BN = 256;
constexpr int32_t BUF_L1 = 0, BUF_L0 = 2, BUF_C = 4, BUF_BIAS = 6;
constexpr uint32_t L1_A = 0, L1_BIAS = 196608, L1_B = 262144;  // A in the lower bank of L1, B in the upper one

template <class Self>
struct CubeGemm {
    const GemmArgs& p;
    int32_t slab = 0, step = 0, tile = 0;
    __aicore__ inline explicit CubeGemm(const GemmArgs& args) : p(args) {}

    // bias[col, col + cols) into the bias table as float.
    template <class B>
    __aicore__ inline void load_bias(const Tile& t) {
        const int32_t bytes = t.cols * int32_t(sizeof(B));
        asc_lock(PIPE_MTE2, BUF_BIAS);
        asc_copy_gm2l1_align(mem::l1<B>(L1_BIAS), (__gm__ B*)p.bias + t.col, 1, uint32_t(bytes), 0, 0, false, uint8_t(0), 0, 0);
        asc_unlock(PIPE_MTE2, BUF_BIAS);
        asc_lock(PIPE_MTE1, BUF_BIAS);
        asc_copy_l12bt(0, mem::l1<B>(L1_BIAS), uint16_t(std::is_same_v<B, half>), 1, uint16_t(sizeof(B) == 4 ? di::round_up(bytes, 64) / 32 : di::div_up(bytes, 32)), 0, 0);
        asc_unlock(PIPE_MTE1, BUF_BIAS);
        asc_lock(PIPE_M, BUF_BIAS);
    }
    __aicore__ inline void bias(const Tile& t) {
        if (p.bias_type == OUT_F32) load_bias<float>(t);
        else if (p.bias_type == OUT_BF16) load_bias<bfloat16_t>(t);
        else load_bias<half>(t);
    }

    template <class D>
    __aicore__ inline void store(const Tile& t, uint64_t c_off, QuantMode_t quant) {
        __gm__ uint8_t* d = p.d + (p.mode == GEMM_MASKED ? t.group * p.d_group : 0) + int64_t(t.row) * p.d_row;
        asc_copy_l0c2gm((__gm__ D*)d + t.col, mem::l0c<float>(c_off), uint16_t(t.cols), uint16_t(t.rows), uint32_t(p.d_row / int64_t(sizeof(D))),
                        uint16_t(MUTANT(10) ? t.rows : di::round_up(t.rows, 16)), uint8_t(0), uint8_t(0), uint8_t(0), uint64_t(quant), uint8_t(0), false, true,
                        uint64_t(0), uint8_t(0), false, uint8_t(0), false, false, false, false);
    }

    // D = bias, or zeros: the product when K is 0.
    __aicore__ inline void empty_product(const Tile& t, uint64_t c_off) {
        asc_lock(PIPE_MTE1, BUF_L0);
        load_zeros<bfloat16_t>(L1_A, L1_B, di::div_up(t.rows, 16), di::div_up(t.cols, 16));
        asc_unlock(PIPE_MTE1, BUF_L0);
        asc_lock(PIPE_M, BUF_L0);
        asc_mmad(mem::l0c<float>(c_off), mem::l0a<bfloat16_t>(0), mem::l0b<bfloat16_t>(0), uint16_t(t.rows), uint16_t(16), uint16_t(t.cols), uint8_t(0), true, p.bias != nullptr, p.bias == nullptr);
        asc_unlock(PIPE_M, BUF_L0);
    }

    __aicore__ inline void run() {
        asc_set_ctrl(uint64_t(asc_get_ctrl()) | di::kKeepNan);
        asc_disable_hf32();
        asc_set_mmad_direction_n();
        asc_set_l0c_copy_nz_para(1, 0, 0);
        TileWalk<BM, BN> walk(p);
        for (Tile t; walk.step(t); ++tile) {
            const int32_t cb = BUF_C + tile % 2;
            const uint64_t c_off = uint64_t(tile % 2) * 131072;
            if (p.bias != nullptr) bias(t);
            if (!MUTANT(11)) asc_lock(PIPE_M, cb);
            if (p.k == 0) empty_product(t, c_off);
            else static_cast<Self*>(this)->multiply(t, c_off);
            if (!MUTANT(11)) asc_unlock(PIPE_M, cb);
            if (p.bias != nullptr) asc_unlock(PIPE_M, BUF_BIAS);
            if (!MUTANT(12)) asc_lock(PIPE_FIX, cb);
            if (p.out == OUT_F32) store<float>(t, c_off, QuantMode_t::NoQuant);
            else if (p.out == OUT_BF16) store<bfloat16_t>(t, c_off, QuantMode_t::F322BF16);
            else store<half>(t, c_off, QuantMode_t::F322F16);
            if (!MUTANT(12)) asc_unlock(PIPE_FIX, cb);
        }
    }
};
