"""Compiles the probe kernels of tests/kernels and runs them on the simulator.

Every probe takes the same struct: up to four pointers and eight integers (tests/kernels/probe.h).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from deepinfer_ascend950.device import build_cache
from deepinfer_ascend950.drivers.sim import GroupLaunch, SimDriver, driver
from deepinfer_ascend950.toolchain.gxx import GxxCompiler
from deepinfer_ascend950.toolchain.sources import kernel_headers, sim_headers

from deepinfer.hal import Arg, Image
from deepinfer.hal.driver_device import tensor_arg
from deepinfer.jit import Build

FOLDER = Path(__file__).parent / "kernels"
POINTERS, VALUES = 4, 8


@lru_cache(maxsize=64)
def context(index: int = 0) -> int:
    return driver().open(index)


@lru_cache(maxsize=64)
def module(source: str, index: int = 0) -> int:
    headers = {**kernel_headers(), **sim_headers(), "probe.h": (FOLDER / "probe.h").read_text()}
    build = Build(source, (FOLDER / f"{source}.asc").read_text(), headers, arch="ascend950-sim", fmt="elf")
    image = build_cache().get(build, GxxCompiler()).image
    return driver().module_load(context(index), Image(image, "elf", source))


@lru_cache(maxsize=512)
def function(source: str, kernel: str, index: int = 0) -> int:
    return driver().function(module(source, index), kernel)


def arguments(reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor], values: Sequence[int]) -> list[Arg]:
    """Read-only tensors first, then written ones, then the integers."""
    args = [tensor_arg(t, False) for t in reads] + [tensor_arg(t, True) for t in writes]
    args += [Arg(bytes(8))] * (POINTERS - len(args))
    return [*args, Arg(struct.pack(f"<{VALUES}q", *values, *[0] * (VALUES - len(values))))]


def run(
    source: str,
    kernel: str,
    reads: Sequence[torch.Tensor] = (),
    writes: Sequence[torch.Tensor] = (),
    values: Sequence[int] = (),
    grid: int = 1,
) -> None:
    """Launch one probe on device 0."""
    fn = function(source, kernel)
    driver().launch(fn, (grid, 1, 1), (1, 1, 1), 0, arguments(reads, writes, values), 0)


def member(
    source: str,
    kernel: str,
    index: int,
    reads: Sequence[torch.Tensor],
    writes: Sequence[torch.Tensor],
    values: Sequence[int] = (),
    grid: int = 1,
) -> GroupLaunch:
    """One member of a group launch, on device `index`."""
    return GroupLaunch(function(source, kernel, index), grid, arguments(reads, writes, values))


__all__ = ["SimDriver", "member", "run"]
