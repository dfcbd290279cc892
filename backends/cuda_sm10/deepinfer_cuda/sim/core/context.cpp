// Messages of the execution context.
#include "core/machine.h"

namespace ptxsim {

std::string X::position(const Inst& in, int lane) const {
    return "kernel " + g.program->short_name() + " CTA (" + std::to_string(cta.id[0]) + "," + std::to_string(cta.id[1]) + "," + std::to_string(cta.id[2]) +
           ") warp " + std::to_string(w.index) + " lane " + std::to_string(lane) + " " + g.program->where(in);
}

void X::fault(const Inst& in, int lane, const std::string& what) { throw SimError(what + ": " + position(in, lane)); }

void X::find(const Inst& in, int lane, const std::string& what) {
    if (g.check.on) g.check.report(who_warp(*this, in, lane), what);
}

}  // namespace ptxsim
