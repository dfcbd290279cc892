"""The comparison rule: what passes, what fails, and that every clause of it can fail."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.conformance.compare import close, same_bits
from deepinfer.registry import EXACT, Tolerance

LOOSE = Tolerance(1e-3, 1e-2, 1e-5)
INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("actual", "expected"),
    [([1.0, 2.0], [1.0005, 2.01]), ([INF, -INF, NAN], [INF, -INF, NAN]), ([], []), ([0.0], [-0.0]), ([1e-9], [0.0])],
)
def test_close_accepts(actual: list[float], expected: list[float]) -> None:
    assert close("y", torch.tensor(actual), torch.tensor(expected).double(), LOOSE) == []


@pytest.mark.parametrize(
    ("actual", "expected", "text"),
    [
        ([1.0, 2.0], [1.0, 2.1], "off by up to 0.1"),
        ([NAN, 1.0], [1.0, 1.0], "NaN at different places"),
        ([1.0], [NAN], "NaN at different places"),
        ([INF], [-INF], "+inf at different places"),
        ([3.4e38], [INF], "+inf at different places"),
        ([1.0, 1.0], [1.0], "shape"),
    ],
)
def test_close_rejects(actual: list[float], expected: list[float], text: str) -> None:
    problems = close("y", torch.tensor(actual), torch.tensor(expected).double(), LOOSE)
    assert problems
    assert text in problems[0]


def test_direction_is_a_clause_of_its_own() -> None:
    """A common factor inside the relative bound still fails when the cosine-like bound is tight."""
    expected = torch.ones(1000).double()
    assert "cosine" in close("y", expected * 1.009, expected, LOOSE)[0]
    assert close("y", expected * 1.009, expected, Tolerance(1e-3, 1e-2, 1e-3)) == []


def test_mask_limits_the_comparison() -> None:
    mask = torch.tensor([True, False])
    assert close("y", torch.tensor([1.0, NAN]), torch.tensor([1.0, 5.0]), LOOSE, mask) == []
    assert same_bits("y", torch.tensor([1, 2]), torch.tensor([1, 3]), mask) == []


DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.uint8, torch.int64, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_sees_one_bit(dtype: torch.dtype) -> None:
    one = torch.tensor([0, 1, 1]).to(dtype)
    other = torch.tensor([0, 1, 0]).to(dtype)
    assert close("y", one, one.clone(), EXACT) == []
    assert "1 of 3 elements, first at [2]" in close("y", one, other, EXACT)[0]


def test_exact_tells_signed_zeros_apart_and_takes_any_nan() -> None:
    assert same_bits("y", torch.tensor([0.0]), torch.tensor([-0.0]))
    quiet, payload = torch.tensor([NAN]), torch.tensor([0x7FC00123], dtype=torch.int32).view(torch.float32)
    assert same_bits("y", quiet, payload) == []


def test_exact_across_dtypes_compares_values() -> None:
    assert close("y", torch.tensor([3], dtype=torch.int32), torch.tensor([3]), EXACT) == []
    assert close("y", torch.tensor([3], dtype=torch.int32), torch.tensor([4]), EXACT)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20), st.integers(0, 19))
def test_any_single_large_error_is_found(values: list[float], place: int) -> None:
    expected = torch.tensor(values, dtype=torch.float64)
    actual = expected.clone()
    actual[place % len(values)] += 1.0 + abs(values[place % len(values)]) * 0.02
    assert close("y", actual, expected, LOOSE)


def test_rounding_widens_the_tolerance_of_its_elements_alone() -> None:
    wanted = torch.tensor([1.0, 1.0, 1.0, INF]).double()
    extra = torch.tensor([0.0, 0.5, 0.0, 0.5]).double()
    assert close("y", torch.tensor([1.0, 1.5, 1.0, INF]), wanted, LOOSE, None, extra) == []
    assert "in 1 of 4" in close("y", torch.tensor([1.0, 1.6, 1.0, INF]), wanted, LOOSE, None, extra)[0]
    assert "in 1 of 4" in close("y", torch.tensor([1.2, 1.5, 1.0, INF]), wanted, LOOSE, None, extra)[0]
    assert "+inf" in close("y", torch.tensor([1.0, 1.0, 1.0, 1.0]), wanted, LOOSE, None, extra)[0]
    assert "NaN" in close("y", torch.tensor([1.0, NAN, 1.0, INF]), wanted, LOOSE, None, extra)[0]
