"""One case of one op made ready for checks: arguments, the plain result, the reference; shared by the case's checks.

Invariant: `fresh()` always gives new copies, so no check can see what another one did; the fallback policy is "error"
throughout, so a backend that runs a case on the portable tier by fallback does not pass it.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import cached_property
from typing import Any

import torch

from deepinfer.conformance.item import Target
from deepinfer.hal import use_backend
from deepinfer.registry import Case, Op, OpSpec, fallback, get_spec
from deepinfer.registry.kernel import Kernel

Tensors = tuple[torch.Tensor, ...]
KEEP = 3  # cases held at a time: the checks of a case follow each other


class Prepared:
    """A case on a device."""

    def __init__(self, target: Target, case: Case) -> None:
        self.target, self.case = target, case
        self.spec: OpSpec = get_spec(case.op)
        self.op = Op(self.spec)
        self.args: dict[str, Any] = case.build()
        self.mutated = tuple(param.name for param in self.spec.params if param.mutated)

    def fresh(self, args: dict[str, Any] | None = None) -> dict[str, Any]:
        """Arguments on the device; every tensor is a copy of its own with the layout the case gave it."""
        source = self.args if args is None else args
        return {name: self._copy(value) for name, value in source.items()}

    def _copy(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        device = self.target.device
        if value.is_contiguous():
            return device.to_device(value).clone()
        steps = zip(value.shape, value.stride(), strict=True)
        extent = 1 + sum((size - 1) * step for size, step in steps) if value.numel() else 0
        raw = value.as_strided((extent,), (1,), value.storage_offset())
        return device.to_device(raw).clone().as_strided(value.shape, value.stride())

    def enqueue(self, args: dict[str, Any], out: Tensors | None = None, validate: bool = False) -> Tensors:
        """Call the op on the device under test without waiting."""
        with use_backend(self.target.device), fallback("error"):
            return self.op(*self.ordered(args), out=out, validate=validate)

    def run(self, args: dict[str, Any], out: Tensors | None = None, validate: bool = False) -> Tensors:
        """Call the op on the device under test and wait for it."""
        result = self.enqueue(args, out, validate)
        self.target.device.synchronize()
        return result

    def ordered(self, args: dict[str, Any]) -> tuple[Any, ...]:
        """Arguments in the order of the spec."""
        return tuple(args[param.name] for param in self.spec.params)

    def kernel(self) -> Kernel:
        """The kernel that takes this case."""
        return self.op.resolve(self.target.device, self.ordered(self.fresh())).kernel

    @cached_property
    def plain(self) -> dict[str, torch.Tensor]:
        """Results of a plain call on the host: outputs by name, then parameters written in place."""
        args = self.fresh()
        return self.collect(self.run(args), args)

    def collect(self, outputs: Tensors, args: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Host copies of outputs and in-place results by name."""
        host = self.target.device.to_host
        found = {name: host(tensor).clone() for name, tensor in zip(self.spec.returns, outputs, strict=True)}
        written = {name: args[name] for name in self.mutated if isinstance(args[name], torch.Tensor)}
        return found | {name: host(tensor).clone() for name, tensor in written.items()}

    @cached_property
    def reference(self) -> dict[str, torch.Tensor]:
        """What the specification says, same keys as `plain`."""
        args = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in self.args.items()}
        outputs = self.spec.reference(args)
        found = dict(zip(self.spec.returns, outputs, strict=True))
        return found | {name: args[name] for name in self.mutated if isinstance(args[name], torch.Tensor)}

    @cached_property
    def valid(self) -> dict[str, torch.Tensor | None]:
        """Mask of the defined part per result; in-place results are defined everywhere."""
        masks = dict(zip(self.spec.returns, self.spec.valid(self.args), strict=True))
        return masks | dict.fromkeys(self.mutated)

    @cached_property
    def rounding(self) -> dict[str, torch.Tensor | None]:
        """Elementwise error that the spec derives for these arguments, same keys as `plain`."""
        errors: dict[str, torch.Tensor | None] = dict(
            zip(self.spec.returns, self.spec.rounding(self.args), strict=True)
        )
        return errors | dict.fromkeys(self.mutated)


_recent: OrderedDict[tuple[int, str, str, int], Prepared] = OrderedDict()


def prepared(target: Target, case: Case) -> Prepared:
    """The prepared form of `case`, remembered for the checks that follow."""
    key = (id(target), case.op, case.id, case.seed)
    found = _recent.get(key)
    if found is None or found.target is not target:
        found = _recent[key] = Prepared(target, case)
        while len(_recent) > KEEP:
            _recent.popitem(last=False)
    return found
