// Texts: the place of an instruction, stopping a launch, the deadlock dump.
#include "runtime.h"

namespace asc_sim {

namespace {
const char* base_name(const char* f) {
    const char* b = f;
    for (; *f; ++f)
        if (*f == '/') b = f + 1;
    return b;
}
std::string at(Loc l) { return l.line ? std::string(base_name(l.file)) + ":" + std::to_string(l.line) : std::string("?"); }
constexpr const char* kNames[kPipes] = {"S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX"};
}  // namespace

const char* pipe_name(int index) { return index >= 0 && index < kPipes ? kNames[index] : "?"; }

int pipe_index(int pipe, const char* what, Loc loc) {
    if (pipe >= PIPE_S && pipe <= PIPE_MTE3) return pipe;
    if (pipe == PIPE_FIX) return 6;
    fail(what, ("pipe " + std::to_string(pipe) + " cannot be named here; use PIPE_S, V, M, MTE1, MTE2, MTE3 or FIX").c_str(), loc);
}

std::string where(const Core& c, int pipe, const char* name, Loc loc) {
    const Launch& l = *c.block->launch;
    return std::string("kernel ") + l.kernel->name + ", block " + std::to_string(c.block->index) +
           (l.device ? " of device " + std::to_string(l.device) : "") + ", " + c.name() + ", pipe " + pipe_name(pipe) + ", " +
           name + " at " + at(loc);
}

void stop(const std::string& what) {
    if (!g.core) throw SimError(what);
    throw SimError(where(*g.core, g.pipe, g.name, g.loc) + ": " + what);
}

void fail(const char* what, const char* detail, Loc loc) {
    g.name = what;
    g.loc = loc;
    stop(detail);
}

uint32_t Scheduler::loc_id(Loc loc) {
    auto& seen = recent[static_cast<uint32_t>(loc.line) % 64];
    if (seen.line == loc.line && seen.file == loc.file) return seen.id;
    const auto key = std::make_pair(loc.file, loc.line);
    auto [it, fresh] = loc_index.try_emplace(key, static_cast<uint32_t>(locs.size()));
    if (fresh) locs.push_back(key);
    seen = {loc.file, loc.line, it->second};
    return it->second;
}

static std::string item_text(const Item& i) {
    switch (i.kind) {
        case Kind::WaitFlag:
            return std::string("wait_flag ") + pipe_name(i.a) + "->" + pipe_name(i.b) + " id " + std::to_string(i.c) + " (never set)";
        case Kind::CrossWait: return "cross-core wait, flag id " + std::to_string(i.b);
        case Kind::GetBuf: return "get_buf id " + std::to_string(i.a);
        default: return std::string(i.name) + (i.ready ? " (unit flag of L0C)" : "");
    }
}

void Scheduler::deadlock() {
    std::string text = "deadlock: nothing can run any more.";
    int shown = 0;
    bool spinning = false;
    for (Block* b : active) {
        if (shown++ == 4) {
            text += "\n  ... and " + std::to_string(active.size() - 4) + " more blocks";
            break;
        }
        for (Core& c : b->cores) {
            const std::string who = "\n  block " + std::to_string(b->index) + " " + c.name();
            if (c.fiber.state == Run::Blocked) {
                text += who + " S: " + c.fiber.why;
                if (c.fiber.why_a >= 0) text += std::string(" ") + pipe_name(c.fiber.why_a) + "->" + pipe_name(c.fiber.why_b);
                if (c.fiber.why_id >= 0) text += " id " + std::to_string(c.fiber.why_id);
                text += " at " + at(c.fiber.where);
            } else if (c.fiber.state == Run::Spinning) {
                spinning = true;
                text += who + " S: polling at " + at(c.fiber.where);
            }
            for (int p = 1; p < kPipes; ++p) {
                const auto& q = c.pipes[p].queue;
                if (q.empty()) continue;
                text += who + " " + pipe_name(p) + ": " + item_text(q.front()) + " at " + at(q.front().loc) + ", " +
                        std::to_string(q.size()) + " queued";
            }
            for (int i = 0; i < 32; ++i)
                if (!c.counters[i].pending.empty())
                    text += who + " holds " + std::to_string(c.counters[i].pending.size()) + " credits of cross-core flag " + std::to_string(i);
        }
    }
    const Launch* l = active.empty() ? nullptr : active[0]->launch;
    SimError e(std::string("kernel ") + (l ? l->kernel->name : "?") + ": " + text);
    e.timeout = spinning;
    throw e;
}

}  // namespace asc_sim
