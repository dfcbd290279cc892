"""Meaning of counts and starts: host and device versions agree on any values, the device version reads nothing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import deepinfer
from deepinfer.errors import InvalidArgument
from deepinfer.ops import deep_gmm
from deepinfer.ops.deep_gmm import portable, rows
from deepinfer.ops.deep_gmm.operand import PLAIN
from deepinfer.registry import get_spec

WILD = st.one_of(st.integers(-3, 12), st.sampled_from([2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63)]))


@pytest.fixture(autouse=True)
def _on_cpu():
    with deepinfer.use_backend("cpu"):
        yield


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(WILD, WILD), max_size=6), st.integers(0, 15), st.booleans())
def test_host_and_device_agree_on_any_values(groups, total, with_starts) -> None:
    counts = torch.tensor([c for c, _ in groups], dtype=torch.int64)
    starts = torch.tensor([s for _, s in groups], dtype=torch.int64) if with_starts else None
    limits = rows.bounds(counts, starts, total)
    host = {g: (low, high) for g, low, high in rows.host_bounds(counts, starts, total)}
    for g, (low, high) in enumerate(zip(limits.low.tolist(), limits.high.tolist(), strict=True)):
        assert 0 <= low <= high <= total
        assert host.get(g, (low, low)) == (low, high)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 6), st.integers(-1, 4)), max_size=5), st.integers(0, 9), st.booleans())
def test_gapless_groups_own_every_row_once_and_in_order(groups, total, with_starts) -> None:
    counts = torch.tensor([c for _, c in groups], dtype=torch.int64)
    starts = torch.tensor([s for s, _ in groups], dtype=torch.int64) if with_starts else None
    spans = rows.host_bounds(counts, starts, total)
    owned = [m for _, low, high in spans for m in range(low, high)]
    assert rows.gapless(spans, total) == (owned == list(range(total)) and total > 0)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 3))
def test_tiles_cover_every_row_once(data, counts, gap) -> None:
    order = data.draw(st.permutations(range(len(counts))))
    starts, position = [0] * len(counts), 0
    for g in order:
        starts[g], position = position + gap, position + gap + counts[g]
    total = position + gap
    if not total:
        return
    limits = rows.bounds(torch.tensor(counts), torch.tensor(starts), total)
    tile = data.draw(st.sampled_from([1, 2, 4, 128]))
    owner, row, valid = portable.tiles(limits, tile, total)
    seen = {(g, m) for g, ms, oks in zip(owner.tolist(), row.tolist(), valid.tolist(), strict=True)
            for m, ok in zip(ms, oks, strict=True) if ok}
    assert seen == {(g, m) for g, s in enumerate(starts) for m in range(s, s + counts[g])}
    assert int(valid.sum()) == len(seen)


def test_groups_and_tiles_give_the_same_products() -> None:
    """The two ways of the portable version: bounds in host memory, or on a device that must not be waited for."""
    spec, tried = get_spec("deep_gmm.grouped_gemm"), 0
    for case in spec.cases():
        args = case.build() if not case.tags & {"bench", "full"} else {}
        if not args or not args["a"].numel():
            continue
        operands = [args[name] for name in ("a", "a_scale", "a_recipe", "b", "b_scale", "b_recipe")]
        total = args["a"].shape[0]
        limits = (args["counts"], args["starts"])
        room = torch.full((total, args["b"].shape[1]), 7.0)
        ways = [way(*operands, *limits, torch.float32) for way in (portable.by_group, portable.by_tile)]
        kept = [way(*operands, *limits, torch.float32, room.clone()) for way in (portable.by_group, portable.by_tile)]
        owned = rows.owners(args["counts"], args["starts"], total)
        picked = [made[owned == 1] for made in ways]
        torch.testing.assert_close(*picked, rtol=1e-4, atol=1e-4, equal_nan=True, msg=case.id)
        assert not any(made[owned == 0].any() for made in ways), case.id
        for made, into in zip(ways, kept, strict=True):
            torch.testing.assert_close(into[owned == 1], made[owned == 1], rtol=0, atol=0, equal_nan=True, msg=case.id)
            assert (into[owned == 0] == 7).all(), case.id
        tried += 1
    assert tried > 10


def test_tiles_are_cut_without_reading_a_value() -> None:
    """A fake tensor has no data: any read of counts, and any shape that depends on them, raises."""
    with FakeTensorMode():
        a, b = torch.empty(40, 64), torch.empty(4, 16, 64)
        made = portable.by_tile(a, None, PLAIN, b, None, PLAIN, torch.empty(4, dtype=torch.int32), None, torch.float32)
        assert made.shape == (40, 16)
        spec = get_spec("deep_gmm.group_rows")
        args = {"ids": torch.empty(9, dtype=torch.int32), "groups": 4, "alignment": 8}
        assert spec.portable(args, (None,) * 3)[0].shape == (40,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_no_group_keep_their_bytes(dtype: torch.dtype) -> None:
    """C27, C28."""
    a, b = torch.randn(12, 64).to(dtype), torch.randn(3, 5, 64).to(dtype)
    out = torch.full((12, 5), 7.0).to(dtype)
    a[4:8] = torch.nan
    deep_gmm.grouped_gemm(a, b, torch.tensor([4, 0, 2]), starts=torch.tensor([0, 99, 8]), out=out)
    assert (out[4:8] == 7).all()
    assert (out[10:] == 7).all()
    assert out[:4].isfinite().all()
    masked = torch.full((3, 4, 5), 7.0).to(dtype)
    deep_gmm.masked_grouped_gemm(a.view(3, 4, 64), b, torch.tensor([2, 0, 9]), out=masked)
    assert (masked[0, 2:] == 7).all()
    assert (masked[1] == 7).all()
    assert torch.equal(masked[2], deep_gmm.gemm(a[8:], b[2]))


def test_offsets_are_sugar() -> None:
    a, b = torch.randn(8, 16), torch.randn(3, 5, 16)
    got = deep_gmm.grouped_gemm(a, b, offsets=torch.tensor([1, 3, 3, 8], dtype=torch.int32))
    want = deep_gmm.grouped_gemm(a, b, torch.tensor([2, 0, 5]), starts=torch.tensor([1, 3, 3]))
    assert torch.equal(got[1:], want[1:])


@pytest.mark.parametrize(
    "given_",
    [{}, {"counts": torch.tensor([1]), "offsets": torch.tensor([0, 1])},
     {"starts": torch.tensor([0]), "offsets": torch.tensor([0, 1])}, {"offsets": torch.tensor([[0, 1]])},
     {"offsets": [0, 1]}, {"counts": [1]}, {"counts": torch.tensor(1)}],
)
def test_wrong_ways_to_give_groups_are_named(given_: dict) -> None:
    with pytest.raises(InvalidArgument, match=r"counts|offsets"):
        deep_gmm.grouped_gemm(torch.ones(1, 2), torch.ones(1, 1, 2), **given_)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-2, 6), max_size=40), st.integers(0, 5), st.sampled_from([1, 2, 16]))
def test_group_rows_is_a_stable_partition(ids, groups, alignment) -> None:
    with deepinfer.use_backend("cpu"):
        order, starts, counts = deep_gmm.group_rows(torch.tensor(ids, dtype=torch.int32), groups, alignment=alignment)
    placed = order.tolist()
    for g in range(groups):
        first, size = int(starts[g]), int(counts[g])
        assert first % alignment == 0
        assert placed[first : first + size] == [m for m, group in enumerate(ids) if group == g]
        placed[first : first + size] = [-1] * size
    assert set(placed) <= {-1}


@pytest.mark.parametrize("starts", [None, [4, 0, 10]])
def test_grouping_then_multiplying_equals_row_by_row(starts: list[int] | None) -> None:
    x, w = torch.randn(9, 32, dtype=torch.float32), torch.randn(3, 8, 32)
    ids = torch.tensor([2, 0, 1, 0, -1, 2, 2, 1, 0])
    order, first, counts = deep_gmm.group_rows(ids, 3, alignment=1 if starts is None else 4)
    rows_ = x[order.clamp(min=0)]
    y = deep_gmm.grouped_gemm(rows_, w, counts, starts=first)
    for position, m in enumerate(order.tolist()):
        if m >= 0:
            torch.testing.assert_close(y[position], w[ids[m]] @ x[m], rtol=1e-5, atol=1e-5)
