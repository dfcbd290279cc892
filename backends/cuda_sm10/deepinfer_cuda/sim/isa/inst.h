// A decoded instruction and the program made of them.
//
// Invariants: a slot >= 0 is a register of the warp ([slot][32 lanes], 64 bit each); a slot < 0 is entry ~slot of the constant
// pool, broadcast to 32 lanes. Predicate registers keep one 32-bit lane mask in lane 0. A .b128 register takes two slots.
#pragma once
#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "front/ast.h"
#include "isa/types.h"

namespace ptxsim {

struct X;
struct Inst;
using Handler = void (*)(X&, const Inst&, u32 lanes);

// Decoded form that belongs to one instruction family (tensor shapes, descriptor kinds, ...).
struct Extra {
    virtual ~Extra() = default;
};

constexpr i32 kNoSlot = INT32_MAX;

struct Inst {
    Handler fn = nullptr;
    i32 guard = kNoSlot;
    bool guard_neg = false;
    bool aligned = false;          // all live lanes of the warp must arrive together
    bool is_copy = false;          // mov between registers
    bool touches_wgmma = false;    // accesses a register that some wgmma uses
    bool is_wgmma = false;
    bool outlives_cta = false;     // bulk-group stores: the hardware drains them after the CTA has exited
    Ty type = Ty::none, type2 = Ty::none;
    Space space = Space::generic;
    std::array<i32, 6> s{kNoSlot, kNoSlot, kNoSlot, kNoSlot, kNoSlot, kNoSlot};
    std::vector<i32> v, v2;        // vector operands
    i64 k[4] = {0, 0, 0, 0};       // immediates and small settings of the family
    std::shared_ptr<Extra> extra;
    std::vector<i32> reads, writes;  // register slots, for pending-register checks
    int statement = -1;
};

// Register file and address-space layout of one kernel.
struct Program {
    std::string name;
    std::shared_ptr<Module> module;
    std::shared_ptr<Function> function;
    std::vector<Inst> code;
    std::vector<int> entry_of;           // statement -> first instruction
    int slots = 0;
    std::vector<u64> constants;          // [index][32]
    std::vector<u32> slot_bits;
    std::map<const Variable*, u64> address;  // shared / local / param offset, or absolute global address
    u32 static_shared = 0, dynamic_offset = 0;  // bytes from the start of the CTA's window
    u32 local_bytes = 0, param_bytes = 0;
    std::vector<std::pair<u32, u32>> params;    // offset, size in order
    std::map<std::string, u64> strings;         // decoder notes (carry slot)
    bool tensor_fences = false;                 // the kernel contains tcgen05.fence
    std::vector<std::pair<u64, u64>> module_spans;  // addresses of module variables
    std::string short_name() const { return name.size() > 72 ? name.substr(0, 72) + "..." : name; }
    u64 static_instructions() const { return code.size(); }
    std::string where(const Inst& in) const;    // "PTX line 12 `add...` (kernel.cu:7)"
};

}  // namespace ptxsim
