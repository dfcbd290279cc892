#include "async/engine.h"

#include "core/machine.h"

namespace ptxsim {

void Engine::issue(Machine& m, std::shared_ptr<AsyncOp> op, std::shared_ptr<OpQueue> queue) {
    ++m.progress;
    ++op->cluster->async_open;
    bool head = true;
    if (queue) {
        head = queue->ops.empty();
        queue->ops.push_back(op);
    }
    if (head) ready_.push_back({op, queue});
    if (m.config.schedule == Schedule::eager)
        while (!ready_.empty()) step_entry(m, ready_.size() - 1);
}

bool Engine::step_entry(Machine& m, size_t i) {
    Entry e = ready_[i];
    ++m.stats.async_steps;
    ++m.progress;
    bool finished = e.op->step(m);
    e.op->cluster->events++;
    if (!finished) return false;
    --e.op->cluster->async_open;
    // a step may issue further operations, so look the entry up again
    for (size_t k = 0; k < ready_.size(); ++k)
        if (ready_[k].op == e.op) {
            ready_[k] = ready_.back();
            ready_.pop_back();
            break;
        }
    if (e.queue) {
        e.queue->ops.pop_front();
        if (!e.queue->ops.empty()) ready_.push_back({e.queue->ops.front(), e.queue});
    }
    return true;
}

void Engine::step_some(Machine& m, u64 count) {
    for (u64 n = 0; n < count && !ready_.empty(); ++n) step_entry(m, m.random(ready_.size()));
}

void Engine::step_one(Machine& m) {
    if (ready_.empty()) return;
    std::shared_ptr<AsyncOp> op = ready_[m.random(ready_.size())].op;
    for (bool again = true; again;) {
        again = false;
        for (size_t k = 0; k < ready_.size(); ++k)
            if (ready_[k].op == op) {
                again = !step_entry(m, k);
                break;
            }
    }
}

void Engine::drain(Machine& m, OpQueue& q) {
    while (!q.ops.empty())
        for (size_t k = 0; k < ready_.size(); ++k)
            if (ready_[k].op == q.ops.front()) {
                step_entry(m, k);
                break;
            }
}

void Engine::drop_grid(Grid* g) {
    std::vector<Entry> keep;
    for (auto& e : ready_)
        if (e.op->grid != g) keep.push_back(e);
    ready_.swap(keep);
}

std::string Engine::dump(const Grid* g) const {
    std::string s;
    for (auto& e : ready_)
        if (e.op->grid == g) s += std::string("\n  in flight: ") + e.op->kind() + " from " + g->program->where(*e.op->inst);
    return s;
}

}  // namespace ptxsim
