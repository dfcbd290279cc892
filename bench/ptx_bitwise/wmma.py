"""wmma.load, wmma.mma, wmma.store through shared memory, so that the machine's own layout of fragments cancels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ptx_bitwise.case import Case
from ptx_bitwise.encode import STORAGE, floats, integers, pack
from ptx_bitwise.regs import Kernel
from ptx_bitwise.stream import Stream

SHAPES = ((16, 16, 16), (32, 8, 16), (8, 32, 16))
FORMS = [
    *[(s, "f16", "f16", c, d) for s in SHAPES for c, d in (("f16", "f16"), ("f32", "f32"), ("f16", "f32"))],
    *[(s, "bf16", "bf16", "f32", "f32") for s in SHAPES],
    *[(s, t, t, "s32", "s32") for s in SHAPES for t in ("s8", "u8")],
    ((16, 16, 8), "tf32", "tf32", "f32", "f32"),
    ((8, 8, 4), "f64", "f64", "f64", "f64"),
    ((8, 8, 32), "s4", "s4", "s32", "s32"),
    ((8, 8, 128), "b1", "b1", "s32", "s32"),
]


def registers(kind: str, elements: int, operand: bool) -> int:
    """Registers of a fragment; f16 operands always take eight."""
    return 8 if operand and kind == "f16" else elements // 32 * min(STORAGE[kind], 32) // 32 or 1


def case(form: tuple[tuple[int, int, int], str, str, str, str], layouts: str, spread: int | None) -> Case:
    """D = A B + C with leading dimensions larger than the matrices."""
    (m, n, k), a, b, c, d = form
    la, lb, lc = ("row" if x == "r" else "col" for x in layouts)
    shape = f"m{m}n{n}k{k}"
    types = f"{d}.{c}" if a == "f16" else f"{d}.{a}.{b}.{c}"
    bits = ".and.popc" if a == "b1" else ""
    instruction = f"wmma.mma{bits}.sync.aligned.{la}.{lb}.{shape}.{types}"
    name = f"{instruction} C and D {lc}" + ("" if spread is None else f" floats over {spread} binades")
    rng = Stream(name)
    parts, at, places = [], 0, []
    for kind, rows, cols, layout in ((a, m, k, la), (b, k, n, lb), (c, m, n, lc)):
        lines, length = (rows, cols) if layout == "row" else (cols, rows)
        stride = length + 128 // STORAGE[kind] if STORAGE[kind] >= 8 else length
        count = lines * stride
        values = integers(kind, count, rng) if spread is None else floats(kind, count, rng, spread)
        raw = pack(kind, values, 64 if kind == "f64" else 32).tobytes()
        raw += bytes(-len(raw) % 32)
        places.append((at, stride))
        parts.append(raw)
        at += len(raw)
    out, stride = at, (n if lc == "row" else m) + 128 // STORAGE[d]
    size = ((m if lc == "row" else n) * stride * STORAGE[d] // 8 + 15) // 16 * 16
    image = np.frombuffer(b"".join(parts) + bytes(size), np.uint8)
    body, lists = [], {}
    for letter, kind, layout, elements, (place, step) in zip(
        "abc", (a, b, c), (la, lb, lc), (m * k, n * k, m * n), places, strict=True
    ):
        count = registers(kind, elements, letter != "c")
        lists[letter] = "{" + ", ".join(f"%w{letter}{i}" for i in range(count)) + "}"
        body.append(f".reg .b{64 if kind == 'f64' else 32} %w{letter}<{count}>; add.u32 %n0, %smem, {place};")
        body.append(f"wmma.load.{letter}.sync.aligned.{layout}.{shape}.shared.{kind} {lists[letter]}, [%n0], {step};")
    count = registers(d, m * n, False)
    lists["d"] = "{" + ", ".join(f"%wd{i}" for i in range(count)) + "}"
    body.append(f".reg .b{64 if d == 'f64' else 32} %wd<{count}>; add.u32 %n0, %smem, {out};")
    body.append(f"{instruction} {lists['d']}, {lists['a']}, {lists['b']}, {lists['c']};")
    body.append(f"wmma.store.d.sync.aligned.{lc}.{shape}.shared.{d} [%n0], {lists['d']}, {stride}; bar.sync 0;")
    return Kernel(name, instruction, "\n".join(body), image=image, shared_out=out + size, family="wmma").case()


def cases() -> Iterator[Case]:
    """Every case of this family."""
    for form in FORMS:
        narrow = STORAGE[form[1]] < 8
        for layouts in ("rcr",) if narrow else ("rcr", "rrc", "ccr", "crc"):
            yield case(form, layouts, None)
        if form[3] != "s32":
            yield case(form, "rcr", 6)
