"""What a program sets round a call changes no bit of it: autocast, default dtype and device, inference mode."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import deepinfer
from deepinfer.conformance.compare import same_bits
from deepinfer.registry import Case, Op, all_specs, get_spec


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


SURROUNDINGS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "default dtype float64": lambda: _default_dtype(torch.float64),
    "default dtype bfloat16": lambda: _default_dtype(torch.bfloat16),
    "default device meta": lambda: torch.device("meta"),
    "inference mode": torch.inference_mode,
    "deterministic algorithms": _deterministic,
}
SMALL, SPREAD = 1 << 18, 5  # elements of a case; cases of an op


def _cases(op: str) -> list[Case]:
    """Some quick cases of the op over the whole list."""
    found = [case for case in get_spec(op).cases() if "quick" in case.tags]
    return found[:: max(1, len(found) // SPREAD)]


def _run(op: Op, args: dict[str, Any]) -> dict[str, torch.Tensor]:
    fresh = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in args.items()}
    outputs = op(*(fresh[param.name] for param in op.spec.params))
    written = {param.name: fresh[param.name] for param in op.spec.params if param.mutated}
    return dict(zip(op.spec.returns, outputs, strict=True)) | {k: v for k, v in written.items() if v is not None}


@pytest.mark.parametrize("name", [spec.name for spec in all_specs()])
def test_no_bit_depends_on_the_surroundings(name: str) -> None:
    op = Op(get_spec(name))
    problems: list[str] = []
    for case in _cases(name):
        args = case.build()
        if sum(value.numel() for value in args.values() if isinstance(value, torch.Tensor)) > SMALL:
            continue
        masks = dict(zip(op.spec.returns, op.spec.valid(args), strict=True))
        with deepinfer.use_backend("cpu"):
            wanted = _run(op, args)
            for label, surrounding in SURROUNDINGS.items():
                with surrounding():
                    got = _run(op, args)
                for result, tensor in got.items():
                    assert tensor.device == wanted[result].device, f"{label}: {result} of {case.id}"
                    problems += same_bits(f"{label}: {result} of {case.id}", tensor, wanted[result], masks.get(result))
    assert not problems, "\n".join(problems)


def test_the_surroundings_are_as_before_after_a_call() -> None:
    with deepinfer.use_backend("cpu"), torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
        deepinfer.ops.norm.rms_norm(torch.ones(2, 4, device="cpu"), torch.ones(4, device="cpu"))
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") is torch.bfloat16
        assert torch.empty(1).device.type == "meta"
