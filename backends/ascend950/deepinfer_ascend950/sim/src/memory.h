// On-chip memories of one AI core with their real capacities, and the shadow state of the checkers.
//
// Every memory is filled with 0xFF (NaN in every float format) when a block starts. The shadow has one record per 32
// bytes: last writer, up to three readers, which bytes were ever written, and the in-VF store tracker.
#pragma once
#include <cstdint>
#include <vector>

#include "asc_sim/core.h"
#include "clock.h"

namespace asc_sim {

struct Access {
    uint32_t actor = 0;  // global actor number + 1; 0 = none
    uint32_t epoch = 0;
    uint32_t mask = 0;  // bytes of the granule
    uint32_t loc = 0;   // index into the table of source locations
};
struct Record {
    Access w, r[3];
    uint32_t init = 0;            // bytes ever written
    uint32_t vst = 0, vst_mask = 0;  // in-VF stores not yet ordered by a memory barrier
};

inline constexpr uint32_t kGranule = 32, kPage = 2048;

struct Memory {
    unsigned char* base = nullptr;
    uint32_t size = 0;    // physical bytes
    uint32_t usable = 0;  // bytes a kernel may use
    const char* name = "";
    std::vector<Record> shadow;
    std::vector<uint8_t> touched;  // per page: bytes or records may differ from the state after reset

    bool holds(const void* p) const {
        const auto* c = static_cast<const unsigned char*>(p);
        return c >= base && c < base + size;
    }
    uint32_t offset(const void* p) const { return static_cast<uint32_t>(static_cast<const unsigned char*>(p) - base); }
    void touch(uint32_t at, uint32_t bytes) {
        for (uint32_t p = at / kPage; p <= (at + (bytes ? bytes - 1 : 0)) / kPage && p < touched.size(); ++p) touched[p] = 1;
    }
    void reset();
};

// The memories of one AI core; UB exists twice.
struct Arena {
    Memory ub[2], l1, l0a, l0b, l0c, bt, fb, l0a_mx, l0b_mx, ssbuf;
    std::vector<unsigned char> storage;
    std::vector<uint8_t> unit_flags;  // per 512 bytes of L0C: 1 = written, may be read
    std::vector<Clock> unit_clocks;

    Arena();
    void reset();
    Memory& of(Mem m, int aiv) {
        switch (m) {
            case Mem::UB: return ub[aiv];
            case Mem::L1: return l1;
            case Mem::L0A: return l0a;
            case Mem::L0B: return l0b;
            case Mem::L0C: return l0c;
            case Mem::BT: return bt;
            case Mem::FB: return fb;
            case Mem::L0A_MX: return l0a_mx;
            case Mem::L0B_MX: return l0b_mx;
            default: return ssbuf;
        }
    }
};

inline uint32_t byte_mask(uint32_t from, uint32_t to) {  // bytes [from, to) of a granule, to <= 32
    const uint32_t hi = to == 32 ? 0xFFFFFFFFu : (1u << to) - 1;
    return hi & ~((1u << from) - 1);
}

}  // namespace asc_sim
