// Asynchronous work: objects with steps, run by a seeded scheduler.
//
// Why: hardware may finish a copy or a matrix operation at once or arbitrarily late. An operation here is a list of steps
// (read, write, signal); `eager` runs them at issue, `lazy` only when no warp can move, `random` at any time between.
// Operations of one OpQueue keep their order (one thread's tcgen05 pipeline, one warp's wgmma); others do not.
#pragma once
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "check/clock.h"
#include "isa/types.h"

namespace ptxsim {

struct Machine;
struct Grid;
struct Cluster;
struct Cta;
struct Warp;
struct Inst;

// A countdown that a waiting instruction looks at.
struct Pending {
    u32 open = 0;
    Message done;               // knowledge carried back to the waiter
    std::vector<i32> owned;     // register slots it will write
    std::vector<i32> borrowed;  // register slots it still reads
};

// cp.async of one lane: `open` operations per committed group, newest last.
struct CopyGroups {
    std::deque<std::shared_ptr<Pending>> groups;
    std::shared_ptr<Pending> current;
};
struct BulkGroup {
    u32 reads = 0, writes = 0;  // operations whose source is still needed / whose writes are not done
    Message read_done, write_done;
};
struct BulkGroups {
    std::deque<std::shared_ptr<BulkGroup>> groups;
    std::shared_ptr<BulkGroup> current;
};

struct AsyncOp {
    Grid* grid = nullptr;
    Cluster* cluster = nullptr;
    Cta* cta = nullptr;
    const Inst* inst = nullptr;
    Warp* warp = nullptr;
    int lane = 0;
    // checker identity: what the issuer knew, and the epoch of this operation's own accesses
    Knowledge know;
    Epoch self;
    virtual ~AsyncOp() = default;
    virtual bool step(Machine& m) = 0;  // true after the last step
    virtual const char* kind() const = 0;
};

struct OpQueue {
    std::deque<std::shared_ptr<AsyncOp>> ops;
};

class Engine {
   public:
    // Takes over an operation; in eager mode it has finished on return.
    void issue(Machine& m, std::shared_ptr<AsyncOp> op, std::shared_ptr<OpQueue> queue = nullptr);
    bool idle() const { return ready_.empty(); }
    void step_some(Machine& m, u64 count);  // random mode: steps of random operations
    void step_one(Machine& m);              // lazy mode: one whole operation
    void drain(Machine& m, OpQueue& q);     // runs a queue empty
    void drop_grid(Grid* g);                // after a fault
    std::string dump(const Grid* g) const;

   private:
    struct Entry {
        std::shared_ptr<AsyncOp> op;
        std::shared_ptr<OpQueue> queue;
    };
    bool step_entry(Machine& m, size_t i);
    std::vector<Entry> ready_;  // independent operations and heads of queues
};

}  // namespace ptxsim
