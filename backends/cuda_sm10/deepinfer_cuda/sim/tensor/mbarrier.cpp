#include "tensor/mbarrier.h"

namespace ptxsim {
namespace {
u64 raw_at(const Cta& c, u32 off) {
    u64 r;
    std::memcpy(&r, c.shared.data() + off, 8);
    return r;
}
void write(Cta& c, u32 off, const MbarState& s) {
    u64 r = u64(s.pending) | u64(s.expected) << 20 | (u64(s.tx) & 0x3fffff) << 40 | u64(s.phase) << 62 | u64(s.valid) << 63;
    std::memcpy(c.shared.data() + off, &r, 8);
}
}  // namespace

MbarState mbar_read(const Cta& c, u32 off) {
    u64 r = raw_at(c, off);
    auto it = c.mbars.find(off);
    bool live = it != c.mbars.end() && it->second.valid;
    return {u32(r & 0xfffff), u32(r >> 20 & 0xfffff), i32(i64(r << 2) >> 42), bool(r >> 62 & 1), live};
}

void mbar_init(Cta& c, u32 off, u32 count, const std::string& who) {
    if (count == 0 || count > 0xfffff) throw SimError("mbarrier count " + std::to_string(count) + " is outside 1 to 1048575: " + who);
    write(c, off, {count, count, 0, false, true});
    MbarInfo& i = c.mbars[off];
    i = {};
    i.valid = true;
}

u64 mbar_update(Machine& m, Cta& c, u32 off, i64 expect, u32 arrivals, i64 complete, const Message* msg, const std::string& who) {
    MbarState s = mbar_read(c, off);
    if (!s.valid) throw SimError("mbarrier at shared offset " + std::to_string(off) + " is used before mbarrier.init: " + who);
    MbarInfo& info = c.mbars[off];
    u64 before = raw_at(c, off);
    if (msg) info.filling.join(*msg);
    i64 tx = i64(s.tx) + expect - complete;
    if (tx > 0xfffff || tx < -0xfffff) throw SimError("mbarrier at shared offset " + std::to_string(off) + ": transaction count " + std::to_string(tx) + " is out of range: " + who);
    if (arrivals > s.pending)
        throw SimError("mbarrier at shared offset " + std::to_string(off) + ": " + std::to_string(arrivals) + " arrivals but only " + std::to_string(s.pending) +
                       " pending (expected count " + std::to_string(s.expected) + "): " + who);
    s.tx = i32(tx), s.pending -= arrivals;
    if (s.pending == 0 && s.tx == 0) {
        s.pending = s.expected, s.phase = !s.phase;
        info.done = info.filling;
        ++m.progress;
    }
    ++m.progress;
    write(c, off, s);
    ++c.cluster->events;
    return before;
}

}  // namespace ptxsim
