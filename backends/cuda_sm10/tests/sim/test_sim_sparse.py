"""tcgen05.mma.sp against a plain product: metadata in tensor memory as CuTe's tmem_e_frg lays it out, restated here."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import simlib
from lanes import HEAD
from test_sim_matrix import FILL, REGS, TC_ALLOC, TC_FREE, TC_HEAD, integers, k_major_desc, k_major_image, rows_of_bytes

PAIRS = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
CODES = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1, "u8": 0, "s8": 1}


def groups(kind: str, m: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Metadata nibbles [m, groups] and the columns [m, k/2] that they keep."""
    rng = np.random.default_rng(seed)
    if kind == "tf32":  # one of two elements; the nibble counts its halves
        keep = rng.integers(0, 2, (m, k // 2))
        return np.where(keep, 0xE, 0x4), keep + 2 * np.arange(k // 2)
    choice = rng.integers(0, 6, (m, k // 4))
    pairs = np.array(PAIRS)[choice]
    columns = (pairs + 4 * np.arange(k // 4)[None, :, None]).reshape(m, k // 2)
    return pairs[..., 0] | pairs[..., 1] << 2, columns


def cells(kind: str, nibbles: np.ndarray, selector: int) -> np.ndarray:
    """[128 lanes, 2 columns] of tensor memory; what no group uses is noise."""
    wide = kind in ("f16", "tf32")
    found = np.random.default_rng(5).integers(0, 2**32, (128, 2), np.uint64)
    for row, g in itertools.product(range(nibbles.shape[0]), range(nibbles.shape[1])):
        lane = row // 16 * 16 + g // 4 * 8 + row % 8 if wide else row
        column = selector if wide else g // 8
        shift = row // 8 % 2 * 16 + g % 4 * 4 if wide else g % 8 * 4
        found[lane, column] = int(found[lane, column]) & ~(15 << shift) | int(nibbles[row, g]) << shift
    return found.astype(np.uint32)


@pytest.mark.parametrize(
    ("kind", "a", "b", "d", "selector"),
    [
        *[("f16", "f16", "f16", 1, i) for i in (0, 1)],
        *[("f16", "bf16", "bf16", 1, i) for i in (0, 1)],
        *[("tf32", "tf32", "tf32", 1, i) for i in (0, 1)],
        ("f8f6f4", "e4m3", "e5m2", 1, 0),
        ("i8", "s8", "u8", 2, 0),
    ],
)
def test_sparse_products(kind: str, a: str, b: str, d: int, selector: int) -> None:
    m, n, k = 128, 16, {"f16": 32, "tf32": 16}.get(kind, 64)
    left, right = integers((m, k // 2), a, 3), integers((n, k), b, 4)
    nibbles, columns = groups(kind, m, k, 6)
    full = np.zeros((m, k))
    np.put_along_axis(full, columns, left, 1)
    want = full @ right.T
    image = k_major_image(rows_of_bytes(left, a)) + k_major_image(rows_of_bytes(right, b))
    data = np.frombuffer(image + cells(kind, nibbles, selector).tobytes(), np.uint32).copy()
    words, at_b = len(image) // 4, m * 32 // 16
    idesc = selector | 1 << 2 | d << 4 | CODES[a] << 7 | CODES[b] << 10 | n >> 3 << 17 | m >> 4 << 24
    read = ", ".join(f"%r{c}" for c in range(n))
    body = (
        FILL.format(words=words)
        + f"add.s64 %da, %x, {k_major_desc(32, 1)};\nadd.s64 %db, %x, {k_major_desc(64, 1) + at_b};\n"
        + TC_ALLOC
        + f"mul.wide.u32 %x, %t, 8; add.s64 %x, %x, %i; ld.global.v2.u32 {{%c0, %c1}}, [%x+{words * 4}];\n"
        "add.u32 %u, %tm, 480; tcgen05.st.sync.aligned.32x32b.x2.b32 [%u], {%c0, %c1}; tcgen05.wait::st.sync.aligned;\n"
        "tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;\n"
        f"@%one tcgen05.mma.sp.cta_group::1.kind::{kind} [%tm], %da, %db, [%u], {idesc}, 0;\n"
        "@%one tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [bar];\n"
        "W: mbarrier.try_wait.parity.shared::cta.b64 %p, [bar], 0; @!%p bra W; tcgen05.fence::after_thread_sync;\n"
        f"tcgen05.ld.sync.aligned.32x32b.x16.b32 {{{read}}}, [%tm]; tcgen05.wait::ld.sync.aligned;\n"
        f"mul.wide.u32 %x, %t, {4 * n}; add.s64 %o, %o, %x;\n"
        + "".join(f"st.global.u32 [%o+{4 * c}], %r{c};\n" for c in range(n))
        + "tcgen05.fence::before_thread_sync;\n"
        + TC_FREE
    )
    out = np.zeros((m, n), np.uint32)
    text = HEAD.format(target="sm_100a") + TC_HEAD.format(size=words * 4) + REGS + body
    simlib.Module(text, simlib.SM100).launch("k", 1, 128, data, out)
    assert np.array_equal(out.view(np.int32 if kind == "i8" else np.float32), want)


def test_descriptor_and_instruction_agree_on_sparsity() -> None:
    text = HEAD.format(target="sm_100a") + TC_HEAD.format(size=8192) + REGS + FILL.format(words=2048)
    text += f"add.s64 %da, %x, {k_major_desc(32, 1)}; mov.b64 %db, %da;\n" + TC_ALLOC
    text += (
        f"@%one tcgen05.mma.cta_group::1.kind::f16 [%tm], %da, %db, {1 << 2 | 1 << 4 | 2 << 17 | 8 << 24}, 0;\n"
        + TC_FREE
    )
    with pytest.raises(simlib.SimError, match="sparse"):
        simlib.Module(text, simlib.SM100).launch("k", 1, 128, np.zeros(2048, np.uint32), np.zeros(4, np.uint32))
