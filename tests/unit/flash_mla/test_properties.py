"""Properties over random inputs: the mark of an empty row, splitting and merging, order of entries, bad input, batches.

Every example draws a seed from which all data follows, so a failure prints what reproduces it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepinfer.errors import InvalidArgument, UnsupportedError
from deepinfer.hal import use_backend
from deepinfer.ops.flash_mla import data, decode, merge_states, prefill, rules, sparse_decode, sparse_prefill
from deepinfer.ops.flash_mla.formats import LAYOUTS
from deepinfer.registry import Op, all_specs

SPECS = [spec for spec in all_specs() if spec.family == "flash_mla"]
quick = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
thorough = settings(max_examples=3000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 2**31 - 1)


def _gen(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@quick
@given(seed=seeds, s_q=st.integers(1, 4), causal=st.booleans(), name=st.sampled_from(["f32", "bf16", "v41_fp8"]))
def test_decode_marks_exactly_the_empty_rows(seed: int, s_q: int, causal: bool, name: str) -> None:
    """lse = -inf and out = 0 iff no key is visible, foreign blocks counted out (C06, C07)."""
    g, page, blocks, columns = _gen(seed), 3, 7, 3
    d = LAYOUTS[name].width or 32
    lens = torch.randint(-2, 14, (3,), generator=g)
    table = torch.randint(-1, blocks + 1, (3, columns), generator=g)
    q = data.queries((3, s_q, 2, d), data.dtype_of(name), g)
    cache = data.cache(name, blocks, page, d, g)
    out, lse = decode(q, cache, table, lens, format=name, d_v=32, causal=causal, attn_sink=data.sinks("mixed", 2, g))
    for r in range(3):
        length = min(max(int(lens[r]), 0), page * columns)
        exists = [0 <= int(table[r, j // page]) < blocks for j in range(length)]
        for i in range(s_q):
            seen = any(exists[: max(length - s_q + i + 1, 0)] if causal else exists)
            assert bool((lse[r, :, i] == -torch.inf).all()) is not seen
            assert bool(lse[r, :, i].isfinite().all()) is seen
            if not seen:
                assert out[r, i].eq(0).all()


@quick
@given(seed=seeds, topk=st.integers(0, 9), rows=st.integers(0, 6), cut=st.booleans())
def test_sparse_marks_exactly_the_empty_rows(seed: int, topk: int, rows: int, cut: bool) -> None:
    g = _gen(seed)
    indices = torch.randint(-3, rows + 3, (4, topk), generator=g)
    lengths = torch.randint(-1, topk + 2, (4,), generator=g) if cut else None
    q, kv = torch.randn(4, 2, 16, generator=g), torch.randn(rows, 16, generator=g)
    out, lse, top = sparse_prefill(q, kv, indices, topk_length=lengths, d_v=16, attn_sink=data.sinks("mixed", 2, g))
    for t in range(4):
        used = indices[t, : topk if lengths is None else max(int(lengths[t]), 0)]
        seen = bool(((used >= 0) & (used < rows)).any())
        assert bool(lse[:, t].isfinite().all()) is seen
        assert bool((top[:, t] == -torch.inf).all()) is not seen
        if not seen:
            assert out[t].eq(0).all()
            assert lse[:, t].eq(-torch.inf).all()


@quick
@given(seed=seeds, n=st.integers(0, 12), pieces=st.integers(1, 4), dtype=st.sampled_from(rules.QUERY_DTYPES))
def test_split_keys_merge_to_the_whole(seed: int, n: int, pieces: int, dtype: torch.dtype) -> None:
    """Cut anywhere, empty parts included (C05)."""
    g = _gen(seed)
    q, kv = torch.randn(3, 2, 16, generator=g).to(dtype), torch.randn(n, 16, generator=g).to(dtype)
    cu = torch.tensor([0, 3])
    edges = sorted(torch.randint(0, n + 1, (pieces - 1,), generator=g).tolist())
    edges = [0, *edges, n]
    whole = prefill(q, kv, cu, cu_k=torch.tensor([0, n]), d_v=16, causal=False)
    parts = [prefill(q, kv[a:b], cu, cu_k=torch.tensor([0, b - a]), d_v=16, causal=False)
             for a, b in pairwise(edges)]
    out, lse = merge_states([part[0] for part in parts], [part[1] for part in parts])
    step = 1e-5 if dtype is torch.float32 else 2.0**-6
    torch.testing.assert_close(out, whole[0], rtol=step, atol=step)
    torch.testing.assert_close(lse, whole[1], rtol=1e-5, atol=1e-5)


@quick
@given(seed=seeds, topk=st.integers(1, 40), name=st.sampled_from(sorted(LAYOUTS)))
def test_order_of_entries_does_not_matter(seed: int, topk: int, name: str) -> None:
    g = _gen(seed)
    d = LAYOUTS[name].width or 32
    cache = data.cache(name, 4, 5, d, g)
    q = data.queries((1, 1, 2, d), torch.float32 if name != "bf16" else torch.bfloat16, g)
    indices = torch.randint(-2, 22, (1, 1, topk), generator=g)
    mixed = indices[..., torch.randperm(topk, generator=g)]
    first = sparse_decode(q, cache, indices, format=name, d_v=32)
    second = sparse_decode(q, cache, mixed, format=name, d_v=32)
    step = 2e-5 if q.dtype is torch.float32 else 2.0**-6
    torch.testing.assert_close(second[0], first[0], rtol=step, atol=step)
    torch.testing.assert_close(second[1], first[1], rtol=1e-5, atol=1e-5)


@quick
@given(seed=seeds, b=st.integers(1, 6), s_q=st.integers(1, 3), h=st.integers(1, 5),
       name=st.sampled_from(["f32", "bf16", "v32_fp8", "v41_fp8_paged"]))
def test_decode_bits_do_not_depend_on_the_batch(seed: int, b: int, s_q: int, h: int, name: str) -> None:
    """A request alone, in a batch, in another order, in other blocks: the same bits (C17)."""
    g, page = _gen(seed), 16
    d = LAYOUTS[name].width or 576
    lens = torch.randint(0, 70, (b,), generator=g)
    blocks = 5 * b + 3
    q = data.queries((b, s_q, h, d), data.dtype_of(name), g)
    table = torch.randperm(blocks, generator=g)[: 5 * b].view(b, 5)
    cache = data.cache(name, blocks, page, d, g)
    out, lse = decode(q, cache, table, lens, format=name)
    order = torch.randperm(b, generator=g)
    again = decode(q[order], cache, table[order], lens[order], format=name)
    assert torch.equal(again[0], out[order])
    assert torch.equal(again[1], lse[order])
    r = int(order[0])
    moved = torch.randperm(blocks, generator=g)
    elsewhere = torch.empty_like(cache)
    elsewhere[moved] = cache
    alone = decode(q[r : r + 1], elsewhere, moved[table[r : r + 1]], lens[r : r + 1], format=name)
    assert torch.equal(alone[0][0], out[r])
    assert torch.equal(alone[1][0], lse[r])


@quick
@given(seed=seeds, b=st.integers(1, 5), kind=st.sampled_from(["latent", "paged"]))
def test_prefill_bits_do_not_depend_on_the_batch(seed: int, b: int, kind: str) -> None:
    g = _gen(seed)
    counts = torch.randint(0, 20, (b,), generator=g)
    cu = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
    total = int(cu[-1])
    q, kv = torch.randn(total, 3, 64, generator=g), torch.randn(total, 64, generator=g)
    if kind == "latent":
        out, lse = prefill(q, kv, cu, cu_k=cu, d_v=64)
    else:
        cache = torch.randn(2 * b + 1, 10, 64, generator=g)
        table = torch.randperm(2 * b + 1, generator=g)[: 2 * b].view(b, 2)
        out, lse = prefill(q, cache, cu, block_table=table, seq_lens=counts, format="f32", d_v=64)
    for r in range(b):
        rows, one = slice(int(cu[r]), int(cu[r + 1])), torch.tensor([0, int(counts[r])])
        if kind == "latent":
            alone = prefill(q[rows], kv[rows], one, cu_k=one, d_v=64)
        else:
            alone = prefill(q[rows], cache, one, block_table=table[r : r + 1], seq_lens=counts[r : r + 1], format="f32",
                            d_v=64)
        assert torch.equal(alone[0], out[rows])
        assert torch.equal(alone[1], lse[:, rows])


def _spoil(value: Any, g: torch.Generator) -> Any:
    """A value of another rank, dtype, size, layout or kind."""
    pick = int(torch.randint(12, (1,), generator=g))
    if isinstance(value, torch.Tensor) and value.ndim:
        others = (
            lambda: value[None], lambda: value.flatten(), lambda: value.double(), lambda: value.to(torch.int16),
            lambda: value[..., :0], lambda: value[:0], lambda: torch.cat((value, value)), lambda: None,
            lambda: value.transpose(0, -1), lambda: [1, 2], lambda: torch.zeros(()), lambda: value.to("meta"),
        )
        return others[pick]()
    others = (None, -1, 0, 10**9, 1.5, float("nan"), float("inf"), "bf16", "nope", True, torch.float16, "v41_fp4")
    return others[pick]


def _check_bad_call(seed: int, number: int) -> None:
    g = _gen(seed)
    spec = SPECS[number % len(SPECS)]
    cases = [case for case in spec.cases() if "quick" in case.tags and "long" not in case.id]
    args = cases[int(torch.randint(len(cases), (1,), generator=g))].build()
    names = list(args)
    for _ in range(1 + int(torch.randint(2, (1,), generator=g))):
        name = names[int(torch.randint(len(names), (1,), generator=g))]
        args[name] = _spoil(args[name], g)
    with use_backend("cpu"):
        try:
            outputs = Op(spec)(*(args[param.name] for param in spec.params), validate=seed % 2 == 0)
        except (InvalidArgument, UnsupportedError) as error:
            assert spec.name in str(error), error  # noqa: PT017 - both outcomes are legal, the message is checked
            return
    # The call was legal after all: then it must mean what the reference says.
    wanted = spec.reference(args)
    got = spec.comparable(args, dict(zip(spec.returns, outputs, strict=True)))
    for name, expected in zip(spec.returns, wanted, strict=True):
        assert got[name].shape == expected.shape


@settings(quick, max_examples=150)
@given(seed=seeds, number=st.integers(0, 7))
def test_bad_input_is_refused_or_defined(seed: int, number: int) -> None:
    """Any wrong argument raises by name or has its meaning; nothing crashes."""
    _check_bad_call(seed, number)


@pytest.mark.long
@thorough
@given(seed=seeds, number=st.integers(0, 7))
def test_bad_input_long(seed: int, number: int) -> None:
    _check_bad_call(seed, number)


def test_public_functions_refuse_by_name() -> None:
    """The public layer itself words what the op never sees."""
    q, cache = torch.zeros(1, 1, 1, 16), torch.zeros(1, 1, 16)
    lens = torch.ones(1, dtype=torch.int32)
    with pytest.raises(InvalidArgument, match="format"):
        decode(q, cache, lens[None], lens, format=7)
    with pytest.raises(InvalidArgument, match="softmax_scale"):
        decode(q, cache, lens[None], lens, format="f32", softmax_scale="x")
    with pytest.raises(InvalidArgument, match="q"):
        decode(None, cache, lens[None], lens)
    with pytest.raises(InvalidArgument, match="outs"):
        merge_states([], [])
    with pytest.raises(InvalidArgument, match="lses"):
        merge_states([torch.zeros(1, 1, 2)], [1.0])
    with pytest.raises(InvalidArgument, match="extra_format"):
        sparse_decode(q, cache, lens.view(1, 1, 1), format="f32", extra_format=3)
