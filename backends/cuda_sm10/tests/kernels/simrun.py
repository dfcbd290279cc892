"""Runs the bf16 GEMM kernels of a chosen tile in the PTX simulator and compares them with exact integer products.

Inputs are small integers, so every product is exact in float32 and D must have equal bits whatever the order of sums.
Rows of A that belong to no group are NaN, and D starts as a pattern: bytes outside the groups must stay as they were.
"""

from __future__ import annotations

import ctypes as ct
import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from deepinfer_cuda import jit, simdevice
from deepinfer_cuda.kernels.gemm import Product, prepare
from deepinfer_cuda.kernels.gemm_tiles import DENSE_TILES, MASKED_TILES, SM100_TILES, Tile

from deepinfer.hal import Executable, Image

MASKED_TILE = MASKED_TILES[0]  # for masked products alone
TILES_OF: dict[str, tuple[Tile, ...]] = {"sm_90": DENSE_TILES, "sm_100": SM100_TILES}
PATTERN = 9.0  # what D holds before the launch


class _Control(ct.Structure):
    """The part of di_sim_control that is used here."""

    _fields_ = (
        ("struct_size", ct.c_uint32),
        ("set", ct.CFUNCTYPE(ct.c_int, ct.c_char_p, ct.c_char_p)),
        ("finding_count", ct.c_void_p),
        ("finding", ct.c_void_p),
        ("clear", ct.CFUNCTYPE(None)),
    )


@cache
def device(arch: str) -> Any:
    return simdevice.open_simulated(0, arch)


@cache
def ptx(arch: str, tile: Tile) -> str:
    build = tile.unit.build(arch, "ptx")
    return jit.default_cache().get(build, jit.NvrtcCompiler()).image.decode()


def load(arch: str, text: str) -> Executable:
    found: Executable = device(arch).load(Image(text.encode(), "ptx", "gemm"))
    return found


@cache
def code(arch: str, tile: Tile) -> Executable:
    return load(arch, ptx(arch, tile))


def configure(arch: str, schedule: str = "eager", seed: int = 0, **options: Any) -> None:
    """Checker on, findings fatal; everything not named returns to its default.

    Earlier findings are forgotten; the list is bounded, and a full one takes no more.
    """
    control: Any = device(arch)._sim._extension_table("sim.control", _Control)
    spurious = "on" if schedule == "random" else "off"
    defaults = {"checker": "on", "findings": "fail", "spurious_waits": spurious, "stall_instructions": 20_000_000,
                "strict": "off", "drift": "off"}
    for key, value in {**defaults, **options, "schedule": schedule, "seed": seed}.items():
        assert control.set(key.encode(), str(value).encode()) == 0, (key, value)
    control.clear()


def integers(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randint(-4, 5, shape, generator=generator).to(torch.bfloat16)


@dataclasses.dataclass
class Problem:
    """One product. Dense: `counts` is None. Grouped: counts and starts. Masked: counts per slab of `rows` rows."""

    rows: int
    cols: int
    depth: int
    counts: Sequence[int] | None = None
    starts: Sequence[int] | None = None
    masked: bool = False
    wide: bool = False
    pitch: int = 0  # elements between rows of D, 0 = cols
    out: torch.dtype = torch.bfloat16
    c: torch.dtype | None = None
    bias: torch.dtype | None = None
    dense_c: bool = False  # else C is every second column of a wider matrix

    @property
    def needs_sums(self) -> bool:
        """Whether TMA cannot write the result."""
        aligned = (self.pitch or self.cols) % 8 == 0
        return self.out != torch.bfloat16 or self.c is not None or self.bias is not None or not aligned

    def addends(self, seed: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """C and bias."""
        generator = torch.Generator().manual_seed(seed + 1)
        step = 1 if self.dense_c else 2
        c = None if self.c is None else integers(generator, self.rows, step * self.cols).to(self.c)[:, ::step]
        return c, None if self.bias is None else integers(generator, self.cols).to(self.bias)

    def tensors(self, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]:
        generator = torch.Generator().manual_seed(seed)
        slabs = (len(self.counts),) if self.masked and self.counts is not None else ()
        groups = () if self.counts is None else (len(self.counts),)
        a = integers(generator, *slabs, self.rows, max(self.depth, 8))[..., : self.depth]
        b = integers(generator, *groups, self.cols, max(self.depth, 8))[..., : self.depth]
        d = torch.full((*slabs, self.rows, self.pitch or self.cols), PATTERN, dtype=self.out)
        dtype = torch.int64 if self.wide else torch.int32
        lists = tuple(torch.tensor(v, dtype=dtype) for v in (self.counts, self.starts) if v is not None)
        return a, b, d, lists

    def ranges(self) -> list[tuple[int, int]]:
        """Rows of each group, as deep_gmm defines them."""
        found, at = [], 0
        for g, count in enumerate(self.counts or ()):
            start = 0 if self.masked else self.starts[g] if self.starts is not None else at
            low = min(max(start, 0), self.rows)
            high = max(low, min(start + max(count, 0), self.rows))
            at = high
            found.append((low, high))
        return found

    def expect(self, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, *addends: torch.Tensor | None) -> torch.Tensor:
        """D after the launch; rows of A outside the groups become NaN."""
        want = d.clone()
        if self.counts is None:
            exact = a.double() @ b.double().t() + sum(x.double() for x in addends if x is not None)
            want[:, : self.cols] = exact.to(self.out)
            return want
        used = torch.zeros(a.shape[:-1], dtype=torch.bool)
        for g, (low, high) in enumerate(self.ranges()):
            rows = (g, slice(low, high)) if self.masked else (slice(low, high),)
            used[rows] = True
            want[(*rows, slice(0, self.cols))] = (a[rows].double() @ b[g].double().t()).to(self.out)
        a[~used] = torch.nan
        return want


def launch(arch: str, tile: Tile, product: Product, units: int, module: Executable | None = None) -> None:
    """One launch of `tile` on a device of `units` SMs."""
    simulated = device(arch)
    small = SimpleNamespace(props=dataclasses.replace(simulated.props, compute_units=units), encode=simulated.encode)
    prepare(module or code(arch, replace(tile, parts=1)), small, tile, product)(SimpleNamespace(handle=0))


def run(
    arch: str, tile: Tile, problem: Problem, units: int = 2, seed: int = 0, module: Executable | None = None
) -> None:
    """One launch on a device of `units` SMs; raises AssertionError when any bit of D differs."""
    a, b, d, lists = problem.tensors(seed)
    c, bias = problem.addends(seed)
    want = problem.expect(a, b, d, c, bias)
    launch(arch, tile, Product(a, b, d[..., : problem.cols], lists, c, bias), units, module)
    bits = torch.int16 if d.dtype == torch.bfloat16 else torch.int32
    wrong = (d.view(bits) != want.view(bits)).nonzero()
    assert not len(wrong), (
        f"{tile} {problem} seed={seed}: {len(wrong)} elements differ, first at {wrong[0].tolist()}: "
        f"{d[tuple(wrong[0])].item()} instead of {want[tuple(wrong[0])].item()}"
    )
