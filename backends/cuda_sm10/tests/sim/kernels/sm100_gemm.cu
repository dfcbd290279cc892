// SM100 test kernels of the PTX simulator: D[M][N] (f32) = A[M][K] * B[N][K]^T, bf16, TMA + mbarrier pipeline + tcgen05.
//
//   warp 0 (one lane)   producer   wait empty[s] -> expect_tx, TMA A, TMA B -> full[s]
//   warp 1 (one lane)   issuer     wait drained -> per block: wait full[s] -> 4 x tcgen05.mma -> commit empty[s]; commit filled
//   warp 1              allocates and frees tensor memory
//   warps 2-5           epilogue   wait filled -> tcgen05.ld -> arrive drained -> global
//
// Every CTA works through `tiles` column tiles with one accumulator, so that buffers, barriers and tensor memory are all reused.
//
// kCtas = 2: a cluster of two CTAs shares one 256-row tile. Each loads its 128 rows of A and its half of B; both signal the
// barrier of the even CTA, whose issuer drives the tensor cores of both (cta_group::2).
// Made with: nvcc -ptx -arch=sm_100a -std=c++17 -lineinfo
#include <cuda.h>
#include <stdint.h>

constexpr int kRows = 128, kN = 128, kK = 64, kStages = 3;

__device__ inline uint32_t smem_u32(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ inline void wait_parity(uint32_t bar, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred P1;\nLAB_WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1;\n@P1 bra DONE;\nbra LAB_WAIT;\nDONE:\n}" ::"r"(bar),
        "r"(parity)
        : "memory");
}

__device__ inline bool elect() {
    uint32_t p;
    asm volatile("{\n.reg .b32 %%rx;\n.reg .pred %%px;\nelect.sync %%rx|%%px, 0xffffffff;\nselp.b32 %0, 1, 0, %%px;\n}" : "=r"(p));
    return p;
}

template <int kCtas>
__device__ inline void tma_2d(uint32_t dst, const CUtensorMap* map, uint32_t bar, int x, int y) {
    if (kCtas == 2)
        asm volatile("cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(dst),
                     "l"(map), "r"(bar), "r"(x), "r"(y)
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(dst), "l"(map),
                     "r"(bar), "r"(x), "r"(y)
                     : "memory");
}

__device__ inline uint64_t desc_k128(uint32_t addr) {  // K-major, 128-byte swizzle: SBO 1024, version 1
    return (uint64_t)((addr & 0x3ffff) >> 4) | (uint64_t)(1024 >> 4) << 32 | 1ull << 16 | 1ull << 46 | 2ull << 61;
}

template <int kCtas>
__device__ inline void mma(uint32_t d, uint64_t a, uint64_t b, uint32_t idesc, uint32_t accumulate) {
    if (kCtas == 2)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\ntcgen05.mma.cta_group::2.kind::f16 [%0], %1, %2, %3, p;\n}" ::"r"(d), "l"(a), "l"(b),
                     "r"(idesc), "r"(accumulate));
    else
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\ntcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n}" ::"r"(d), "l"(a), "l"(b),
                     "r"(idesc), "r"(accumulate));
}

template <int kCtas>
__device__ inline void commit(uint32_t bar) {
    if (kCtas == 2)
        asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(bar), "h"((uint16_t)3)
                     : "memory");
    else
        asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(bar) : "memory");
}

template <int kCtas>
__device__ inline void sync_all() {
    if (kCtas == 2) asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    else __syncthreads();
}

template <int kCtas>
__device__ void gemm(const CUtensorMap& ma, const CUtensorMap& mb, float* d, int n_total, int k_total, int tiles) {
    extern __shared__ __align__(1024) uint8_t smem[];
    __shared__ __align__(8) uint64_t full[kStages], empty[kStages], filled, drained;
    __shared__ uint32_t tmem_at;
    constexpr uint32_t kABytes = kRows * kK * 2, kBBytes = kN / kCtas * kK * 2;
    const uint32_t sa = smem_u32(smem), sb = sa + kStages * kABytes;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, blocks = k_total / kK;
    uint32_t rank = 0;
    if (kCtas == 2) asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));

    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; ++s) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_u32(&full[s])), "r"(1));
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_u32(&empty[s])), "r"(1));
        }
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_u32(&filled)), "r"(1));
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_u32(&drained)), "r"(4 * kCtas));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (warp == 1) {
        if (kCtas == 2) asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(smem_u32(&tmem_at)), "r"(kN) : "memory");
        else asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(smem_u32(&tmem_at)), "r"(kN) : "memory");
    }
    sync_all<kCtas>();
    const uint32_t tmem = *(volatile uint32_t*)&tmem_at;

    if (warp == 0 && elect()) {
#pragma unroll 1
        for (int i = 0; i < blocks * tiles; ++i) {
            const int s = i % kStages, round = i / kStages, k = i % blocks * kK, n = (blockIdx.y * tiles + i / blocks) * kN;
            uint32_t bar = smem_u32(&full[s]);
            wait_parity(smem_u32(&empty[s]), (round & 1) ^ 1);
            if (rank == 0) asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(kCtas * (kABytes + kBBytes)) : "memory");
            if (kCtas == 2) bar &= 0xFEFFFFFF;  // the barrier of the even CTA
            tma_2d<kCtas>(sa + s * kABytes, &ma, bar, k, blockIdx.x * kRows);
            tma_2d<kCtas>(sb + s * kBBytes, &mb, bar, k, n + rank * (kN / kCtas));
        }
    } else if (warp == 1 && rank == 0 && elect()) {
        const uint32_t idesc = 1u << 4 | 1u << 7 | 1u << 10 | (kN >> 3) << 17 | (kRows * kCtas >> 4) << 24;
#pragma unroll 1
        for (int i = 0; i < blocks * tiles; ++i) {
            const int s = i % kStages, round = i / kStages, block = i % blocks, tile = i / blocks;
            if (block == 0) {
                wait_parity(smem_u32(&drained), (tile & 1) ^ 1);
                asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
            }
            wait_parity(smem_u32(&full[s]), round & 1);
#pragma unroll
            for (int k = 0; k < 4; ++k) mma<kCtas>(tmem, desc_k128(sa + s * kABytes + k * 32), desc_k128(sb + s * kBBytes + k * 32), idesc, block > 0 || k > 0);
            commit<kCtas>(smem_u32(&empty[s]));
            if (block == blocks - 1) commit<kCtas>(smem_u32(&filled));
        }
    } else if (warp >= 2) {
        const int quarter = warp % 4, row = blockIdx.x * kRows + quarter * 32 + lane;
        for (int tile = 0; tile < tiles; ++tile) {
            wait_parity(smem_u32(&filled), tile & 1);
            asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
            float* out = d + (size_t)row * n_total + (blockIdx.y * tiles + tile) * kN;
#pragma unroll 1
            for (int c = 0; c < kN; c += 8) {
                uint32_t r[8];
                asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32{%0, %1, %2, %3, %4, %5, %6, %7}, [%8];\n"
                             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7])
                             : "r"(tmem + (quarter * 32 << 16) + c));
                asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
                for (int j = 0; j < 8; j += 4)
                    *(float4*)(out + c + j) = make_float4(__uint_as_float(r[j]), __uint_as_float(r[j + 1]), __uint_as_float(r[j + 2]), __uint_as_float(r[j + 3]));
            }
            asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
            __syncwarp();
            if (lane == 0) {
                const uint32_t bar = smem_u32(&drained) & 0xFEFFFFFF;  // the issuer's CTA
                asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
            }
        }
    }
    sync_all<kCtas>();
    if (warp == 1) {
        if (kCtas == 2) {
            asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;");
            asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" ::"r"(tmem), "r"(kN));
        } else {
            asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
            asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(tmem), "r"(kN));
        }
    }
}

extern "C" __global__ void __launch_bounds__(192) gemm_1cta(const __grid_constant__ CUtensorMap ma, const __grid_constant__ CUtensorMap mb, float* d, int n, int k,
                                                              int tiles) {
    gemm<1>(ma, mb, d, n, k, tiles);
}
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(192)
    gemm_2cta(const __grid_constant__ CUtensorMap ma, const __grid_constant__ CUtensorMap mb, float* d, int n, int k, int tiles) {
    gemm<2>(ma, mb, d, n, k, tiles);
}
