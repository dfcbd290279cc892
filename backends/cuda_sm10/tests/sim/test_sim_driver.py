# ruff: noqa: E501, RUF012
"""The driver.h surface: probe, properties, memory, streams, events, errors, several devices, printf; and parser traps."""

from __future__ import annotations

import ctypes as C

import numpy as np
import pytest
import simlib
from lanes import HEAD, execute

ADD = HEAD.format(target="sm_90") + (
    ".visible .entry k(.param .u64 g, .param .u32 n) {\n.reg .b64 %g, %o;\n.reg .b32 %t, %n, %v;\nld.param.u64 %g, [g];\nld.param.u32 %n, [n];\n"
    "mov.u32 %t, %tid.x;\nmul.wide.u32 %o, %t, 4;\nadd.s64 %g, %g, %o;\nld.global.u32 %v, [%g];\nadd.u32 %v, %v, %n;\nst.global.u32 [%g], %v;\nret;\n}\n"
)


class Props(C.Structure):
    _fields_ = [
        ("size", C.c_uint32),
        ("kind", C.c_uint32),
        ("name", C.c_char * 96),
        ("arch", C.c_char * 32),
        ("units", C.c_uint32),
        ("clock", C.c_uint32),
        ("memory", C.c_uint64),
        ("l2", C.c_uint64),
        ("scratch", C.c_uint64),
        ("caps", C.c_uint64),
        ("bandwidth", C.c_uint64),
    ]


class Probe(C.Structure):
    _fields_ = [
        ("size", C.c_uint32),
        ("available", C.c_uint32),
        ("count", C.c_uint32),
        ("reason", C.c_char * 512),
        ("version", C.c_char * 128),
    ]


def test_probe_and_properties() -> None:
    lib, probe = simlib.library(), Probe()
    simlib.check(lib.probe(C.byref(probe)))
    assert probe.available == 1
    assert probe.count == 16
    for index, arch, units in ((simlib.SM90, b"sm_90", 132), (simlib.SM100, b"sm_100", 148)):
        props = Props()
        simlib.check(lib.device_props(index, C.byref(props)))
        assert (props.kind, props.arch, props.units, props.scratch) == (2, arch, units, 232448)
    with pytest.raises(simlib.SimError, match="device index 99"):
        simlib.check(lib.device_props(99, C.byref(Props())))


def test_memory_streams_and_events() -> None:
    lib, dev = simlib.library(), simlib.device(simlib.SM90)
    addr, stream, start, stop = C.c_uint64(), C.c_uint64(), C.c_uint64(), C.c_uint64()
    simlib.check(lib.mem_alloc(dev.ctx, 128, 512, C.byref(addr)))
    assert addr.value % 512 == 0
    simlib.check(lib.stream_create(dev.ctx, C.byref(stream)))
    for e in (start, stop):
        simlib.check(lib.event_create(dev.ctx, C.byref(e)))
    data, back = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    simlib.check(lib.event_record(dev.ctx, start, stream))
    simlib.check(lib.memcpy_async(dev.ctx, addr, data.ctypes.data, 128, 1, stream))
    module = simlib.Module(ADD)
    args = (simlib.Arg * 2)(
        simlib.Arg(2, 8, C.addressof(addr), addr.value, 128, 1, 0), simlib._argument(C.c_uint32(5), keep := [])
    )
    simlib.check(lib.launch(module.function("k"), simlib.Dim3(1, 1, 1), simlib.Dim3(32, 1, 1), 0, args, 2, stream))
    simlib.check(lib.event_record(dev.ctx, stop, stream))
    simlib.check(lib.event_wait(dev.ctx, stop, 0))
    simlib.check(lib.memcpy_async(dev.ctx, back.ctypes.data, addr, 128, 2, 0))
    simlib.check(lib.event_synchronize(dev.ctx, stop))
    simlib.check(lib.stream_synchronize(dev.ctx, 0))
    elapsed = C.c_double()
    simlib.check(lib.event_elapsed_ms(dev.ctx, start, stop, C.byref(elapsed)))
    assert np.array_equal(back, data + 5)
    assert elapsed.value >= 0
    assert keep
    simlib.check(lib.mem_free(dev.ctx, addr))
    with pytest.raises(simlib.SimError, match="freed already"):
        simlib.check(lib.mem_free(dev.ctx, addr))
    for h in (stream, start, stop):
        simlib.check(lib.release(h))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda m, a: m.launch("nope", 1, 32, a, 1), "no kernel 'nope'; it has: k"),
        (lambda m, a: m.launch("k", 1, 32, a), "takes 2 parameters, 1 were given"),
        (lambda m, a: m.launch("k", 1, 32, a, C.c_uint64(1)), "has 4 bytes, 8 were given"),
        (lambda m, a: m.launch("k", 0, 32, a, 1), "must be positive"),
        (lambda m, a: m.launch("k", 1, 1025, a, 1), "more than 1024 threads"),
        (lambda m, a: m.launch("k", 3, 32, a, 1, cluster=2), "not a multiple of the cluster"),
        (lambda m, a: m.launch("k", 1, 32, a, 1, smem=1 << 20), "a block has at most 232448"),
    ],
)
def test_launch_errors_name_the_rule(call: object, match: str) -> None:
    with pytest.raises(simlib.SimError, match=match):
        call(simlib.Module(ADD), np.zeros(32, np.uint32))  # type: ignore[operator]


def test_images_and_targets_are_refused_with_reasons() -> None:
    with pytest.raises(simlib.SimError, match="module targets sm_100a, this device is sm_90"):
        simlib.Module(ADD.replace("sm_90", "sm_100a"), simlib.SM90)
    with pytest.raises(simlib.SimError, match='executes "ptx" only'):
        simlib.check(simlib.library().module_load(simlib.device(0).ctx, b"x", 1, b"cubin", C.byref(C.c_uint64())))
    with pytest.raises(simlib.SimError, match="no extension 'x'"):
        simlib.extension("x", simlib.MapTable)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("frobnicate.b32 %d, %a;", "unknown instruction"),
        ("add.weird.u32 %d, %a, %a;", "modifier '.weird' is not modelled"),
        ("add.u32 %d, %a, %nowhere;", "unknown special register or undeclared name '%nowhere'"),
        ("bra NOWHERE;", "neither a register, a variable nor a label"),
        ("ld.global.v4.u32 {%d, %a}, [%ptr0];", "vector length"),
        ("mma.sync.aligned.m16n8k7.row.col.f32.f16.f16.f32 {%d}, {%a}, {%a}, {%d};", "operand lengths|not modelled"),
    ],
)
def test_unknown_things_stop_with_their_text(line: str, match: str) -> None:
    with pytest.raises(simlib.SimError, match=match) as e:
        execute(line, {"a": np.zeros(32, np.uint32)}, {"d": np.uint32})
    assert line.split(" ")[0].split(".")[0] in str(e.value) or "NOWHERE" in str(e.value)


def test_parser_traps() -> None:
    """Nested scopes with equal labels and registers, names without %, glued operands, sinks, pairs, /* comments */, WARP_SZ."""
    body = """
    { .reg .pred P1; .reg .b32 x; mov.u32 x, 0;
    LAB_WAIT: add.u32 x, x, 1; setp.lt.u32 P1, x, %a; @P1 bra LAB_WAIT; bra DONE; DONE: mov.u32 %d, x; }
    { .reg .pred P1; .reg .b32 x; /* again */ mov.u32 x, 5; bra DONE;
    LAB_WAIT: mov.u32 x, 9; DONE: add.u32 %d, %d, x; }
    { .reg .b32 %rx; .reg .pred %px; elect.sync %rx|%px, 0xffffffff; elect.sync _|%px, 0xffffffff; }
    st.shared.v2.b32[buf+8],{%a,%d}; ld.shared.v2.b32{%e,_},[buf+8];
    mov.u32 %f, WARP_SZ;
    """
    a = np.full(32, 3, np.uint32)
    got = execute(body, {"a": a}, dict.fromkeys("def", np.uint32), shared=".shared .align 8 .b8 buf[64];")
    assert set(got["d"].tolist()) == {8}
    assert set(got["e"].tolist()) == {3}
    assert set(got["f"].tolist()) == {32}


def test_calls_are_inlined_and_branch_tables_work() -> None:
    text = (
        HEAD.format(target="sm_90")
        + """
.func (.param .b32 out) triple(.param .b32 in) { .reg .b32 %x; ld.param.b32 %x, [in]; mul.lo.u32 %x, %x, 3; st.param.b32 [out], %x; ret; }
.func (.reg .b32 r) next(.reg .b32 v) { .reg .pred %p; setp.gt.u32 %p, v, 50; @%p bra BIG; add.u32 r, v, 1; ret; BIG: mov.u32 r, 1000; ret; }
.visible .entry k(.param .u64 g) { .reg .b64 %g, %o; .reg .b32 %t, %v, %m; ld.param.u64 %g, [g]; mov.u32 %t, %tid.x; mul.wide.u32 %o, %t, 4; add.s64 %g, %g, %o;
 { .param .b32 p0; .param .b32 r0; st.param.b32 [p0], %t; call.uni (r0), triple, (p0); ld.param.b32 %v, [r0]; }
 call (%v), next, (%v);
 and.b32 %m, %t, 3;
 TABLE: .branchtargets L0, L1, L2, L3;
 brx.idx %m, TABLE;
 L0: add.u32 %v, %v, 100; bra END; L1: add.u32 %v, %v, 200; bra END; L2: add.u32 %v, %v, 300; bra END; L3: add.u32 %v, %v, 400;
 END: st.global.u32 [%g], %v; ret; }
"""
    )
    out = np.zeros(32, np.uint32)
    simlib.Module(text).launch("k", 1, 32, out)
    assert out.tolist() == [(1000 if 3 * t > 50 else 3 * t + 1) + 100 * (t % 4 + 1) for t in range(32)]


def test_printf_module_variables_and_local_arrays() -> None:
    text = (
        HEAD.format(target="sm_90")
        + """
.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
.global .align 1 .b8 fmt[18] = {116, 37, 100, 32, 37, 53, 46, 50, 102, 32, 37, 115, 32, 37, 108, 120, 10};
.global .align 1 .b8 word[3] = {104, 105};
.global .align 4 .u32 counter = 7;
.global .align 8 .u64 pointer = generic(counter);
.visible .entry k() { .local .align 8 .b8 frame[32]; .reg .b64 %f, %a, %w; .reg .b32 %t, %r; .reg .pred %p; mov.u32 %t, %tid.x; setp.ne.u32 %p, %t, 3; @%p ret;
 mov.u64 %a, frame; st.local.u32 [%a], %t; st.local.f64 [%a+8], 0d3FF8000000000000; mov.u64 %w, word; cvta.global.u64 %w, %w; st.local.u64 [%a+16], %w; st.local.u64 [%a+24], 255;
 cvta.local.u64 %a, %a; mov.u64 %f, fmt; cvta.global.u64 %f, %f; atom.global.add.u32 %r, [counter], 1;
 { .param .b64 p0; .param .b64 p1; .param .b32 r0; st.param.b64 [p0], %f; st.param.b64 [p1], %a; call.uni (r0), vprintf, (p0, p1); ld.param.b32 %r, [r0]; } ret; }
"""
    )
    module = simlib.Module(text)
    simlib.configure()
    module.launch("k", 1, 32)
    assert simlib.printed() == "t3  1.50 hi ff\n"
    addr, size = C.c_uint64(), C.c_uint64()
    table = simlib.extension("cuda.module", simlib.ModuleTable)
    simlib.check(table.global_(module.handle, b"counter", C.byref(addr), C.byref(size)))
    assert size.value == 4
    assert C.c_uint32.from_address(addr.value).value == 8
    simlib.check(table.global_(module.handle, b"pointer", C.byref(addr), None))
    assert C.c_uint32.from_address(C.c_uint64.from_address(addr.value).value).value == 8


def test_two_devices_wait_for_each_other() -> None:
    """Each device's kernel sets its flag and spins on the other's: both must run at once, through peer memory."""
    text = (
        HEAD.format(target="sm_90")
        + """
.visible .entry k(.param .u64 mine, .param .u64 other) { .reg .b64 %m, %o; .reg .b32 %v; .reg .pred %p; ld.param.u64 %m, [mine]; ld.param.u64 %o, [other];
 st.release.sys.global.u32 [%m], 1; SPIN: ld.acquire.sys.global.u32 %v, [%o]; setp.ne.u32 %p, %v, 1; @%p bra SPIN; st.global.u32 [%m+4], 2; ret; }
"""
    )
    a, b = np.zeros(2, np.uint32), np.zeros(2, np.uint32)
    first, second = simlib.Module(text, 0), simlib.Module(text, 1)
    simlib.configure(stall_instructions=20000, checker="off")
    first.launch("k", 1, 1, a, b, wait=False)
    assert a.tolist() == [1, 0]
    second.launch("k", 1, 1, b, a)
    simlib.check(simlib.library().stream_synchronize(first.dev.ctx, 0))
    assert a.tolist() == [1, 2]
    assert b.tolist() == [1, 2]
    c = np.zeros(2, np.uint32)
    with pytest.raises(simlib.SimError, match="deadlock"):
        first.launch("k", 1, 1, c, np.zeros(2, np.uint32))


def test_multimem_reaches_all_replicas() -> None:
    replicas = [simlib.aligned(64, np.float32) for _ in range(4)]
    for i, r in enumerate(replicas):
        r[:] = i + 1
    peer, addr = simlib.extension("cuda.peer", simlib.PeerTable), C.c_uint64()
    simlib.check(peer.multicast_create((C.c_uint64 * 4)(*[r.ctypes.data for r in replicas]), 4, 256, C.byref(addr)))
    text = (
        HEAD.format(target="sm_90")
        + """
.visible .entry k(.param .u64 m, .param .u64 o) { .reg .b64 %m, %o; .reg .f32 %v; ld.param.u64 %m, [m]; ld.param.u64 %o, [o];
 multimem.ld_reduce.relaxed.sys.global.add.f32 %v, [%m]; st.global.f32 [%o], %v; multimem.st.relaxed.sys.global.f32 [%m+4], %v; multimem.red.relaxed.sys.global.add.f32 [%m+8], %v; ret; }
"""
    )
    out = np.zeros(1, np.float32)
    simlib.Module(text).launch("k", 1, 1, addr, out, *[simlib.Span(r) for r in replicas])
    assert out[0] == 10
    assert [r[1] for r in replicas] == [10] * 4
    assert [r[2] for r in replicas] == [11, 12, 13, 14]
    simlib.check(peer.multicast_destroy(addr))
