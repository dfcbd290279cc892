"""sync=False where counts lie on a device: the portable exchange gives the same bits and reads no value on the host.

The tensors lie on the CPU, as if it were a device: `LocalGroup.in_host_memory` says no, and while a rank works, modes
refuse whatever would make the host wait for a value.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from deepinfer.errors import InvalidArgument
from deepinfer.ops.deep_ep import case, reduce, unread
from deepinfer.ops.deep_ep.buffer import ExpertBuffer
from deepinfer.ops.deep_ep.cases import ep_cases
from deepinfer.ops.deep_ep.geometry import Geometry
from deepinfer.ops.deep_ep.local import LocalGroup, LocalTransport
from deepinfer.ops.deep_ep.transport import Transport
from tests.unit.deep_ep.refusing import RefusesMethods, RefusesOps, Refusing

SMALL = [entry for entry in ep_cases() if "bench" not in entry.tags and "full" not in entry.tags]


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


def test_a_transport_says_where_its_counts_lie() -> None:
    with pytest.raises(TypeError, match="host_counts"):
        LocalTransport(Geometry(0, 1, 1, 1, 1, 1, torch.float32, 1), None, None)  # type: ignore[arg-type, call-arg]
    assert inspect.signature(Transport.__init__).parameters["host_counts"].default is inspect.Parameter.empty


def test_slots_are_numbered_by_source_on_the_device() -> None:
    """used_slots: 3 rows of rank 0, none of rank 1, 2 of rank 2, the rest of the capacity unused."""
    row_of = torch.tensor([[4, -1], [-1, -1], [2, 3], [0, -1], [1, 5], [-1, -1]], dtype=torch.int32)
    counts, rows = unread.used_slots(row_of, torch.tensor([3, 0, 2]))
    assert counts.tolist() == [3, 0, 3]
    assert rows[:6].tolist() == [4, 2, 3, 0, 1, 5]
    counts, rows = unread.used_slots(row_of[:, :0], torch.tensor([3, 0, 2]))
    assert counts.tolist() == [0, 0, 0]
    assert rows.numel() == 0


def test_another_dispatch_cannot_be_combined() -> None:
    def step(rank: int) -> str:
        with ExpertBuffer(group, 4, 4, 2, 1, torch.float32, timeout=20) as opened:
            x, ids = torch.ones(2, 4), torch.zeros(2, 1, dtype=torch.int32)
            made = [opened.dispatch(x, ids, sync=False) for _ in range(2)]
            rows, _, _, handle = made[rank]
            with pytest.raises(InvalidArgument) as caught:
                opened.combine(rows, handle)
            return str(caught.value)

    group = LocalGroup(2)
    assert all("number of the handle's dispatch: got" in text for text in group.run(step))
