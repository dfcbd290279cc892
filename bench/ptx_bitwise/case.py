"""What a case is: a module, one launch, and buffers that are filled before and read after it.

Invariants: a case depends on nothing but this package (inputs come from fixed seeds), so both sides may run in
different processes and at different times; no output holds an address, a clock or anything else that machines choose.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

HEAD = ".version 8.7\n.target sm_90a\n.address_size 64\n"
POISON = 0xA5  # byte that fills outputs before a launch


@dataclass(frozen=True)
class Buffer:
    """Device memory passed as a pointer. `out`: compared afterwards."""

    data: np.ndarray[Any, Any]
    out: bool = False
    scratch: bool = False  # written by the kernel, and not compared
    hidden: bool = False  # announced but no parameter: reached through a tensor map or a Pointer


@dataclass(frozen=True)
class Pointer:
    """An address inside the case's buffer number `buffer`."""

    buffer: int
    offset: int


@dataclass(frozen=True)
class Struct:
    """Parameter bytes with addresses in them: `places` holds (byte offset, buffer, offset in the buffer)."""

    data: bytes
    places: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Map:
    """A tensor map over the case's buffer number `buffer`; codes as in cuda.h, innermost dimension first."""

    buffer: int
    dtype: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    steps: tuple[int, ...] = ()  # element strides
    nan_fill: bool = False
    interleave: int = 0
    lower: tuple[int, ...] = ()  # im2col corners; `box` then holds (channels, pixels)
    upper: tuple[int, ...] = ()
    offset: int = 0  # bytes from the buffer's start to the tensor


Arg = Buffer | Pointer | Struct | Map | bytes


@dataclass(frozen=True)
class Case:
    """`args`: buffers, maps and raw parameter bytes, in the order of the kernel's parameters.

    `rule`: "bits", or "ulp:TYPE" where 2 units in the last place may differ, or "report": differences are counted
    but prove nothing (undocumented accumulation order).
    """

    name: str
    instruction: str
    ptx: str
    args: tuple[Arg, ...]
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (32, 1, 1)
    cluster: tuple[int, int, int] = (1, 1, 1)
    smem: int = 0
    entry: str = "k"
    rule: str = "bits"
    family: str = ""
    tags: tuple[str, ...] = field(default=())

    def inputs_key(self) -> str:
        """Hash of everything that determines the result."""
        digest = hashlib.sha256(self.ptx.encode())
        digest.update(repr((self.grid, self.block, self.cluster, self.smem, self.entry)).encode())
        for arg in self.args:
            digest.update(np.ascontiguousarray(arg.data).tobytes() if isinstance(arg, Buffer) else repr(arg).encode())
        return digest.hexdigest()[:16]


def poisoned(count: int, dtype: Any) -> np.ndarray[Any, Any]:
    """An output array whose every byte is POISON."""
    return np.full(count * np.dtype(dtype).itemsize, POISON, np.uint8).view(dtype)


def output_key(outputs: list[np.ndarray[Any, Any]]) -> str:
    """Hash of a case's outputs."""
    digest = hashlib.sha256()
    for array in outputs:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:24]
