"""Sparse products: mma.sp and wgmma.mma_async.sp with random metadata in every lane, and every selector."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ptx_bitwise.case import Case
from ptx_bitwise.encode import STORAGE, floats, integers, pack
from ptx_bitwise.regs import Kernel
from ptx_bitwise.stream import Stream

ISSUES = 8  # products per case
ORDERED = np.array([0x4, 0x8, 0xC, 0x9, 0xD, 0xE], np.uint64)  # two increasing positions of two bits
HALVES = np.array([0x4, 0xE], np.uint64)  # tf32: the lower or the upper of two elements
B_AT = 64 * 1024

# columns of B, A and B type, D type; A holds half of the columns
WARP = [
    *[(k, t, t, d) for k in (16, 32) for t, d in (("f16", "f16"), ("f16", "f32"), ("bf16", "f32"))],
    *[(k, "tf32", "tf32", "f32") for k in (8, 16)],
    *[(k, a, b, "s32") for k in (32, 64) for a, b in (("s8", "s8"), ("u8", "s8"))],
    *[(k, "s4", "u4", "s32") for k in (64, 128)],
    *[(64, a, b, "f32") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")],
]


def metadata(kind: str, shape: tuple[int, int], rng: Stream) -> np.ndarray:
    """Words of eight groups each."""
    choices = HALVES if kind == "tf32" else ORDERED
    nibbles = choices[rng.integers(0, len(choices), shape[0] * shape[1] * 8)].reshape(*shape, 8)
    return (nibbles << (np.arange(8, dtype=np.uint64) * np.uint64(4))).sum(axis=2).astype(np.uint32)


def lanes_per_quad(k: int, kind: str) -> int:
    """Lanes of four whose metadata a product reads."""
    group = {"tf32": 2, "s4": 8, "u4": 8}.get(kind, 4)
    return k // group // 4


def warp_case(k: int, a: str, b: str, d: str, selector: int, spread: int | None = None) -> Case:
    """m16n8 products, chained by nothing: eight of them with operands of their own."""
    saturate = ".satfinite" if d == "s32" and k == 64 and a == "s8" else ""
    instruction = f"mma.sp::ordered_metadata.sync.aligned.m16n8k{k}.row.col{saturate}.{d}.{a}.{b}.{d}"
    name = f"{instruction} selector {selector}" + ("" if spread is None else f" floats over {spread} binades")
    rng = Stream(name)
    group = {}
    for g, t, count in (("a", a, 8 * k), ("b", b, 8 * k), ("c", d, 128)):
        size = ISSUES * count
        bits = integers(t, size, rng) if spread is None else floats(t, size, rng, spread)
        group[g] = pack(t, bits).reshape(32, -1)
    counts = {g: v.shape[1] // ISSUES for g, v in group.items()}
    group["m"] = metadata(a, (32, ISSUES), rng)

    def operands(g: str, issue: int) -> str:
        count = counts["c" if g == "d" else g]
        return "{" + ", ".join(f"%{g}{issue * count + j}" for j in range(count)) + "}"

    lines = [f"{instruction} {', '.join(operands(g, i) for g in 'dabc')}, %m{i}, {selector};" for i in range(ISSUES)]
    outs = {"d": (counts["c"] * ISSUES, np.uint32)}
    return Kernel(name, instruction, "\n".join(lines), group, outs, family="sparse").case()


def group_case(n: int, d: str, a: str, b: str, selector: int, registers: bool, swizzle: int) -> Case:
    """wgmma of one warpgroup; A K-major, packed to half its columns."""
    depth = 64 // (STORAGE[a] // 8)
    instruction = f"wgmma.mma_async.sp.sync.aligned.m64n{n}k{depth}.{d}.{a}.{b}"
    name = f"{instruction}, A in {'registers' if registers else 'shared'}, swizzle {swizzle}, selector {selector}"
    rng = Stream(name)
    words = n // 4 if d == "f16" else n // 2
    c = pack(d, integers(d, 128 * words * (2 if d == "f16" else 1), rng)).reshape(128, words)
    image = np.concatenate([pack(t, integers(t, B_AT * 8 // STORAGE[t], rng)) for t in (a, b)]).view(np.uint8)
    ins = {"c": c, "m": metadata(a, (128, 1), rng)}
    if registers:
        ins["a"] = pack(a, integers(a, 128 * 4 * 32 // STORAGE[a], rng)).reshape(128, 4)
    code = {128: 1, 64: 2}[swizzle]
    fields = 1 << 16 | (8 * swizzle >> 4) << 32 | code << 62
    lines = [f"mov.b32 %d{i}, %c{i};" for i in range(words)]
    lines += ["setp.ne.u32 %go, 1, 0;", "wgmma.fence.sync.aligned;"]
    for index, at in enumerate((0, B_AT)):
        lines += [
            f"add.u32 %n0, %smem, {at}; shr.u32 %n0, %n0, 4; and.b32 %n0, %n0, 0x3fff; cvt.u64.u32 %q{index}, %n0;",
            f"or.b64 %q{index}, %q{index}, 0x{fields:x};",
        ]
    left = "{%a0, %a1, %a2, %a3}" if registers else "%q0"
    tail = "" if d == "s32" else ", 1, 1" + ("" if STORAGE[a] != 16 else ", 0" if registers else ", 0, 0")
    accumulators = "{" + ", ".join(f"%d{i}" for i in range(words)) + "}"
    lines += [f"{instruction} {accumulators}, {left}, %q1, %m0, {selector}, %go{tail};"]
    lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"]
    return Kernel(
        name, instruction, "\n".join(lines), ins, {"d": (words, np.uint32)}, image,
        threads=128, declare=".reg .b64 %q0, %q1;", family="sparse",
    ).case()  # fmt: skip


def cases() -> Iterator[Case]:
    """Every case of this family."""
    for k, a, b, d in WARP:
        for selector in range(4 // lanes_per_quad(k, a)):
            yield warp_case(k, a, b, d, selector)
        if d != "s32":
            for spread in (6, 14):
                yield warp_case(k, a, b, d, 0, spread)
    for index, (d, a, b) in enumerate(
        (("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32"),
         ("s32", "s8", "u8"), ("f32", "e4m3", "e5m2"), ("f16", "e5m2", "e4m3"))
    ):  # fmt: skip
        for selector in range(1 if STORAGE[a] == 8 else 2):
            for registers in (False, True):
                yield group_case(
                    (8, 32, 64)[(index + selector) % 3], d, a, b, selector, registers, 128 if index % 2 else 64
                )
