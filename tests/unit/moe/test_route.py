"""Routing: against transformers' routers, and for any float32 logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.errors import InvalidArgument
from deepinfer.ops import moe
from deepinfer.ops.moe.ranking import top_ids

FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)


@pytest.mark.parametrize(("groups", "kept"), [(1, 1), (8, 4), (4, 1)])
@pytest.mark.parametrize("renormalize", [True, False])
def test_v3_gate_equals_transformers(groups: int, kept: int, renormalize: bool) -> None:
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

    config = DeepseekV3Config(
        hidden_size=32, n_routed_experts=64, num_experts_per_tok=6, n_group=groups, topk_group=kept,
        norm_topk_prob=renormalize, routed_scaling_factor=2.5,
    )
    generator = torch.Generator().manual_seed(4)
    router = DeepseekV3TopkRouter(config)
    router.weight.data.normal_(generator=generator)
    router.e_score_correction_bias.data.uniform_(-0.1, 0.1, generator=generator)
    x = torch.randn(50, 32, generator=generator)
    logits, weights, ids = router(x)
    ours, our_ids = moe.route(
        logits, 6, scoring="sigmoid", bias=router.e_score_correction_bias, n_group=groups, topk_group=kept,
        group_score="top2_sum", renormalize=renormalize, scale=2.5,
    )
    order = ids.argsort(1)
    our_order = our_ids.long().argsort(1)
    assert torch.equal(ids.gather(1, order), our_ids.long().gather(1, our_order))
    torch.testing.assert_close(ours.gather(1, our_order), weights.gather(1, order), rtol=1e-6, atol=1e-7)


def test_docs_rule_ties_go_to_the_lower_id() -> None:
    _, ids = moe.route(torch.zeros(2, 7), 3)
    assert ids.tolist() == [[0, 1, 2]] * 2
    _, ids = moe.route(torch.zeros(1, 8), 2, n_group=4, topk_group=2, group_score="top2_sum")
    assert ids.tolist() == [[0, 1]]


def test_renormalised_weights_sum_to_one_on_every_run_c49() -> None:
    """C49: its numbers, 64 rows of 256 experts in bfloat16, top 8."""
    logits = torch.randn((64, 256), generator=torch.Generator().manual_seed(49)).bfloat16().float()
    weights, ids = moe.route(logits, 8, scoring="softmax", renormalize=True)
    torch.testing.assert_close(weights.sum(1), torch.ones(64), rtol=0, atol=1e-6)
    for _ in range(20):
        again = moe.route(logits, 8, scoring="softmax", renormalize=True)
        assert torch.equal(again[0], weights)
        assert torch.equal(again[1], ids)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_ids_are_distinct_and_in_range(data: st.DataObject) -> None:
    groups = data.draw(st.sampled_from([1, 2, 3]))
    size = data.draw(st.integers(1, 4))
    kept = data.draw(st.integers(1, groups))
    k = data.draw(st.integers(0, kept * size))
    values = data.draw(st.lists(FLOATS, min_size=groups * size, max_size=groups * size))
    weights, ids = moe.route(
        torch.tensor([values], dtype=torch.float32), k,
        scoring=data.draw(st.sampled_from(["softmax", "sigmoid", "sqrtsoftplus"])),
        n_group=groups, topk_group=kept, group_score=data.draw(st.sampled_from(["max", "top2_sum"])),
    )
    chosen = ids[0].tolist()
    assert len(set(chosen)) == k
    assert all(0 <= e < groups * size for e in chosen)
    assert len({e // size for e in chosen}) <= kept
    assert weights.shape == (1, k)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(FLOATS, min_size=6, max_size=6), min_size=1, max_size=4), st.integers(0, 6))
def test_top_ids_is_a_stable_sort(rows: list[list[float]], k: int) -> None:
    values = torch.tensor(rows, dtype=torch.float32)
    for row, found in zip(values.tolist(), top_ids(values, k).tolist(), strict=True):
        assert found == sorted(range(6), key=lambda i: (row[i] != row[i], -row[i] if row[i] == row[i] else 0.0, i))[:k]


def test_bias_ranks_but_does_not_weigh() -> None:
    logits, bias = torch.tensor([[1.0, 0.0, -1.0]]), torch.tensor([0.0, 0.0, 5.0])
    weights, ids = moe.route(logits, 1, scoring="sigmoid", bias=bias, renormalize=False)
    assert ids.item() == 2
    assert weights.item() == pytest.approx(torch.tensor(-1.0).sigmoid().item())


@pytest.mark.parametrize("top_k", [2.0, None, "2", True])
def test_top_k_must_be_an_integer(top_k: Any) -> None:
    with pytest.raises(InvalidArgument, match="top_k"):
        moe.route(torch.zeros(2, 4), top_k)


def test_swiglu_matches_the_experts_activation() -> None:
    """Composition rule: quantising the plain float32 result gives the fused op's bytes."""
    from deepinfer.ops import quant

    gate_up, weights = torch.randn(6, 512), torch.rand(6)
    plain = moe.swiglu_quantize(gate_up, route_weights=weights, limit=2.0)
    fused = moe.swiglu_quantize(gate_up, route_weights=weights, limit=2.0, quantize="fp8_1x128")
    assert isinstance(plain, torch.Tensor)
    assert not isinstance(fused, torch.Tensor)
    wanted = quant.quantize_fp8(plain)
    assert torch.equal(fused.data.view(torch.uint8), wanted.data.view(torch.uint8))
    assert torch.equal(fused.scale, wanted.scale)
