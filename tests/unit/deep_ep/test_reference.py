"""The reference itself against numbers worked out by hand, and the laws that any expert-parallel exchange obeys."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.ops.deep_ep import Placement, reference
from deepinfer.ops.deep_ep.reference import RankInput


def _two_ranks():
    x = [torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0]])]
    ids = [torch.tensor([[0, 3], [2, 0]]), torch.tensor([[3, -1]])]
    weights = [torch.tensor([[0.5, 0.25], [1.0, 2.0]]), torch.tensor([[4.0, 9.0]])]
    return [RankInput(*entry) for entry in zip(x, ids, weights, strict=True)]


def test_tokens_layout_by_hand():
    low, high = reference.dispatch(_two_ranks(), Placement.contiguous(4, 2), ["tokens"] * 2, [1, 1])
    assert low.x.tolist() == [[1.0], [2.0]]
    assert low.ids.tolist() == [[0, -1], [-1, 0]]
    assert low.weights.tolist() == [[0.5, 0.0], [0.0, 2.0]]
    assert low.counts.tolist() == [2, 0]
    assert high.x.tolist() == [[1.0], [2.0], [3.0]]
    assert high.ids.tolist() == [[-1, 1], [0, -1], [1, -1]]


def test_experts_layout_by_hand():
    low, high = reference.dispatch(_two_ranks(), Placement.contiguous(4, 2), ["experts"] * 2, [4, 1])
    assert low.x.reshape(-1).tolist() == [1.0, 2.0, 0.0, 0.0]
    assert low.starts.tolist() == [0, 4]
    assert low.ids.tolist() == [0, 0, -1, -1]
    assert high.x.reshape(-1).tolist() == [2.0, 1.0, 3.0]
    assert high.starts.tolist() == [0, 1]
    assert high.counts.tolist() == [1, 2]


def test_combine_by_hand():
    ranks = _two_ranks()
    outputs = reference.dispatch(ranks, Placement.contiguous(4, 2), ["experts"] * 2, [1, 1])
    ys = [output.x * 10 for output in outputs]
    plain = reference.combine(ranks, outputs, ys, [None, None], [None, None], "ranks")
    assert [part.reshape(-1).tolist() for part in plain] == [[20.0, 40.0], [30.0]]
    weights = [output.weights for output in outputs]
    bias = [torch.ones(2, 1), torch.ones(1, 1)]
    weighted = reference.combine(ranks, outputs, ys, weights, bias, "slots")
    assert [part.reshape(-1).tolist() for part in weighted] == [[8.5, 61.0], [121.0]]


def test_partial_sums_are_rounded_once_per_rank():
    """256 + 1 needs 9 bits: a bf16 partial sum drops the 1 (ties to even), slot by slot in float32 keeps it."""
    x = torch.tensor([[1.0]], dtype=torch.bfloat16)
    rank = [
        RankInput(x, torch.tensor([[0, 1, 0]]), torch.ones(1, 3)),
        RankInput(x[:0], torch.zeros(0, 3).long(), torch.ones(0, 3)),
    ]
    outputs = reference.dispatch(rank, Placement.of(2, [0, 1]), ["experts"] * 2, [1, 1])
    ys = [torch.tensor([[256.0], [1.0]]).bfloat16(), torch.tensor([[1.0]]).bfloat16()]
    by_rank = reference.combine(rank, outputs, ys, [None] * 2, [None] * 2, "ranks")[0]
    by_slot = reference.combine(rank, outputs, ys, [None] * 2, [None] * 2, "slots")[0]
    assert by_rank.item() == 256.0  # 1, then bf16(256 + 1) = 256: 257 -> 256
    assert by_slot.item() == 258.0


def test_replica_choice_depends_on_rank_and_token_alone():
    placement = Placement.of(2, [0, 1, 0, 1])
    ids = torch.zeros(6, 1, dtype=torch.int64)
    ranks = [RankInput(torch.zeros(6, 1), ids, torch.ones(6, 1)) for _ in range(2)]
    for source in range(2):
        homes = [pair.home for pair in reference.pairs(ranks, placement) if pair.source == source]
        assert homes == [(source + 23333 * token) % 2 for token in range(6)]


def _expert(x, expert):
    """A different exact function per expert (small integers stay exact in float32)."""
    return x * (expert + 1) + expert


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_sum_over_shards_is_unsharded_c45(data):
    """C45: any number of ranks, every shard with its own offset: the same result as one rank with all experts."""
    ranks = data.draw(st.integers(1, 8), label="ranks")
    local = data.draw(st.integers(1, 3), label="experts per rank")
    lanes = data.draw(st.integers(1, 4), label="top_k")
    seed = data.draw(st.integers(0, 2**20), label="seed")
    generator = torch.Generator().manual_seed(seed)
    experts = ranks * local
    inputs = []
    for _ in range(ranks):
        tokens = int(torch.randint(0, 6, (1,), generator=generator))
        x = torch.randint(-8, 9, (tokens, 3), generator=generator).float()
        ids = torch.randint(-1, experts + 1, (tokens, lanes), generator=generator)
        inputs.append(RankInput(x, ids, torch.ones(tokens, lanes)))
    outputs = reference.dispatch(inputs, Placement.contiguous(experts, ranks), ["experts"] * ranks, [1] * ranks)
    ys = [
        torch.stack([_expert(output.x[i], rank * local + int(e)) for i, e in enumerate(output.ids)])
        if output.ids.numel() else output.x
        for rank, output in enumerate(outputs)
    ]
    for reduce in ("ranks", "slots"):
        results = reference.combine(inputs, outputs, ys, [None] * ranks, [None] * ranks, reduce)
        for given_input, result in zip(inputs, results, strict=True):
            want = torch.zeros_like(given_input.x)
            for token, line in enumerate(given_input.topk_idx.tolist()):
                for expert in line:
                    if 0 <= expert < experts:
                        want[token] += _expert(given_input.x[token], expert)
            assert torch.equal(result, want)


def test_group_by_expert_pads_with_nothing_c46():
    """C46: four rows of expert 0 at block 16 keep all four indices, the rest is padding."""
    from deepinfer.ops.deep_ep.portable import _expert_layout

    ids = torch.zeros(4, 1, dtype=torch.int32)
    starts, counts, total, _, source = _expert_layout(ids, 1, 16, 16)
    assert source.tolist() == [0, 1, 2, 3] + [-1] * 12
    assert (starts.tolist(), counts.tolist(), total.tolist()) == ([0], [4], [16])


@pytest.mark.parametrize("reduce", ["ranks", "slots"])
def test_unused_tokens_give_zero_or_bias_c44(reduce):
    """C44: a token with all slots unused is sent nowhere and comes back as bias, or zero."""
    rank = [RankInput(torch.ones(2, 3), torch.tensor([[-1, -1], [0, -1]]), torch.ones(2, 2))]
    outputs = reference.dispatch(rank, Placement.contiguous(1, 1), ["experts"], [1])
    assert outputs[0].x.shape == (1, 3)
    bias = torch.full((2, 3), 5.0)
    (plain,) = reference.combine(rank, outputs, [outputs[0].x], [None], [None], reduce)
    (biased,) = reference.combine(rank, outputs, [outputs[0].x], [None], [bias], reduce)
    assert plain[0].tolist() == [0.0] * 3
    assert biased.tolist() == [[5.0] * 3, [6.0] * 3]
