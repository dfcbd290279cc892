"""Placements and the balancer: every expert has a home, no needless repeats, better than doing nothing."""

from __future__ import annotations

import doctest
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.errors import InvalidArgument
from deepinfer.ops.deep_ep import ExpertBuffer, LocalGroup, Placement, balancer
from deepinfer.ops.deep_ep.balancer import balance, imbalance, initial_placement
from deepinfer.ops.deep_ep.placement import Router


def _homes(placement, ranks):
    per = placement.local_slots(ranks)
    return [placement.slots[rank * per : (rank + 1) * per] for rank in range(ranks)]


def _repeats(placement, ranks):
    return sum(len(home) - len(set(home)) for home in _homes(placement, ranks))


@pytest.mark.parametrize(
    ("experts", "slots", "words"),
    [(2, (0, 2), ["slots[1]", "2"]), (3, (0, 1), ["every expert", "[2]"]), (2, (0, -1), ["slots[1]", "-1"])],
)
def test_bad_placements_are_refused(experts, slots, words):
    with pytest.raises(InvalidArgument) as caught:
        Placement(experts, slots)
    assert all(word in str(caught.value) for word in words)


def test_uneven_slots_are_refused():
    with pytest.raises(InvalidArgument, match="number of slots: got 3, must be a multiple of 2"):
        Placement.of(2, [0, 1, 0]).local_slots(2)


def test_digest_tells_placements_apart():
    seen = {Placement.of(3, order).digest for order in itertools.permutations(range(3))}
    assert len(seen) == 6


def test_router_keeps_unused_slots_and_picks_replicas():
    router = Router(Placement.of(2, [0, 1, 1, 1]), rank=1, device=torch.device("cpu"))
    ids = torch.tensor([[0, 1], [-5, 1], [2, 1]], dtype=torch.int32)
    want = [[0, (1, 2, 3)[(1 + 23333 * t) % 3]] for t in range(3)]
    want[1][0] = want[2][0] = -1
    assert router.slots(ids).tolist() == want


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_repeats_when_avoidable_c50(data):
    """C50: an expert stands twice on a rank only when it has more replicas than there are ranks."""
    ranks = data.draw(st.integers(1, 8), label="ranks")
    experts = data.draw(st.integers(1, 24), label="experts")
    per = -(-experts // ranks) + data.draw(st.integers(0, 3), label="spare per rank")
    steps = data.draw(st.integers(0, 4), label="steps")
    seed = data.draw(st.integers(0, 2**20), label="seed")
    sharp = data.draw(st.sampled_from([0.5, 2.0, 8.0]), label="sharpness")
    loads = (torch.randn(steps, experts, generator=torch.Generator().manual_seed(seed)) * sharp).exp().round()
    placement = balance(loads, ranks, per)
    assert len(placement.slots) == ranks * per
    counts = [len(places) for places in placement.replicas]
    assert max(counts) <= ranks or min(counts) >= ranks
    if max(counts) <= ranks:
        assert _repeats(placement, ranks) == 0
    assert placement == balance(loads.clone(), ranks, per)


@pytest.mark.parametrize("seed", range(3))
def test_256_experts_with_32_spares_on_32_ranks_c50(seed):
    loads = torch.randn(20, 256, generator=torch.Generator().manual_seed(seed)).mul(1.5).exp()
    placement = balance(loads, 32, 9)
    assert _repeats(placement, 32) == 0
    assert imbalance(placement, loads, 32) < imbalance(initial_placement(256, 32, 9), loads, 32)


def test_repeats_left_by_the_greedy_choice_are_swapped_away():
    homes = [[0, 1], [2, 1], [3, 3]]
    share = torch.ones(1, 4, dtype=torch.float64)
    balancer._separate(homes, share)
    assert all(len(set(home)) == len(home) for home in homes)
    assert sorted(entry for home in homes for entry in home) == [0, 1, 1, 2, 3, 3]


def test_repeats_that_cannot_be_avoided_stay():
    placement = balance(torch.ones(1, 1), 2, 3)
    assert placement.slots == (0,) * 6


def test_small_groups_are_near_the_optimum():
    """Against every placement without spares of 6 experts on 3 ranks: the greedy choice is within 4/3 of the best."""
    for seed in range(10):
        loads = torch.randint(1, 50, (3, 6), generator=torch.Generator().manual_seed(seed)).double()
        best = min(
            imbalance(Placement.of(6, order), loads, 3)
            for order in itertools.permutations(range(6))
            if order[0] < order[1] and order[2] < order[3] and order[4] < order[5]
        )
        assert imbalance(balance(loads, 3, 2), loads, 3) <= best * 4 / 3 + 1e-12


def test_even_loads_stay_even():
    placement = balance(torch.ones(2, 8), 4, 2)
    assert imbalance(placement, torch.ones(2, 8), 4) == 1.0


@pytest.mark.parametrize(
    ("loads", "ranks", "per", "words"),
    [
        (torch.ones(4), 2, 2, ["loads", "[4]"]),
        ([[1.0]], 1, 1, ["loads", "list"]),
        (-torch.ones(1, 4), 2, 2, ["loads", "negative"]),
        (torch.full((1, 4), float("nan")), 2, 2, ["loads", "finite"]),
        (torch.ones(1, 5), 2, 2, ["slots_per_rank", "2", "nearest legal value: 3"]),
        (torch.ones(1, 0), 2, 2, ["slots_per_rank", "0 experts"]),
        (torch.ones(1, 4), 0, 2, ["ranks", "0"]),
        (torch.ones(1, 4), 2, 2.0, ["slots_per_rank", "2.0"]),
    ],
)
def test_balancer_refuses(loads, ranks, per, words):
    with pytest.raises(InvalidArgument) as caught:
        balance(loads, ranks, per)
    assert all(word in str(caught.value) for word in words), caught.value


def test_documented_examples_c47():
    result = doctest.testmod(balancer)
    assert (result.attempted > 0, result.failed) == (True, 0)


def test_a_balanced_placement_works_in_a_buffer():
    """Replicas are used, tokens come back whole, and more than one rank serves the busy expert."""
    loads = torch.tensor([[40.0, 1.0, 1.0, 1.0]])
    placement = balance(loads, 2, 3)
    group = LocalGroup(2)

    def step(rank):
        with ExpertBuffer(group, 8, 4, 4, 1, torch.float32, placement=placement) as buffer:
            x = torch.arange(32.0).view(8, 4) + rank
            rows, ids, _, handle = buffer.dispatch(x, torch.zeros(8, 1, dtype=torch.int64), layout="experts")
            experts = {placement.slots[rank * 3 + place] for place in ids.tolist()}
            assert torch.equal(buffer.combine(rows, handle), x)
            return handle.num_rows, experts

    assert group.run(step) == [(8, {0}), (8, {0})]
