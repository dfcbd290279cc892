"""wgmma.mma_async: shapes, types, operand A from registers or shared memory, transposes, swizzles, leading dimensions.

Shared memory holds random elements at every address that a descriptor can reach; both sides read the same image, so
equal results prove the addressing. Chained products share their accumulators.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ptx_bitwise.case import Case
from ptx_bitwise.encode import STORAGE, floats, integers, pack
from ptx_bitwise.regs import Kernel
from ptx_bitwise.stream import Stream

IMAGE = 128 * 1024
B_AT = 64 * 1024
DEPTH = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32, "b1": 256}
MODES = {0: 0, 128: 1, 64: 2, 32: 3}  # swizzle span -> code in bits 62-63
NAMES = {0: "none", 32: "32B", 64: "64B", 128: "128B"}


@dataclass(frozen=True)
class Form:
    """What one product looks like. Offsets (lbo, sbo) are bytes."""

    n: int
    d: str
    a: str
    b: str
    registers: bool = False
    swizzle: int = 128
    trans_a: int = 0
    trans_b: int = 0
    negate_a: int = 1
    negate_b: int = 1
    accumulate: int = 1
    saturate: bool = False
    offset: int = 0  # bytes added to both start addresses
    spread: int | None = None
    issues: int = 1  # chained products, each 32 bytes of K further on

    @property
    def instruction(self) -> str:
        tail = ".and.popc" if self.a == "b1" else ""
        saturate = ".satfinite" if self.saturate else ""
        return f"wgmma.mma_async.sync.aligned.m64n{self.n}k{DEPTH[self.a]}{saturate}.{self.d}.{self.a}.{self.b}{tail}"

    @property
    def name(self) -> str:
        parts = [
            self.instruction,
            "A in registers" if self.registers else "A in shared",
            f"swizzle {NAMES[self.swizzle]}",
        ]
        parts += [f"trans {self.trans_a}{self.trans_b}"] if self.trans_a or self.trans_b else []
        parts += [f"signs {self.negate_a} {self.negate_b}"] if (self.negate_a, self.negate_b) != (1, 1) else []
        parts += ["scale-d 0"] if not self.accumulate else []
        parts += [f"offset {self.offset}"] if self.offset else []
        parts += [f"{self.issues} chained"] if self.issues > 1 else []
        parts += [f"floats over {self.spread} binades"] if self.spread is not None else []
        return ", ".join(parts)

    def descriptor(self, transposed: int, rows: int) -> int:
        """All fields but the start address; strides are chosen so that operands fill the image without overlap."""
        size = STORAGE[self.a] // 8 or 1
        depth = DEPTH[self.a]
        if self.swizzle == 0:
            # core matrices of 128 bytes: K direction first, then rows
            along = rows * size // 16 * 128 if transposed else depth * STORAGE[self.a] // 128 * 128
            lbo, sbo = (along, 128) if transposed else (128, along)
        elif transposed:
            lbo, sbo = 8 * self.swizzle * (depth // 8), 8 * self.swizzle
        else:
            lbo, sbo = 16, 8 * self.swizzle
        return (lbo >> 4) << 16 | (sbo >> 4) << 32 | MODES[self.swizzle] << 62


def fill(form: Form, count: int, kind: str) -> np.ndarray:
    rng = Stream(form.name + kind)
    if form.spread is not None and kind != "s32":
        return floats(kind, count, rng, form.spread)
    if kind == "b1":
        return rng.integers(0, 2, count).astype(np.uint64)
    return integers(kind, count, rng)


def case(form: Form) -> Case:
    """The kernel of one form: 128 threads, accumulators from registers, one commit group."""
    registers = form.n // 4 if form.d == "f16" else form.n // 2
    c = pack(form.d, fill(form, 128 * registers * (2 if form.d == "f16" else 1), form.d)).reshape(128, registers)
    half = B_AT * 8 // STORAGE[form.a]
    image = np.concatenate([pack(k, fill(form, half, k)) for k in (form.a, form.b)]).view(np.uint8)
    ins = {"c": c}
    if form.registers:
        per = 4 * 32 // STORAGE[form.a]
        ins["a"] = pack(form.a, fill(form, 128 * per * form.issues, form.a)).reshape(128, 4 * form.issues)
    lists = ", ".join(f"%d{i}" for i in range(registers))
    lines = [f"mov.b32 %d{i}, %c{i};" for i in range(registers)]
    lines += [f"setp.ne.u32 %go, {form.accumulate}, 0;", "wgmma.fence.sync.aligned;"]
    for step in range(form.issues):
        for index, (at, rows, trans) in enumerate(((0, 64, form.trans_a), (B_AT, form.n, form.trans_b))):
            start = at + form.offset + 32 * step
            lines += [
                f"add.u32 %n0, %smem, {start}; shr.u32 %n0, %n0, 4; and.b32 %n0, %n0, 0x3fff; "
                f"cvt.u64.u32 %q{index}, %n0;",
                f"or.b64 %q{index}, %q{index}, 0x{form.descriptor(trans, rows):x};",
            ]
        a = "{" + ", ".join(f"%a{4 * step + i}" for i in range(4)) + "}" if form.registers else "%q0"
        tail = ""
        if form.d != "s32":
            tail = f", {form.negate_a}, {form.negate_b}"
            if form.a in ("f16", "bf16"):
                tail += f", {form.trans_b}" if form.registers else f", {form.trans_a}, {form.trans_b}"
        lines.append(f"{form.instruction} {{{lists}}}, {a}, %q1, %go{tail};")
    lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"]
    return Kernel(
        form.name,
        form.instruction,
        "\n".join(lines),
        ins,
        {"d": (registers, np.uint32)},
        image,
        threads=128,
        declare=".reg .b64 %q0, %q1;",
        family="wgmma",
    ).case()


WIDTHS = (8, 16, 24, 32, 40, 64, 72, 96, 128, 136, 192, 216, 248, 256)
FLOATS = [
    ("f16", "f16"),
    ("f32", "f16"),
    ("f32", "bf16"),
    ("f32", "tf32"),
    ("f32", "e4m3"),
    ("f32", "e5m2"),
    ("f16", "e4m3"),
    ("f16", "e5m2"),
]


def shapes() -> Iterator[Form]:
    """Every type, several widths, every swizzle, A from both places."""
    for d, t in FLOATS:
        for index, n in enumerate(WIDTHS):
            yield Form(n, d, t, t, registers=index % 2 == 1, swizzle=(128, 64, 32, 0)[index % 4])
        for swizzle in (0, 32, 64, 128):
            yield Form(64, d, t, t, swizzle=swizzle)
            yield Form(48, d, t, t, registers=True, swizzle=swizzle)
        yield Form(32, d, t, t, negate_a=-1)
        yield Form(32, d, t, t, negate_b=-1, registers=True)
        yield Form(32, d, t, t, accumulate=0)
        yield Form(32, d, t, t, negate_a=-1, negate_b=-1, accumulate=0, registers=True)
        yield Form(32, d, t, t, offset=32, swizzle=128)
        yield Form(32, d, t, t, issues=4)
        yield Form(32, d, t, t, issues=4, registers=True)
    for a, b in (("e4m3", "e5m2"), ("e5m2", "e4m3")):
        yield from (Form(40, d, a, b, registers=r) for d in ("f16", "f32") for r in (False, True))


def transposes() -> Iterator[Form]:
    for t in ("f16", "bf16"):
        for swizzle in (0, 32, 64, 128):
            for ta, tb in ((0, 1), (1, 0), (1, 1)):
                yield Form(64, "f32", t, t, swizzle=swizzle, trans_a=ta, trans_b=tb)
            yield Form(128, "f32", t, t, swizzle=swizzle, trans_b=1, registers=True)


def integer_forms() -> Iterator[Form]:
    for index, n in enumerate((8, 16, 24, 32, 48, 64, 96, 128, 192, 256)):
        a, b = (("s8", "s8"), ("u8", "u8"), ("s8", "u8"), ("u8", "s8"))[index % 4]
        yield Form(n, "s32", a, b, swizzle=(128, 64, 32, 0)[index % 4], registers=index % 3 == 0)
        yield Form(n, "s32", a, b, saturate=True, registers=index % 2 == 0)
    yield from (Form(n, "s32", "b1", "b1", swizzle=s) for n, s in ((8, 128), (64, 64), (128, 0), (256, 32)))
    yield Form(32, "s32", "b1", "b1", registers=True)


def random_forms() -> Iterator[Form]:
    """Random floats, whose results depend on how partial sums are aligned and cut."""
    for d, t in FLOATS:
        for spread in (1, 4, 8, 16, 24, 0):
            yield Form(64, d, t, t, spread=spread)
            yield Form(64, d, t, t, spread=spread, accumulate=0, registers=True)
        yield Form(64, d, t, t, spread=8, issues=4)
    yield Form(64, "f32", "e4m3", "e5m2", spread=8)


def cases() -> Iterator[Case]:
    """Every case of this family."""
    for form in (*shapes(), *transposes(), *integer_forms(), *random_forms()):
        yield case(form)
