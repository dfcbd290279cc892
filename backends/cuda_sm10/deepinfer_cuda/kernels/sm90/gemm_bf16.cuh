// sm90_gemm_bf16: D[g] = A[rows of g] * B[g]^T for bf16 operands, float32 accumulation, D bf16. Hopper (sm_90a).
// Dense (one group), grouped (groups of rows at any place) and masked (a slab per group) products are one kernel.
//
//   producer thread (warpgroup 0)          math warpgroups 1 .. kMathGroups
//   -----------------------------          --------------------------------
//   wait empty[s] ------------------------ release empty[s]
//   TMA A tile -> smem A[s]                wait full[s]
//   TMA B tile -> smem B[s]                4 x wgmma m64nNk16 on A[s], B[s]; one group in flight
//   arrive + bytes on full[s]              ... after the last K block: registers -> bf16 -> smem -> global
//
// One tile is BM x BN; math warpgroup w owns rows 64*w.. of it. The grid is persistent: CTA c takes tiles c, c + grid, ...
// Tiles are counted group by group on the device (layout/groups.cuh), in bands of rows inside a group, and the producer
// runs ahead into the next tile while the math warpgroups store the last one. In a cluster of two, the CTAs take tiles that
// are neighbours in M; each loads half of the B tile they share and multicasts it, and a stage is empty when the math
// warpgroups of both have released it. A tile whose rows all belong to its group
// is stored by TMA; the last rows of a group are stored row by row, so that no other row is written.
//
// Bounds: 2*M*N*K FLOP at 4096 dense bf16 FLOP per cycle and SM; each weight of a non-empty group, A and D once from HBM.
// Ragged M, N and K need nothing special: TMA reads zeros outside the tensor and clips stores; every box counts in full
// on its barrier. Rows of other groups that share an A tile are multiplied and dropped.
#pragma once

#include "layout/groups.cuh"
#include "layout/rows.cuh"
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
    static constexpr int kBytesHalfA = 64 * kBlockK * 2;  // the rows of one math warpgroup
    static constexpr int kBytesB = kBlockN * kBlockK * 2;
    static constexpr int kBoxN = kBlockN / kCluster;  // rows of B that one CTA loads
    static constexpr int kStoreTile = 64 * 64 * 2;  // staging of one 64 x 64 piece of D
    static constexpr int kStoreBuffers = 2;
    static constexpr int kSharedBytes =
        1024 + kStages * (kBytesA + kBytesB) + kMathGroups * kStoreBuffers * kStoreTile + 2 * kStages * 8;
    static constexpr int kAccumulators = kBlockN / 2;
    static_assert(kSharedBytes <= 232448, "shared memory of one block on sm_90");

    using Walk = GroupWalk<kBlockM * kCluster, kBlockN>;

    // Where D lies when rows are stored one by one: bytes of its address, of a row and of a slab.
    struct Output {
        uint8_t* data;
        int64_t row_bytes, slab_bytes;
    };

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

        // The offset of the aligned base is the same in every CTA of a cluster, as multicast needs.
        __device__ __forceinline__ explicit Shared(uint8_t* raw) {
            a = raw + ((1024u - (shared_address(raw) & 1023u)) & 1023u);
            b = a + kStages * kBytesA;
            store = b + kStages * kBytesB;
            full = reinterpret_cast<Barrier*>(store + kMathGroups * kStoreBuffers * kStoreTile);
            empty = full + kStages;
        }
    };

    static __device__ __forceinline__ int32_t slab(const Groups& problem, uint32_t group) {
        return problem.flags & kMasked ? static_cast<int32_t>(group) : 0;
    }

    // Math warpgroups that have rows of the group: A's other rows are neither loaded nor multiplied.
    static __device__ __forceinline__ uint32_t warpgroups_used(const GroupTile& at) {
        const uint32_t needed = at.row < at.row_end ? ceil_div(at.row_end - at.row, 64u) : 0;
        return needed < kMathGroups ? needed : kMathGroups;
    }

    // Tile `index` of the walk, as this CTA sees it: the rows of a cluster's tile are split among its CTAs.
    static __device__ __forceinline__ GroupTile own_tile(const Walk& walk, uint32_t index, uint32_t rank) {
        GroupTile at = walk.tile(index);
        at.row += rank * kBlockM;
        return at;
    }

    static __device__ __forceinline__ void load_b(uint8_t* stage, const TensorMap* map_b, Barrier* full, int32_t k,
                                                  const GroupTile& at, uint32_t rank) {
        uint8_t* dst = stage + rank * kBoxN * kBlockK * 2;
        const int32_t row = static_cast<int32_t>(at.col + rank * kBoxN), z = static_cast<int32_t>(at.group);
        if constexpr (kCluster > 1)
            tma_load_3d_multicast(dst, map_b, full, k, row, z, (1u << kCluster) - 1);
        else
            tma_load_3d(dst, map_b, full, k, row, z);
    }

    static __device__ __forceinline__ void produce(const Shared& smem, const TensorMap* map_a, const TensorMap* map_b,
                                                   const Groups& problem, uint32_t k_blocks, uint32_t rank) {
        Pipe pipe;
        Walk walk(problem);
        for (uint32_t index = blockIdx.x / kCluster; walk.seek(index); index += gridDim.x / kCluster) {
            const GroupTile at = own_tile(walk, index, rank);
            const uint32_t used = warpgroups_used(at);
            for (uint32_t kb = 0; kb < k_blocks; ++kb, pipe.next()) {
                const int s = pipe.stage;
                smem.empty[s].wait(pipe.phase ^ 1);
                smem.full[s].arrive_expect(used * kBytesHalfA + kBytesB);
                const int32_t k = static_cast<int32_t>(kb * kBlockK);
                for (uint32_t w = 0; w < used; ++w)
                    tma_load_3d(smem.a + s * kBytesA + w * kBytesHalfA, map_a, &smem.full[s], k,
                                static_cast<int32_t>(at.row + w * 64), slab(problem, at.group));
                load_b(smem.b + s * kBytesB, map_b, &smem.full[s], k, at, rank);
            }
        }
        if constexpr (kCluster > 1)  // the peer still arrives at these barriers: leave when every stage was given back
            for (int i = 0; i < kStages; ++i, pipe.next()) smem.empty[pipe.stage].wait(pipe.phase ^ 1);
    }

    static __device__ __forceinline__ void release(const Shared& smem, int stage) {
        if constexpr (kCluster > 1) {
            if (threadIdx.x % 128 < kCluster) smem.empty[stage].arrive_remote(threadIdx.x % 128);
        } else {
            if (threadIdx.x % 128 == 0) smem.empty[stage].arrive();
        }
    }

    // A warpgroup without rows still takes part in the pipeline.
    static __device__ __forceinline__ void skip(const Shared& smem, Pipe& pipe, uint32_t k_blocks) {
        for (uint32_t kb = 0; kb < k_blocks; ++kb, pipe.next()) {
            smem.full[pipe.stage].wait(pipe.phase);
            release(smem, pipe.stage);
        }
    }

    static __device__ __forceinline__ void multiply(const Shared& smem, Pipe& pipe, uint32_t k_blocks, int warpgroup,
                                                    float (&acc)[kAccumulators]) {
        int previous = -1;
#pragma unroll
        for (int i = 0; i < kAccumulators; ++i) acc[i] = 0.f;  // also the result when K is 0
        for (uint32_t kb = 0; kb < k_blocks; ++kb, pipe.next()) {
            const int s = pipe.stage;
            smem.full[s].wait(pipe.phase);
            const uint64_t a = descriptor_k128(smem.a + s * kBytesA + warpgroup * kBytesHalfA);
            const uint64_t b = descriptor_k128(smem.b + s * kBytesB);
            pin_registers(acc);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < kBlockK / 16; ++k) Wgmma<kBlockN>::mma(acc, a + k * 2, b + k * 2, 1);
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
    static __device__ __forceinline__ void store(const Shared& smem, const TensorMap* map_d, const Output& out,
                                                 const Groups& problem, const GroupTile& at, int warpgroup,
                                                 const float (&acc)[kAccumulators]) {
        const int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
        const uint32_t row = at.row + warpgroup * 64;
        const uint32_t rows = at.row_end - row;
        const uint32_t r = warp * 16 + lane % 8 + 8 * ((lane / 8) & 1);
        const int32_t z = slab(problem, at.group);
#pragma unroll
        for (int piece = 0; piece < kBlockN / 64; ++piece) {
            uint8_t* tile = smem.store + (warpgroup * kStoreBuffers + piece % kStoreBuffers) * kStoreTile;
            const uint32_t col = at.col + piece * 64;
            if (thread == 0) tma_store_wait_read<kStoreBuffers - 1>();
            named_sync(1 + warpgroup, 128);
            const uint32_t base = shared_address(tile) + r * 128;
#pragma unroll
            for (int j = 0; j < 4; ++j) {  // 16 columns each
                const float* d = acc + piece * 32 + j * 8;
                const uint32_t chunk = (j * 2 + lane / 16) ^ (r % 8);
                store_matrix_x4(base + chunk * 16, pack_bf16(d[0], d[1]), pack_bf16(d[2], d[3]), pack_bf16(d[4], d[5]),
                                pack_bf16(d[6], d[7]));
            }
            if (rows >= 64) {
                fence_async_shared();
                named_sync(1 + warpgroup, 128);
                if (thread == 0) {
                    if (col < problem.cols)
                        tma_store_3d(map_d, tile, static_cast<int32_t>(col), static_cast<int32_t>(row), z);
                    tma_store_commit();
                }
            } else {
                named_sync(1 + warpgroup, 128);
                if (col < problem.cols)
                    store_rows<128>(tile,
                                    out.data + z * out.slab_bytes + row * out.row_bytes + static_cast<int64_t>(col) * 2,
                                    out.row_bytes, rows, problem.cols - col, thread);
                if (thread == 0) tma_store_commit();  // keeps one bulk group per piece, so the wait above holds
            }
        }
    }

    static __device__ __forceinline__ void consume(const Shared& smem, const TensorMap* map_d, const Output& out,
                                                   const Groups& problem, uint32_t k_blocks, uint32_t rank) {
        const int warpgroup = static_cast<int>(threadIdx.x / 128) - 1;
        Pipe pipe;
        Walk walk(problem);
        for (uint32_t index = blockIdx.x / kCluster; walk.seek(index); index += gridDim.x / kCluster) {
            const GroupTile at = own_tile(walk, index, rank);
            if (warpgroup >= static_cast<int>(warpgroups_used(at))) {
                skip(smem, pipe, k_blocks);
                continue;
            }
            float acc[kAccumulators];
            multiply(smem, pipe, k_blocks, warpgroup, acc);
            store(smem, map_d, out, problem, at, warpgroup, acc);
        }
        if (threadIdx.x % 128 == 0) tma_store_wait<0>();
    }

    static __device__ __forceinline__ void run(const TensorMap* map_a, const TensorMap* map_b, const TensorMap* map_d,
                                               const Output& out, const Groups& problem) {
        extern __shared__ uint8_t raw[];
        const Shared smem(raw);
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
        const uint32_t rank = kCluster > 1 ? cluster_rank() : 0;
        if constexpr (kCluster > 1)
            cluster_sync();
        else
            __syncthreads();
        wait_previous_grid();
        const uint32_t k_blocks = ceil_div(problem.depth, static_cast<uint32_t>(kBlockK));
        if (threadIdx.x < 128) {
            give_registers<40>();
            if (threadIdx.x == 0) produce(smem, map_a, map_b, problem, k_blocks, rank);
            __syncwarp();
        } else {
            take_registers<kMathGroups == 2 ? 232 : 240>();
            consume(smem, map_d, out, problem, k_blocks, rank);
        }
        launch_next_grid();
        if constexpr (kCluster > 1) cluster_sync();  // no CTA exits while its peer may still write to it
    }
};

}  // namespace di::sm90

#define DI_SM90_GEMM_BF16(NAME, ...)                                                                   \
    extern "C" __global__ void __launch_bounds__(di::sm90::GemmBf16<__VA_ARGS__>::kThreads, 1)         \
        NAME(const __grid_constant__ di::TensorMap a, const __grid_constant__ di::TensorMap b,         \
             const __grid_constant__ di::TensorMap d,                                                  \
             const __grid_constant__ di::sm90::GemmBf16<__VA_ARGS__>::Output out,                      \
             const __grid_constant__ di::Groups problem) {                                             \
        di::sm90::GemmBf16<__VA_ARGS__>::run(&a, &b, &d, out, problem);                                \
    }
