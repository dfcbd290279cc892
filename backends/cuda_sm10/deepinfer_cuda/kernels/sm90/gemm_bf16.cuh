// sm90_gemm_bf16: D[M,N] = A[M,K] * B[N,K]^T for bf16 operands, float32 accumulation, D bf16. Hopper (sm_90a).
//
//   producer warp (warpgroup 0)            math warpgroups 1, 2
//   ---------------------------            --------------------
//   wait empty[s] ------------------------ release empty[s] (own CTA and, in a cluster, the peer)
//   TMA A tile  -> smem A[s]               wait full[s]
//   TMA B tile  -> smem B[s] (multicast)   4 x wgmma m64n256k16 on A[s], B[s]; one group in flight
//   arrive + bytes on full[s]              ... after the last K block: registers -> bf16 -> smem -> TMA store
//
// One tile is BM x BN = 128 x 256; warpgroup w owns rows 64*w.. of it. A cluster of two CTAs works on two tiles that are
// neighbours in M and share B: each CTA loads half of the B tile and multicasts it, which halves B's L2 traffic.
// The grid is persistent: cluster c walks tiles c, c + clusters, ... in L2-friendly order (layout/raster.cuh), and the
// producer runs ahead into the next tile while the math warpgroups store the last one.
//
// Bounds: 2*M*N*K FLOP at 4096 dense bf16 FLOP per cycle and SM; (M*K + N*K + M*N) * 2 bytes of HBM. Ragged M, N and K
// need nothing special: TMA reads zeros outside the tensor and clips stores; every box counts in full on its barrier.
#pragma once

#include "layout/raster.cuh"
#include "mma/wgmma_bf16.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"

namespace di::sm90 {

template <int kBlockM, int kBlockN, int kStages, int kCluster>
struct GemmBf16 {
    static constexpr int kBlockK = 64;  // 128 bytes: one swizzle atom wide
    static constexpr int kMathGroups = kBlockM / 64;
    static constexpr int kThreads = 128 * (1 + kMathGroups);
    static constexpr int kBytesA = kBlockM * kBlockK * 2;
    static constexpr int kBytesB = kBlockN * kBlockK * 2;
    static constexpr int kBoxN = kBlockN / kCluster;  // rows of B that one CTA loads
    static constexpr int kStoreTile = 64 * 64 * 2;    // staging of one 64 x 64 piece of D
    static constexpr int kStoreBuffers = 2;
    static constexpr int kSharedBytes =
        1024 + kStages * (kBytesA + kBytesB) + kMathGroups * kStoreBuffers * kStoreTile + 2 * kStages * 8;
    static constexpr int kAccumulators = kBlockN / 2;
    static_assert(kSharedBytes <= 232448, "shared memory of one block on sm_90");

    struct Pipe {
        int stage = 0;
        uint32_t phase = 0;
        __device__ __forceinline__ void next() {
            if (++stage == kStages) stage = 0, phase ^= 1;
        }
    };

    struct Shared {
        uint8_t *a, *b, *store;
        Barrier *full, *empty;

        __device__ __forceinline__ explicit Shared(uint8_t* raw) {
            // The offset of the aligned base is the same in every CTA, as multicast needs.
            a = raw + ((1024u - (shared_address(raw) & 1023u)) & 1023u);
            b = a + kStages * kBytesA;
            store = b + kStages * kBytesB;
            full = reinterpret_cast<Barrier*>(store + kMathGroups * kStoreBuffers * kStoreTile);
            empty = full + kStages;
        }
    };

    struct Tiles {
        uint32_t m, n, pairs, count, group;

        __device__ __forceinline__ Tiles(uint32_t rows, uint32_t cols, uint32_t group_rows) : group(group_rows) {
            m = ceil_div(rows, static_cast<uint32_t>(kBlockM));
            n = ceil_div(cols, static_cast<uint32_t>(kBlockN));
            pairs = ceil_div(m, static_cast<uint32_t>(kCluster));
            count = pairs * n;
        }
        // Tile of this CTA for cluster tile `index`, in elements; rows may lie past M in the last pair.
        __device__ __forceinline__ TileCoord at(uint32_t index, uint32_t rank) const {
            const TileCoord pair = raster(index, pairs, n, group);
            return {(pair.m * kCluster + rank) * kBlockM, pair.n * kBlockN};
        }
    };

    static __device__ __forceinline__ void produce(const Shared& smem, const TensorMap* map_a, const TensorMap* map_b,
                                                   const Tiles& tiles, uint32_t k_blocks, uint32_t rank,
                                                   uint32_t cluster, uint32_t clusters) {
        Pipe pipe;
        for (uint32_t tile = cluster; tile < tiles.count; tile += clusters) {
            const TileCoord at = tiles.at(tile, rank);
            for (uint32_t kb = 0; kb < k_blocks; ++kb, pipe.next()) {
                const int s = pipe.stage;
                smem.empty[s].wait_cluster(pipe.phase ^ 1);
                smem.full[s].arrive_expect(kBytesA + kBytesB);
                const int32_t k = static_cast<int32_t>(kb * kBlockK);
                tma_load_2d(smem.a + s * kBytesA, map_a, &smem.full[s], k, static_cast<int32_t>(at.m));
                uint8_t* b = smem.b + s * kBytesB + rank * kBoxN * kBlockK * 2;
                const int32_t row = static_cast<int32_t>(at.n + rank * kBoxN);
                if constexpr (kCluster > 1)
                    tma_load_2d_multicast(b, map_b, &smem.full[s], k, row, (1u << kCluster) - 1);
                else
                    tma_load_2d(b, map_b, &smem.full[s], k, row);
            }
        }
        // A peer may still arrive at this CTA's barriers: leave only when all its buffers have been given back.
        for (int i = 0; i < kStages; ++i, pipe.next()) smem.empty[pipe.stage].wait_cluster(pipe.phase ^ 1);
    }

    static __device__ __forceinline__ void release(const Shared& smem, int stage) {
        if (threadIdx.x % 128 < kCluster) {
            if constexpr (kCluster > 1)
                smem.empty[stage].arrive_remote(threadIdx.x % 128);
            else
                smem.empty[stage].arrive();
        }
    }

    static __device__ __forceinline__ void multiply(const Shared& smem, Pipe& pipe, uint32_t k_blocks, int group,
                                                    float (&acc)[kAccumulators]) {
        int previous = -1;
#pragma unroll
        for (int i = 0; i < kAccumulators; ++i) acc[i] = 0.f;  // also the result when K is 0
        for (uint32_t kb = 0; kb < k_blocks; ++kb, pipe.next()) {
            const int s = pipe.stage;
            smem.full[s].wait(pipe.phase);
            const uint64_t a = descriptor_k128(smem.a + s * kBytesA + group * 64 * kBlockK * 2);
            const uint64_t b = descriptor_k128(smem.b + s * kBytesB);
            pin_registers(acc);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < kBlockK / 16; ++k)
                Wgmma<kBlockN>::mma(acc, a + k * 2, b + k * 2, 1);
            wgmma_commit();
            pin_registers(acc);
            wgmma_wait<1>();
            if (previous >= 0) release(smem, previous);
            previous = s;
        }
        wgmma_wait<0>();
        pin_registers(acc);
        if (previous >= 0) release(smem, previous);
    }

    // Stores the warpgroup's 64 x kBlockN piece in 64-column steps through two staging buffers.
    static __device__ __forceinline__ void store(const Shared& smem, const TensorMap* map_d, int group, uint32_t row,
                                                 uint32_t col, uint32_t cols, const float (&acc)[kAccumulators]) {
        const int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
        const uint32_t r = warp * 16 + lane % 8 + 8 * ((lane / 8) & 1);
#pragma unroll
        for (int piece = 0; piece < kBlockN / 64; ++piece) {
            uint8_t* tile = smem.store + (group * kStoreBuffers + piece % kStoreBuffers) * kStoreTile;
            if (thread == 0) tma_store_wait_read<kStoreBuffers - 1>();
            named_sync(1 + group, 128);
            const uint32_t base = shared_address(tile) + r * 128;
#pragma unroll
            for (int j = 0; j < 4; ++j) {  // 16 columns each
                const float* d = acc + piece * 32 + j * 8;
                const uint32_t chunk = (j * 2 + lane / 16) ^ (r % 8);
                store_matrix_x4(base + chunk * 16, pack_bf16(d[0], d[1]), pack_bf16(d[2], d[3]), pack_bf16(d[4], d[5]),
                                pack_bf16(d[6], d[7]));
            }
            fence_async_shared();
            named_sync(1 + group, 128);
            if (thread == 0) {
                if (col + piece * 64 < cols)
                    tma_store_2d(map_d, tile, static_cast<int32_t>(col + piece * 64), static_cast<int32_t>(row));
                tma_store_commit();
            }
        }
    }

    static __device__ __forceinline__ void consume(const Shared& smem, const TensorMap* map_d, const Tiles& tiles,
                                                   uint32_t k_blocks, uint32_t rank, uint32_t cluster,
                                                   uint32_t clusters, uint32_t rows, uint32_t cols) {
        const int group = static_cast<int>(threadIdx.x / 128) - 1;
        Pipe pipe;
        for (uint32_t tile = cluster; tile < tiles.count; tile += clusters) {
            const TileCoord at = tiles.at(tile, rank);
            float acc[kAccumulators];
            multiply(smem, pipe, k_blocks, group, acc);
            const uint32_t row = at.m + group * 64;
            if (row < rows) store(smem, map_d, group, row, at.n, cols, acc);
        }
        if (threadIdx.x % 128 == 0) tma_store_wait<0>();
    }

    static __device__ __forceinline__ void run(const TensorMap* map_a, const TensorMap* map_b, const TensorMap* map_d,
                                               uint32_t rows, uint32_t cols, uint32_t depth, uint32_t group_rows) {
        extern __shared__ uint8_t raw[];
        const Shared smem(raw);
        const uint32_t rank = kCluster > 1 ? cluster_rank() : 0;
        if (threadIdx.x == 0) {
            prefetch_map(map_a);
            prefetch_map(map_b);
            prefetch_map(map_d);
            for (int s = 0; s < kStages; ++s) {
                smem.full[s].init(1);
                smem.empty[s].init(kMathGroups * kCluster);
            }
            fence_barrier_init();
        }
        if constexpr (kCluster > 1) {
            cluster_arrive();
            cluster_wait();
        } else {
            __syncthreads();
        }
        wait_previous_grid();
        const Tiles tiles(rows, cols, group_rows);
        const uint32_t k_blocks = ceil_div(depth, static_cast<uint32_t>(kBlockK));
        const uint32_t cluster = blockIdx.x / kCluster, clusters = gridDim.x / kCluster;
        if (threadIdx.x < 128) {
            give_registers<40>();
            if (threadIdx.x == 0) produce(smem, map_a, map_b, tiles, k_blocks, rank, cluster, clusters);
        } else {
            take_registers<kMathGroups == 2 ? 232 : 240>();
            consume(smem, map_d, tiles, k_blocks, rank, cluster, clusters, rows, cols);
        }
        launch_next_grid();
        if constexpr (kCluster > 1) {  // no CTA may exit while its peer can still write to it
            __syncwarp();
            cluster_arrive();
            cluster_wait();
        }
    }
};

}  // namespace di::sm90

#define DI_SM90_GEMM_BF16(NAME, BLOCK_M, BLOCK_N, STAGES, CLUSTER)                                                     \
    extern "C" __global__ void __launch_bounds__(di::sm90::GemmBf16<BLOCK_M, BLOCK_N, STAGES, CLUSTER>::kThreads, 1)   \
        NAME(const __grid_constant__ di::TensorMap a, const __grid_constant__ di::TensorMap b,                         \
             const __grid_constant__ di::TensorMap d, uint32_t rows, uint32_t cols, uint32_t depth, uint32_t group) {  \
        di::sm90::GemmBf16<BLOCK_M, BLOCK_N, STAGES, CLUSTER>::run(&a, &b, &d, rows, cols, depth, group);              \
    }
