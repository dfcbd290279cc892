// sm90_gemm_bf16: D[g] = A[rows of g] * B[g]^T (+ C) (+ bias) for bf16 operands, float32 accumulation. Hopper (sm_90a).
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
// That epilogue writes bf16 as TMA wants it. With kSums the float32 sums pass through shared memory instead (layout/sums.cuh):
// for a D of another type or alignment, for C and bias, and for products with few tiles and a long K, which the CTAs of a
// cluster split along K.
//
// Bounds: 2*M*N*K FLOP at 4096 dense bf16 FLOP per cycle and SM; each weight of a non-empty group, A and D once from HBM.
// Ragged M, N and K need nothing special: TMA reads zeros outside the tensor and clips stores; every box counts in full
// on its barrier. Rows of other groups that share an A tile are multiplied and dropped.
#pragma once

#include "layout/groups.cuh"
#include "layout/rows.cuh"
#include "layout/sums.cuh"
#include "mma/wgmma_bf16_between.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp.cuh"

namespace di::sm90 {

template <int kBlockM, int kBlockN, int kStages, int kCluster, bool kSums>
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
    // Copies that may still read their staging when the next piece is laid down: after an odd number of pieces the next tile
    // begins with the buffer of the last one.
    static constexpr int kPending = kBlockN / 64 % kStoreBuffers ? 0 : kStoreBuffers - 1;
    using Band = SumBand<64, kBlockN, 128>;
    static constexpr int kBytesStore = kMathGroups * (kSums ? Band::kBytes : kStoreBuffers * kStoreTile);
    static constexpr int kBarriers = 2 * kStages + (kSums ? 2 * kMathGroups : 0);
    static constexpr int kSharedBytes = 1024 + kStages * (kBytesA + kBytesB) + kBytesStore + 8 * kBarriers;
    static constexpr int kAccumulators = kBlockN / 2;
    static_assert(!kSums || kCluster == 1, "the CTAs of a cluster share either B or K");
    static_assert(kSharedBytes <= 232448, "shared memory of one block on sm_90");

    using Walk = GroupWalk<kBlockM * kCluster, kBlockN>;

    struct Pipe {
        int stage = 0;
        uint32_t phase = 0;
        __device__ __forceinline__ void next() {
            if (++stage == kStages) stage = 0, phase ^= 1;
        }
    };

    struct Shared {
        uint8_t *a, *b, *store;
        Barrier *full, *empty, *sums;  // `sums`: ready and taken of each band

        // The offset of the aligned base is the same in every CTA of a cluster, as multicast needs.
        __device__ __forceinline__ explicit Shared(uint8_t* raw) {
            a = raw + ((1024u - (shared_address(raw) & 1023u)) & 1023u);
            b = a + kStages * kBytesA;
            store = b + kStages * kBytesB;
            full = reinterpret_cast<Barrier*>(store + kBytesStore);
            empty = full + kStages;
            sums = empty + kStages;
        }
    };

    // This CTA's place in its cluster: which rows of a tile it has, or which part of K.
    struct Place {
        uint32_t rank = 0, parts = 1;

        __device__ __forceinline__ Place() {
            if constexpr (kCluster > 1 || kSums) rank = cluster_rank();
            if constexpr (kSums) parts = cluster_size();
        }
        __device__ __forceinline__ uint32_t row() const { return kSums ? 0 : rank * kBlockM; }
        __device__ __forceinline__ uint32_t first() const { return blockIdx.x / (kSums ? parts : kCluster); }
        __device__ __forceinline__ uint32_t step() const { return gridDim.x / (kSums ? parts : kCluster); }
        __device__ __forceinline__ Share blocks(const Groups& problem) const {
            return {ceil_div(problem.depth, static_cast<uint32_t>(kBlockK)), kSums ? rank : 0, parts};
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

    static __device__ __forceinline__ uint32_t box_rows(const Groups& problem) {
        const uint32_t rows = problem.flags >> kBoxShift;
        return rows ? rows : 64;
    }

    // Tile `index` of the walk, as this CTA sees it: the rows of a cluster's tile are split among its CTAs.
    static __device__ __forceinline__ GroupTile own_tile(const Walk& walk, uint32_t index, const Place& place) {
        GroupTile at = walk.tile(index, place.step());
        at.row += place.row();
        return at;
    }

    static __device__ __forceinline__ void load_b(uint8_t* stage, const TensorMap* map_b, Barrier* full, int32_t k,
                                                  const GroupTile& at, uint32_t rank) {
        const uint32_t piece = kCluster > 1 ? rank : 0;
        uint8_t* dst = stage + piece * kBoxN * kBlockK * 2;
        const int32_t row = static_cast<int32_t>(at.col + piece * kBoxN), z = static_cast<int32_t>(at.group);
        if constexpr (kCluster > 1)
            tma_load_3d_multicast(dst, map_b, full, k, row, z, (1u << kCluster) - 1);
        else
            tma_load_3d(dst, map_b, full, k, row, z);
    }

    static __device__ __forceinline__ void produce(const Shared& smem, const TensorMap* map_a, const TensorMap* map_b,
                                                   const Groups& problem, const Place& place) {
        const Share share = place.blocks(problem);
        const uint32_t bytes_a = box_rows(problem) * kBlockK * 2;
        Pipe pipe;
        Walk walk(problem);
        for (uint32_t index = place.first(); walk.seek(index); index += place.step()) {
            const GroupTile at = own_tile(walk, index, place);
            const uint32_t used = warpgroups_used(at);
            for (uint32_t kb = share.begin; kb < share.end; ++kb, pipe.next()) {
                const int s = pipe.stage;
                smem.empty[s].wait(pipe.phase ^ 1);
                smem.full[s].arrive_expect(used * bytes_a + kBytesB);
                const int32_t k = static_cast<int32_t>(kb * kBlockK);
                for (uint32_t w = 0; w < used; ++w)
                    tma_load_3d(smem.a + s * kBytesA + w * kBytesHalfA, map_a, &smem.full[s], k,
                                static_cast<int32_t>(at.row + w * 64), slab(problem, at.group));
                load_b(smem.b + s * kBytesB, map_b, &smem.full[s], k, at, place.rank);
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

    // A warpgroup without rows still takes part in the pipeline. Its warps go together: one that fell behind by a whole round of
    // the stages would take a later phase of `full` for the one it waits for, and wait for ever.
    static __device__ __forceinline__ void skip(const Shared& smem, Pipe& pipe, uint32_t k_blocks, int warpgroup) {
        for (uint32_t kb = 0; kb < k_blocks; ++kb, pipe.next()) {
            smem.full[pipe.stage].wait(pipe.phase);
            named_sync(1 + warpgroup, 128);
            release(smem, pipe.stage);
        }
    }

    // Zeros where the copies of A bring nothing: what the matrix unit makes of these rows is not stored.
    static __device__ __forceinline__ void clear_rest(const Shared& smem, const Groups& problem, int warpgroup) {
        const uint32_t begin = box_rows(problem) * kBlockK * 2 + threadIdx.x % 128 * 16;
        if (problem.flags >> kBoxShift == 0) return;
        for (int s = 0; s < kStages; ++s)
            for (uint32_t at = begin; at < kBytesHalfA; at += 128 * 16)
                *reinterpret_cast<float4*>(smem.a + s * kBytesA + warpgroup * kBytesHalfA + at) = make_float4(0.f, 0.f, 0.f, 0.f);
        fence_async_shared();
        named_sync(1 + warpgroup, 128);
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
            if (thread == 0) tma_store_wait_read<kPending>();
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

    // Lays the warpgroup's 64 x kBlockN sums down and writes this part's rows of the result.
    static __device__ __forceinline__ void store_sums(const Shared& smem, const Output& out, const Groups& problem,
                                                      const GroupTile& at, const Place& place, int warpgroup,
                                                      uint32_t& phase, const float (&acc)[kAccumulators]) {
        const Band band{reinterpret_cast<float*>(smem.store + warpgroup * Band::kBytes), &smem.sums[2 * warpgroup],
                        &smem.sums[2 * warpgroup + 1], 1u + warpgroup};
        const uint32_t thread = threadIdx.x % 128, lane = thread % 32;
        band.open(place.parts, phase);
#pragma unroll
        for (int i = 0; i < kAccumulators; i += 2) {  // the fragment's layout: mma/wgmma_bf16.cuh
            const uint32_t r = thread / 32 * 16 + lane / 4 + 8 * (i / 2 % 2), c = i / 4 * 8 + lane % 4 * 2;
            *reinterpret_cast<float2*>(band.sums + Band::index(r, c)) = make_float2(acc[i], acc[i + 1]);
        }
        const uint32_t row = at.row + warpgroup * 64;
        band.close(place.parts, place.rank, phase, out, slab(problem, at.group), row, at.row_end - row, at.col, problem.cols,
                   thread);
        phase ^= 1;
    }

    static __device__ __forceinline__ void consume(const Shared& smem, const TensorMap* map_d, const Output& out,
                                                   const Groups& problem, const Place& place) {
        const int warpgroup = static_cast<int>(threadIdx.x / 128) - 1;
        const uint32_t k_blocks = place.blocks(problem).size();
        uint32_t exchange = 0;
        clear_rest(smem, problem, warpgroup);
        Pipe pipe;
        Walk walk(problem);
        for (uint32_t index = place.first(); walk.seek(index); index += place.step()) {
            const GroupTile at = own_tile(walk, index, place);
            // a single warpgroup of a single CTA has rows of every tile
            if (kMathGroups * kCluster > 1 && warpgroup >= static_cast<int>(warpgroups_used(at))) {
                skip(smem, pipe, k_blocks, warpgroup);
                continue;
            }
            float acc[kAccumulators];
            multiply(smem, pipe, k_blocks, warpgroup, acc);
            if constexpr (kSums)
                store_sums(smem, out, problem, at, place, warpgroup, exchange, acc);
            else
                store(smem, map_d, out, problem, at, warpgroup, acc);
        }
        if (!kSums && threadIdx.x % 128 == 0) tma_store_wait<0>();
    }

    static __device__ __forceinline__ void set_up(const Shared& smem, const TensorMap* map_a, const TensorMap* map_b,
                                                  const TensorMap* map_d, const Groups& problem, const Place& place) {
        if (threadIdx.x == 0) {
            if (problem.depth) {
                prefetch_map(map_a);
                prefetch_map(map_b);
            }
            if constexpr (!kSums) prefetch_map(map_d);
            for (int s = 0; s < kStages; ++s) {
                smem.full[s].init(1);
                smem.empty[s].init(kMathGroups * kCluster);
            }
            if constexpr (kSums)
                for (int i = 0; i < 2 * kMathGroups; ++i) smem.sums[i].init(place.parts);
            fence_barrier_init();
        }
        sync_all();
    }

    static __device__ __forceinline__ void sync_all() {
        if constexpr (kCluster > 1 || kSums)
            cluster_sync();
        else
            __syncthreads();
    }

    static __device__ __forceinline__ void run(const TensorMap* map_a, const TensorMap* map_b, const TensorMap* map_d,
                                               const Output& out, const Groups& problem) {
        extern __shared__ uint8_t raw[];
        const Shared smem(raw);
        const Place place;
        set_up(smem, map_a, map_b, map_d, problem, place);
        wait_previous_grid();
        if (threadIdx.x < 128) {
            give_registers<40>();
            if (threadIdx.x == 0) produce(smem, map_a, map_b, problem, place);
            __syncwarp();
        } else {
            take_registers<kMathGroups == 2 ? 232 : 240>();
            consume(smem, map_d, out, problem, place);
        }
        launch_next_grid();
        if constexpr (kCluster > 1 || kSums) cluster_sync();  // no CTA exits while its peers may still reach its memory
    }
};

}  // namespace di::sm90

#define DI_SM90_GEMM_BF16(NAME, ...)                                                                   \
    extern "C" __global__ void __launch_bounds__(di::sm90::GemmBf16<__VA_ARGS__>::kThreads, 1)         \
        NAME(const __grid_constant__ di::TensorMap a, const __grid_constant__ di::TensorMap b,         \
             const __grid_constant__ di::TensorMap d,                                                  \
             const __grid_constant__ di::Output out,                                                   \
             const __grid_constant__ di::Groups problem) {                                             \
        di::sm90::GemmBf16<__VA_ARGS__>::run(&a, &b, &d, out, problem);                                \
    }
