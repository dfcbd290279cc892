// The compiled shapes of sm90_gemm_bf16; names say block rows, block columns, stages, CTAs per cluster.
#include "kernels/sm90/gemm_bf16.cuh"

DI_SM90_GEMM_BF16(sm90_gemm_bf16_128x256x4_c2, 128, 256, 4, 2)
DI_SM90_GEMM_BF16(sm90_gemm_bf16_128x256x4_c1, 128, 256, 4, 1)
DI_SM90_GEMM_BF16(sm90_gemm_bf16_128x128x6_c1, 128, 128, 6, 1)
DI_SM90_GEMM_BF16(sm90_gemm_bf16_64x256x5_c1, 64, 256, 5, 1)
DI_SM90_GEMM_BF16(sm90_gemm_bf16_64x128x8_c1, 64, 128, 8, 1)
