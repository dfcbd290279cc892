"""Launches that are bound to addresses: used again only for calls that are equal in everything that decides them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

import deepinfer
from deepinfer.errors import InvalidArgument
from deepinfer.hal import Device, Probe, Stream
from deepinfer.hal.backend import Backend
from deepinfer.hal.null import NullDevice
from deepinfer.registry import Kernel, Op, Plan, bound, get_spec, pin

OP = Op(get_spec("norm.rms_norm"))


class Recorder(Kernel):
    """Writes what was asked for when the launch was made, and counts; `bind` sees the tensors of the first call."""

    op, name = "norm.rms_norm", "recorder"

    def __init__(self) -> None:
        self.bound: list[tuple[int, ...]] = []
        self.launched: list[tuple[int, ...]] = []
        self.ran = 0

    def run(self, plan: Plan, stream: Stream, args: Any, out: Any, workspace: Any) -> None:
        self.ran += 1

    def bind(self, plan: Plan, args: Any, out: Any) -> Callable[[Stream], None]:
        addresses = tuple(tensor.data_ptr() for tensor in (*args[:2], *out))
        self.bound.append(addresses)
        return lambda stream: self.launched.append(addresses)


KERNEL = Recorder()


class RecorderBackend(Backend):
    name, priority = "recorder", -1

    def probe(self, driver: str = "") -> Probe:
        return Probe(True, 1)

    def open(self, index: int, driver: str = "", arch: str | None = None) -> Device:
        device = NullDevice(index)
        device.backend = self.name
        return device

    def kernels(self) -> Sequence[Kernel]:
        return (KERNEL,)


@pytest.fixture
def device() -> Iterator[Device]:
    KERNEL.__init__()  # type: ignore[misc]
    deepinfer.register_backend("recorder", RecorderBackend)
    with deepinfer.use_backend("recorder") as chosen, deepinfer.fallback("error"):
        chosen.bound_calls.clear()
        yield chosen


def tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.ones(4, 8), torch.ones(8), torch.empty(4, 8)


def test_equal_calls_repeat_the_launch(device: Device) -> None:
    x, weight, y = tensors()
    for _ in range(3):
        (got,) = OP(x, weight, 1e-6, out=(y,))
        assert got is y
    assert KERNEL.launched == [(x.data_ptr(), weight.data_ptr(), y.data_ptr())] * 3
    assert len(KERNEL.bound) == 1
    assert KERNEL.ran == 0


def test_results_of_the_op_itself_are_not_bound(device: Device) -> None:
    x, weight, _ = tensors()
    OP(x, weight, 1e-6)
    assert (KERNEL.ran, KERNEL.bound) == (1, [])


@pytest.mark.parametrize("change", [
    lambda x, w, y: (x.clone(), w, 1e-6, y), lambda x, w, y: (x, w.clone(), 1e-6, y),
    lambda x, w, y: (x, w, 1e-6, y.clone()), lambda x, w, y: (x, w, 1e-5, y),
    lambda x, w, y: (x[:2], w, 1e-6, y[:2]), lambda x, w, y: (x.t().contiguous().t(), w, 1e-6, y),
    lambda x, w, y: (x.view(2, 2, 8), w, 1e-6, y.view(2, 2, 8)),
], ids=["x", "weight", "y", "eps", "rows", "strides", "rank"])
def test_another_call_is_bound_anew(device: Device, change: Callable[..., tuple[Any, ...]]) -> None:
    x, weight, y = tensors()
    OP(x, weight, 1e-6, out=(y,))
    a, b, eps, out = change(x, weight, y)
    OP(a, b, eps, out=(out,))
    assert len(KERNEL.bound) == 2
    assert KERNEL.launched[-1] == (a.data_ptr(), b.data_ptr(), out.data_ptr())


def test_a_tensor_changed_in_place_is_another_call(device: Device) -> None:
    x, weight, y = tensors()
    OP(x, weight, 1e-6, out=(y,))
    x.resize_(3, 8)
    with pytest.raises(InvalidArgument, match=r"out\[y\]"):
        OP(x, weight, 1e-6, out=(y,))


@pytest.mark.parametrize("wrong", [
    lambda x, w, y: (x, w, 1e-6, x[:, :]), lambda x, w, y: (x, w, True, y), lambda x, w, y: (x, w.double(), 1e-6, y),
    lambda x, w, y: (x.to_sparse(), w, 1e-6, y), lambda x, w, y: (x, w, 1e-6, y.half()),
    lambda x, w, y: (x, w, 1e-6, 5), lambda x, w, y: (x, [w], 1e-6, y), lambda x, w, y: (x, None, 1e-6, y),
    lambda x, w, y: (x.to("meta"), w, 1e-6, y),
], ids=["overlap", "bool", "dtype", "sparse", "out-dtype", "no-tensor", "list", "none", "meta"])
def test_wrong_calls_are_refused_every_time(device: Device, wrong: Callable[..., tuple[Any, ...]]) -> None:
    x, weight, y = tensors()
    OP(x, weight, 1e-6, out=(y,))
    OP(x, weight, 1, out=(y,))
    a, b, eps, out = wrong(x, weight, y)
    for _ in range(2):
        with pytest.raises(InvalidArgument):
            OP(a, b, eps, out=(out,))
    assert len(KERNEL.launched) == 2


def test_a_pinned_kernel_has_launches_of_its_own(device: Device) -> None:
    x, weight, y = tensors()
    OP(x, weight, 1e-6, out=(y,))
    with pin(device, "norm.rms_norm", "recorder"):
        OP(x, weight, 1e-6, out=(y,))
    assert len(KERNEL.bound) == 2


def test_tables_are_bounded(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound, "LIMIT", 3)
    x, weight, _ = tensors()
    results = [torch.empty(4, 8) for _ in range(8)]
    for y in results * 2:
        OP(x, weight, 1e-6, out=(y,))
    assert len(device.bound_calls["norm.rms_norm"]) <= 3
    assert [launched[2] for launched in KERNEL.launched] == [y.data_ptr() for y in results * 2]
    device.close()
    assert not device.bound_calls
