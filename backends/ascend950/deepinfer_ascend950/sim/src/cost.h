// The cost model behind the simulator's timeline: what each instruction keeps its pipe busy for, in cycles.
//
// An instruction starts when its pipe is free and everything it was made to wait for is over (the same joins that order
// the race checker's clocks carry times), and takes work / rate. Rates are the published ones of the part at 1.65 GHz.
// Scalar programs, request latency, bank conflicts and queue depths cost nothing here, so a time is a lower bound that
// knows a kernel's waits. It is a model (clock "model"), never a measured time.
#pragma once
#include <cstdint>

namespace asc_sim::cost {

// Bytes per cycle. Global memory: 96 per AI core is a core's share of the second-level cache (5 TB/s over 32 cores);
// two vector cores that copy at once share it.
inline constexpr double kGmAic = 96, kGmAiv = 48, kL1ToL0 = 256, kUbToL1 = 128, kL1ToUb = 128, kFixToUb = 128, kFixToL1 = 128, kFixToGm = 96;
// A vector function: start, then two arithmetic instructions per cycle beside two loads, or a load and a store.
inline constexpr double kVfStart = 20, kAluPerCycle = 2;
inline double vector_cycles(double alu, double loads, double stores) {
    const double memory = stores > (loads + stores) / 2 ? stores : (loads + stores) / 2;
    return kVfStart + (alu / kAluPerCycle > memory ? alu / kAluPerCycle : memory);
}
// The cube takes one fractal pair (16 x C0 by C0 x 16) per cycle, float32 one eighth of it (256 of 2048 products).
inline double cube_cycles(uint32_t m, uint32_t k, uint32_t n, uint32_t element_bits) {
    const uint32_t c0 = 256 / element_bits, fractals = ((m + 15) / 16) * ((n + 15) / 16) * ((k + c0 - 1) / c0);
    return element_bits == 32 ? 8.0 * fractals : fractals;
}

}  // namespace asc_sim::cost
