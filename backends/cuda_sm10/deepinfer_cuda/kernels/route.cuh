// route: moe.route for sigmoid scores of 128 or 256 experts; top_k up to 8.
//
//   TMA, 4 tokens to a stage --full[s]--> a warp: 8 lanes per token, an eighth of the experts per lane --> weights, ids
//        (a ring of stages for all warps of the CTA; who has read a stage asks for the tile that is to follow in it)
//
// Bytes: 4 per logit and 8 per choice, 1088 per token of 256 experts. FLOPs: 8 per logit. A token takes 200 instructions of
// a warp; issue slots, the ALU pipe (compares, minima, logic: every other clock) and powers and reciprocals (every eighth)
// are each half to three quarters busy, so that 32 warps are needed to keep one another company.
//
// A lane ranks its experts in registers, roughly: by reciprocals that may be off by a unit in the last place. Its two
// largest ranks give the groups' scores and a threshold that the top_k best reach; errors are bounded, and groups that come
// too close are compared again exactly. What reaches the threshold (9 to 15 experts of a token) is listed, spread over the
// token's lanes, ranked exactly and sorted by the rank's upper 27 bits and the place in the list. When bits that sorting
// did not see might decide, the listed ones are compared exactly, ties to the lower expert; when ranks are NaN or
// infinite, or more than 32 experts are listed, all are. Every way gives a token the same bits.
#pragma once

#include "layout/sums.cuh"
#include "ptx/barrier.cuh"
#include "ptx/bulk.cuh"

namespace di {

struct Route {
    const float* logits;
    const uint8_t* bias;  // null: none
    float* weights;    // [tokens, top_k], dense
    int32_t* ids;      // [tokens, top_k], dense
    int64_t step;      // of logits, between tokens
    int64_t bias_bytes;  // between experts
    uint32_t bias_type;  // kBf16, kF16 or kF32
    uint32_t tokens, top_k;
    uint32_t group_lanes;  // lanes that share a group; 8: there are no groups
    uint32_t kept_lanes;   // lanes of the groups that stay
    uint32_t top2;         // a group's score is the sum of its two largest ranks, else the largest
    uint32_t renormalize;
    float scale, eps;
};

// Below this power e^-x the sigmoid is one over a normal number; beyond, it is e^x to the last bit.
constexpr float kPowerLimit = 0x1p100f;
constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000u);

// 1 + e^-x by the hardware's power.
__device__ __forceinline__ float sigmoid_base(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(__fmul_rn(x, -1.44269504f)));
    return __fadd_rn(power, 1.f);
}

// One over `x` >= 1 within one unit in the last place, or within 2^-126.
__device__ __forceinline__ float rough_reciprocal(float x) {
    float near;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(near) : "f"(x));
    return near;
}

// One over `x`, which is 0, NaN or between 2^-120 and kPowerLimit: a Newton step betters the hardware's own.
__device__ __forceinline__ float reciprocal(float x) {
    const float near = rough_reciprocal(x);
    return __fmaf_rn(near, __fmaf_rn(-x, near, 1.f), near);
}

// The sigmoid of anything: tiny ones keep their order, NaN stays NaN.
__device__ __forceinline__ float sigmoid(float x) {
    const float base = sigmoid_base(x);
    if (base < kPowerLimit) return reciprocal(base);
    float power;
    asm("ex2.approx.f32 %0, %1;" : "=f"(power) : "f"(__fmul_rn(x, 1.44269504f)));
    return power;
}

// One instruction to compare and one to add, where the compiler would select.
__device__ __forceinline__ void count_if_greater(uint32_t& count, float a, float b) {
    asm("{\n.reg .pred greater;\nsetp.gt.f32 greater, %1, %2;\n@greater add.u32 %0, %0, 1;\n}\n"
        : "+r"(count)
        : "f"(a), "f"(b));
}

// min(a, b) where `lower` is not 0, else max(a, b), in two instructions.
__device__ __forceinline__ float min_or_max(uint32_t lower, float a, float b) {
    float out;
    asm("{\n.reg .pred p, q;\nsetp.ne.u32 p, %3, 0;\nsetp.gt.xor.f32 q, %1, %2, p;\nselp.f32 %0, %1, %2, q;\n}\n"
        : "=f"(out)
        : "f"(a), "f"(b), "r"(lower));
    return out;
}

// The maximum, NaN if either is.
__device__ __forceinline__ float max_or_nan(float a, float b) {
    float out;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
    return out;
}

// Adds the value of the lane `step` below, if that is among the same 8 lanes.
__device__ __forceinline__ void add_from_below(uint32_t& value, uint32_t step) {
    asm volatile(
        "{\n.reg .pred inside;\n.reg .b32 other;\nshfl.sync.up.b32 other|inside, %0, %1, 0x1800, 0xffffffff;\n"
        "@inside add.u32 %0, %0, other;\n}\n"
        : "+r"(value)
        : "r"(step));
}

// By one lane: the compiler would gather the increments of all lanes of an atomicAdd.
__device__ __forceinline__ uint32_t fetch_and_increment(uint32_t* at) {
    uint32_t before;
    asm volatile("atom.shared.inc.u32 %0, [%1], 0x7fffffff;" : "=r"(before) : "r"(shared_address(at)) : "memory");
    return before;
}

__device__ __forceinline__ void store_relaxed(uint32_t* at, uint32_t value) {
    asm volatile("st.relaxed.cta.shared.u32 [%0], %1;" ::"r"(shared_address(at)), "r"(value) : "memory");
}

__device__ __forceinline__ uint32_t load_relaxed(const uint32_t* at) {
    uint32_t value;
    asm volatile("ld.relaxed.cta.shared.u32 %0, [%1];" : "=r"(value) : "r"(shared_address(at)) : "memory");
    return value;
}

__device__ __forceinline__ float4 load_shared(uint32_t address) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

// int32 in the order of the floats; NaN comes last.
__device__ __forceinline__ int32_t ordered(float value) {
    const int32_t bits = __float_as_int(value);
    return value != value ? -0x7fffffff : bits ^ (bits >> 31 & 0x7fffffff);
}

template <uint32_t PER_LANE, uint32_t WARPS, uint32_t STAGES>
struct RouteKernel {
    static_assert(STAGES <= 2 * WARPS, "a warp asks for two tiles at the start");
    static constexpr uint32_t kLanes = 8;                    // per token
    static constexpr uint32_t kTokens = 32 / kLanes;         // per tile and warp
    static constexpr uint32_t kExperts = kLanes * PER_LANE;  // of a token
    static constexpr uint32_t kChunks = PER_LANE / 4;        // 16 bytes each, of a lane
    static constexpr uint32_t kListed = 32;                  // candidates of a token that sorting takes
    // Of 1 + the largest rank considered. A rough rank is off by 2^-23 (score) and as much of itself (two sums that round
    // apart), a group's score by twice that and its own rounding, and two groups compare within twice that.
    static constexpr float kSlack = 0x1.4p-20f;
    static constexpr uint32_t kAll = 0xffffffffu;
    static constexpr uint32_t kTileBytes = kTokens * kExperts * 4;

    struct Shared {
        float logits[STAGES][kTokens][kExperts];
        float bias[kExperts];
        float4 lane_bias[kChunks][kLanes];  // the same in the order in which lanes read logits
        uint8_t lists[WARPS][kTokens][kListed];
        Barrier full[STAGES];
        uint32_t uses[STAGES];  // tiles asked for; a barrier's parity tells only neighbouring ones apart
        uint32_t next;  // the first of the CTA's tiles that no warp has taken
    };

    struct Lane {
        uint32_t index;    // in the warp
        uint32_t sub;      // among the token's lanes
        uint32_t slot;     // the token's place in the tile
        uint32_t swizzle;  // chunk i of the lane is read as the i ^ swizzle-th: 8 lanes then meet all banks

        __device__ __forceinline__ Lane()
            : index(threadIdx.x % 32), sub(index % kLanes), slot(index / kLanes),
              swizzle(swizzle_of(sub)) {}

        static __device__ __forceinline__ uint32_t swizzle_of(uint32_t sub) { return sub * kChunks / kLanes % kChunks; }
    };

    // Logits of one token, its list of candidates, and the CTA's bias, in shared memory.
    struct Token {
        const float* logits;
        const Shared* shared;
        uint8_t* list;

        __device__ __forceinline__ float rank(uint32_t expert) const {
            return __fadd_rn(sigmoid(logits[expert]), shared->bias[expert]);
        }
    };

    static __device__ __forceinline__ float shuffle_xor(float value, uint32_t mask) {
        return __shfl_xor_sync(kAll, value, mask);
    }

    // Of each list's two keys in lanes that differ by `mask`, the larger goes to the lane without `top_bit`, which is the
    // highest of `mask`.
    template <uint32_t LISTS>
    static __device__ __forceinline__ void exchange(float (&key)[LISTS], uint32_t sub, uint32_t mask, uint32_t top_bit) {
#pragma unroll
        for (uint32_t k = 0; k < LISTS; ++k) {
            const float other = shuffle_xor(key[k], mask);
            key[k] = min_or_max(sub & top_bit, key[k], other);
        }
    }

    // Sorts 8 x LISTS keys; key[0] of lane j becomes the one of rank j < 8. Returns the largest of those that
    // this lane has seen fall out.
    template <uint32_t LISTS>
    static __device__ __forceinline__ float sort(float (&key)[LISTS], uint32_t sub) {
        exchange(key, sub, 1, 1);
        exchange(key, sub, 3, 2), exchange(key, sub, 1, 1);
        exchange(key, sub, 7, 4), exchange(key, sub, 2, 2), exchange(key, sub, 1, 1);
        float lost = -kInfinity;
        float best[1] = {key[0]};
#pragma unroll
        for (uint32_t k = 1; k < LISTS; ++k) {
            const float other = shuffle_xor(key[k], 7);
            lost = fmaxf(lost, fminf(best[0], other));
            best[0] = fmaxf(best[0], other);
            exchange(best, sub, 4, 4), exchange(best, sub, 2, 2), exchange(best, sub, 1, 1);
        }
        key[0] = best[0];
        return lost;
    }

    // The two largest ranks of a lane become those of its group.
    static __device__ __forceinline__ void gather_group(const Route& p, float& first, float& second) {
        for (uint32_t mask = 1; mask < p.group_lanes; mask *= 2) {
            const float a = shuffle_xor(first, mask), b = shuffle_xor(second, mask);
            second = fmaxf(fminf(first, a), fmaxf(second, b));
            first = fmaxf(first, a);
        }
    }

    // 1 where the lane's group surely stays, if scores of groups less than `slack` apart may be in any order.
    static __device__ __forceinline__ uint32_t keeps(const Route& p, float first, float second, float slack) {
        gather_group(p, first, second);
        const float score = p.top2 ? first + second : first, low = score - slack;
        uint32_t above = 1 - p.group_lanes;  // lanes of groups that may be better, without the group's own
#pragma unroll
        for (uint32_t mask = 1; mask < kLanes; ++mask) count_if_greater(above, shuffle_xor(score, mask), low);
        return above < p.kept_lanes ? 1 : 0;
    }

    // The two largest of a lane's ranks; `first` is NaN if any is.
    static __device__ __forceinline__ void two_largest(const float (&x)[PER_LANE], float& first, float& second) {
        float high[PER_LANE / 2], low[PER_LANE / 2];
#pragma unroll
        for (uint32_t i = 0; i < PER_LANE / 2; ++i) {
            high[i] = max_or_nan(x[2 * i], x[2 * i + 1]), low[i] = fminf(x[2 * i], x[2 * i + 1]);
        }
#pragma unroll
        for (uint32_t step = 1; step < PER_LANE / 2; step *= 2) {
#pragma unroll
            for (uint32_t i = 0; i < PER_LANE / 2; i += 2 * step) {
                low[i] = fmaxf(fminf(high[i], high[i + step]), fmaxf(low[i], low[i + step]));
                high[i] = max_or_nan(high[i], high[i + step]);
            }
        }
        first = high[0], second = low[0];
    }

    // A rank that at least top_k of the token's ranks reach.
    static __device__ __forceinline__ float threshold(const Route& p, uint32_t sub, uint32_t kept, float first, float second) {
        if (p.top_k == 2 * p.kept_lanes) {
            float least = kept ? second : kInfinity;
#pragma unroll
            for (uint32_t mask = 1; mask < kLanes; mask *= 2) least = fminf(least, shuffle_xor(least, mask));
            return least;
        }
        float keys[2] = {kept ? first : -kInfinity, kept ? second : -kInfinity};
        sort(keys, sub);
        return __shfl_sync(kAll, keys[0], p.top_k - 1, kLanes);
    }

    // Bit i: whether x[i] reaches `least`, by FMAs alone. A step of `least` is at least 1 after scaling by a power of two,
    // so that saturating gives 0 or 1; a rank half a step below the threshold may count as reaching it.
    static __device__ __forceinline__ uint32_t reaching(const float (&x)[PER_LANE], uint32_t kept, float least) {
        const uint32_t exponent = __float_as_uint(least) >> 23 & 255;
        const float factor = kept ? __uint_as_float(278 - exponent << 23) : 0.f;
        const float shift = kept ? __fmaf_rn(-least, factor, 2.f) : 0.f;
        uint32_t mask = 0;
#pragma unroll
        for (uint32_t half = 0; half < PER_LANE / 16; ++half) {
            float sum = 0x1p23f;  // bits are added to the mantissa
#pragma unroll
            for (uint32_t i = 0; i < 16; ++i) {
                float bit;
                asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(bit) : "f"(x[16 * half + i]), "f"(factor), "f"(shift));
                sum = __fmaf_rn(bit, static_cast<float>(1u << i), sum);
            }
            mask |= (__float_as_uint(sum) & 0xffffu) << 16 * half;
        }
        return mask;
    }

    // Lists the experts of `mask` in bytes from shared address `at` on.
    static __device__ __forceinline__ void list(const Lane& lane, uint32_t at, uint32_t mask) {
        const uint32_t base = lane.sub * PER_LANE ^ lane.swizzle << 2;
        for (; mask != 0; ++at) {
            uint32_t bit;
            asm("bfind.u32 %0, %1;" : "=r"(bit) : "r"(mask));
            mask ^= 1u << bit;
            asm volatile("st.shared.u8 [%0], %1;" ::"r"(at), "r"(base ^ bit) : "memory");
        }
    }

    // The expert of rank `sub`, out of `count` listed ones; false when bits beyond the keys' might decide.
    template <uint32_t LISTS>
    static __device__ __forceinline__ bool choose(const Route& p, const Token& token, uint32_t sub, uint32_t count,
                                                  uint32_t& expert) {
        float key[LISTS];
        bool open = false;
#pragma unroll
        for (uint32_t k = 0; k < LISTS; ++k) {
            const uint32_t place = sub + kLanes * k, e = token.list[min(place, count - 1)];
            const float base = sigmoid_base(token.logits[e]);
            const float rank = __fadd_rn(reciprocal(base), token.shared->bias[e]);
            open |= !(base < kPowerLimit);
            key[k] = place < count ? __uint_as_float(__float_as_uint(rank) & 0u - kListed | place) : -kInfinity;
        }
        const float lost = sort(key, sub);
        const uint32_t mine = __float_as_uint(key[0]), next = __shfl_down_sync(kAll, mine, 1, kLanes);
        const uint32_t last = __shfl_sync(kAll, mine, p.top_k - 1, kLanes);
        open |= (mine ^ next) < kListed & sub < min(p.top_k, kLanes - 1);
        open |= (last ^ __float_as_uint(lost)) < kListed;
        expert = token.list[min(mine % kListed, count - 1)];
        return !__any_sync(kAll, open);
    }

    // The expert of rank `sub` by rounds of exact maxima; of all that the lane keeps, or of `count` listed ones.
    static __device__ __forceinline__ uint32_t choose_exactly(const Route& p, const Token& token, uint32_t sub, bool listed,
                                                              uint32_t kept, uint32_t count) {
        const uint32_t mine = listed ? (count + kLanes - 1 - sub) / kLanes : kept ? PER_LANE : 0;
        uint32_t expert = 0, taken = 0;
#pragma unroll 1
        for (uint32_t k = 0; k < p.top_k; ++k) {
            uint64_t best = 0;  // the rank's order, then the lower expert
            uint32_t where = 0;
#pragma unroll 1
            for (uint32_t r = 0; r < mine; ++r) {
                const uint32_t e = listed ? token.list[sub + kLanes * r] : sub * PER_LANE + r;
                const uint32_t order = static_cast<uint32_t>(ordered(token.rank(e))) ^ 0x80000000u;
                const uint64_t key = static_cast<uint64_t>(order) << 32 | kExperts - e;
                if (!(taken >> r & 1) && key > best) best = key, where = r;
            }
            uint64_t most = best;
#pragma unroll
            for (uint32_t mask = 1; mask < kLanes; mask *= 2) {
                const uint64_t other = __shfl_xor_sync(kAll, most, mask);
                if (other > most) most = other;
            }
            if (best == most) taken |= 1u << where;
            if (sub == k) expert = kExperts - static_cast<uint32_t>(most);
        }
        return expert;
    }

    // Whether the lane's group stays, for ranks of any kind.
    static __device__ __forceinline__ uint32_t keeps_exactly(const Route& p, const Token& token, uint32_t sub) {
        if (p.group_lanes == kLanes) return 1;
        float first = -kInfinity, second = -kInfinity;
#pragma unroll 1
        for (uint32_t r = 0; r < PER_LANE; ++r) {
            // the larger of NaN and a number is the number
            const float rank = fmaxf(token.rank(sub * PER_LANE + r), -kInfinity);
            second = fmaxf(second, fminf(first, rank));
            first = fmaxf(first, rank);
        }
        gather_group(p, first, second);
        const int32_t key = ordered(p.top2 ? first + second : first);
        uint32_t above = 0;  // lanes of better groups
#pragma unroll 1
        for (uint32_t mask = p.group_lanes; mask < kLanes; ++mask) {
            const int32_t other = __shfl_xor_sync(kAll, key, mask);
            if (other > key || (other == key && (sub ^ mask) < sub)) ++above;
        }
        return above < p.kept_lanes ? 1 : 0;
    }

    // Expert and score of rank `sub` of the lane's token; anything for sub >= top_k.
    static __device__ __forceinline__ uint32_t select(const Route& p, const Token& token, const Lane& lane,
                                                      float& score) {
        const uint32_t chunks = shared_address(token.logits + lane.sub * PER_LANE) + 16 * lane.swizzle;
        float x[PER_LANE];  // rough ranks
#pragma unroll
        for (uint32_t i = 0; i < kChunks; ++i) {
            const float4 v = load_shared(chunks ^ 16 * i), b = token.shared->lane_bias[i][lane.sub];
            x[4 * i] = __fadd_rn(rough_reciprocal(sigmoid_base(v.x)), b.x);
            x[4 * i + 1] = __fadd_rn(rough_reciprocal(sigmoid_base(v.y)), b.y);
            x[4 * i + 2] = __fadd_rn(rough_reciprocal(sigmoid_base(v.z)), b.z);
            x[4 * i + 3] = __fadd_rn(rough_reciprocal(sigmoid_base(v.w)), b.w);
        }
        float first, second;
        two_largest(x, first, second);
        const float largest = __uint_as_float(__reduce_max_sync(kAll, __float_as_uint(fmaxf(fabsf(first), fabsf(second)))));
        const float slack = __fmaf_rn(largest, kSlack, kSlack);
        uint32_t kept = 1;
        if (p.group_lanes != kLanes) {
            kept = keeps(p, first, second, slack);
            if (__popc(__ballot_sync(kAll, kept)) != kTokens * p.kept_lanes) kept = keeps_exactly(p, token, lane.sub);
        }
        const float least = threshold(p, lane.sub, kept, first, second) - slack;
        const uint32_t mask = reaching(x, kept, least);
        uint32_t before = __popc(mask);
        const uint32_t here = before;
#pragma unroll
        for (uint32_t step = 1; step < kLanes; step *= 2) add_from_below(before, step);
        const uint32_t count = __shfl_sync(kAll, before, kLanes - 1, kLanes);
        const uint32_t most = __reduce_max_sync(kAll, count);
        const bool plain = fabsf(first) < kInfinity && fabsf(least) < kInfinity && fabsf(least) >= 0x1p-100f;
        const bool listed = __all_sync(kAll, plain) && most <= kListed;
        uint32_t expert = 0;
        if (listed) {
            list(lane, shared_address(token.list) + (before - here), mask);
            __syncwarp();
            const bool found = most <= 16   ? choose<2>(p, token, lane.sub, count, expert)
                               : most <= 24 ? choose<3>(p, token, lane.sub, count, expert)
                                            : choose<4>(p, token, lane.sub, count, expert);
            if (found) {
                score = reciprocal(sigmoid_base(token.logits[expert]));
                return expert;
            }
        }
        const uint32_t stays = listed ? 1 : keeps_exactly(p, token, lane.sub);
        expert = choose_exactly(p, token, lane.sub, listed, stays, count);
        score = sigmoid(token.logits[expert]);
        return expert;
    }

    // Weight, of score `weight`, and id of the choice of rank `sub`.
    static __device__ __forceinline__ void write(const Route& p, uint32_t sub, uint32_t number, uint32_t expert,
                                                 float weight) {
        const bool chosen = sub < p.top_k;
        weight = chosen ? weight : 0.f;
        if (p.renormalize) {
            float total = weight;
#pragma unroll
            for (uint32_t mask = 1; mask < kLanes; mask *= 2) total += shuffle_xor(total, mask);
            total += p.eps;
            const float lift = total < 0x1p-60f ? 0x1p80f : 1.f;  // what is tiny must not overflow the reciprocal
            weight = weight * lift * reciprocal(total * lift);
        }
        if (chosen && number < p.tokens) {
            const uint32_t at = number * p.top_k + sub;
            p.weights[at] = weight * p.scale;
            p.ids[at] = static_cast<int32_t>(expert);
        }
    }

    // Asks for the CTA's tile `index` if there is such a one; beyond the last token, for the last one again.
    static __device__ __forceinline__ void load(const Route& p, Shared& smem, uint32_t index, uint32_t stage, uint32_t use) {
        const uint32_t number = (blockIdx.x + index * gridDim.x) * kTokens;
        if (number >= p.tokens || !elect_one()) return;
        auto& rows = smem.logits[stage];
        Barrier* full = &smem.full[stage];
        full->arrive_expect(kTileBytes);
        store_relaxed(&smem.uses[stage], use + 1);
        if (p.step == kExperts && number + kTokens <= p.tokens) {
            bulk_load(rows, p.logits + static_cast<uint64_t>(number) * kExperts, kTileBytes, full);
            return;
        }
#pragma unroll 1
        for (uint32_t i = 0; i < kTokens; ++i)
            bulk_load(rows[i], p.logits + min(number + i, p.tokens - 1) * p.step, kExperts * 4, full);
    }

    static __device__ __forceinline__ void run(const Route& p) {
        extern __shared__ __align__(128) uint8_t raw[];
        Shared& smem = *reinterpret_cast<Shared*>(raw);
        const Lane lane;
        const uint32_t warp = threadIdx.x / 32;
        const uint32_t tiles = ceil_div(p.tokens, kTokens);
        launch_next_grid();  // its CTAs start where ours end, and wait
        for (uint32_t i = warp; i < STAGES; i += WARPS)
            if (lane.index == 0) smem.full[i].init(1), store_relaxed(&smem.uses[i], 0);
        if (threadIdx.x == 0) smem.next = WARPS;
        fence_barrier_init();
        __syncwarp();
        wait_previous_grid();
        float extra[ceil_div(kExperts, WARPS * 32)];  // asked for before the logits: those fill the queues to memory
#pragma unroll
        for (uint32_t i = 0; i < sizeof(extra) / 4; ++i) {
            const uint32_t e = threadIdx.x + i * WARPS * 32;
            extra[i] = p.bias && e < kExperts ? read_number(p.bias + e * p.bias_bytes, p.bias_type) : 0.f;
        }
        load(p, smem, warp, warp, 0);
#pragma unroll
        for (uint32_t i = 0; i < sizeof(extra) / 4; ++i) {
            const uint32_t e = threadIdx.x + i * WARPS * 32;
            const uint32_t sub = e / PER_LANE, chunk = e / 4 % kChunks ^ Lane::swizzle_of(sub);
            if (e < kExperts) {
                smem.bias[e] = extra[i];
                reinterpret_cast<float*>(&smem.lane_bias[chunk][sub])[e % 4] = extra[i];
            }
        }
        __syncthreads();
        if (warp + WARPS < STAGES && blockIdx.x + warp * gridDim.x < tiles) {
            smem.full[warp].wait(0);  // what is read first is not to wait for what is read later
            load(p, smem, warp + WARPS, warp + WARPS, 0);
        }
        // Warps do not run equally fast: with equal shares most would wait for the last.
        for (uint32_t index = warp, tile; (tile = blockIdx.x + index * gridDim.x) < tiles;) {
            const uint32_t stage = index % STAGES, use = index / STAGES;
            const Token token{smem.logits[stage][lane.slot], &smem, smem.lists[warp][lane.slot]};
            while (load_relaxed(&smem.uses[stage]) != use + 1) {  // a slow warp may still read what was here before
            }
            smem.full[stage].wait(use % 2);
            float score;
            const uint32_t expert = select(p, token, lane, score);
            uint32_t taken = 0;
            if (lane.index == 0) taken = fetch_and_increment(&smem.next);
            __syncwarp();  // every lane has read its logits
            load(p, smem, index + STAGES, stage, use + 1);
            write(p, lane.sub, tile * kTokens + lane.slot, expert, score);
            index = __shfl_sync(kAll, taken, 0);
        }
    }
};

}  // namespace di

#define DI_ROUTE(NAME, PER_LANE, WARPS, STAGES, BLOCKS)                                                                \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS) NAME(const __grid_constant__ di::Route problem) { \
        di::RouteKernel<PER_LANE, WARPS, STAGES>::run(problem);                                                        \
    }
