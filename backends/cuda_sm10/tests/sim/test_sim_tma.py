# ruff: noqa: E501
"""TMA: boxes of every rank, swizzles, out-of-bounds rules, strides, reductions, gather4, packed types, multicast, descriptor checks.

The expected shared-memory image is computed here from the documented rule: box elements in order, innermost first, then the swizzle
of absolute byte addresses (buffers are 1024-byte aligned, so offsets inside them swizzle alike).
"""

from __future__ import annotations

import ctypes as C
import itertools

import numpy as np
import pytest
import simlib
from lanes import HEAD

COPY = ".shared .align 1024 .b8 buf[16384];\n.shared .align 8 .b64 bar;\n"
WAIT = "W:\nmbarrier.try_wait.parity.shared::cta.b64 %p, [bar], 0;\n@!%p bra W;\n"


def swizzle(mode: str, at: int) -> int:
    span = {"none": 0, "32": 1, "64": 3, "128": 7}
    if mode in span:
        return at ^ ((at >> 7 & span[mode]) << 4)
    if mode == "128_atom32":
        return at ^ ((at >> 7 & 3) << 5)
    return at ^ ((at >> 7 & 1) << 6)  # 128_atom64


def module(body: str, params: str, dev: int, regs: str = "") -> simlib.Module:
    return simlib.Module(
        HEAD.format(target="sm_90a" if dev == simlib.SM90 else "sm_100a") + COPY + f".visible .entry k({params}) {{\n"
        ".reg .b64 %o, %g, %m;\n.reg .b32 %t, %s, %v, %c<5>, %mask;\n.reg .b16 %h;\n.reg .pred %p, %one;\n"
        + regs
        + "mov.u32 %t, %tid.x;\nsetp.eq.u32 %one, %t, 0;\nmov.u32 %s, buf;\n"
        + body
        + "\nret;\n}\n",
        dev,
    )


INIT = "@%one mbarrier.init.shared::cta.b64 [bar], 1;\n@%one fence.mbarrier_init.release.cluster;\nbar.sync 0;\n"
DUMP = (
    "ld.param.u64 %o, [o];\nD:\nmul.wide.u32 %g, %t, 4;\nadd.s64 %g, %g, %o;\nshl.b32 %v, %t, 2;\nadd.u32 %v, %v, %s;\nld.shared.u32 %v, [%v];\nst.global.u32 [%g], %v;\n"
    "add.u32 %t, %t, 32;\nsetp.lt.u32 %p, %t, {words};\n@%p bra D;\n"
)


def load(
    m: simlib.Map, coords: list[int], size: int, rank: int, tx: int | None = None, dev: int = simlib.SM90
) -> np.ndarray:
    at = ", ".join(str(c) for c in coords)
    body = (
        INIT
        + f"@%one mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {tx or size};\nmov.b64 %m, m;\ncvta.param.u64 %m, %m;\n"
        f"@%one cp.async.bulk.tensor.{rank}d.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%m, {{{at}}}], [bar];\n"
        + WAIT
        + DUMP.format(words=size // 4)
    )
    out = np.zeros(size // 4, np.uint32)
    module(body, ".param .align 128 .b8 m[128], .param .u64 o", dev).launch(
        "k", 1, 32, m, out, simlib.Span(m.array, False)
    )
    return out


def box_image(
    a: np.ndarray, box: list[int], coords: list[int], strides: list[int], mode: str, fill: float = 0
) -> np.ndarray:
    """a is indexed outermost first; box, coords and strides innermost first."""
    rank, counts = a.ndim, [-(-b // s) for b, s in zip(box, strides, strict=True)]
    flat = []
    for index in itertools.product(*[range(n) for n in reversed(counts)]):
        where = tuple(coords[rank - 1 - d] + i * strides[rank - 1 - d] for d, i in enumerate(index))
        inside = all(0 <= w < n for w, n in zip(where, a.shape, strict=True))
        flat.append(a[where] if inside else np.array(fill, a.dtype))
    raw = np.array(flat, a.dtype).view(np.uint8)
    image = np.zeros_like(raw)
    for i in range(0, len(raw), 16):
        to = swizzle(mode, i)
        image[to : to + 16] = raw[i : i + 16]
    return image.view(np.uint32)


@pytest.mark.parametrize(
    ("mode", "inner"), [("none", 32), ("32", 8), ("64", 16), ("128", 32), ("128_atom32", 32), ("128_atom64", 32)]
)
@pytest.mark.parametrize("schedule", ["eager", "random"])
def test_swizzled_load_with_out_of_bounds(mode: str, inner: int, schedule: str) -> None:
    a = simlib.aligned((24, 40), np.float32)
    a[:] = np.arange(960, dtype=np.float32).reshape(24, 40) + 1
    simlib.configure(schedule=schedule, seed=4)
    m = simlib.tensor_map(a, "f32", [40, 24], [160], [inner, 16], mode)
    for coords in ([0, 0], [16, 12], [-4, -3], [100, 0]):
        got = load(m, coords, inner * 16 * 4, 2)
        assert np.array_equal(got, box_image(a, [inner, 16], coords, [1, 1], mode)), coords


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_ranks_and_element_strides(rank: int) -> None:
    shape = (3, 4, 3, 5, 24)[-rank:]
    a = simlib.aligned(shape, np.uint16)
    a[...] = np.arange(a.size, dtype=np.uint16).reshape(shape)
    dims = list(reversed(shape))
    steps = list(reversed(a.strides[:-1]))
    box, es = [64, 4, 2, 3, 2][:rank], [1, 2, 1, 1, 1][:rank]
    coords = [8, 1, 1, 2, 0][:rank]
    m = simlib.tensor_map(a, "u16", dims, steps, box, element_strides=es)
    want = box_image(a, box, coords, es, "none")
    assert np.array_equal(load(m, coords, want.nbytes, rank), want)


def test_nan_fill() -> None:
    a = simlib.aligned((4, 8), np.float32)
    m = simlib.tensor_map(a, "f32", [8, 4], [32], [8, 4], nan_fill=True)
    got = load(m, [0, 2], 128, 2).view(np.float32).reshape(4, 8)
    assert not got[:2].any()
    assert np.isnan(got[2:]).all()


def test_gather4() -> None:
    a = simlib.aligned((32, 16), np.uint32)
    a[:] = np.arange(512).reshape(32, 16)
    m = simlib.tensor_map(a, "u32", [16, 32], [64], [8, 1], "32")
    body = (
        INIT
        + "@%one mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 128;\nmov.b64 %m, m;\ncvta.param.u64 %m, %m;\n"
        "@%one cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes [%s], [%m, {8, 5, 31, 0, 40}], [bar];\n"
        + WAIT
        + DUMP.format(words=32)
    )
    out = np.zeros(32, np.uint32)
    module(body, ".param .align 128 .b8 m[128], .param .u64 o", simlib.SM100).launch(
        "k", 1, 32, m, out, simlib.Span(a, False)
    )
    rows = np.stack([a[5, 8:], a[31, 8:], a[0, 8:], np.zeros(8, np.uint32)])
    image = np.zeros(128, np.uint8)
    for i in range(0, 128, 16):
        image[swizzle("32", i) : swizzle("32", i) + 16] = rows.view(np.uint8).ravel()[i : i + 16]
    assert np.array_equal(out, image.view(np.uint32))


@pytest.mark.parametrize("op", ["store", "add", "min", "max"])
def test_stores_and_reductions_clip(op: str) -> None:
    a = simlib.aligned((10, 20), np.float32)
    a[:] = 5
    before = a.copy()
    m = simlib.tensor_map(a, "f32", [20, 10], [80], [8, 4], "32")
    name = "cp.async.bulk.tensor.2d" if op == "store" else "cp.reduce.async.bulk.tensor.2d"
    mod = f".{op}" if op != "store" else ""
    body = (
        "shl.b32 %v, %t, 2;\nadd.u32 %v, %v, %s;\ncvt.rn.f32.u32 %f, %t;\nst.shared.f32 [%v], %f;\nfence.proxy.async.shared::cta;\nbar.sync 0;\nmov.b64 %m, m;\ncvta.param.u64 %m, %m;\n"
        f"@%one {name}.global.shared::cta{mod}.bulk_group [%m, {{16, 7}}], [%s];\n@%one cp.async.bulk.commit_group;\n@%one cp.async.bulk.wait_group 0;\n"
    )
    module(body, ".param .align 128 .b8 m[128]", simlib.SM90, ".reg .f32 %f;\n").launch("k", 1, 32, m, simlib.Span(a))
    fn = {"store": lambda o, v: v, "add": lambda o, v: o + v, "min": np.minimum, "max": np.maximum}[op]
    source = np.zeros(32, np.float32)
    for i in range(0, 128, 16):
        source.view(np.uint8)[i : i + 16] = np.arange(32, dtype=np.float32).view(np.uint8)[
            swizzle("32", i) : swizzle("32", i) + 16
        ]
    want = before
    for r, c in itertools.product(range(4), range(8)):
        if 7 + r < 10 and 16 + c < 20:
            want[7 + r, 16 + c] = fn(before[7 + r, 16 + c], source[8 * r + c])
    assert np.array_equal(a, want)


def test_four_bit_types() -> None:
    """ALIGN8B copies packed nibbles; ALIGN16B puts every 16 of them into 16 bytes, the upper 8 unused and
    not counted as transaction bytes."""
    a = simlib.aligned((4, 64), np.uint8)
    a[:] = np.arange(256, dtype=np.uint8).reshape(4, 64)
    packed = (
        load(simlib.tensor_map(a, "u4_align8", [128, 4], [64], [64, 4]), [32, 1], 128, 2).view(np.uint8).reshape(4, 32)
    )
    assert np.array_equal(packed[:3], a[1:, 16:48])
    assert not packed[3].any()
    spread = load(simlib.tensor_map(a, "u4_align16", [128, 4], [64], [128, 4], "128"), [0, 0], 512, 2, tx=256)
    spread = spread.view(np.uint8)
    image = np.zeros(512, np.uint8)
    for r, g in itertools.product(range(4), range(8)):
        to = swizzle("128", r * 128 + g * 16)
        image[to : to + 8] = a[r, 8 * g : 8 * g + 8]
    assert np.array_equal(spread, image)


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_multicast_signals_every_cta(schedule: str) -> None:
    a = simlib.aligned((8, 32), np.uint32)
    a[:] = np.arange(256).reshape(8, 32)
    m = simlib.tensor_map(a, "u32", [32, 8], [128], [32, 8])
    body = (
        INIT.replace("bar.sync 0;", "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;")
        + "@%one mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 1024;\nmov.b64 %m, m;\ncvta.param.u64 %m, %m;\nmov.u32 %v, %cluster_ctarank;\nsetp.eq.u32 %p, %v, 1;\nmov.u16 %h, 15;\n"
        "@!%p bra J;\n@%one cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%s], [%m, {0, 0}], [bar], %h;\nJ:\n"
        + WAIT
        + "ld.param.u64 %o, [o];\nmov.u32 %c0, %cluster_ctarank;\nmad.lo.u32 %c1, %c0, 1024, 0;\ncvt.u64.u32 %g, %c1;\nadd.s64 %o, %o, %g;\n"
        + DUMP.format(words=256).split("\n", 1)[1]
        + "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
    )
    simlib.configure(schedule=schedule, seed=2)
    out = np.zeros((4, 256), np.uint32)
    module(body, ".param .align 128 .b8 m[128], .param .u64 o", simlib.SM90).launch(
        "k", 4, 32, m, out, simlib.Span(a, False), cluster=4
    )
    assert all(np.array_equal(o, a.ravel()) for o in out)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"strides": [100]}, "stride 0 of 100 bytes"),
        ({"box": [32, 300]}, "too large|allowed are 1 to 256"),
        ({"box": [64, 8], "swizzle": "128"}, "exceeds the swizzle span"),
        ({"box": [3, 8]}, "not a multiple of 16"),
        ({"dims": [0, 8]}, "dimension 0 is 0"),
        ({"element_strides": [9, 1]}, "too large"),
    ],
)
def test_encode_refuses_what_the_driver_refuses(change: dict[str, object], match: str) -> None:
    args: dict[str, object] = {"dims": [64, 8], "strides": [256], "box": [32, 8]} | change
    with pytest.raises(simlib.SimError, match=match):
        simlib.tensor_map(simlib.aligned((8, 64), np.float32), "f32", **args)  # type: ignore[arg-type]


def test_damaged_map_and_misaligned_destination() -> None:
    a = simlib.aligned((8, 32), np.float32)
    m = simlib.tensor_map(a, "f32", [32, 8], [128], [32, 8])
    m.data[20] ^= 1
    with pytest.raises(simlib.SimError, match="not a tensor map encoded by this driver"):
        load(m, [0, 0], 1024, 2)
    table = simlib.extension("cuda.tensor_map", simlib.MapTable)
    with pytest.raises(simlib.SimError, match="not encoded by this driver"):
        simlib.check(table.replace_address(C.addressof(m.data), a.ctypes.data))
