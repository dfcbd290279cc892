"""Rows between ranks: the kernels under one scheduler, so that the race checker sees across ranks, and `ExpertBuffer`
on simulated devices with a thread each."""

from __future__ import annotations

import time

import pytest
import torch
from asc_ranks import Ranks, attempts, half_arrived, hurried, missed, too_many
from deepinfer_ascend950.drivers.sim import SimDriver
from deepinfer_ascend950.ep import transport

import deepinfer
from deepinfer import fallback
from deepinfer.errors import CommTimeout, DriverError, InvalidArgument, UnsupportedError
from deepinfer.hal import Arg
from deepinfer.ops.deep_ep import ExpertBuffer, LocalGroup, case
from deepinfer.ops.deep_ep.cases import ep_cases
from deepinfer.ops.deep_ep.local import Outcome
from tests.unit.deep_ep.refusing import Refusing


@pytest.mark.parametrize("policy", [0, 1, 2])
def test_exchanges(sim: SimDriver, policy: int) -> None:
    sim.set_option("policy", policy)
    ranks = Ranks(sim)
    for epoch in range(1, 5):
        ranks.exchange(epoch)


def test_a_rank_may_be_one_exchange_ahead(sim: SimDriver) -> None:
    hurried(Ranks(sim))


def test_waiting_is_bounded_and_names_who_is_there(sim: SimDriver) -> None:
    half_arrived(Ranks(sim))
    ranks = Ranks(sim)
    ranks.sim.launch_group([ranks.push(2, 1)])
    launch, arrived = ranks.wait(0, 1, polls=3)
    ranks.sim.launch_group([launch])
    assert arrived.tolist() == [0, 0, 1]


def test_what_nobody_looked_at_stays_a_fault(sim: SimDriver) -> None:
    missed(Ranks(sim))


@pytest.mark.parametrize("count", [7, 1000, 1 << 40])
def test_counts_beyond_the_bounds_are_cut(sim: SimDriver, count: int) -> None:
    too_many(Ranks(sim), count)


# 70 stores not complete before the flags; 71 no heads; 72 one parity; 73 flags of one block only; 74 no buffer ids;
# 75 faults not kept; 76 pushes after a fault; 77 rows beyond the outputs.
@pytest.mark.parametrize("mutant", range(70, 78))
def test_broken_protocols_are_found(sim: SimDriver, mutant: int) -> None:
    with pytest.raises((DriverError, AssertionError)):
        attempts(sim, mutant)


def test_correct_protocol_passes(sim: SimDriver) -> None:
    attempts(sim, 0)


# --- ExpertBuffer on as many simulated devices as ranks ---------------------------------------------------------------


# (layout, reduce) of the cases without sync, by ranks.
WAYS = {
    2: {("tokens", "ranks"), ("experts", "ranks")},
    3: {("experts", "ranks"), ("experts", "slots")},
    4: {("tokens", "ranks"), ("experts", "ranks")},
}


def devices(ranks: int) -> list[str]:
    return [f"ascend950/sim:{rank}" for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_buffers_between_devices(ranks: int) -> None:
    chosen = [case for case in ep_cases() if "quick" in case.tags and case.params["ranks"] == ranks][::3]
    assert len(chosen) >= 2
    with deepinfer.use_backend("ascend950/sim"), fallback("error"):
        for case in chosen:
            group = LocalGroup(ranks, devices(ranks))
            found = group.run(lambda rank, c=case, g=group: c.run_rank(g, rank, deepinfer.current_device()))
            assert found == [[]] * ranks


@pytest.mark.parametrize("form", ["fp8_f32", "fp8_ue8m0", "fp4_ue8m0"])
def test_quantised_rows_between_devices(form: str) -> None:
    with deepinfer.use_backend("ascend950/sim"), fallback("error"):
        for case in [case for case in ep_cases() if "quick" in case.tags and case.params["dtype"] == form][:4]:
            ranks = case.params["ranks"]
            group = LocalGroup(ranks, devices(ranks))
            found = group.run(lambda rank, c=case, g=group: c.run_rank(g, rank, deepinfer.current_device()))
            assert found == [[]] * ranks


def buffer(group: LocalGroup, timeout: float = 20.0) -> ExpertBuffer:
    made = ExpertBuffer(group, max_tokens=5, hidden=64, num_experts=8, top_k=2, timeout=timeout)
    assert made.transport == "peer_memory"
    assert made.nbytes > 0
    return made


def step(made: ExpertBuffer, rank: int, sync: bool = True) -> torch.Tensor:
    x = torch.full((rank % 3, 64), rank + 1.0).bfloat16()
    ids = torch.arange(2 * (rank % 3)).view(-1, 2) * 3 % 8
    rows, _, _, handle = made.dispatch(x, ids, layout="experts", sync=sync)
    return made.combine(rows, handle)


def outcomes(ranks: int, work: object) -> list[Outcome]:
    with deepinfer.use_backend("ascend950/sim"), fallback("error"):
        group = LocalGroup(ranks, devices(ranks))
        return group.outcomes(work, group)  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", WAYS)
def test_nothing_is_read_without_sync(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Capacity-sized results, counts on the device, bits of the reference, and no value reaches the host."""
    monkeypatch.setattr(case, "ExpertBuffer", Refusing)
    chosen = [entry for entry in ep_cases() if not entry.params["sync"] and entry.params["ranks"] == ranks]
    chosen = [entry for entry in chosen if not entry.tags & {"bench", "full"}]
    assert {(entry.params["layout"], entry.params["reduce"]) for entry in chosen} >= WAYS[ranks]
    with deepinfer.use_backend("ascend950/sim"), fallback("error"):
        for entry in chosen:
            group = LocalGroup(ranks, devices(ranks))
            found = group.run(lambda rank, c=entry, g=group: c.run_rank(g, rank, deepinfer.current_device()))
            assert found == [[]] * ranks


def test_the_guard_sees_a_read() -> None:
    def work(rank: int, group: LocalGroup) -> None:
        with Refusing(group, 4, 64, 2, 1, torch.float32) as made:
            made.dispatch(torch.ones(2, 64), torch.zeros(2, 1, dtype=torch.int32), sync=True)

    assert "reads a device" in str(outcomes(1, work)[0].error)


@pytest.mark.parametrize("how", [("tokens", "ranks"), ("experts", "ranks"), ("experts", "slots")], ids="-".join)
def test_ranks_may_differ_in_sync(how: tuple[str, str]) -> None:
    """A rank that reads counts and one that does not give each other what both expect."""
    layout, summed = how
    ids = torch.tensor([[0, 3], [5, 1], [-1, 2], [4, 4]])

    def work(rank: int, group: LocalGroup, unread: int) -> torch.Tensor:
        with (Refusing if rank == unread else ExpertBuffer)(group, 6, 64, 6, 2, torch.float32) as made:
            x = torch.arange(256.0).view(4, 64)[: 4 - rank] + 100 * rank
            rows, _, _, handle = made.dispatch(x, ids[: 4 - rank], layout=layout, sync=rank != unread)
            return made.combine(rows * 3, handle, reduce=summed)

    mixed, plain = (
        outcomes(3, lambda rank, group, unread=unread: work(rank, group, unread)) for unread in (1, -1)
    )
    for got, wanted in zip(mixed, plain, strict=True):
        assert got.error is None
        assert torch.equal(got.value, wanted.value)


def test_without_sync_a_missing_rank_is_named_by_the_host() -> None:
    """No device is asked: its host did not come."""

    def work(rank: int, group: LocalGroup) -> None:
        with buffer(group) as made:
            step(made, rank, sync=False)
            made.timeout = 0.3
            if rank == 2:
                time.sleep(1.0)
            else:
                step(made, rank, sync=False)

    found = outcomes(4, work)
    for rank in (0, 1, 3):
        assert isinstance(found[rank].error, CommTimeout)
        assert 2 in found[rank].error.missing


@pytest.mark.parametrize("look", ["check", "sync"])
def test_rows_that_do_not_arrive_are_a_fault(look: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that hangs: its host enqueued the push, the flags never come. Nothing is read until somebody looks."""
    monkeypatch.setattr(transport, "FINAL_POLLS", 4)
    launch = transport.PeerTransport._launch

    def hangs(self: transport.PeerTransport, entry: str, blocks: int, args: list[Arg]) -> None:
        if not (entry == "ep_push" and self.geometry.rank == 1 and self._epoch >= 2):
            launch(self, entry, blocks, args)

    monkeypatch.setattr(transport.PeerTransport, "_launch", hangs)

    def work(rank: int, group: LocalGroup) -> tuple[int, list[int]]:
        made = buffer(group)
        x, ids = torch.ones(2, 64).bfloat16(), torch.tensor([[0, 7], [3, 4]])
        _, received, _, handle = made.dispatch(x, ids, layout="experts", sync=False)
        valid = int((received >= 0).sum())
        assert valid == int(handle.total)
        with pytest.raises(CommTimeout, match="did not arrive in exchange 2 of the buffer") as caught:
            made.check() if look == "check" else made.dispatch(x, ids)
        with pytest.raises(CommTimeout, match="unusable"):
            made.dispatch(x, ids, sync=False)
        made.close()
        return valid, list(caught.value.missing)

    found = outcomes(2, work)
    assert [entry.error for entry in found] == [None, None]
    assert [entry.value for entry in found] == [(2, [1]), (2, [1])]  # rank 0's rows alone, one per slot here


def test_checks_pass_where_all_came() -> None:
    def work(rank: int, group: LocalGroup) -> float:
        with buffer(group) as made:
            made.check()
            got = step(made, rank, sync=False)
            made.check()
            return float(got.sum())

    assert [entry.value for entry in outcomes(4, work)] == [64.0 * 2 * (rank + 1) * (rank % 3) for rank in range(4)]


def test_a_missing_rank_ends_in_a_timeout() -> None:
    def work(rank: int, group: LocalGroup) -> float:
        with buffer(group) as made:
            step(made, rank)
            made.timeout = 0.3
            if rank == 2:
                time.sleep(1.0)
                return 0.0
            began = time.monotonic()
            with pytest.raises(CommTimeout) as caught:
                step(made, rank)
            spent = time.monotonic() - began
            assert 2 in caught.value.missing
            assert "rank" in str(caught.value)
            with pytest.raises(CommTimeout):
                step(made, rank)  # unusable from here on, and says so at once
            return spent

    found = outcomes(4, work)
    assert [o.error for o in found] == [None] * 4
    assert all(o.value < 5.0 for o in found)
    assert all(
        o.error is None for o in outcomes(4, lambda rank, group: step(buffer(group), rank))
    )  # the process goes on


def test_a_rank_that_never_opens_is_named() -> None:
    def work(rank: int, group: LocalGroup) -> None:
        if rank != 1:
            buffer(group, timeout=0.2)

    found = outcomes(4, work)
    for rank in (0, 2, 3):
        error = found[rank].error
        assert isinstance(error, CommTimeout)
        assert 1 in error.missing


def test_a_rank_that_closes_is_named_at_once() -> None:
    def work(rank: int, group: LocalGroup) -> None:
        made = buffer(group)
        if rank == 1:
            made.close()
        else:
            step(made, rank)

    began = time.monotonic()
    found = outcomes(2, work)
    assert time.monotonic() - began < 15
    assert isinstance(found[0].error, CommTimeout)
    assert "closed its buffer" in str(found[0].error)


def test_ranks_that_call_different_things_both_hear_of_it() -> None:
    def work(rank: int, group: LocalGroup) -> None:
        made = buffer(group)
        x, ids = torch.ones(1, 64).bfloat16(), torch.tensor([[0, 7]])
        rows, _, _, handle = made.dispatch(x, ids, layout="experts")
        if rank:
            made.combine(rows, handle)
        else:
            made.dispatch(x, ids)

    found = outcomes(2, work)
    for outcome, text in zip(
        found, ("calls dispatch while rank 1 calls combine", "calls combine while rank 0"), strict=True
    ):
        assert isinstance(outcome.error, InvalidArgument)
        assert text in str(outcome.error)


def test_two_buffers_and_many_steps_stay_apart() -> None:
    def work(rank: int, group: LocalGroup) -> list[float]:
        with buffer(group) as first, buffer(group) as second:
            sums = []
            for _ in range(4):
                sums += [float(step(first, rank).sum()), float(step(second, rank).sum())]
            return sums

    found = outcomes(4, work)
    for rank, outcome in enumerate(found):
        assert outcome.error is None
        assert outcome.value == [64.0 * 2 * (rank + 1) * (rank % 3)] * 8


def test_simulated_devices_reach_each_other_and_nothing_else() -> None:
    here = deepinfer.device("ascend950/sim:0")
    here.enable_peer(deepinfer.device("ascend950/sim:1"))
    with pytest.raises(UnsupportedError, match="cpu"):
        here.enable_peer(deepinfer.device("cpu"))
