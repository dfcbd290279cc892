"""Weights stored as exact half-precision numbers: which matrices take that form, and what their products promise."""

from __future__ import annotations

import pytest
import torch
from deepinfer_cpu import halves
from hypothesis import given, settings
from hypothesis import strategies as st

import deepinfer
from deepinfer.errors import InvalidArgument
from deepinfer.ops import deep_gmm
from deepinfer.ops.deep_gmm import Packed

pytestmark = pytest.mark.skipif(not halves.rooms()[0], reason=f"no such products here: {halves.rooms()[1]}")
WIDE = torch.tensor([[1.0, 2.0**-40]])  # more binades than fp16 has


def _random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(0, 9), st.integers(1, 90), st.integers(1, 700), st.sampled_from([1, 2]))
def test_the_bits_of_a_row_follow_from_the_row_and_the_weights(m: int, at: int, n: int, k: int, threads: int) -> None:
    seed = 1000 * m + n + k
    packed = halves.pack(_random(n, k, seed=seed).bfloat16())
    rows = _random(at + m, k, seed=seed + 1)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        together = halves.multiply(rows[at:], packed.matrices[0])
    finally:
        torch.set_num_threads(before)
    picked = sorted({0, m // 2, m - 1})
    alone = torch.cat([halves.multiply(rows[at + i : at + i + 1], packed.matrices[0]) for i in picked])
    assert torch.equal(together[picked], alone), f"m {m}, at {at}, n {n}, k {k}, threads {threads}"


def test_threads_that_share_a_product_change_no_bit() -> None:
    rows, packed = _random(515, 256, seed=1), halves.pack(_random(256, 256, seed=2).bfloat16())
    assert rows.shape[0] * 256 * 256 > halves.WORTH
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(halves.multiply(rows, packed.matrices[0]))
    finally:
        torch.set_num_threads(before)
    alone = torch.cat([halves.multiply(rows[i : i + 1], packed.matrices[0]) for i in range(515)])
    assert all(torch.equal(made, alone) for made in found)


@pytest.mark.parametrize("factor", [1.0, 2.0**-60, 2.0**12, 2.0**-80])
def test_no_weight_is_rounded(factor: float) -> None:
    """Rows of the unit matrix read the weights back."""
    w = (_random(3, 24, 48, seed=7) * factor).bfloat16()
    packed = halves.pack(w)
    assert packed is not None
    for g, matrix in enumerate(w):
        assert torch.equal(halves.multiply(torch.eye(48), packed.matrices[g]).t(), matrix.float())


@pytest.mark.parametrize(
    "weights",
    [torch.tensor([[1.0, 1 / 3]]), WIDE, torch.tensor([[torch.nan]]), torch.tensor([[1.0, torch.inf]]),
     torch.full((2, 4), 2.0**-126), torch.full((2, 4), 2.0**16), torch.empty(0, 4), torch.empty(4, 0)],
    ids=["bits", "range", "nan", "inf", "tiny", "large", "no rows", "no columns"],
)
def test_a_matrix_that_does_not_fit_keeps_float32(weights: torch.Tensor) -> None:
    assert halves.pack(weights) is None
    with deepinfer.use_backend("cpu"):
        assert deep_gmm.prepack(weights).layout == "cpu_f32"


def test_one_matrix_that_does_not_fit_decides_for_its_group() -> None:
    assert halves.pack(torch.stack([torch.ones(1, 2), WIDE])) is None


@pytest.mark.parametrize("spoilt", [torch.ones(1), torch.zeros(8, dtype=torch.uint8)])
def test_packed_weights_that_prepack_did_not_make_are_refused(spoilt: torch.Tensor) -> None:
    w, x = torch.ones(4, 8), torch.ones(2, 8)
    with deepinfer.use_backend("cpu"):
        made = deep_gmm.prepack(w)
        assert made.packed is not None
        for packed in (spoilt, made.packed[:1], made.packed.clone(), made.packed * 2):
            with pytest.raises(InvalidArgument, match="b_packed"):
                deep_gmm.gemm(x, Packed(w, packed, halves.LAYOUT))


def test_weights_of_another_shape_than_their_packed_form_are_refused() -> None:
    with deepinfer.use_backend("cpu"):
        made = deep_gmm.prepack(torch.ones(4, 8))
        for weights in (torch.ones(4, 9), torch.ones(5, 8)):
            with pytest.raises(InvalidArgument, match="b_packed"):
                deep_gmm.gemm(torch.ones(2, weights.shape[1]), Packed(weights, made.packed, halves.LAYOUT))


def test_without_such_products_weights_keep_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "rooms", lambda: ((), "torch 0.0 has no packed fp16 products here"))
    with deepinfer.use_backend("cpu"):
        packed = deep_gmm.prepack(torch.ones(4, 8))
        assert packed.layout == "cpu_f32"
        told = str(deepinfer.explain(deep_gmm.gemm, torch.ones(2, 8), packed))
    assert "no packed fp16 products" in told
