"""Kernels that are right but coarse: the bfloat16 rule of level L3 must find each, and must not find equal quality.

Every degradation costs at most a bit or two of bfloat16 somewhere, so that no other check of the engine sees it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from deepinfer.conformance import engine_model
from deepinfer.conformance.engine_items import _bfloat16
from deepinfer.conformance.equality import LIMIT, chance, excess, quantile
from deepinfer.conformance.item import Breach
from tests.unit.conformance.test_mutants import Mutant, Named, Results, Wrapped, opened

GEMM, EXPERTS, PREFILL = "deep_gmm.gemm", "deep_gmm.masked_grouped_gemm", "flash_mla.prefill"


@pytest.fixture(autouse=True)
def _sessions_forgotten() -> Iterator[None]:
    yield
    engine_model._sessions.clear()


def _cut(name: str):
    """The last bit of a bfloat16 argument is lost."""

    def before(kernel: Wrapped, args: Named) -> Named:
        if args[name].dtype is not torch.bfloat16:
            return args
        shorter = args[name].clone(memory_format=torch.contiguous_format)
        shorter.view(torch.int16).bitwise_and_(-2)
        return args | {name: shorter}

    return before


def _cut_result(kernel: Wrapped, results: Results, args: Named) -> None:
    if results[0].dtype is torch.bfloat16:
        results[0].view(torch.int16).bitwise_and_(-2)


def _rounded_result(kernel: Wrapped, results: Results, args: Named) -> None:
    """float32 sums leave the kernel through bfloat16."""
    if args["a"].dtype is torch.bfloat16:
        results[0].copy_(results[0].bfloat16())


def _bf16_sums(kernel: Wrapped, results: Results, args: Named) -> None:
    """Partial sums over 32 of K are kept in bfloat16."""
    a, b = args["a"], args["b"]
    if a.dtype is torch.bfloat16:
        total = torch.zeros(results[0].shape, dtype=torch.bfloat16)
        for k in range(0, a.shape[1], 32):
            total = (total.float() + a[:, k : k + 32].float() @ b[:, k : k + 32].float().T).bfloat16()
        results[0].copy_(total)


DEGRADED = [
    Mutant("operand_loses_a_bit", GEMM, "", before=_cut("a")),
    Mutant("sums_in_bfloat16", GEMM, "", after=_bf16_sums),
    Mutant("result_through_bfloat16", GEMM, "", after=_rounded_result),
    Mutant("expert_rows_lose_a_bit", EXPERTS, "", before=_cut("a")),
    Mutant("queries_lose_a_bit", PREFILL, "", before=_cut("q")),
    Mutant("cached_rows_lose_a_bit", PREFILL, "", before=_cut("kv")),
    Mutant("attention_rounds_toward_zero", PREFILL, "", after=_cut_result),
]


@pytest.mark.parametrize("mutant", DEGRADED, ids=lambda mutant: mutant.kind)
def test_degraded_kernel_is_caught(mutant: Mutant) -> None:
    with opened(mutant) as target, pytest.raises(Breach, match="quantile"):
        _bfloat16(target)


@pytest.mark.parametrize("seed", [3, 6, 9])
def test_equal_quality_passes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The portable tier beside the cpu's kernels: with seeds 9 (median) and 6 (99 %) its quantile is the larger."""
    monkeypatch.setattr(engine_model, "SEED", seed)
    with opened(Mutant("control", "", "")) as target:
        _bfloat16(target)


def _errors(seed: int, scale: float = 1.0, shape: tuple[int, int] = (400, 64)) -> torch.Tensor:
    """Heavy-tailed errors whose size varies by position, as a model's do."""
    rows = torch.randn((shape[0], 1), generator=torch.Generator().manual_seed(1)).exp()
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * rows).abs() * scale


def test_equal_errors_never_fail() -> None:
    assert excess(_errors(2), _errors(2)) == []
    assert excess(torch.zeros(3, 4), torch.zeros(3, 4)) == []


def test_chance_is_uniform_between_equals() -> None:
    found = torch.tensor([chance(_errors(100 + i), _errors(200 + i), 0.5) for i in range(30)])
    assert 0.3 < float(found.mean()) < 0.7
    assert 0.01 < float(found.min()) < 0.3


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_real_excess_is_found(share: float) -> None:
    assert chance(_errors(3, 1.2), _errors(4), share) < 1e-3
    assert chance(_errors(4), _errors(3, 1.2), share) > 0.999


def test_a_few_bad_positions_are_found() -> None:
    found, yardstick = _errors(5), _errors(6)
    found[:8] *= 1000
    assert chance(found, yardstick, 0.99) > 1e-3, "signs alone cannot tell"
    assert quantile(found, 0.99) > LIMIT * quantile(yardstick, 0.99)
    assert "quantile 0.99" in excess(found, yardstick)[0]


def test_nan_is_found() -> None:
    found = _errors(7)
    found[:] = torch.nan
    assert "NaN" in excess(found, _errors(7))[0]
