// SM90 test kernel of the PTX simulator: D[M][N] (f32) = A[M][K] * B[N][K]^T, bf16, TMA + mbarrier pipeline + wgmma.
//
//   warp 4 (producer, one elected lane)          warps 0-3 (consumer warpgroup)
//     wait empty[s]                                wait full[s]
//     expect_tx full[s]; TMA A -> sA[s]            4 x wgmma m64n128k16 on sA[s], sB[s]
//                        TMA B -> sB[s]  ------->  commit, wait<0>, arrive empty[s]
//
// Bound by neither: it exists to exercise instructions. Tiles 64 x 128 x 64, kStages stages, 128-byte swizzle.
// Made with: nvcc -ptx -arch=sm_90a -std=c++17 -lineinfo
#include <cuda.h>
#include <cuda_bf16.h>
#include <stdint.h>

constexpr int kM = 64, kN = 128, kK = 64, kStages = 3;
constexpr uint32_t kABytes = kM * kK * 2, kBBytes = kN * kK * 2;

__device__ inline uint32_t smem_u32(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ inline void wait_parity(uint32_t bar, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred P1;\nLAB_WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1;\n@P1 bra DONE;\nbra LAB_WAIT;\nDONE:\n}" ::"r"(bar),
        "r"(parity)
        : "memory");
}

__device__ inline void tma_2d(uint32_t dst, const CUtensorMap* map, uint32_t bar, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(dst), "l"(map), "r"(bar),
                 "r"(x), "r"(y)
                 : "memory");
}

__device__ inline uint64_t desc_k128(uint32_t addr) {  // K-major, 128-byte swizzle: SBO 1024
    return (uint64_t)((addr & 0x3ffff) >> 4) | (uint64_t)(1024 >> 4) << 32 | 1ull << 16 | 1ull << 62;
}

__device__ inline void wgmma_n128(float (&d)[64], uint64_t a, uint64_t b, int scale_d) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, 0, 0;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
          "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),
          "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]),
          "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]),
          "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(scale_d));
}

extern "C" __global__ void __launch_bounds__(160) gemm(const __grid_constant__ CUtensorMap ma, const __grid_constant__ CUtensorMap mb, float* d, int n_total,
                                                         int k_total) {
    extern __shared__ __align__(1024) uint8_t smem[];
    __shared__ __align__(8) uint64_t full[kStages], empty[kStages];
    const uint32_t sa = smem_u32(smem), sb = sa + kStages * kABytes;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, blocks = k_total / kK;

    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; ++s) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_u32(&full[s])), "r"(1));
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_u32(&empty[s])), "r"(4));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    if (warp == 4) {
        if (lane == 0)
#pragma unroll 1
            for (int i = 0; i < blocks; ++i) {
                const int s = i % kStages, round = i / kStages;
                const uint32_t bar = smem_u32(&full[s]);
                wait_parity(smem_u32(&empty[s]), (round & 1) ^ 1);
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(kABytes + kBBytes) : "memory");
                tma_2d(sa + s * kABytes, &ma, bar, i * kK, blockIdx.x * kM);
                tma_2d(sb + s * kBBytes, &mb, bar, i * kK, blockIdx.y * kN);
            }
        return;
    }

    float acc[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) acc[i] = 0;
#pragma unroll 1
    for (int i = 0; i < blocks; ++i) {
        const int s = i % kStages, round = i / kStages;
        wait_parity(smem_u32(&full[s]), round & 1);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < 4; ++k) wgmma_n128(acc, desc_k128(sa + s * kABytes + k * 32), desc_k128(sb + s * kBBytes + k * 32), i > 0 || k > 0);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        if (lane == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_u32(&empty[s])) : "memory");
    }
    const int row = blockIdx.x * kM + warp * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 64; i += 2) {
        const int r = row + (i / 2 % 2) * 8, c = blockIdx.y * kN + i / 4 * 8 + lane % 4 * 2;
        *(float2*)(d + (size_t)r * n_total + c) = make_float2(acc[i], acc[i + 1]);
    }
}
