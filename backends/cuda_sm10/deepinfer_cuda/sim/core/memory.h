// Byte spans that simulated kernels may touch.
#pragma once
#include <algorithm>
#include <vector>

#include "isa/types.h"

namespace ptxsim {

struct Span {
    u64 base = 0, size = 0;
    bool writable = true;
    u64 end() const { return base + size; }
};

// Spans may overlap; a lookup remembers its last hit, because accesses cluster.
class SpanList {
   public:
    void add(Span s) {
        if (s.size) spans_.push_back(s);
    }
    bool remove(u64 base) {
        auto it = std::find_if(spans_.begin(), spans_.end(), [&](const Span& s) { return s.base == base; });
        if (it == spans_.end()) return false;
        spans_.erase(it), last_ = 0;
        return true;
    }
    const Span* find(u64 addr, u64 n) const {
        if (last_ < spans_.size() && inside(spans_[last_], addr, n)) return &spans_[last_];
        for (size_t i = 0; i < spans_.size(); ++i)
            if (inside(spans_[i], addr, n)) return last_ = i, &spans_[i];
        return nullptr;
    }
    const Span* find_writable(u64 addr, u64 n) const {
        const Span* s = find(addr, n);
        if (s && s->writable) return s;
        for (auto& t : spans_)
            if (t.writable && inside(t, addr, n)) return &t;
        return nullptr;
    }
    const Span* nearest(u64 addr) const {
        const Span* best = nullptr;
        u64 distance = ~0ull;
        for (auto& s : spans_) {
            u64 d = addr < s.base ? s.base - addr : addr >= s.end() ? addr - s.end() + 1 : 0;
            if (d < distance) distance = d, best = &s;
        }
        return best;
    }
    bool empty() const { return spans_.empty(); }
    const std::vector<Span>& all() const { return spans_; }

   private:
    static bool inside(const Span& s, u64 a, u64 n) { return a >= s.base && n <= s.size && a - s.base <= s.size - n; }
    std::vector<Span> spans_;
    mutable size_t last_ = 0;
};

}  // namespace ptxsim
