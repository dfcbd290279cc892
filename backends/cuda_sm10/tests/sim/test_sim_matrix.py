# ruff: noqa: E501
"""Matrix instructions: fragments, descriptors, tensor memory layouts and scale factors, against the documented layouts restated here.

All inputs are small integers (or exact powers of two), so every sum is exact and results must agree bit for bit.
"""

from __future__ import annotations

import itertools

import exact
import numpy as np
import pytest
import simlib
from lanes import HEAD

RNG = np.random.default_rng
FORMATS = {
    "f16": exact.F16,
    "bf16": exact.BF16,
    "tf32": exact.F32,
    "e4m3": exact.E4M3,
    "e5m2": exact.E5M2,
    "e2m3": exact.E2M3,
    "e3m2": exact.E3M2,
    "e2m1": exact.E2M1,
}


def bits_of(v: int, t: str) -> int:
    if t in FORMATS:
        return exact.encode(exact.Fraction(v), FORMATS[t])
    width = {"s8": 8, "u8": 8, "s4": 4, "u4": 4}[t]
    return v & (1 << width) - 1


def integers(shape: tuple[int, ...], t: str, seed: int) -> np.ndarray:
    low, high = (0, 7) if t[0] == "u" else (-2, 3) if t in ("e2m1", "e2m3", "s4") else (-4, 5)
    return RNG(seed).integers(low, high, shape)


# ---- mma.sync ------------------------------------------------------------------------------------------------------


def a_index(width: int, i: int, t: int) -> tuple[int, int]:
    """Row and column of A element i of thread t (PTX ISA, fragments of mma.m16n8k*), width = elements per register."""
    g, c = t // 4, t % 4
    reg, e = divmod(i, width)
    return g + (8 if reg % 2 else 0), c * width + e + (4 * width if reg >= 2 else 0)


def b_index(width: int, i: int, t: int) -> tuple[int, int]:
    reg, e = divmod(i, width)
    return t % 4 * width + e + 4 * width * reg, t // 4


def mma_sync(shape: tuple[int, int, int], ta: str, tb: str, d: str, kind: str = "", seed: int = 0) -> None:
    m, n, k = shape
    width = {"f16": 2, "bf16": 2, "tf32": 1, "s8": 4, "u8": 4, "e4m3": 4, "e5m2": 4, "s4": 8, "u4": 8}[ta]
    a, b, c = integers((m, k), ta, seed), integers((k, n), tb, seed + 1), RNG(seed + 2).integers(-9, 9, (m, n))
    na, nb = m * k // width // 32, n * k // width // 32
    ra, rb = np.zeros((32, na), np.uint32), np.zeros((32, nb), np.uint32)
    for t in range(32):
        for i in range(na * width):
            r, col = a_index(width, i, t)
            ra[t, i // width] |= np.uint32(bits_of(int(a[r % m, col]), ta) << 32 // width * (i % width) & 0xFFFFFFFF)
        for i in range(nb * width):
            r, col = b_index(width, i, t)
            rb[t, i // width] |= np.uint32(bits_of(int(b[r, col]), tb) << 32 // width * (i % width) & 0xFFFFFFFF)
    spots = [(t // 4 + 8 * (i // 2), t % 4 * 2 + i % 2) for t in range(32) for i in range(m * n // 32)]
    values = np.array([c[s] for s in spots]).reshape(32, -1)
    if d == "f16":
        rc = values.astype(np.float16).view(np.uint32)
    else:
        rc = (values.astype(np.float32) if d == "f32" else values.astype(np.int32)).view(np.uint32)
    nc = rc.shape[1]
    names = [f"%r{i}" for i in range(na + nb + 2 * nc)]
    groups = [names[:na], names[na : na + nb], names[na + nb : na + nb + nc], names[na + nb + nc :]]
    text = (
        HEAD.format(target="sm_90a")
        + ".visible .entry k(.param .u64 i, .param .u64 o) {\n.reg .b64 %i, %o, %x;\n.reg .b32 %t, %r<64>;\nmov.u32 %t, %tid.x;\nld.param.u64 %i, [i];\nld.param.u64 %o, [o];\n"
    )
    text += f"mul.wide.u32 %x, %t, {4 * (na + nb + nc)};\nadd.s64 %i, %i, %x;\nmul.wide.u32 %x, %t, {4 * nc};\nadd.s64 %o, %o, %x;\n"
    text += "".join(f"ld.global.u32 {r}, [%i+{4 * j}];\n" for j, r in enumerate(names[: na + nb + nc]))
    lists = ["{" + ", ".join(g) + "}" for g in groups]
    text += f"mma.sync.aligned.m{m}n{n}k{k}.row.col{kind}.{d}.{ta}.{tb}.{d} {lists[3]}, {lists[0]}, {lists[1]}, {lists[2]};\n"
    text += "".join(f"st.global.u32 [%o+{4 * j}], {r};\n" for j, r in enumerate(groups[3])) + "ret;\n}\n"
    out = np.zeros((32, nc), np.uint32)
    simlib.Module(text).launch("k", 1, 32, np.ascontiguousarray(np.concatenate([ra, rb, rc], axis=1)), out)
    got = out.view({"f16": np.float16, "f32": np.float32, "s32": np.int32}[d]).ravel()
    want = a @ b + c
    assert got.tolist() == [want[s] for s in spots]


@pytest.mark.parametrize(
    ("shape", "a", "b", "d"),
    [
        ((16, 8, 16), "f16", "f16", "f32"),
        ((16, 8, 16), "f16", "f16", "f16"),
        ((16, 8, 8), "f16", "f16", "f32"),
        ((16, 8, 16), "bf16", "bf16", "f32"),
        ((16, 8, 8), "bf16", "bf16", "f32"),
        ((16, 8, 8), "tf32", "tf32", "f32"),
        ((16, 8, 4), "tf32", "tf32", "f32"),
        ((16, 8, 32), "s8", "s8", "s32"),
        ((16, 8, 32), "u8", "s8", "s32"),
        ((16, 8, 16), "s8", "u8", "s32"),
        ((16, 8, 32), "e4m3", "e5m2", "f32"),
        ((16, 8, 32), "e5m2", "e4m3", "f16"),
        ((16, 8, 64), "s4", "u4", "s32"),
        ((16, 8, 32), "s4", "s4", "s32"),
    ],
)
def test_mma_sync(shape: tuple[int, int, int], a: str, b: str, d: str) -> None:
    mma_sync(shape, a, b, d)


def test_ldmatrix_stmatrix_movmatrix() -> None:
    head = (
        HEAD.format(target="sm_90a")
        + ".shared .align 16 .b8 buf[512];\n.visible .entry k(.param .u64 i, .param .u64 o) {\n.reg .b64 %i, %o, %x;\n.reg .b32 %t, %s, %v, %r<8>;\nmov.u32 %t, %tid.x;\nmov.u32 %s, buf;\nld.param.u64 %i, [i];\nld.param.u64 %o, [o];\n"
    )
    fill = "mul.wide.u32 %x, %t, 16;\nadd.s64 %i, %i, %x;\nadd.s64 %o, %o, %x;\nshl.b32 %v, %t, 4;\nadd.u32 %s, %s, %v;\nld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%i];\nst.shared.v4.u32 [%s], {%r0, %r1, %r2, %r3};\nbar.sync 0;\n"
    end = "st.global.v4.u32 [%o], {%r0, %r1, %r2, %r3};\nret;\n}\n"
    tile = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)
    for trans in ("", ".trans"):
        out = np.zeros((32, 4, 2), np.uint16)
        simlib.Module(
            head + fill + f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%r0, %r1, %r2, %r3}}, [%s];\n" + end
        ).launch("k", 1, 32, tile, out)
        for t, m, e in itertools.product(range(32), range(4), range(2)):
            r, c = t // 4, t % 4 * 2 + e
            assert out[t, m, e] == (tile[m, c, r] if trans else tile[m, r, c])
        back = np.zeros((4, 8, 8), np.uint16)
        store = f"stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%s], {{%r0, %r1, %r2, %r3}};\nbar.sync 0;\nld.shared.v4.u32 {{%r0, %r1, %r2, %r3}}, [%s];\n"
        simlib.Module(
            head
            + "mul.wide.u32 %x, %t, 16;\nadd.s64 %i, %i, %x;\nadd.s64 %o, %o, %x;\nshl.b32 %v, %t, 4;\nadd.u32 %s, %s, %v;\nld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%i];\n"
            + store
            + end
        ).launch("k", 1, 32, out, back)
        assert np.array_equal(back, tile)


# ---- shared-memory images for wgmma and tcgen05 ---------------------------------------------------------------------


def k_major_image(raw: np.ndarray) -> bytes:
    """Bytes [rows][k bytes] as 8-row x 16-byte core matrices: LBO = 128 between chunks along K, SBO = 128 * chunks between row groups."""
    rows, width = raw.shape
    image = np.zeros((rows // 8, width // 16, 8, 16), np.uint8)
    for r, c in itertools.product(range(rows), range(width // 16)):
        image[r // 8, c, r % 8] = raw[r, 16 * c : 16 * c + 16]
    return image.tobytes()


def k_major_desc(width: int, version: int) -> int:
    return 8 << 16 | 8 * (width // 16) << 32 | version << 46


def rows_of_bytes(v: np.ndarray, t: str, packed4: bool = False) -> np.ndarray:
    """Element storage along K: sub-byte elements sit 16 to a 16-byte chunk unless packed."""
    rows, k = v.shape
    bits = np.vectorize(lambda x: bits_of(int(x), t))(v).astype(np.uint64)
    if t in ("f16", "bf16"):
        return bits.astype(np.uint16).view(np.uint8)
    if t == "tf32":
        return bits.astype(np.uint32).view(np.uint8)
    width = FORMATS[t].width if t in FORMATS else 8
    if width == 8:
        return bits.astype(np.uint8)
    if packed4:
        return (bits[:, 0::2] | bits[:, 1::2] << np.uint64(4)).astype(np.uint8)
    out = np.zeros((rows, k), np.uint8)
    for r, chunk in itertools.product(range(rows), range(k // 16)):
        word = sum(int(b) << width * i for i, b in enumerate(bits[r, 16 * chunk : 16 * chunk + 16]))
        out[r, 16 * chunk : 16 * chunk + 16] = list(word.to_bytes(16, "little"))
    return out


FILL = (
    "mov.u32 %t, %tid.x;\nld.param.u64 %i, [i];\nld.param.u64 %o, [o];\nmov.u32 %s, buf;\nmov.u32 %v, %t;\nFILL:\nshl.b32 %u, %v, 2;\ncvt.u64.u32 %x, %u;\nadd.s64 %x, %x, %i;\n"
    "ld.global.u32 %w, [%x];\nadd.u32 %u, %u, %s;\nst.shared.u32 [%u], %w;\nadd.u32 %v, %v, 128;\nsetp.lt.u32 %p, %v, {words};\n@%p bra FILL;\nfence.proxy.async.shared::cta;\nbar.sync 0;\n"
    "and.b32 %u, %s, 0x3ffff;\nshr.u32 %u, %u, 4;\ncvt.u64.u32 %x, %u;\n"
)
REGS = (
    ".reg .b64 %i, %o, %x, %da, %db;\n.reg .b32 %t, %s, %u, %v, %w, %tm, %c<8>, %r<256>;\n.reg .pred %p, %one, %acc;\n"
)


def wgmma(
    ta: str,
    tb: str,
    d: str,
    n: int = 24,
    a_regs: bool = False,
    trans_a: bool = False,
    trans_b: bool = False,
    negate: bool = False,
) -> None:
    size = {"f16": 2, "bf16": 2, "tf32": 4}.get(ta, 1)
    k = 32 // size
    a, b = integers((64, k), ta, 5), integers((n, k), tb, 6)
    ra, rb = rows_of_bytes(a, ta), rows_of_bytes(b, tb)

    def mn_major(raw: np.ndarray) -> tuple[bytes, int]:  # no swizzle: 16-byte runs of MN, 8 k-lines per core matrix
        bits = raw.view(np.uint16)
        rows = bits.shape[0]
        image = np.zeros((k // 8, rows // 8, 8, 8), np.uint16)
        for r, kk in itertools.product(range(rows), range(k)):
            image[kk // 8, r // 8, kk % 8, r % 8] = bits[r, kk]
        return image.tobytes(), 128 * (rows // 8) // 16 << 16 | 8 << 32

    ia, desc_a = mn_major(ra) if trans_a else (k_major_image(ra), k_major_desc(32, 0))
    ib, desc_b = mn_major(rb) if trans_b else (k_major_image(rb), k_major_desc(32, 0))
    nd = n // 4 if d == "f16" else n // 2
    frag = np.zeros((128, 4), np.uint32)
    for t, reg in itertools.product(range(128), range(4)):
        per = 4 // size
        row, kk = 16 * (t // 32) + t % 32 // 4 + 8 * (reg % 2), t % 4 * per + 4 * per * (reg // 2)
        frag[t, reg] = int.from_bytes(ra[row, kk * size : kk * size + 4].tobytes(), "little")
    data = np.frombuffer(ia + ib + frag.tobytes(), np.uint32).copy()
    words = (len(ia) + len(ib)) // 4
    integer = d == "s32"
    flags = (
        ""
        if integer
        else f", {'-1' if negate else '1'}, 1"
        + (", " + ("" if a_regs else f"{int(trans_a)}, ") + f"{int(trans_b)}" if size == 2 else "")
    )
    source = "{%c0, %c1, %c2, %c3}" if a_regs else "%da"
    body = FILL.format(words=words) + (
        f"add.s64 %da, %x, {desc_a};\nadd.s64 %db, %x, {desc_b + len(ia) // 16};\nmul.wide.u32 %x, %t, 16;\nadd.s64 %x, %x, %i;\nld.global.v4.u32 {{%c0, %c1, %c2, %c3}}, [%x+{words * 4}];\n"
        + "".join(f"mov.u32 %r{j}, 0;\n" for j in range(nd))
        + "wgmma.fence.sync.aligned;\n"
        + f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{d}.{ta}.{tb} {{{', '.join(f'%r{j}' for j in range(nd))}}}, {source}, %db, 1{flags};\n"
        "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"
        + f"mul.wide.u32 %x, %t, {4 * nd};\nadd.s64 %o, %o, %x;\n"
        + "".join(f"st.global.u32 [%o+{4 * j}], %r{j};\n" for j in range(nd))
    )
    text = (
        HEAD.format(target="sm_90a")
        + f".shared .align 1024 .b8 buf[{words * 4}];\n.visible .entry k(.param .u64 i, .param .u64 o) {{\n"
        + REGS
        + body
        + "ret;\n}\n"
    )
    want = (-1 if negate else 1) * (a @ b.T)
    for schedule in ("eager", "lazy"):
        simlib.configure(schedule=schedule)
        out = np.zeros((128, nd), np.uint32)
        simlib.Module(text).launch("k", 1, 128, data, out)
        got = out.view({"f16": np.float16, "f32": np.float32, "s32": np.int32}[d])
        for t, i in itertools.product(range(128), range(n // 2)):
            row, col = 16 * (t // 32) + t % 32 // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + t % 4 * 2 + i % 2
            assert got[t, i] == want[row, col]


@pytest.mark.parametrize(
    ("a", "b", "d"),
    [
        ("f16", "f16", "f32"),
        ("bf16", "bf16", "f32"),
        ("f16", "f16", "f16"),
        ("tf32", "tf32", "f32"),
        ("e4m3", "e5m2", "f32"),
        ("e5m2", "e4m3", "f16"),
        ("s8", "s8", "s32"),
        ("u8", "s8", "s32"),
    ],
)
@pytest.mark.parametrize("a_regs", [False, True])
def test_wgmma_types(a: str, b: str, d: str, a_regs: bool) -> None:
    wgmma(a, b, d, a_regs=a_regs)


@pytest.mark.parametrize(
    ("trans_a", "trans_b", "negate"), [(True, False, False), (False, True, False), (True, True, True)]
)
def test_wgmma_transposed_and_negated(trans_a: bool, trans_b: bool, negate: bool) -> None:
    wgmma("bf16", "bf16", "f32", trans_a=trans_a, trans_b=trans_b, negate=negate)


# ---- tcgen05 -------------------------------------------------------------------------------------------------------

TC_HEAD = ".shared .align 1024 .b8 buf[{size}];\n.shared .align 8 .b64 bar;\n.shared .align 4 .b32 at;\n.visible .entry k(.param .u64 i, .param .u64 o) {{\n"
TC_ALLOC = (
    "setp.eq.u32 %one, %t, 0;\n@%one mbarrier.init.shared::cta.b64 [bar], 1;\n@%one fence.mbarrier_init.release.cluster;\nsetp.lt.u32 %p, %t, 32;\n"
    "@%p tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [at], 512;\nbar.sync 0;\nld.shared.u32 %tm, [at];\n"
)
TC_FREE = "bar.sync 0;\nsetp.lt.u32 %p, %t, 32;\n@%p tcgen05.dealloc.cta_group::1.sync.aligned.b32 %tm, 512;\nret;\n}\n"


def tcgen05(kind: str, ta: str, tb: str, m: int, n: int, dcode: int, ws: bool = False, scales: int = 0) -> None:
    packed4 = kind.startswith("mxf4")
    k = {"f16": 16, "tf32": 8}.get(kind, 64 if packed4 else 32)
    a, b = integers((m, k), ta, 7), integers((n, k), tb, 8)
    ia, ib = k_major_image(rows_of_bytes(a, ta, packed4)), k_major_image(rows_of_bytes(b, tb, packed4))
    code = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5, "u8": 0, "s8": 1}
    ca, cb = (1, 1) if packed4 else (code[ta], code[tb])
    idesc = ca << 7 | cb << 10 | n >> 3 << 17 | m >> 4 << 24 | (1 << 23 if scales else dcode << 4)
    fa, fb = a.astype(np.float64), b.astype(np.float64)
    block = k // scales if scales else k
    sa, sb = RNG(9).integers(124, 131, (128, max(scales, 1))), RNG(10).integers(124, 131, (n, max(scales, 1)))
    sf = np.zeros((128, 8), np.uint32)  # per lane: columns 0-3 A scales, 4-7 B scales
    if scales:
        fa *= np.exp2(sa[:m].astype(float) - 127).repeat(block, 1)
        fb *= np.exp2(sb.astype(float) - 127).repeat(block, 1)
        for lane, col in itertools.product(range(128), range(4)):
            for which, s in ((0, sa), (4, sb)):
                row = lane % 32 + 32 * col
                if row < len(s):
                    sf[lane, which + col] = sum(int(v) << 8 * j for j, v in enumerate(s[row]))
    want = fa @ fb.T
    data = np.frombuffer(ia + ib + sf.tobytes(), np.uint32).copy()
    words = (len(ia) + len(ib)) // 4
    put = (
        (
            "mul.wide.u32 %x, %t, 32;\nadd.s64 %x, %x, %i;\n"
            + "".join(f"ld.global.u32 %c{j}, [%x+{words * 4 + 4 * j}];\n" for j in range(8))
            + "add.u32 %u, %tm, 480;\ntcgen05.st.sync.aligned.32x32b.x8.b32 [%u], {"
            + ", ".join(f"%c{j}" for j in range(8))
            + "};\ntcgen05.wait::st.sync.aligned;\n"
            "tcgen05.fence::before_thread_sync;\nbar.sync 0;\ntcgen05.fence::after_thread_sync;\n"
        )
        if scales
        else ""
    )
    name = f"tcgen05.mma{'.ws' if ws else ''}.cta_group::1.kind::{kind}" + (
        f".block_scale.scale_vec::{scales}X" if scales else ""
    )
    operands = f"[%tm], %da, %db, {idesc}, " + ("[%u], [%v], " if scales else "") + "0"
    cols = n // 4 if ws and m == 32 else n // 2 if ws and m == 64 else n
    prefix = (
        FILL.format(words=words)
        + f"add.s64 %da, %x, {k_major_desc(32, 1)};\nadd.s64 %db, %x, {k_major_desc(32, 1) + len(ia) // 16};\n"
    )
    read = "".join(
        f"add.u32 %u, %tm, {c};\ntcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r{c}}}, [%u];\n" for c in range(cols)
    )
    body = (
        prefix
        + TC_ALLOC
        + put
        + f"add.u32 %u, %tm, 480;\nadd.u32 %v, %tm, 484;\n@%one {name} {operands};\n@%one tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [bar];\n"
        "W:\nmbarrier.try_wait.parity.shared::cta.b64 %p, [bar], 0;\n@!%p bra W;\ntcgen05.fence::after_thread_sync;\n{read}tcgen05.wait::ld.sync.aligned;\n"
        + f"mul.wide.u32 %x, %t, {4 * cols};\nadd.s64 %o, %o, %x;\n"
        + "".join(f"st.global.u32 [%o+{4 * c}], %r{c};\n" for c in range(cols))
        + TC_FREE
    )
    # lanes outside D were never written: only the warps that own rows read them
    used = {d_place(m, n, ws, r, c)[0] // 16 for r in range(m) for c in range(n)}
    text = HEAD.format(target="sm_100a") + TC_HEAD.format(size=words * 4) + REGS + body.replace("{read}", read)
    simlib.configure(findings="report")
    out = np.zeros((128, cols), np.uint32)
    simlib.Module(text, simlib.SM100).launch("k", 1, 128, data, out)
    if len(used) == 8:
        assert simlib.findings() == []
    got = out.view(np.int32 if kind == "i8" else np.float32)
    for r, c in itertools.product(range(m), range(n)):
        lane, col = d_place(m, n, ws, r, c)
        value = (
            float((out[lane, col] & 0xFFFF).astype(np.uint16).view(np.float16))
            if dcode == 0 and not scales
            else float(got[lane, col])
        )
        assert value == want[r, c], (r, c)


def d_place(m: int, n: int, ws: bool, r: int, c: int) -> tuple[int, int]:
    """Lane and column of D (PTX ISA, "Data path layout organization" D to G for one CTA)."""
    if ws and m == 32:
        return r + 32 * (c // (n // 4)), c % (n // 4)
    if ws and m == 64:
        return r + 64 * (c // (n // 2)), c % (n // 2)
    return (r // 16 * 32 + r % 16, c) if m == 64 else (r, c)


@pytest.mark.parametrize(
    ("kind", "a", "b", "m", "n", "d"),
    [
        ("f16", "f16", "f16", 128, 32, 1),
        ("f16", "bf16", "bf16", 64, 24, 1),
        ("f16", "f16", "f16", 128, 16, 0),
        ("tf32", "tf32", "tf32", 128, 16, 1),
        ("f8f6f4", "e4m3", "e5m2", 128, 16, 1),
        ("f8f6f4", "e2m1", "e4m3", 128, 16, 1),
        ("f8f6f4", "e3m2", "e2m3", 128, 32, 1),
        ("i8", "s8", "u8", 128, 16, 2),
    ],
)
def test_tcgen05_kinds(kind: str, a: str, b: str, m: int, n: int, d: int) -> None:
    tcgen05(kind, a, b, m, n, d)


@pytest.mark.parametrize("m", [32, 64, 128])
def test_tcgen05_weight_stationary(m: int) -> None:
    tcgen05("f16", "bf16", "bf16", m, 64, 1, ws=True)


@pytest.mark.parametrize(
    ("kind", "a", "b", "scales"),
    [
        ("mxf8f6f4", "e4m3", "e4m3", 1),
        ("mxf8f6f4", "e5m2", "e2m1", 1),
        ("mxf4", "e2m1", "e2m1", 2),
        ("mxf4nvf4", "e2m1", "e2m1", 4),
    ],
)
def test_tcgen05_block_scaled(kind: str, a: str, b: str, scales: int) -> None:
    tcgen05(kind, a, b, 128, 64, 1, scales=scales)


def fragment_of(shape: str, t: int, r: int) -> tuple[int, int]:
    """Lane and column of register r of thread t within a tcgen05.ld (PTX ISA, figures of the data movement shapes)."""
    quad, pos = divmod(t, 4)
    if shape == "32x32b":
        return t, r
    if shape == "16x256b":  # two neighbouring columns per thread, eight columns per step
        return quad + (8 if r % 4 >= 2 else 0), r // 4 * 8 + pos * 2 + r % 2
    if shape == "16x128b":  # one column per thread, four columns per step
        return quad + 8 * (r % 2), r // 2 * 4 + pos
    return quad + 8 * (t % 2), r * 2 + pos // 2  # 16x64b


@pytest.mark.parametrize(("shape", "per"), [("32x32b", 1), ("16x64b", 1), ("16x128b", 2), ("16x256b", 4)])
@pytest.mark.parametrize("repeat", [1, 4])
def test_tensor_memory_fragments(shape: str, per: int, repeat: int) -> None:
    cols = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8}[shape] * repeat
    regs = per * repeat
    write = "tcgen05.st.sync.aligned.32x32b.x{n}.b32 [%tm], {{{v}}};\n".format(
        n=max(cols, 1), v=", ".join(f"%r{c}" for c in range(cols))
    )
    body = (
        "mov.u32 %t, %tid.x;\nld.param.u64 %o, [o];\n"
        + TC_ALLOC
        + "".join(f"shl.b32 %r{c}, %t, 8;\nadd.u32 %r{c}, %r{c}, {c};\n" for c in range(cols))
        + write
        + "tcgen05.wait::st.sync.aligned;\n"
        + f"tcgen05.ld.sync.aligned.{shape}.x{repeat}.b32 {{{', '.join(f'%r{100 + j}' for j in range(regs))}}}, [%tm];\ntcgen05.wait::ld.sync.aligned;\n"
        + f"mul.wide.u32 %x, %t, {4 * regs};\nadd.s64 %o, %o, %x;\n"
        + "".join(f"st.global.u32 [%o+{4 * j}], %r{100 + j};\n" for j in range(regs))
        + TC_FREE
    )
    text = HEAD.format(target="sm_100a") + TC_HEAD.format(size=64) + REGS + body
    out = np.zeros((128, regs), np.uint32)
    simlib.Module(text, simlib.SM100).launch("k", 1, 128, np.zeros(4, np.uint32), out)
    for t, r in itertools.product(range(128), range(regs)):
        lane, col = fragment_of(shape, t % 32, r)
        assert out[t, r] == (t // 32 * 32 + lane) << 8 | col
