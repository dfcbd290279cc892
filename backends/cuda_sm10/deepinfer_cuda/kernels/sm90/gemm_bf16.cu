// The compiled shapes of sm90_gemm_bf16; names say block rows, block columns, stages.
#include "kernels/sm90/gemm_bf16.cuh"

DI_SM90_GEMM_BF16(sm90_gemm_bf16_128x256x4, 128, 256, 4)
DI_SM90_GEMM_BF16(sm90_gemm_bf16_128x128x6, 128, 128, 6)
DI_SM90_GEMM_BF16(sm90_gemm_bf16_64x256x5, 64, 256, 5)
DI_SM90_GEMM_BF16(sm90_gemm_bf16_64x128x8, 64, 128, 8)
