"""What a kernel declares to the registry: which calls it takes, how it plans them, how it runs them.

Invariants: `supports` is pure, fast (< 50 us) and sees no tensor data; `plan` is cached per device and call; `run`
allocates nothing, never synchronises with the host and can be captured in a graph (unless `allocates` is set, which
only the portable tier and host backends use).
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from deepinfer.hal.device import Device, Stream
from deepinfer.hal.types import YES, DeviceProps, Support
from deepinfer.registry.call import Call
from deepinfer.registry.spec import OpSpec


@dataclass(frozen=True)
class Plan:
    """Result of `Kernel.plan`: bytes of workspace the dispatcher allocates per call, and the kernel's own state."""

    workspace: int = 0
    state: Any = None


class Kernel(abc.ABC):
    """One implementation of one op.

    Attributes:
        op: name of the OpSpec it implements.
        name: unique among the op's kernels; file names follow it (`sm90_gemm_bf16`, ...).
        priority: higher is tried first; the portable tier has 0.
        tier: "native" or "portable".
        allocates: `run` gets None for outputs the caller did not give, allocates them and returns all outputs.
        batch_invariant: a row's bits do not depend on the rest of the batch (the conformance suite proves it).
        sources: files whose content decides the kernel (evidence rows are keyed by their hash).
    """

    op: str
    name: str
    priority: int = 10
    tier: str = "native"
    allocates: bool = False
    batch_invariant: bool = False
    sources: tuple[str, ...] = ()

    def supports(self, props: DeviceProps, call: Call) -> Support:
        """Whether this kernel takes `call` on a device with `props`, with every reason why not."""
        return YES

    def plan(self, device: Device, call: Call) -> Plan:
        """Tiling, workspace and loaded code for the call."""
        return Plan()

    @abc.abstractmethod
    def run(
        self,
        plan: Plan,
        stream: Stream,
        args: tuple[Any, ...],
        out: tuple[torch.Tensor | None, ...],
        workspace: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...] | None:
        """Enqueue the work. `args` are the canonical arguments in order. Returns outputs only if `allocates`."""

    def bind(
        self, plan: Plan, args: tuple[Any, ...], out: tuple[torch.Tensor, ...]
    ) -> Callable[[Stream], None] | None:
        """The work of `run` for tensors at these addresses, ready to be enqueued again and again; None = only `run`.

        It must keep no tensor alive and is used only for calls whose tensors have the same metadata and addresses and
        whose other arguments are equal. Asked for when the plan needs no workspace and the caller gives all results.
        """
        return None

    def __repr__(self) -> str:
        return f"<{self.tier} kernel {self.name} for {self.op}>"


class PortableKernel(Kernel):
    """The portable tier of any spec as a kernel: runs `spec.portable` on the inputs' torch device."""

    priority = 0
    tier = "portable"
    allocates = True

    def __init__(self, spec: OpSpec, on_host: bool = False) -> None:
        self.spec = spec
        self.batch_invariant = on_host and spec.host_batch_invariant
        self.op = spec.name
        self.name = "portable"
        self._names = tuple(param.name for param in spec.params)

    def run(
        self,
        plan: Plan,
        stream: Stream,
        args: tuple[Any, ...],
        out: tuple[torch.Tensor | None, ...],
        workspace: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        return self.spec.portable(dict(zip(self._names, args, strict=True)), out)
