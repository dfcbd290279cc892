"""Where kernel sources and headers lie, and the `Build` that describes one kernel file for a compiler.

Invariant: a build's key covers every header the source may include, so an edited header never meets a stale image.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from deepinfer.jit import Build

PACKAGE = Path(__file__).resolve().parent.parent
KERNELS = PACKAGE / "kernels"
SIM_INCLUDE = PACKAGE / "sim" / "include"


@lru_cache(maxsize=1)
def kernel_headers() -> Mapping[str, str]:
    """Texts of all headers beside the kernels, by include name."""
    return {path.name: path.read_text() for path in sorted(KERNELS.glob("*.h"))}


@lru_cache(maxsize=1)
def sim_headers() -> Mapping[str, str]:
    """Texts of the simulator's headers, by the include name a kernel uses."""
    return {str(path.relative_to(SIM_INCLUDE)): path.read_text() for path in sorted(SIM_INCLUDE.rglob("*.h"))}


def source(name: str) -> str:
    """Text of kernel file `name` (without ".asc")."""
    return (KERNELS / f"{name}.asc").read_text()


def sim_build(name: str, flags: tuple[str, ...] = ()) -> Build:
    """Kernel file `name` for the simulator."""
    return Build(name, source(name), {**kernel_headers(), **sim_headers()}, flags, arch="ascend950-sim", fmt="elf")


def npu_build(name: str, flags: tuple[str, ...] = ()) -> Build:
    """Kernel file `name` for the hardware."""
    return Build(name, source(name), kernel_headers(), flags, arch="dav-3510", fmt="elf")
