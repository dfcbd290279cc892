// Shared by cp.async.bulk, TMA and st.async: completion on an mbarrier or a bulk group.
#pragma once
#include "core/access.h"
#include "exec/reduce.h"
#include "tensor/mbarrier.h"

namespace ptxsim {

struct MbarRef {
    Cta* cta = nullptr;
    u32 offset = 0;
};

// Moves bytes in three steps, read, write (in two pieces), signal; derived classes say from where and to where.
struct BulkOp : AsyncOp {
    std::vector<u8> data;
    Epoch write_self;
    std::shared_ptr<BulkGroup> group;              // completion by bulk group
    struct Target {
        Cta* cta;                                  // shared memory destination, null for global
        u32 offset;
        MbarRef bar;
    };
    std::vector<Target> targets;
    u32 phase = 0, split = 0;
    std::string name;

    virtual void read(Machine& m) = 0;             // fills data
    virtual void write(Machine& m, Target& t, u32 from, u32 to) = 0;  // bytes [from, to) of data
    virtual bool async_proxy() const { return true; }          // st.async and red.async are relaxed generic accesses
    virtual u32 transaction_bytes(u32 n) const { return n; }  // what complete_tx counts for n bytes of shared memory
    bool step(Machine& m) override;
    const char* kind() const override { return name.c_str(); }
    std::string who() const;
};

MbarRef mbar_operand(X& x, const Inst& in, int lane, u64 address);
void bulk_issue(X& x, std::shared_ptr<BulkOp> op);
std::shared_ptr<BulkGroup> current_group(Warp& w, int lane);

}  // namespace ptxsim
