# ruff: noqa: E501
"""Runs a few PTX instructions, one value per thread: the harness of the instruction-level tests.

`execute("add.s32 %d, %a, %b;", {"a": x, "b": y}, {"d": np.int32})` gives {"d": array}. Inputs are arrays of one element per thread
(2, 4 or 8 bytes); their registers are untyped (.b16/.b32/.b64). Extra registers are declared with `regs`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import simlib

HEAD = ".version 9.0\n.target {target}\n.address_size 64\n"


def execute(
    body: str,
    ins: dict[str, np.ndarray],
    outs: dict[str, Any],
    regs: str = "",
    dev: int = simlib.SM90,
    threads: int | None = None,
    shared: str = "",
) -> dict[str, np.ndarray]:
    n = threads or len(next(iter(ins.values())))
    names = list(ins) + list(outs)
    types = {k: np.dtype(v.dtype) for k, v in ins.items()} | {k: np.dtype(v) for k, v in outs.items()}
    lines = [HEAD.format(target="sm_90a" if dev == simlib.SM90 else "sm_100a"), shared]
    lines.append(".visible .entry k(" + ", ".join(f".param .u64 p_{x}" for x in names) + ")\n{")
    lines.append(".reg .b64 %ptr<" + str(len(names)) + ">, %off;\n.reg .b32 %thread;\n.reg .pred %p, %q;\n" + regs)
    for x in names:
        lines.append(f".reg .b{max(types[x].itemsize * 8, 16)} %{x};")
    lines.append("mov.u32 %thread, %tid.x;")
    for i, x in enumerate(names):
        size = types[x].itemsize
        lines.append(
            f"ld.param.u64 %ptr{i}, [p_{x}];\nmul.wide.u32 %off, %thread, {size};\nadd.s64 %ptr{i}, %ptr{i}, %off;"
        )
        if x in ins:
            lines.append(f"ld.global.b{size * 8} %{x}, [%ptr{i}];")
    lines.append(body)
    for i, x in enumerate(names):
        if x in outs:
            lines.append(f"st.global.b{types[x].itemsize * 8} [%ptr{i}], %{x};")
    lines.append("ret;\n}\n")
    result = {k: np.zeros(n, types[k]) for k in outs}
    module = simlib.Module("\n".join(lines), dev)
    module.launch("k", 1, n, *[np.ascontiguousarray(v) for v in ins.values()], *result.values())
    return result


def special_u32() -> np.ndarray:
    return np.array(
        [0, 1, 2, 3, 7, 31, 32, 33, 255, 256, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF, 0xFFFFFFFE, 0x12345678],
        np.uint32,
    )


def special_f32() -> np.ndarray:
    bits = [
        0,
        0x80000000,
        1,
        0x80000001,
        0x007FFFFF,
        0x00800000,
        0x3F800000,
        0xBF800000,
        0x7F7FFFFF,
        0xFF7FFFFF,
        0x7F800000,
        0xFF800000,
        0x7FC00000,
        0x3F800001,
        0x33800000,
        0x4B000001,
        0xCB7FFFFF,
        0x4F000000,
        0xCF000000,
        0x5F000000,
        0x43E00000,
        0x43E10000,
        0x3F000000,
        0x40200000,
    ]
    return np.array(bits, np.uint32).view(np.float32)


def pairs(values: np.ndarray, seed: int, count: int = 512) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of the special values, then random ones, cut to at most 1024 threads."""
    rng = np.random.default_rng(seed)
    a, b = np.meshgrid(values, values)
    extra = rng.integers(0, 256, (2, count * values.itemsize), np.uint8).view(values.dtype)
    a, b = np.concatenate([a.ravel(), extra[0]]), np.concatenate([b.ravel(), extra[1]])
    n = min(len(a), 1024) // 32 * 32
    return a[-n:].copy(), b[-n:].copy()
