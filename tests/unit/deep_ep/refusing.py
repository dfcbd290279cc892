"""Modes under which a value of a device cannot reach the host, and a buffer whose collective calls run under them.

They refuse by name, so tensors may lie on the CPU and stand for a device's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from deepinfer.ops.deep_ep.buffer import ExpertBuffer

READS = ("tolist", "item", "__bool__", "__int__", "__float__", "__index__", "numpy", "cpu")
SIZED_BY_VALUES = ("_local_scalar_dense", "nonzero", "masked_select", "_unique", "repeat_interleave.Tensor")


class RefusesMethods(TorchFunctionMode):
    """Fails where Python asks a tensor for a value."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        assert name not in READS, f"{name} reads a device on the host"
        return func(*args, **(kwargs or {}))


class RefusesOps(TorchDispatchMode):
    """Fails where an operator hands out a value or sizes its result by one; masks as an index do that too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.")
        assert not name.startswith(SIZED_BY_VALUES), f"{name} reads a device on the host"
        if name.startswith(("index.Tensor", "index_put")):
            masks = [i for i in args[1] if isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8)]
            assert not masks, f"{name} with a mask reads a device on the host"
        return func(*args, **(kwargs or {}))


class Refusing(ExpertBuffer):
    """A buffer whose collective calls may not read."""

    def dispatch(self, *args: Any, **kwargs: Any) -> Any:
        with RefusesOps(), RefusesMethods():
            return super().dispatch(*args, **kwargs)

    def combine(self, *args: Any, **kwargs: Any) -> Any:
        with RefusesOps(), RefusesMethods():
            return super().combine(*args, **kwargs)
