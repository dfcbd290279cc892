"""Calls that must be refused by name (level L2): the spec's own error cases, and those that hold for every op.

The generic ones take the first case of an op and spoil one argument at a time; the message must name that argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from deepinfer.conformance.item import Breach, Item, Target, require
from deepinfer.conformance.prepared import prepared
from deepinfer.errors import InvalidArgument
from deepinfer.hal import use_backend
from deepinfer.registry import Case, ErrorCase, Op, OpSpec, aliasing, fallback
from deepinfer.registry.call import Kind, Param, TensorMeta
from deepinfer.registry.dispatch import make_call

ERROR_SEED = 11


def items(spec: OpSpec, first: Case | None) -> Iterator[Item]:
    """All refusals demanded of `spec`."""
    for error_case in spec.error_cases():
        yield Item("L2", spec.name, f"error:{error_case.name}", "refuses", _spec_error(spec, error_case))
    if first is None:
        return
    for param in spec.params:
        for label, value in _spoilers(param):
            yield Item("L2", spec.name, f"error:{param.name} {label}", "refuses", _spoiled(first, param.name, value))
    if spec.returns:
        yield Item("L2", spec.name, "error:out shape", "refuses", _wrong_out(first))


def _spec_error(spec: OpSpec, error_case: ErrorCase) -> Any:
    def run(target: Target) -> None:
        args = error_case.make(torch.Generator().manual_seed(ERROR_SEED))
        placed = {name: _place(target, value) for name, value in args.items()}
        _expect(target, spec, placed, error_case.error, error_case.mentions, error_case.validate)

    return run


def _place(target: Target, value: Any) -> Any:
    """`value` on the target's device. A view whose elements share addresses keeps sharing them, which a copy loses."""
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return value
    plain = value.layout is torch.strided and value.numel() > 0
    if not plain or not aliasing.overlaps_itself(TensorMeta.of(value)):
        return target.device.to_device(value)
    reach = 1 + sum((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True))
    return target.device.to_device(value.as_strided((reach,), (1,))).as_strided(value.shape, value.stride())


def _expect(
    target: Target,
    spec: OpSpec,
    args: dict[str, Any],
    error: type[Exception],
    mentions: tuple[str, ...],
    validate: bool,
) -> None:
    ordered = tuple(args[param.name] for param in spec.params)
    try:
        with use_backend(target.device), fallback("error"):
            Op(spec)(*ordered, validate=validate)
    except error as raised:
        missing = [text for text in mentions if text not in str(raised)]
        require(not missing, f"{type(raised).__name__} does not mention {missing}: {raised}")
    except Exception as raised:  # any other class is the finding
        raise Breach(f"raised {type(raised).__name__}, must raise {error.__name__}: {raised}") from raised
    else:
        raise Breach(f"accepted the call, must raise {error.__name__} mentioning {list(mentions)}")


def _spoilers(param: Param) -> Iterator[tuple[str, Any]]:
    if param.kind.is_tensor:
        yield "not a tensor", [1.0, 2.0]
        yield "complex dtype", torch.complex64
        yield "other device", torch.device("meta")
        if param.kind is Kind.TENSOR:
            yield "None", None
    else:
        yield "wrong type", object()


def _spoiled(case: Case, name: str, value: Any) -> Any:
    def run(target: Target) -> None:
        p = prepared(target, case)
        args = p.fresh()  # metadata only: perhaps no kernel takes the plain call
        current = args[name]
        if isinstance(value, torch.dtype | torch.device):
            like = current if isinstance(current, torch.Tensor) else torch.zeros(1)
            args[name] = like.to("meta") if isinstance(value, torch.device) else _recast(target, like, value)
        else:
            args[name] = value
        _expect(target, p.spec, args, InvalidArgument, (name,), False)

    return run


def _recast(target: Target, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(like.shape, dtype=dtype, device=target.device.torch_device)


def _wrong_out(case: Case) -> Any:
    def run(target: Target) -> None:
        p = prepared(target, case)
        device = target.device.torch_device
        args = p.fresh()  # metadata only: perhaps no kernel takes the plain call
        values = [args[param.name] for param in p.spec.params]
        call = make_call(p.spec, values, (None,) * len(p.spec.returns), device)
        outs = tuple(torch.empty((*meta.shape, 2), device=device) for meta in p.spec.outputs(call))
        try:
            p.run(args, out=outs)
        except InvalidArgument as raised:
            require("out" in str(raised), f"the message does not mention out: {raised}")
        else:
            raise Breach("accepted out tensors of a wrong shape")

    return run
