// sm100_gemm_bf16: D[g] = A[rows of g] * B[g]^T (+ C) (+ bias) for bf16 operands, float32 accumulation. Blackwell (sm_100a).
// Dense (one group), grouped (groups of rows at any place) and masked (a slab per group) products are one kernel.
//
//   warp 0: copies                warp 1: products                        warps 2-5: epilogue, 32 rows each
//   --------------                ----------------                        ---------------------------------
//   wait empty[s] --------------- commit -> empty[s] <--+
//   TMA A tile -> smem A[s]       wait full[s]          |  (read out)
//   TMA B tile -> smem B[s]       4 x tcgen05.mma on A[s], B[s] -> acc[t]
//   arrive + bytes on full[s]     ... K blocks ...
//                                 commit -> done[t] --------------------- wait done[t]
//                                 wait drained[t] ----------------------- acc[t] -> registers, arrive drained[t]
//                                                                         -> bf16 -> smem -> global
//
// One accumulator is 128 lanes x BN columns of tensor memory; there are two, so that the epilogue of one tile runs beside the
// products of the next, as the copies already do. The grid is persistent and walks tiles as the SM90 kernel does
// (layout/groups.cuh).
//
// A pair of CTAs (kCtas = 2) shares a tile of 256 x BN: each CTA loads its 128 rows of A and half of the columns of B into its
// own shared memory and both signal full[s] of the even CTA, whose warp 1 issues products for both tensor cores. Each CTA
// receives its 128 rows of D, and commits arrive in both. Each operand byte is then read from L2 once per pair.
//
// The drawn epilogue writes bf16 as TMA wants it. With kSums the float32 sums pass through shared memory instead
// (layout/sums.cuh): for a D of another type or alignment, for C and bias, and for products with few tiles and a long K, which
// the CTAs of a cluster split along K.
//
// Bounds: 2*M*N*K FLOP at 8192 dense bf16 FLOP per cycle and SM; each weight of a non-empty group, A and D once from HBM.
// Ragged M, N and K need nothing special: TMA reads zeros outside the tensor and clips stores; every box counts in full
// on its barrier. Rows of other groups that share an A tile are multiplied and dropped.
#pragma once

#include "layout/groups.cuh"
#include "layout/rows.cuh"
#include "layout/sums.cuh"
#include "mma/sm100_descriptor.cuh"
#include "ptx/tma.cuh"
#include "ptx/tmem.cuh"
#include "ptx/warp.cuh"

namespace di::sm100 {

template <int kBlockN, int kStages, int kCtas, bool kSums>
struct GemmBf16 {
    static constexpr int kBlockM = 128;  // rows of one CTA: the lanes of tensor memory
    static constexpr int kBlockK = 64;   // 128 bytes: one swizzle atom wide
    static constexpr int kThreads = 192;
    static constexpr int kEpilogueWarps = 4;
    static constexpr int kBoxN = kBlockN / kCtas;  // rows of B that one CTA loads
    static constexpr int kBytesA = kBlockM * kBlockK * 2;
    static constexpr int kBytesB = kBoxN * kBlockK * 2;
    static constexpr int kStoreTile = 32 * 64 * 2;  // staging of one warp's 32 x 64 piece of D
    static constexpr int kStoreBuffers = 2;
    static constexpr int kAccumulators = 2;
    static constexpr int kColumns = kAccumulators * kBlockN;  // of tensor memory
    // A pair takes all columns, so that its accumulators lie at the same place in both CTAs.
    static constexpr int kAllocated = kCtas == 2 ? 512 : kColumns;
    using Band = SumBand<32, kBlockN, 32>;
    static constexpr int kBytesStore = kEpilogueWarps * (kSums ? Band::kBytes : kStoreBuffers * kStoreTile);
    static constexpr int kBarriers = 2 * kStages + 2 * kAccumulators + (kSums ? 2 * kEpilogueWarps : 0);
    static constexpr int kSharedBytes = 1024 + kStages * (kBytesA + kBytesB) + kBytesStore + 8 * (kBarriers + 1);
    static constexpr uint32_t kInstruction = instruction_bf16(kBlockM * kCtas, kBlockN);
    static_assert(kSharedBytes <= 232448, "shared memory of one block on sm_100");
    static_assert(!kSums || kCtas == 1, "the CTAs of a cluster share either a tile or K");
    static_assert(kColumns == 128 || kColumns == 256 || kColumns == 512, "tensor memory comes in powers of two");

    using Walk = GroupWalk<kBlockM * kCtas, kBlockN>;

    template <int kLength>
    struct Ring {
        int stage = 0;
        uint32_t phase = 0;
        __device__ __forceinline__ void next() {
            if (++stage == kLength) stage = 0, phase ^= 1;
        }
    };

    // `full` counts the copies of a stage, `empty` the products that read it; `done` the products of an accumulator, `drained`
    // the epilogue warps that have read it; `sums` holds ready and taken of each warp's band. Of a pair, `full` and `drained` of
    // the even CTA are used.
    struct Shared {
        uint8_t *a, *b, *store;
        Barrier *full, *empty, *done, *drained, *sums;
        uint32_t* tmem;

        // The offset of the aligned base is the same in both CTAs of a pair, as their descriptors need.
        __device__ __forceinline__ explicit Shared(uint8_t* raw) {
            a = raw + ((1024u - (shared_address(raw) & 1023u)) & 1023u);
            b = a + kStages * kBytesA;
            store = b + kStages * kBytesB;
            full = reinterpret_cast<Barrier*>(store + kBytesStore);
            empty = full + kStages;
            done = empty + kStages;
            drained = done + kAccumulators;
            sums = drained + kAccumulators;
            tmem = reinterpret_cast<uint32_t*>(full + kBarriers);
        }
    };

    // This CTA's place in its cluster: which rows of a pair's tile it has, or which part of K.
    struct Place {
        uint32_t rank = 0, parts = 1;

        __device__ __forceinline__ Place() {
            if constexpr (kCtas == 2 || kSums) rank = cluster_rank();
            if constexpr (kSums) parts = cluster_size();
        }
        __device__ __forceinline__ uint32_t half() const { return kCtas == 2 ? rank : 0; }
        __device__ __forceinline__ uint32_t first() const { return blockIdx.x / (kSums ? parts : kCtas); }
        __device__ __forceinline__ uint32_t step() const { return gridDim.x / (kSums ? parts : kCtas); }
        __device__ __forceinline__ Share blocks(const Groups& problem) const {
            return {ceil_div(problem.depth, static_cast<uint32_t>(kBlockK)), kSums ? rank : 0, parts};
        }
    };

    static __device__ __forceinline__ int32_t slab(const Groups& problem, uint32_t group) {
        return problem.flags & kMasked ? static_cast<int32_t>(group) : 0;
    }

    // Tile `index` of the walk, as this CTA sees it: the rows of a pair's tile are split among its CTAs.
    static __device__ __forceinline__ GroupTile own_tile(const Walk& walk, uint32_t index, const Place& place) {
        GroupTile at = walk.tile(index, place.step());
        at.row += place.half() * kBlockM;
        return at;
    }

    static __device__ __forceinline__ void load(void* dst, const TensorMap* map, Barrier* full, uint32_t k, uint32_t row,
                                                int32_t z) {
        if constexpr (kCtas == 2)
            tma_load_3d_pair(dst, map, full, static_cast<int32_t>(k), static_cast<int32_t>(row), z);
        else
            tma_load_3d(dst, map, full, static_cast<int32_t>(k), static_cast<int32_t>(row), z);
    }

    static __device__ __forceinline__ void produce(const Shared& smem, const TensorMap* map_a, const TensorMap* map_b,
                                                   const Groups& problem, const Place& place) {
        const Share share = place.blocks(problem);
        Ring<kStages> ring;
        Walk walk(problem);
        for (uint32_t index = place.first(); walk.seek(index); index += place.step()) {
            const GroupTile at = own_tile(walk, index, place);
#pragma unroll 1
            for (uint32_t kb = share.begin; kb < share.end; ++kb, ring.next()) {
                const int s = ring.stage;
                wait(smem.empty[s], ring.phase ^ 1);
                if (place.half() == 0) smem.full[s].arrive_expect(kCtas * (kBytesA + kBytesB));
                load(smem.a + s * kBytesA, map_a, &smem.full[s], kb * kBlockK, at.row, slab(problem, at.group));
                load(smem.b + s * kBytesB, map_b, &smem.full[s], kb * kBlockK, at.col + place.half() * kBoxN,
                     static_cast<int32_t>(at.group));
            }
        }
        if constexpr (kCtas == 2)  // commits of the even CTA still arrive here: leave when every stage was given back
#pragma unroll 1
            for (int i = 0; i < kStages; ++i, ring.next()) wait(smem.empty[ring.stage], ring.phase ^ 1);
    }

    // Called by one thread of the only or even CTA.
    static __device__ __forceinline__ void multiply(const Shared& smem, const Groups& problem, const Place& place,
                                                    uint32_t tmem) {
        const uint32_t k_blocks = place.blocks(problem).size();
        if (k_blocks == 0) return;  // the epilogue writes zeros by itself
        Ring<kStages> ring;
        Ring<kAccumulators> acc;
        Walk walk(problem);
        for (uint32_t index = place.first(); walk.seek(index); index += place.step(), acc.next()) {
            wait(smem.drained[acc.stage], acc.phase ^ 1);
            fence_after_sync();
            const uint32_t d = tmem + acc.stage * kBlockN;
#pragma unroll 1
            for (uint32_t kb = 0; kb < k_blocks; ++kb, ring.next()) {
                const int s = ring.stage;
                wait(smem.full[s], ring.phase);
                fence_after_sync();
                const uint64_t a = descriptor_k128(smem.a + s * kBytesA), b = descriptor_k128(smem.b + s * kBytesB);
#pragma unroll
                for (int k = 0; k < kBlockK / 16; ++k)
                    mma_f16<kCtas>(d, a + k * 2, b + k * 2, kInstruction, k > 0 ? 1 : kb);
                commit<kCtas>(&smem.empty[s]);
            }
            commit<kCtas>(&smem.done[acc.stage]);
        }
    }

    // Hands an accumulator back; called by the whole warp after its last read has arrived.
    static __device__ __forceinline__ void release(Barrier* drained) {
        fence_before_sync();
        __syncwarp();
        if (threadIdx.x % 32 != 0) return;
        if constexpr (kCtas == 2)
            drained->arrive_remote(0);
        else
            drained->arrive();
    }

    // 64 columns of this thread's row as bf16 pairs into the swizzled staging tile.
    static __device__ __forceinline__ void stage_row(uint8_t* tile, const uint32_t (&v)[64]) {
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (uint32_t chunk = 0; chunk < 8; ++chunk) {
            uint4 packed;
            uint32_t* out[4] = {&packed.x, &packed.y, &packed.z, &packed.w};
#pragma unroll
            for (int j = 0; j < 4; ++j)
                *out[j] = pack_bf16(__uint_as_float(v[chunk * 8 + j * 2]), __uint_as_float(v[chunk * 8 + j * 2 + 1]));
            *reinterpret_cast<uint4*>(tile + lane * 128 + (chunk ^ (lane % 8)) * 16) = packed;
        }
    }

    // A staged 32 x 64 piece to D; a full one by TMA, the last rows of a group one by one.
    static __device__ __forceinline__ void store_piece(const uint8_t* tile, const TensorMap* map_d, const Output& out,
                                                       const Groups& problem, uint32_t row, uint32_t rows, uint32_t col,
                                                       int32_t z) {
        const uint32_t lane = threadIdx.x % 32;
        if (rows >= 32) {
            fence_async_shared();
            __syncwarp();
            if (lane == 0) tma_store_3d(map_d, tile, static_cast<int32_t>(col), static_cast<int32_t>(row), z);
        } else {
            __syncwarp();
            store_rows<32>(tile, out.data + z * out.slab_bytes + row * out.row_bytes + static_cast<int64_t>(col) * 2,
                           out.row_bytes, rows, problem.cols - col, lane);
        }
        if (lane == 0) tma_store_commit();  // one bulk group per piece, empty or not, so that counting groups works
    }

    // One warp's 32 rows of a tile, 64 columns at a time through two staging buffers that take turns across tiles. `tmem` is
    // the accumulator in this warp's lanes.
    static __device__ __forceinline__ void drain(const Shared& smem, const TensorMap* map_d, const Output& out,
                                                 const Groups& problem, const GroupTile& at, uint32_t k_blocks,
                                                 uint32_t tmem, Barrier* drained, Ring<kStoreBuffers>& buffer) {
        const uint32_t quarter = threadIdx.x / 32 % 4, row = at.row + quarter * 32;
        const uint32_t rows = row < at.row_end ? at.row_end - row : 0;
        uint8_t* staging = smem.store + quarter * kStoreBuffers * kStoreTile;
        const int pieces = rows ? static_cast<int>(min(ceil_div(problem.cols - at.col, 64u), kBlockN / 64u)) : 0;
        uint32_t v[64] = {};
        for (int piece = 0; piece < pieces; ++piece, buffer.next()) {
            if (k_blocks) {
                tmem_load_x32(tmem + piece * 64, v);
                tmem_load_x32(tmem + piece * 64 + 32, v + 32);
                tmem_load_wait(v);
                if (piece == pieces - 1) release(drained);
            }
            uint8_t* tile = staging + buffer.stage * kStoreTile;
            if (threadIdx.x % 32 == 0) tma_store_wait_read<kStoreBuffers - 1>();
            __syncwarp();
            stage_row(tile, v);
            store_piece(tile, map_d, out, problem, row, rows, at.col + piece * 64, slab(problem, at.group));
        }
        if (k_blocks && pieces == 0) release(drained);
    }

    // As drain, through float32 sums.
    static __device__ __forceinline__ void drain_sums(const Shared& smem, const Output& out, const Groups& problem,
                                                      const GroupTile& at, const Place& place, uint32_t k_blocks,
                                                      uint32_t tmem, Barrier* drained, uint32_t& phase) {
        const uint32_t quarter = threadIdx.x / 32 % 4, row = at.row + quarter * 32, lane = threadIdx.x % 32;
        const Band band{reinterpret_cast<float*>(smem.store + quarter * Band::kBytes), &smem.sums[2 * quarter],
                        &smem.sums[2 * quarter + 1], 0};
        if (row >= at.row_end) {
            if (k_blocks) release(drained);
            return;
        }
        band.open(place.parts, phase);
        uint32_t v[32] = {};
        for (uint32_t c = 0; c < kBlockN; c += 32) {
            if (k_blocks) {
                tmem_load_x32(tmem + c, v);
                tmem_load_wait(v);
                if (c + 32 == kBlockN) release(drained);
            }
#pragma unroll
            for (int i = 0; i < 32; i += 4)
                *reinterpret_cast<uint4*>(band.sums + Band::index(lane, c + i)) = make_uint4(v[i], v[i + 1], v[i + 2], v[i + 3]);
        }
        band.close(place.parts, place.rank, phase, out, slab(problem, at.group), row, at.row_end - row, at.col, problem.cols,
                   lane);
        phase ^= 1;
    }

    static __device__ __forceinline__ void consume(const Shared& smem, const TensorMap* map_d, const Output& out,
                                                   const Groups& problem, const Place& place, uint32_t tmem) {
        const uint32_t k_blocks = place.blocks(problem).size();
        uint32_t exchange = 0;
        Ring<kAccumulators> acc;
        Ring<kStoreBuffers> buffer;
        Walk walk(problem);
        const uint32_t lanes = threadIdx.x / 32 % 4 << 21;  // the warp's first lane in an address
        for (uint32_t index = place.first(); walk.seek(index); index += place.step(), acc.next()) {
            if (k_blocks) {
                wait(smem.done[acc.stage], acc.phase);
                fence_after_sync();
            }
            const GroupTile at = own_tile(walk, index, place);
            const uint32_t columns = tmem + lanes + acc.stage * kBlockN;
            if constexpr (kSums)
                drain_sums(smem, out, problem, at, place, k_blocks, columns, &smem.drained[acc.stage], exchange);
            else
                drain(smem, map_d, out, problem, at, k_blocks, columns, &smem.drained[acc.stage], buffer);
        }
        if (!kSums && threadIdx.x % 32 == 0) tma_store_wait<0>();
    }

    static __device__ __forceinline__ void sync_all() {
        if constexpr (kCtas == 2 || kSums)
            cluster_sync();
        else
            __syncthreads();
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
                smem.empty[s].init(1);
            }
            for (int t = 0; t < kAccumulators; ++t) {
                smem.done[t].init(1);
                smem.drained[t].init(kEpilogueWarps * kCtas);
            }
            if constexpr (kSums)
                for (int i = 0; i < 2 * kEpilogueWarps; ++i) smem.sums[i].init(place.parts);
            fence_barrier_init();
        }
        if (threadIdx.x / 32 == 1) tmem_allocate<kCtas>(smem.tmem, kAllocated);
        fence_before_sync();
        sync_all();
        fence_after_sync();
    }

    static __device__ __forceinline__ void run(const TensorMap* map_a, const TensorMap* map_b, const TensorMap* map_d,
                                               const Output& out, const Groups& problem) {
        extern __shared__ uint8_t raw[];
        const Shared smem(raw);
        const Place place;
        const uint32_t warp = threadIdx.x / 32;
        set_up(smem, map_a, map_b, map_d, problem, place);
        const uint32_t tmem = *smem.tmem;
        wait_previous_grid();
        if (warp == 0) {
            if (elect_one()) produce(smem, map_a, map_b, problem, place);
        } else if (warp == 1) {
            if (place.half() == 0 && elect_one()) multiply(smem, problem, place, tmem);
        } else {
            consume(smem, map_d, out, problem, place, tmem);
        }
        __syncwarp();
        launch_next_grid();
        fence_before_sync();
        sync_all();  // no CTA exits, and no tensor memory is freed, while its peer may still write to it
        fence_after_sync();
        if (warp == 1) tmem_free<kCtas>(tmem, kAllocated);
    }
};

}  // namespace di::sm100

#define DI_SM100_GEMM_BF16(NAME, ...)                                                                  \
    extern "C" __global__ void __launch_bounds__(di::sm100::GemmBf16<__VA_ARGS__>::kThreads, 1)        \
        NAME(const __grid_constant__ di::TensorMap a, const __grid_constant__ di::TensorMap b,         \
             const __grid_constant__ di::TensorMap d,                                                  \
             const __grid_constant__ di::Output out,                                                   \
             const __grid_constant__ di::Groups problem) {                                             \
        di::sm100::GemmBf16<__VA_ARGS__>::run(&a, &b, &d, out, problem);                               \
    }
