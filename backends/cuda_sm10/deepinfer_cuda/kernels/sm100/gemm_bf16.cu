// The compiled shapes of sm100_gemm_bf16; names say rows of one CTA, block columns, stages, CTAs per tile.
#include "kernels/sm100/gemm_bf16.cuh"

DI_SM100_GEMM_BF16(sm100_gemm_bf16_128x256x6_c2, 256, 6, 2)
DI_SM100_GEMM_BF16(sm100_gemm_bf16_128x128x8_c2, 128, 8, 2)
DI_SM100_GEMM_BF16(sm100_gemm_bf16_128x256x4_c1, 256, 4, 1)
DI_SM100_GEMM_BF16(sm100_gemm_bf16_128x128x6_c1, 128, 6, 1)
DI_SM100_GEMM_BF16(sm100_gemm_bf16_128x64x8_c1, 64, 8, 1)
