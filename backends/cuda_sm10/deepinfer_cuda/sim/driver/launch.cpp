// Launch validation and parameter packing.
#include "driver/runtime.h"

namespace ptxsim {
namespace {
[[noreturn]] void refuse(const std::string& what) { throw DriverError(DI_INVALID_ARGUMENT, what); }
std::string show(const di_dim3& d) { return std::to_string(d.x) + "x" + std::to_string(d.y) + "x" + std::to_string(d.z); }

void pack(Grid& g, const di_arg* args, u32 n) {
    const auto& params = g.program->params;
    g.params.assign(std::max<u32>(g.program->param_bytes, 16), 0);
    size_t next = 0;
    for (u32 i = 0; i < n; ++i) {
        const di_arg& a = args[i];
        if (a.kind < DI_ARG_SCALAR || a.kind > DI_ARG_SPAN) refuse("argument " + std::to_string(i) + " has unknown kind " + std::to_string(a.kind));
        if (a.kind != DI_ARG_SCALAR && a.span) {
            g.spans.add({a.base, a.span, a.writable != 0});
            g.strict_spans = true;
        }
        if (a.kind == DI_ARG_SPAN) continue;
        if (next >= params.size()) refuse("kernel '" + g.program->name + "' takes " + std::to_string(params.size()) + " parameters, more were given");
        auto [off, size] = params[next++];
        if (a.size != size) refuse("parameter " + std::to_string(next - 1) + " of kernel '" + g.program->name + "' has " + std::to_string(size) + " bytes, " + std::to_string(a.size) + " were given");
        if (!a.data) refuse("argument " + std::to_string(i) + " has no data");
        std::memcpy(g.params.data() + off, a.data, size);
    }
    if (next != params.size()) refuse("kernel '" + g.program->name + "' takes " + std::to_string(params.size()) + " parameters, " + std::to_string(next) + " were given");
}
}  // namespace

std::unique_ptr<Grid> Runtime::prepare(Kernel& k, const di_cuda_config& c, const di_arg* args, u32 n) {
    const Profile& pr = machine.profiles[context(k.ctx).device];
    const Function& f = *k.program->function;
    u32 grid[3] = {c.grid.x, c.grid.y, c.grid.z}, block[3] = {c.block.x, c.block.y, c.block.z}, cl[3] = {c.cluster.x, c.cluster.y, c.cluster.z};
    for (int i = 0; i < 3; ++i)
        if (!grid[i] || !block[i]) refuse("grid " + show(c.grid) + " and block " + show(c.block) + " must be positive");
    if (!cl[0] && !cl[1] && !cl[2])
        for (int i = 0; i < 3; ++i) cl[i] = f.cluster[0] ? u32(f.cluster[i]) : 1;
    if (f.cluster[0])
        for (int i = 0; i < 3; ++i)
            if (cl[i] != u32(f.cluster[i])) refuse("kernel '" + f.name + "' is compiled for another cluster shape than " + show(c.cluster));
    u64 threads = u64(block[0]) * block[1] * block[2];
    if (threads > 1024) refuse("block " + show(c.block) + " has more than 1024 threads");
    if (f.reqntid[0] && (block[0] != u32(f.reqntid[0]) || block[1] != u32(f.reqntid[1]) || block[2] != u32(f.reqntid[2])))
        refuse("kernel '" + f.name + "' requires a block of " + std::to_string(f.reqntid[0]) + "x" + std::to_string(f.reqntid[1]) + "x" + std::to_string(f.reqntid[2]) + ", got " + show(c.block));
    if (f.maxntid[0] && threads > u64(f.maxntid[0]) * f.maxntid[1] * f.maxntid[2]) refuse("block " + show(c.block) + " is larger than the kernel's launch bounds");
    if (grid[1] > 65535 || grid[2] > 65535 || grid[0] > 0x7fffffff) refuse("grid " + show(c.grid) + " is too large");
    for (int i = 0; i < 3; ++i)
        if (!cl[i] || grid[i] % cl[i]) refuse("grid " + show(c.grid) + " is not a multiple of the cluster " + std::to_string(cl[0]) + "x" + std::to_string(cl[1]) + "x" + std::to_string(cl[2]));
    if (cl[0] * cl[1] * cl[2] > 16) refuse("a cluster has at most 16 CTAs");
    u64 smem = u64(k.program->dynamic_offset) - 1024 + c.smem_bytes;
    if (smem > pr.shared_per_block) refuse("kernel needs " + std::to_string(smem) + " bytes of shared memory, a block has at most " + std::to_string(pr.shared_per_block));
    auto g = make_grid(machine, context(k.ctx).device, k.program, grid, block, cl, c.smem_bytes);
    if (c.cooperative && g->cluster_count > g->max_resident)
        refuse("cooperative launch of " + std::to_string(g->cluster_count) + " clusters, only " + std::to_string(g->max_resident) + " fit at once");
    pack(*g, args, n);
    if (!g->strict_spans)
        for (auto& s : machine.allocations.all()) g->spans.add(s);
    for (auto& s : machine.module_memory.all()) g->spans.add(s);
    for (auto& s : machine.multicast_spans.all()) g->spans.add(s);
    return g;
}

void Runtime::launch(u64 fn, const di_cuda_config& c, const di_arg* args, u32 n, u64 st) {
    Kernel& k = kernel(fn);
    Stream& s = stream(k.ctx, st);
    Work w;
    w.kind = Work::Kind::launch;
    w.grid = prepare(k, c, args, n);
    ++machine.stats.launches;
    if (machine.active.empty()) machine.rng.seed(machine.config.seed * 1000003 + 17);
    // A full list takes no more: without this, a launch after many failed ones would pass unchecked.
    if (machine.config.findings_fail && machine.findings.size() >= machine.config.max_findings) machine.findings.clear();
    size_t found = machine.findings.size();
    s.work.push_back(std::move(w));
    pump();
    if (!s.error.empty()) {
        std::string e = s.error;
        s.error.clear();
        throw DriverError(DI_LAUNCH_FAILED, e);
    }
    if (machine.config.findings_fail && machine.findings.size() > found)
        throw DriverError(DI_LAUNCH_FAILED, "checker: " + machine.findings[found] +
                          (machine.findings.size() > found + 1 ? " (and " + std::to_string(machine.findings.size() - found - 1) + " more)" : ""));
}

u32 Runtime::max_clusters(u64 fn, const di_cuda_config& c) {
    Kernel& k = kernel(fn);
    u32 one[3] = {c.cluster.x ? c.cluster.x : 1, c.cluster.y ? c.cluster.y : 1, c.cluster.z ? c.cluster.z : 1}, block[3] = {c.block.x, c.block.y, c.block.z};
    return make_grid(machine, context(k.ctx).device, k.program, one, block, one, c.smem_bytes)->max_resident;
}

}  // namespace ptxsim
