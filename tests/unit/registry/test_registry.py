"""Dispatch, validation caching, kernels that lie, and the torch.library form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.library import opcheck

import deepinfer
from deepinfer.errors import DeepInferError, InvalidArgument
from deepinfer.ops.norm.rms_norm import RmsNorm
from deepinfer.registry import Call, Kind, Op, Param, TensorMeta, all_specs, get_spec, register, torchlib
from deepinfer.registry.dispatch import CACHE_LIMIT, dispatch_key


@pytest.fixture(autouse=True)
def _cpu() -> None:
    deepinfer.set_backend("cpu")


def test_resolution_is_cached_on_metadata_only() -> None:
    device, op = deepinfer.current_device(), Op(get_spec("norm.rms_norm"))
    x, weight = torch.randn(3, 8), torch.rand(8)
    first = op.resolve(device, (x, weight, 1e-6))
    assert op.resolve(device, (torch.zeros(3, 8), weight, 1e-6)) is first
    assert op.resolve(device, (x[:2], weight, 1e-6)) is not first
    assert op.resolve(device, (x.t().contiguous().t(), weight, 1e-6)) is not first


def test_cache_is_bounded() -> None:
    device, op = deepinfer.current_device(), Op(get_spec("norm.rms_norm"))
    device.dispatch_cache["norm.rms_norm"] = dict.fromkeys(range(CACHE_LIMIT))
    op.resolve(device, (torch.randn(3, 8), torch.rand(8), 1e-6))
    assert len(device.dispatch_cache["norm.rms_norm"]) == 1


def test_key_tells_equal_numbers_of_different_types_apart() -> None:
    assert dispatch_key((1,), ()) != dispatch_key((True,), ())
    assert dispatch_key((1,), ()) != dispatch_key((1.0,), ())


@pytest.mark.parametrize("value", [None, [1.0], "x", 3, object(), {}])
def test_wrong_types_are_named(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"norm\.rms_norm: x: .*must be a torch\.Tensor"):
        deepinfer.ops.norm.rms_norm(value, torch.ones(4))


def test_tensor_on_another_device_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="current device's memory"):
        deepinfer.ops.norm.rms_norm(torch.ones(2, 4, device="meta"), torch.ones(4))


def test_out_is_used_and_checked() -> None:
    x, out = torch.randn(2, 4), torch.empty(2, 4)
    assert deepinfer.ops.norm.rms_norm(x, torch.ones(4), out=out) is out
    with pytest.raises(InvalidArgument, match=r"out\[y\].*must be torch\.float32 \[2, 4\]"):
        deepinfer.ops.norm.rms_norm(x, torch.ones(4), out=torch.empty(2, 5))


def test_a_name_is_registered_once() -> None:
    with pytest.raises(InvalidArgument, match="once"):
        register(RmsNorm)
    with pytest.raises(InvalidArgument, match="must be one of"):
        get_spec("norm.no_such_op")


def test_tensor_meta_contiguity_ignores_unit_dimensions() -> None:
    assert TensorMeta.of(torch.empty(4, 1, 8)[:, :, :]).contiguous
    assert TensorMeta.of(torch.empty(4, 3, 8).as_strided((4, 1, 8), (8, 999, 1))).contiguous
    assert not TensorMeta.of(torch.empty(4, 8).t()).contiguous
    assert TensorMeta.dense((2, 0, 3), torch.float32, torch.device("cpu")).numel == 0


def test_param_and_call_helpers() -> None:
    assert Param("x").required
    assert not Param("y", Kind.OPT_INT, default=None).required
    assert Call("op", {"a": 1}, torch.device("cpu"))["a"] == 1


@pytest.mark.parametrize("spec", all_specs(), ids=lambda spec: spec.name)
def test_torch_library_form(spec: Any) -> None:
    """opcheck: schema, fake implementation and (absent) autograd of every op agree, on its first quick case."""
    names = torchlib.register_all()
    assert f"deepinfer::{torchlib.op_name(spec)}" in names
    case = next(case for case in spec.cases() if "quick" in case.tags and "edge" not in case.tags)
    args = case.build()
    target = getattr(torch.ops.deepinfer, torchlib.op_name(spec)).default
    values = [args[param.name] for param in spec.params]
    small_floats = any(isinstance(v, torch.Tensor) and v.dtype is torch.float8_e4m3fn for v in values)
    # torch's schema check compares copies with arithmetic that float8 does not have; conformance checks inputs instead
    checks = ("test_faketensor",) if small_floats else ("test_schema", "test_faketensor")
    opcheck(target, ("cpu:0", *values), test_utils=checks)


def test_torch_compile_sees_the_op() -> None:
    x, weight = torch.randn(3, 8), torch.rand(8)
    torchlib.register_all()
    compiled = torch.compile(lambda a: torch.ops.deepinfer.norm_rms_norm("cpu:0", a, weight, 1e-6) + 1, backend="eager")
    torch.testing.assert_close(compiled(x), deepinfer.ops.norm.rms_norm(x, weight) + 1)
    torch.testing.assert_close(torchlib.call("norm.rms_norm", x, weight, 1e-6), compiled(x) - 1)


def test_every_error_is_a_deepinfer_error_and_a_builtin_one() -> None:
    from deepinfer import errors

    for name in ("InvalidArgument", "UnsupportedError", "BackendUnavailable", "CommTimeout", "CheckpointError"):
        assert issubclass(getattr(errors, name), DeepInferError)
        assert len(getattr(errors, name).__mro__) > 4
