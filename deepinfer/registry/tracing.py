"""Ops under torch.compile, torch.export, make_fx and FakeTensorMode: the call becomes its torch.library form.

A tracer sees tensors without memory and must not look into kernels: what they cache would keep the tracer's tensors and
break later calls. The device is a constant captured at trace time, as `deepinfer.registry.torchlib` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_compiling, _jit, _modes = torch.compiler.is_compiling, torch._C._is_tracing, torch._C._len_torch_dispatch_stack


def active() -> bool:
    """Whether this thread traces: torch calls are recorded, or made on tensors without memory."""
    return _compiling() or _jit() or bool(_modes() and _tracing_mode())


def _tracing_mode() -> bool:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch._subclasses.functional_tensor import FunctionalTensorMode
    from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    kinds = (FakeTensorMode, FunctionalTensorMode, ProxyTorchDispatchMode)
    return any(isinstance(mode, kinds) for mode in _get_current_dispatch_mode_stack())


def _device() -> str:
    """The current device; a constant of the trace."""
    from deepinfer.hal.current import current_device
    from deepinfer.registry import torchlib  # it is built on this module

    torchlib.register_all()
    return current_device().spec


# what torch.compiler.assume_constant_result sets; calling it here would import torch._dynamo with `import deepinfer`
_device._dynamo_marked_constant = True  # type: ignore[attr-defined]


def call(name: str, args: Sequence[Any], out: Sequence[torch.Tensor | None] | None) -> tuple[torch.Tensor, ...]:
    """The op `name` ("family_op") through torch.library; results given by the caller are copied into."""
    device = _device()
    made = getattr(torch.ops.deepinfer, name)(device, *args)
    results = () if made is None else (made,) if isinstance(made, torch.Tensor) else tuple(made)
    if out is None:
        return results
    return tuple(new if old is None else old.copy_(new) for new, old in zip(results, out, strict=True))
