#include "memory.h"

#include <algorithm>
#include <cstring>

namespace asc_sim {

namespace {
struct Plan {
    uint32_t size, usable;
    const char* name;
};
// Sizes: vendor documentation of the 950. UB loses 8 KiB to the API and to the vector function's spill stack.
constexpr Plan kUb{262144, 253952, "UB"}, kL1{524288, 524288, "L1"}, kL0A{65536, 65536, "L0A"}, kL0B{65536, 65536, "L0B"},
    kL0C{262144, 262144, "L0C"}, kBt{4096, 4096, "BiasTable"}, kFb{4096, 4096, "FixpipeBuffer"},
    kL0AMx{4096, 4096, "L0A_MX"}, kL0BMx{4096, 4096, "L0B_MX"}, kSs{262144, 262144, "SSBuf"};
constexpr uint32_t kGap = 8192;  // unmapped by intent between two memories, so that an overrun is never a hit
}  // namespace

void Memory::reset() {
    for (uint32_t p = 0; p < touched.size(); ++p) {
        if (!touched[p]) continue;
        touched[p] = 0;
        const uint32_t from = p * kPage, to = from + kPage < size ? from + kPage : size;
        std::memset(base + from, 0xFF, to - from);
        std::fill(shadow.begin() + from / kGranule, shadow.begin() + to / kGranule, Record{});
    }
}

Arena::Arena() {
    Memory* const all[] = {&ub[0], &ub[1], &l1, &l0a, &l0b, &l0c, &bt, &fb, &l0a_mx, &l0b_mx, &ssbuf};
    const Plan plans[] = {kUb, kUb, kL1, kL0A, kL0B, kL0C, kBt, kFb, kL0AMx, kL0BMx, kSs};
    size_t total = 1024;
    for (const auto& p : plans) total += p.size + kGap;
    storage.assign(total, 0xFF);
    auto* at = storage.data();
    at += 1024 - reinterpret_cast<uintptr_t>(at) % 1024;
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) {
        *all[i] = Memory{at, plans[i].size, plans[i].usable, plans[i].name, {}, {}};
        all[i]->shadow.resize(plans[i].size / kGranule);
        all[i]->touched.assign((plans[i].size + kPage - 1) / kPage, 0);
        at += plans[i].size + kGap;
    }
    unit_flags.assign(kL0C.size / 512, 0);
    unit_clocks.resize(kL0C.size / 512);
}

void Arena::reset() {
    for (Memory* m : {&ub[0], &ub[1], &l1, &l0a, &l0b, &l0c, &bt, &fb, &l0a_mx, &l0b_mx, &ssbuf}) m->reset();
    std::fill(unit_flags.begin(), unit_flags.end(), 0);
    for (auto& c : unit_clocks) c = Clock{};
}

}  // namespace asc_sim
