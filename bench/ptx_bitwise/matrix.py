"""mma.sync in every shape and type of sm_90, ldmatrix, stmatrix, movmatrix."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ptx_bitwise.case import Case
from ptx_bitwise.encode import STORAGE, floats, integers, pack
from ptx_bitwise.regs import Kernel, words
from ptx_bitwise.stream import Stream

ISSUES = 8  # products per case: more data for one compilation

# shape, A, B, D and C types
SHAPES = [
    *[((16, 8, k), t, t, d) for k in (8, 16) for t, d in (("f16", "f16"), ("f16", "f32"), ("bf16", "f32"))],
    *[((16, 8, k), "tf32", "tf32", "f32") for k in (4, 8)],
    *[((m, 8, k), "f64", "f64", "f64") for m, k in ((8, 4), (16, 4), (16, 8), (16, 16))],
    *[((m, 8, k), a, b, "s32") for m, k in ((8, 16), (16, 16), (16, 32)) for a in ("s8", "u8") for b in ("s8", "u8")],
    *[((m, 8, k), a, b, "s32") for m, k in ((8, 32), (16, 32), (16, 64)) for a, b in (("s4", "s4"), ("u4", "s4"))],
    *[
        ((16, 8, k), a, b, d)
        for k in (16, 32)
        for a in ("e4m3", "e5m2")
        for b in ("e4m3", "e5m2")
        for d in ("f16", "f32")
    ],
    *[((m, 8, k), "b1", "b1", "s32") for m, k in ((8, 128), (16, 128), (16, 256))],
]


def mma(shape: tuple[int, int, int], a: str, b: str, d: str, spread: int | None = None, suffix: str = "") -> Case:
    """One form; integers, or with `spread` random floats."""
    m, n, k = shape
    kind = "b1" if a == "b1" else ""
    operation = ".and.popc" if suffix == "and" else ".xor.popc" if kind else ""
    saturate = ".satfinite" if suffix == "sat" else ""
    instruction = f"mma.sync.aligned.m{m}n{n}k{k}.row.col{saturate}.{d}.{a}.{b}.{d}{operation}"
    name = instruction if spread is None else f"{instruction} floats over {spread} binades"
    rng = Stream(name)
    word = 64 if a == "f64" else 32
    group = {}
    for g, t, count in (("a", a, m * k), ("b", b, n * k), ("c", d, m * n)):
        size = ISSUES * count
        if spread is None:
            bits = integers(t, size, rng)
            if suffix == "sat" and g == "c":
                bits = (rng.words(size) & np.uint64(0xFFFFFFFF)) | np.uint64(0x70000000)
        else:
            bits = floats(t, size, rng, spread if g != "c" else min(2 * spread, 24))
        group[g] = pack(t, bits, word).reshape(32, -1)
    counts = {g: v.shape[1] // ISSUES for g, v in group.items()}

    def operands(g: str, issue: int) -> str:
        count = counts["c" if g == "d" else g]
        return "{" + ", ".join(f"%{g}{issue * count + j}" for j in range(count)) + "}"

    lines = [f"{instruction} {', '.join(operands(g, issue) for g in 'dabc')};" for issue in range(ISSUES)]
    body = "\n".join(lines)
    outs = {"d": (counts["c"] * ISSUES, np.uint64 if word == 64 else np.uint32)}
    return Kernel(name, instruction, body, group, outs, family="mma").case()


def products() -> Iterator[Case]:
    for shape, a, b, d in SHAPES:
        yield mma(shape, a, b, d)
        if a == "b1":
            yield mma(shape, a, b, d, suffix="and")
        elif d == "s32":
            yield mma(shape, a, b, d, suffix="sat")
        elif STORAGE[a] >= 8:
            for spread in (2, 6, 14, 0):
                yield mma(shape, a, b, d, spread)


def moves() -> Iterator[Case]:
    """ldmatrix, stmatrix, movmatrix; rows at permuted addresses."""
    image = words((4096,), 5)
    for count in (1, 2, 4):
        for trans in ("", ".trans"):
            rows = Stream(count).permutation(32).astype(np.uint32).reshape(32, 1) * 16
            regs = ", ".join(f"%d{i}" for i in range(count))
            form = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
            body = f"add.u32 %n0, %smem, %r0; {form} {{{regs}}}, [%n0];"
            yield Kernel(form, form, body, {"r": rows}, {"d": (count, np.uint32)}, image).case()
            form = f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
            regs = ", ".join(f"%v{i}" for i in range(count))
            body = f"add.u32 %n0, %smem, %r0; {form} [%n0], {{{regs}}};"
            values = words((32, count), 7 + count)
            yield Kernel(form, form, body, {"r": rows, "v": values}, image=image[:512], shared_out=1024).case()
    form = "movmatrix.sync.aligned.m8n8.trans.b16"
    yield Kernel(form, form, f"{form} %d0, %v0;", {"v": words((32, 1), 3)}, {"d": (1, np.uint32)}).case()


def cases() -> Iterator[Case]:
    """Every case of this family."""
    yield from products()
    yield from moves()
