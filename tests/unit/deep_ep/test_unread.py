"""sync=False where counts lie on a device: the portable exchange gives the same bits and reads no value on the host.

The tensors lie on the CPU, as if it were a device: `LocalGroup.in_host_memory` says no, and while a rank works, modes
refuse whatever would make the host wait for a value.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from deepinfer.ops.deep_ep import case, reduce
from deepinfer.ops.deep_ep.buffer import ExpertBuffer
from deepinfer.ops.deep_ep.cases import ep_cases
from deepinfer.ops.deep_ep.local import LocalGroup

READS = ("tolist", "item", "__bool__", "__int__", "__float__", "__index__", "numpy", "cpu")
SIZED_BY_VALUES = ("_local_scalar_dense", "nonzero", "masked_select", "_unique", "repeat_interleave.Tensor")
SMALL = [entry for entry in ep_cases() if "bench" not in entry.tags and "full" not in entry.tags]


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


@pytest.fixture
def device_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalGroup, "in_host_memory", lambda self: False)
    monkeypatch.setattr(reduce, "_in_host_memory", lambda tensor: False)


@pytest.mark.parametrize("entry", SMALL, ids=lambda entry: entry.id)
def test_same_bits_without_reading(entry: case.EpCase, device_memory: None, monkeypatch: pytest.MonkeyPatch) -> None:
    if not entry.params["sync"]:
        monkeypatch.setattr(case, "ExpertBuffer", Refusing)
    assert entry.run("cpu") == []


def test_the_cases_hold_both() -> None:
    wanted = {(False, "tokens", "ranks"), (False, "experts", "ranks"), (False, "experts", "slots")}
    found = {tuple(entry.params[name] for name in ("sync", "layout", "reduce")) for entry in SMALL}
    assert found >= wanted | {(True, "experts", "slots")}


@pytest.mark.parametrize("how", [("experts", "ranks"), ("experts", "slots"), ("tokens", "ranks")], ids="-".join)
def test_ranks_may_differ_in_sync(how: tuple[str, str], device_memory: None) -> None:
    """A rank that reads counts and one that does not give each other what both expect."""
    layout, summed = how
    ids = torch.tensor([[0, 3], [5, 1], [-1, 2], [4, 4]])

    def step(rank: int, group: LocalGroup, unread: int) -> torch.Tensor:
        with (Refusing if rank == unread else ExpertBuffer)(group, 6, 4, 6, 2, torch.float32) as opened:
            x = torch.arange(16.0).view(4, 4)[: 4 - rank] + 100 * rank
            rows, _, _, handle = opened.dispatch(x, ids[: 4 - rank], layout=layout, sync=rank != unread)
            return opened.combine(rows * 3, handle, reduce=summed)

    mixed, plain = (_run(step, unread) for unread in (1, -1))
    for got, wanted in zip(mixed, plain, strict=True):
        assert torch.equal(got, wanted)


def _run(step: Any, unread: int) -> list[torch.Tensor]:
    group = LocalGroup(3)
    return group.run(step, group, unread)


def test_the_modes_refuse(device_memory: None) -> None:
    """The guard itself: with sync=True, counts are read, and each kind of read is noticed."""

    def step(rank: int) -> None:
        with Refusing(group, 4, 4, 2, 1, torch.float32) as opened:
            opened.dispatch(torch.ones(2, 4), torch.zeros(2, 1, dtype=torch.int32), sync=True)

    group = LocalGroup(1)
    with pytest.raises(AssertionError, match="reads a device"):
        group.run(step)
    x = torch.arange(3)
    for read in (lambda: x.tolist(), lambda: int(x[0]), lambda: bool(x[0]), lambda: x[x > 1], lambda: x.nonzero()):
        with pytest.raises(AssertionError, match="reads a device"), RefusesOps(), RefusesMethods():
            read()


