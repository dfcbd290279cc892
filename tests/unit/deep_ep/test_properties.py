"""Random groups against the reference; laws that hold for any routing; argument combinations that differ by rank."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepinfer.ops.deep_ep import ExpertBuffer, LocalGroup, Placement, reference
from deepinfer.ops.deep_ep.case import DTYPES, EpCase
from deepinfer.ops.deep_ep.cases import FORMATS, ep_cases

BASE = ep_cases()[0]


@st.composite
def cases(draw):
    ranks = draw(st.integers(1, 8))
    layout = draw(st.sampled_from(["tokens", "experts"]))
    dtype = draw(st.sampled_from([*DTYPES, *FORMATS]))
    tokens = tuple(draw(st.lists(st.integers(0, 12), min_size=ranks, max_size=ranks)))
    params = BASE.params | {
        "ranks": ranks, "tokens": tokens, "T": max(tokens), "layout": layout, "dtype": dtype,
        "hidden": 2 * draw(st.integers(0, 100)), "top_k": draw(st.integers(0, 6)),
        "experts": ranks * draw(st.integers(1, 5)), "replicas": draw(st.sampled_from([0, 0, 1, 3])),
        "alignment": draw(st.sampled_from([1, 2, 3, 8, 64])) if layout == "experts" else 1,
        "reduce": draw(st.sampled_from(["ranks", "slots"])) if layout == "experts" else "ranks",
        "weights": draw(st.booleans()), "bias": draw(st.booleans()), "sync": draw(st.booleans()),
        "ids": draw(st.sampled_from(["plain", "holes", "none", "same", "range"])),
    }
    return EpCase(params, seed=draw(st.integers(0, 2**30)))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_any_group_matches_the_reference(case):
    assert case.run("cpu") == []


@pytest.mark.long
@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_any_group_matches_the_reference_long(case):
    assert case.run("cpu") == []


def _through(ranks, x, ids, weights, experts, reduce, function):
    """Combined rows of all tokens, with tokens spread over `ranks` in order."""
    group = LocalGroup(ranks)
    bounds = [x.shape[0] * r // ranks for r in range(ranks + 1)]

    def step(rank):
        part = slice(bounds[rank], bounds[rank + 1])
        with ExpertBuffer(group, x.shape[0], x.shape[1], experts, ids.shape[1], x.dtype) as buffer:
            rows, local, received, handle = buffer.dispatch(x[part], ids[part], weights[part], layout="experts")
            expert = local + rank * (experts // ranks)
            return buffer.combine(function(rows, expert), handle, received, reduce=reduce)

    return torch.cat(group.run(step))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_slots_do_not_depend_on_the_number_of_ranks(dtype):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(24, 40, generator=generator).to(dtype)
    ids = torch.randint(-1, 24, (24, 5), generator=generator)
    weights = torch.rand(24, 5, generator=generator)

    def function(rows, expert):
        return (rows.float() * (1 + expert.float() / 7).unsqueeze(1)).to(dtype)

    want = _through(1, x, ids, weights, 24, "slots", function)
    for ranks in (2, 3, 4, 8):
        assert torch.equal(_through(ranks, x, ids, weights, 24, "slots", function), want), ranks


def test_both_reductions_agree_when_sums_are_exact_c51():
    """C51: weights mean the same in both modes: on exact numbers the results are equal."""
    generator = torch.Generator().manual_seed(6)
    x = torch.randint(-4, 5, (20, 16), generator=generator).float()
    ids = torch.randint(0, 8, (20, 4), generator=generator)
    weights = 2.0 ** torch.randint(-2, 3, (20, 4), generator=generator)
    by_rank, by_slot = (_through(4, x, ids, weights, 8, r, lambda rows, expert: rows) for r in ("ranks", "slots"))
    assert torch.equal(by_rank, by_slot)
    assert torch.equal(by_rank, x * weights.sum(1, keepdim=True))


def test_layout_alignment_and_sync_may_differ_by_rank():
    ranks = 3
    forms = [("tokens", 1, True), ("experts", 8, False), ("experts", 1, True)]
    case = EpCase(BASE.params | {"ranks": ranks, "tokens": (4, 0, 6), "T": 6, "experts": 6, "top_k": 3})
    inputs = case.inputs()
    layouts, alignments = [form[0] for form in forms], [form[1] for form in forms]
    want = reference.dispatch(inputs, case.placement(), layouts, alignments)
    ys = [output.x for output in want]
    sums = reference.combine(inputs, want, ys, [None] * 3, [None] * 3, "ranks")
    group = LocalGroup(ranks)

    def step(rank):
        layout, alignment, sync = forms[rank]
        with ExpertBuffer(group, 8, case.params["hidden"], 6, 3, case.row_dtype) as buffer:
            x, ids, _, handle = buffer.dispatch(
                inputs[rank].x, inputs[rank].topk_idx, layout=layout, alignment=alignment, sync=sync
            )
            valid = int(handle.total)
            assert torch.equal(x[:valid], want[rank].x)
            assert torch.equal(ids[:valid], want[rank].ids)
            assert torch.equal(buffer.combine(x, handle), sums[rank])
            return handle.num_rows

    assert group.run(step) == [len(want[0].rows), None, len(want[2].rows)]


def test_strided_inputs_and_out_tensors():
    generator = torch.Generator().manual_seed(8)
    wide = torch.randn(5, 2, 12, generator=generator)
    ids = torch.randint(0, 4, (3, 5), generator=generator).t()
    bias = torch.randn(12, 5, generator=generator).t()
    group = LocalGroup(2)

    def step(rank):
        with ExpertBuffer(group, 5, 12, 4, 3, torch.float32) as buffer:
            out = torch.full((5, 12), 7.0)
            results = []
            for x, index, start in ((wide[:, 1], ids, bias), (wide[:, 1].clone(), ids.contiguous(), bias.contiguous())):
                rows, _, _, handle = buffer.dispatch(x, index, layout="experts")
                results.append(buffer.combine(rows, handle, bias=start, out=out).clone())
                assert buffer.combine(rows, handle, bias=start, out=out) is out
            assert torch.equal(results[0], results[1])
            padded = torch.full((rows.shape[0], 24), float("nan"))
            padded[:, ::2] = rows
            assert torch.equal(buffer.combine(padded[:, ::2], handle, bias=bias), results[0])

    group.run(step)


def test_inputs_are_not_changed():
    case = dataclasses.replace(BASE, params=BASE.params | {"ranks": 2, "tokens": (6, 6), "T": 6, "experts": 4})
    inputs = case.inputs()
    copies = [(g.x.clone(), g.topk_idx.clone(), g.topk_weights.clone()) for g in inputs]
    group = LocalGroup(2)

    def step(rank):
        with ExpertBuffer(group, 6, case.params["hidden"], 4, case.params["top_k"], case.row_dtype) as buffer:
            given_input = inputs[rank]
            rows, _, weights, handle = buffer.dispatch(
                given_input.x, given_input.topk_idx, given_input.topk_weights, layout="experts"
            )
            y, saved = rows.clone(), rows.clone()
            buffer.combine(y, handle, weights)
            assert torch.equal(y, saved)

    group.run(step)
    for given_input, (x, ids, weights) in zip(inputs, copies, strict=True):
        assert torch.equal(given_input.x, x)
        assert torch.equal(given_input.topk_idx, ids)
        assert torch.equal(given_input.topk_weights, weights)


def test_non_finite_rows_stay_with_their_tokens():
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(9))
    x[2] = float("nan")
    x[4] = float("inf")
    ids = torch.tensor([[0, 1], [2, 3], [0, 3], [1, 2], [3, 0], [2, -1]])
    group = LocalGroup(2)

    def step(rank):
        with ExpertBuffer(group, 6, 8, 4, 2, torch.float32) as buffer:
            rows, _, _, handle = buffer.dispatch(x, ids, layout="experts", alignment=4)
            return buffer.combine(rows, handle)

    for y in group.run(step):
        assert y[2].isnan().all()
        assert y[4].isinf().all()
        assert y[[0, 1, 3, 5]].isfinite().all()


def test_signed_zeros_and_nan_weights_follow_the_arithmetic():
    placement = Placement.contiguous(2, 1)
    x = torch.full((3, 2), -0.0)
    given_input = [reference.RankInput(x, torch.tensor([[0, 1], [1, -1], [-1, -1]]), torch.ones(3, 2))]
    output = reference.dispatch(given_input, placement, ["experts"], [1])
    bias = torch.full((3, 2), -0.0)
    group = LocalGroup(1)
    for reduce in ("ranks", "slots"):
        want = reference.combine(given_input, output, [output[0].x], [None], [bias], reduce)[0]

        def step(rank, reduce=reduce):
            with ExpertBuffer(group, 3, 2, 2, 2, torch.float32) as buffer:
                rows, _, _, handle = buffer.dispatch(x, given_input[0].topk_idx, layout="experts")
                return buffer.combine(rows, handle, bias=bias, reduce=reduce)

        (got,) = group.run(step)
        assert torch.equal(got.view(torch.int32), want.view(torch.int32))
        assert torch.signbit(got[2]).all()
