"""What all Ascend kernels share: load, launch, and the argument block that a kernel's struct of arguments receives.

Invariant: `pointers` come first in every argument struct, then `tail`, its scalars in declaration order; the same bytes
go to the simulator and to the hardware.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from deepinfer.hal import Arg, Device, Stream
from deepinfer.hal.device import Executable
from deepinfer.hal.driver_device import tensor_arg
from deepinfer.registry import Kernel

Pointer = tuple[torch.Tensor | None, bool]  # (tensor, whether the kernel writes it)


def read(tensor: torch.Tensor | None) -> Pointer:
    return tensor, False


def write(tensor: torch.Tensor | None) -> Pointer:
    return tensor, True


def arguments(pointers: Sequence[Pointer], fmt: str, values: Sequence[int | float]) -> list[Arg]:
    """Kernel arguments: addresses (0 for an absent tensor), then `values` packed by struct format `fmt`."""
    args = [Arg(bytes(8)) if t is None else tensor_arg(t, w) for t, w in pointers]
    args.append(Arg(struct.pack("<" + fmt, *values)))
    return args


@dataclass(frozen=True)
class Loaded:
    """Plan state: the loaded file, the kernel in it, how many AI cores to start, and the kernel's own numbers."""

    executable: Executable
    entry: str
    cores: int
    extra: Any = None

    def launch(self, stream: Stream, blocks: int, args: Sequence[Arg]) -> None:
        """Start on at most `blocks` AI cores; nothing is launched for 0."""
        grid = min(blocks, self.cores)
        if grid > 0:
            self.executable.launch(self.entry, (grid, 1, 1), (1, 1, 1), args, stream=stream)


class AscendKernel(Kernel):
    """A kernel compiled from `kernels/<source>.asc`."""

    source: str

    def load(self, device: Device, entry: str, extra: Any = None) -> Loaded:
        """Compile (or fetch) and load the code for `device`."""
        return self.load_from(device, self.source, entry, extra)

    def load_from(self, device: Device, source: str, entry: str, extra: Any = None) -> Loaded:
        """The same for another kernel file."""
        executable = device.executable(source)  # type: ignore[attr-defined]
        return Loaded(executable, entry, device.props.compute_units or 1, extra)
