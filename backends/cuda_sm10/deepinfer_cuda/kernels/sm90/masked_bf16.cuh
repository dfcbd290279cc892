// sm90_masked_bf16: D[g] = A[g] * B[g]^T for the first counts[g] rows of every slab; bf16 operands and result, float32
// accumulation. Hopper (sm_90a).
//
// How many rows a group has is known on the device alone, so the rows are the side that wgmma lets vary: D is computed
// transposed. 128 rows of B (columns of D) are the M of two math warpgroups, up to 256 rows of A are the N of their wgmma, in
// steps of 32. A group of 200 rows costs 224, where tiles of 128 rows would cost 256.
//
//   producer thread (warpgroup 0)             math warpgroups 1, 2
//   -----------------------------             --------------------
//   wait empty[s] --------------------------- release empty[s]
//   TMA 128 rows of B -> smem b[s]            wait full[s]
//   TMA 32 rows of A, 2 to 8 times -> a[s]    4 x wgmma m64nNk16, N = 32 * copies; one group in flight
//   arrive + bytes on full[s]                 ... after the last K block: registers -> bf16 -> transposed -> smem -> global
//
// A group with more rows than a tile has is cut into tiles of equal height, side by side in the grid's order, so that B comes
// from memory once. The grid is persistent: CTA c takes tiles c, c + grid, ... of groups in the order of layout/masked_walk.cuh.
//
// Tiles of few rows are bound by reading B, so the same memory holds more and smaller stages for them (Layout): 4 for up to 256
// rows, 6 for 128, 8 for 64. Each layout has barriers of its own; before another one's turn all stages are given back.
//
// Bounds: 2*rows*N*K FLOP at 4096 dense bf16 FLOP per cycle and SM, rows of a tile rounded up to 32; each weight of a non-empty
// group, A and D once from HBM. Sums do not depend on a group's count: every element is added over K in the same steps.
#pragma once

#include "layout/masked_walk.cuh"
#include "layout/rows.cuh"
#include "layout/sums.cuh"
#include "mma/wgmma_bf16_between.cuh"
#include "ptx/tma.cuh"
#include "ptx/transpose.cuh"
#include "ptx/warp.cuh"

namespace di::sm90 {

struct MaskedBf16 {
    static constexpr int kBlockK = 64;   // 128 bytes: one swizzle atom wide
    static constexpr int kRows = 256;    // of D, in one tile at most
    static constexpr int kCols = 128;    // of D
    static constexpr int kStep = 32;    // rows of A per copy
    static constexpr int kMathGroups = kCols / 64;
    static constexpr int kThreads = 128 * (1 + kMathGroups);
    static constexpr int kBytesRow = kBlockK * 2;
    static constexpr int kBytesStep = kStep * kBlockK * 2;
    static constexpr int kBytesB = kCols * kBlockK * 2;
    static constexpr int kBytesHalfB = 64 * kBlockK * 2;  // the columns of one math warpgroup
    static constexpr int kStoreTile = 64 * 64 * 2;        // staging of one 64 x 64 piece of D
    static constexpr int kStoreBuffers = 2;
    static constexpr int kBytesStore = kMathGroups * kStoreBuffers * kStoreTile;
    using Order = MaskedOrder<kRows, kStep, kThreads>;
    using Walk = MaskedWalk<kRows, kCols, kStep, kThreads>;
    static constexpr int kBytesRing = 4 * (kBytesB + kRows * kBytesRow);
    static constexpr int kAllStages = 4 + 6 + 8;
    static constexpr int kSharedBytes = 1024 + kBytesRing + kBytesStore + 8 * 2 * kAllStages + Order::kBytes;
    static_assert(kSharedBytes <= 232448, "shared memory of one block on sm_90");

    struct Shared {
        uint8_t *ring, *store;
        Barrier* barriers;  // `full` and `empty` of every stage of every layout
        uint16_t* order;

        __device__ __forceinline__ explicit Shared(uint8_t* raw) {
            ring = raw + ((1024u - (shared_address(raw) & 1023u)) & 1023u);
            store = ring + kBytesRing;
            barriers = reinterpret_cast<Barrier*>(store + kBytesStore);
            order = reinterpret_cast<uint16_t*>(barriers + 2 * kAllStages);
        }
    };

    // The stages for tiles of up to kRows >> i rows.
    template <int i>
    struct Layout {
        static constexpr int kStages = 4 + 2 * i, kFirst = i * (3 + i);  // stages of the layouts before it
        static constexpr int kBytes = kBytesB + (kRows >> i) * kBytesRow;
        static_assert(kStages * kBytes <= kBytesRing && kFirst + kStages <= kAllStages);

        static __device__ __forceinline__ Barrier& full(const Shared& smem, int s) {
            return smem.barriers[2 * (kFirst + s)];
        }
        static __device__ __forceinline__ Barrier& empty(const Shared& smem, int s) {
            return smem.barriers[2 * (kFirst + s) + 1];
        }
        static __device__ __forceinline__ uint8_t* b(const Shared& smem, int s) { return smem.ring + s * kBytes; }
        static __device__ __forceinline__ uint8_t* a(const Shared& smem, int s) { return b(smem, s) + kBytesB; }
    };

    // The place of a role in the stages of a layout.
    template <int i>
    struct Pipe {
        int stage = 0;
        uint32_t phase = 0;
        __device__ __forceinline__ void next() {
            if (++stage == Layout<i>::kStages) stage = 0, phase ^= 1;
        }
        // Until every stage was given back.
        __device__ __forceinline__ void drain(const Shared& smem) const {
            Pipe at = *this;
#pragma unroll 1
            for (int s = 0; s < Layout<i>::kStages; ++s, at.next()) Layout<i>::empty(smem, at.stage).wait(at.phase ^ 1);
        }
    };

    struct Pipes {
        Pipe<0> high;
        Pipe<1> middle;
        Pipe<2> low;
    };

    // Copies of A for a tile: the numbers that multiply() is made for.
    static __device__ __forceinline__ uint32_t steps(const GroupTile& at) {
        const uint32_t needed = ceil_div(at.row_end - at.row, static_cast<uint32_t>(kStep));
        return needed <= 2 ? 2 : needed <= 4 ? 4 : needed;
    }

    static __device__ __forceinline__ int layout(uint32_t copies) { return copies <= 2 ? 2 : copies <= 4 ? 1 : 0; }

    static __device__ __forceinline__ uint32_t k_blocks(const Groups& problem) {
        return ceil_div(problem.depth, static_cast<uint32_t>(kBlockK));
    }

    template <int i>
    static __device__ __forceinline__ void load(const Shared& smem, Pipe<i>& pipe, const TensorMap* map_a,
                                                const TensorMap* map_b, uint32_t blocks, const GroupTile& at) {
        const uint32_t copies = steps(at);
        const int32_t z = static_cast<int32_t>(at.group);
        for (uint32_t kb = 0; kb < blocks; ++kb, pipe.next()) {
            Barrier& full = Layout<i>::full(smem, pipe.stage);
            Layout<i>::empty(smem, pipe.stage).wait(pipe.phase ^ 1);
            full.arrive_expect(copies * kBytesStep + kBytesB);
            const int32_t k = static_cast<int32_t>(kb * kBlockK);
            tma_load_3d(Layout<i>::b(smem, pipe.stage), map_b, &full, k, static_cast<int32_t>(at.col), z);
            for (uint32_t c = 0; c < copies; ++c)
                tma_load_3d(Layout<i>::a(smem, pipe.stage) + c * kBytesStep, map_a, &full, k,
                            static_cast<int32_t>(at.row + c * kStep), z);
        }
    }

    static __device__ __forceinline__ void produce(const Shared& smem, const TensorMap* map_a, const TensorMap* map_b,
                                                   const Groups& problem, const Order& order) {
        const uint32_t blocks = k_blocks(problem);
        Pipes pipes;
        int last = 0;  // layout
        Walk walk(problem, order, 1);
        for (uint32_t index = blockIdx.x; walk.seek(index); index += gridDim.x) {
            const GroupTile at = walk.tile(index, gridDim.x);
            const int next = layout(steps(at));
            if (next != last) last == 0 ? pipes.high.drain(smem) : last == 1 ? pipes.middle.drain(smem) : pipes.low.drain(smem);
            last = next;
            if (next == 0)
                load(smem, pipes.high, map_a, map_b, blocks, at);
            else if (next == 1)
                load(smem, pipes.middle, map_a, map_b, blocks, at);
            else
                load(smem, pipes.low, map_a, map_b, blocks, at);
        }
    }

    template <int i, int kSums>
    static __device__ __forceinline__ void multiply(const Shared& smem, Pipe<i>& pipe, uint32_t blocks, int warpgroup,
                                                    float (&acc)[kSums]) {
        using Stages = Layout<i>;
        static_assert(kSums * 2 <= kRows >> i);
        const auto release = [&](int s) {
            if (threadIdx.x % 128 == 0) Stages::empty(smem, s).arrive();
        };
        int previous = -1;
#pragma unroll
        for (int n = 0; n < kSums; ++n) acc[n] = 0.f;  // also the result when K is 0
        for (uint32_t kb = 0; kb < blocks; ++kb, pipe.next()) {
            const int s = pipe.stage;
            Stages::full(smem, s).wait(pipe.phase);
            const uint64_t b = descriptor_k128(Stages::b(smem, s) + warpgroup * kBytesHalfB);
            const uint64_t a = descriptor_k128(Stages::a(smem, s));
            pin_registers(acc);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < kBlockK / 16; ++k) Wgmma<kSums * 2>::mma(acc, b + k * 2, a + k * 2, 1);
            wgmma_commit();
            pin_registers(acc);
            wgmma_wait<1>();
            if (previous >= 0) release(previous);
            previous = s;
        }
        wgmma_wait<0>();
        pin_registers(acc);
        if (previous >= 0) release(previous);
    }

    static __device__ __forceinline__ uint8_t* staging(const Shared& smem, int warpgroup, uint32_t piece) {
        return smem.store + (warpgroup * kStoreBuffers + piece % kStoreBuffers) * kStoreTile;
    }

    // Lays the warpgroup's 64 columns down in pieces of 64 rows and stores all but a last piece of fewer rows. A lane holds
    // neighbouring rows of one column (mma/wgmma_bf16.cuh, with rows and columns of D exchanged); the store to shared memory
    // turns them.
    template <int kSums>
    static __device__ __forceinline__ void store(const Shared& smem, const TensorMap* map_d, const Groups& problem,
                                                 const GroupTile& at, int warpgroup, const float (&acc)[kSums]) {
        const int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
        const uint32_t col = at.col + warpgroup * 64, rows = at.row_end - at.row;
        const uint32_t r = lane % 8 + 8 * (lane / 16), chunk = warp * 2 + lane / 8 % 2;
#pragma unroll
        for (int piece = 0; piece * 32 < kSums; ++piece) {
            if (rows <= piece * 64) break;
            uint8_t* tile = staging(smem, warpgroup, piece);
            if (thread == 0) piece == 0 ? tma_store_wait_read<0>() : tma_store_wait_read<kStoreBuffers - 1>();
            named_sync(1 + warpgroup, 128);
            const uint32_t base = shared_address(tile) + r * 128 + (chunk ^ (r % 8)) * 16;
#pragma unroll
            for (int j = 0; j < 4 && piece * 32 + j * 8 < kSums; ++j) {  // 16 rows each
                const float* d = acc + piece * 32 + j * 8;
                store_matrix_x4_transposed(base + j * 16 * 128, pack_bf16(d[0], d[1]), pack_bf16(d[2], d[3]),
                                           pack_bf16(d[4], d[5]), pack_bf16(d[6], d[7]));
            }
            fence_async_shared();
            named_sync(1 + warpgroup, 128);
            if (piece * 32 + 32 <= kSums && thread == 0 && rows >= piece * 64 + 64) {
                if (col < problem.cols)
                    tma_store_3d(map_d, tile, static_cast<int32_t>(col), static_cast<int32_t>(at.row + piece * 64),
                                 static_cast<int32_t>(at.group));
                tma_store_commit();
            }
        }
    }

    // Stores the rows of the last piece when these are fewer than 64: no other row may be written.
    static __device__ __forceinline__ void store_rest(const Shared& smem, const Output& out, const Groups& problem,
                                                      const GroupTile& at, int warpgroup) {
        const uint32_t rows = at.row_end - at.row, piece = rows / 64, col = at.col + warpgroup * 64;
        if (col < problem.cols)
            store_rows<128>(staging(smem, warpgroup, piece),
                            out.data + at.group * out.slab_bytes + (at.row + piece * 64) * out.row_bytes +
                                static_cast<int64_t>(col) * 2,
                            out.row_bytes, rows % 64, problem.cols - col, threadIdx.x % 128);
    }

    template <int kN, int i>
    static __device__ __forceinline__ void tile(const Shared& smem, Pipe<i>& pipe, const TensorMap* map_d,
                                                const Groups& problem, const GroupTile& at, int warpgroup) {
        float acc[kN / 2];
        multiply(smem, pipe, k_blocks(problem), warpgroup, acc);
        store(smem, map_d, problem, at, warpgroup, acc);
    }

    static __device__ __forceinline__ void consume(const Shared& smem, const TensorMap* map_d, const Output& out,
                                                   const Groups& problem, const Order& order) {
        const int warpgroup = static_cast<int>(threadIdx.x / 128) - 1;
        Pipes pipes;
        Walk walk(problem, order, 0xFFFFFFFF);
        for (uint32_t index = blockIdx.x; walk.seek(index); index += gridDim.x) {
            const GroupTile at = walk.tile(index, gridDim.x);
            switch (steps(at)) {
                case 2: tile<64>(smem, pipes.low, map_d, problem, at, warpgroup); break;
                case 4: tile<128>(smem, pipes.middle, map_d, problem, at, warpgroup); break;
                case 5: tile<160>(smem, pipes.high, map_d, problem, at, warpgroup); break;
                case 6: tile<192>(smem, pipes.high, map_d, problem, at, warpgroup); break;
                case 7: tile<224>(smem, pipes.high, map_d, problem, at, warpgroup); break;
                default: tile<256>(smem, pipes.high, map_d, problem, at, warpgroup);
            }
            store_rest(smem, out, problem, at, warpgroup);
        }
        if (threadIdx.x % 128 == 0) tma_store_wait<0>();
    }

    static __device__ __forceinline__ void set_up(const Shared& smem, const TensorMap* map_a, const TensorMap* map_b,
                                                  const TensorMap* map_d, const Groups& problem) {
        if (threadIdx.x == 0) {
            if (problem.depth) {
                prefetch_map(map_a);
                prefetch_map(map_b);
            }
            prefetch_map(map_d);
            for (int s = 0; s < kAllStages; ++s) {
                smem.barriers[2 * s].init(1);
                smem.barriers[2 * s + 1].init(kMathGroups);
            }
            fence_barrier_init();
        }
        __syncthreads();
    }

    static __device__ __forceinline__ void run(const TensorMap* map_a, const TensorMap* map_b, const TensorMap* map_d,
                                               const Output& out, const Groups& problem) {
        extern __shared__ uint8_t raw[];
        const Shared smem(raw);
        set_up(smem, map_a, map_b, map_d, problem);
        wait_previous_grid();
        const Order order(smem.order, reinterpret_cast<uint32_t*>(smem.store), problem);
        // The block starts with 168 registers per thread; no warpgroup may take what another has not given.
        static_assert(48 * 128 + 224 * 256 <= 168 * kThreads);
        if (threadIdx.x < 128) {
            give_registers<48>();
            if (threadIdx.x == 0) produce(smem, map_a, map_b, problem, order);
            __syncwarp();
        } else {
            take_registers<224>();
            consume(smem, map_d, out, problem, order);
        }
        launch_next_grid();
    }
};

}  // namespace di::sm90

#define DI_SM90_MASKED_BF16(NAME, ...)                                                                 \
    extern "C" __global__ void __launch_bounds__(di::sm90::MaskedBf16::kThreads, 1)                    \
        NAME(const __grid_constant__ di::TensorMap a, const __grid_constant__ di::TensorMap b,         \
             const __grid_constant__ di::TensorMap d,                                                  \
             const __grid_constant__ di::Output out,                                                   \
             const __grid_constant__ di::Groups problem) {                                             \
        di::sm90::MaskedBf16::run(&a, &b, &d, out, problem);                                           \
    }
