"""Rows between ranks: the kernels under one scheduler, so that the race checker sees across ranks, and `ExpertBuffer`
on simulated devices with a thread each."""

from __future__ import annotations

import time

import pytest
import torch
from asc_ranks import Ranks, attempts, half_arrived, hurried
from deepinfer_ascend950.drivers.sim import SimDriver

import deepinfer
from deepinfer import fallback
from deepinfer.errors import CommTimeout, DriverError, InvalidArgument, UnsupportedError
from deepinfer.ops.deep_ep import ExpertBuffer, LocalGroup
from deepinfer.ops.deep_ep.cases import ep_cases
from deepinfer.ops.deep_ep.local import Outcome


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


# 70 stores not complete before the flags; 71 no heads; 72 one parity; 73 flags of one block only; 74 no buffer ids.
@pytest.mark.parametrize("mutant", [70, 71, 72, 73, 74])
def test_broken_protocols_are_found(sim: SimDriver, mutant: int) -> None:
    with pytest.raises((DriverError, AssertionError)):
        attempts(sim, mutant)


def test_correct_protocol_passes(sim: SimDriver) -> None:
    attempts(sim, 0)


# --- ExpertBuffer on as many simulated devices as ranks ---------------------------------------------------------------


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


def step(made: ExpertBuffer, rank: int) -> torch.Tensor:
    x = torch.full((rank % 3, 64), rank + 1.0).bfloat16()
    ids = torch.arange(2 * (rank % 3)).view(-1, 2) * 3 % 8
    rows, _, _, handle = made.dispatch(x, ids, layout="experts")
    return made.combine(rows, handle)


def outcomes(ranks: int, work: object) -> list[Outcome]:
    with deepinfer.use_backend("ascend950/sim"), fallback("error"):
        group = LocalGroup(ranks, devices(ranks))
        return group.outcomes(work, group)  # type: ignore[arg-type]


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
