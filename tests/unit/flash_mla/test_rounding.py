"""`rounding`: the bound that float32 logits need holds where queries are large, and is zero everywhere else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.ops.flash_mla.attend import USUAL, attend, rounding


def _token(seed: int, size: float, n: int = 40, d: int = 64, heads: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn((heads, d), generator=g) * size, torch.randn((n, d), generator=g)


def _float32(q: torch.Tensor, keys: torch.Tensor, scale: float, sink: torch.Tensor, order: torch.Tensor):
    """The same attention in float32, its products added one by one in `order`."""
    logits = torch.zeros(q.shape[0], keys.shape[0])
    scaled = q * scale
    for channel in order.tolist():
        logits = logits + scaled[:, channel, None] * keys[:, channel]
    lse = torch.logsumexp(logits, 1)
    out = torch.softmax(logits, 1) @ keys * torch.sigmoid(lse - sink)[:, None]
    return out, lse, logits.amax(1)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(150, 1e6), st.floats(1e-3, 1.0))
def test_float32_lies_within_the_bound(seed: int, size: float, scale: float) -> None:
    q, keys = _token(seed, size)
    sink = torch.randn(2, generator=torch.Generator().manual_seed(seed + 1)) * size
    order = torch.randperm(q.shape[1], generator=torch.Generator().manual_seed(seed + 2))
    exact = attend(q, keys, keys, scale, sink)
    bound = rounding(q, keys, keys, scale, sink)
    for got, wanted, error in zip(_float32(q, keys, scale, sink, order), exact, bound, strict=True):
        assert bool((error > 0).all())
        plain = 2e-6 + 2e-6 * wanted.abs()
        assert bool(((got - wanted).abs() <= plain + error).all())


@pytest.mark.parametrize("spoil", [USUAL / 10, float("inf"), float("nan")], ids=str)
def test_no_bound_where_the_tolerance_is_enough(spoil: float) -> None:
    q, keys = _token(3, 1.0)
    q[0, 0] = spoil
    assert all(bool((error == 0).all()) for error in rounding(q, keys, keys, 0.1))
    large = _token(3, 1e3)[0].bfloat16()
    assert all(bool((error == 0).all()) for error in rounding(large, keys, keys, 0.1))


def test_only_the_heads_with_large_queries_have_a_bound() -> None:
    q, keys = _token(4, 1.0)
    q[1] *= 1e4
    out, lse, top = rounding(q, keys, keys, 0.1)
    assert float(out[0].abs().max()) == float(lse[0]) == float(top[0]) == 0.0
    assert float(out[1].min()) > 0.0
    assert float(lse[1]) == float(top[1]) > 0.0


def test_rows_without_keys_have_none() -> None:
    q, keys = _token(5, 1e4, n=0)
    assert all(bool((error == 0).all()) for error in rounding(q, keys, keys, 0.1))
