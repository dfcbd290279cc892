"""`deepinfer.explain`: which kernel a call would run on the current device, and why not the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deepinfer.errors import invalid
from deepinfer.registry.dispatch import CapturedCall, capturing
from deepinfer.registry.explain import Explanation, explain_call


def explain(op: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> Explanation:
    """Explain a call without running it.

    Args:
        op: a public op (`deepinfer.ops.norm.rms_norm`) with its own arguments, or the name of an op ("norm.rms_norm")
            with canonical positional arguments.
        args, kwargs: the arguments of the call.

    Returns:
        An `Explanation`; print it to see every candidate kernel with its reasons.

    Raises:
        InvalidArgument: the call would be refused for its arguments.

    >>> import deepinfer, torch
    >>> print(explain(deepinfer.ops.norm.rms_norm, torch.ones(2, 4), torch.ones(4)))  # doctest: +ELLIPSIS
    norm.rms_norm on cpu:0
    ...
    """
    if isinstance(op, str):
        return explain_call(op, args)
    try:
        with capturing():
            op(*args, **kwargs)
    except CapturedCall as captured:
        return explain_call(captured.op, captured.call_args)
    raise invalid("op", op, "must be an op of deepinfer.ops; this call reached none")
