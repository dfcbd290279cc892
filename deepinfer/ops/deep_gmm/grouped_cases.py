"""Inputs of `deep_gmm.grouped_gemm`: uneven and empty groups, gaps, any order, out-of-range values, strides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch

from deepinfer.errors import InvalidArgument
from deepinfer.ops.deep_gmm import data
from deepinfer.ops.deep_gmm.gemm_cases import STRIDES, _spoil, changed
from deepinfer.registry import Case, ErrorCase

# name -> (counts, starts or None, M)
LAYOUTS: dict[str, tuple[list[int], list[int] | None, int]] = {
    "uneven": ([200, 0, 56, 192], None, 448),
    "small": ([5, 0, 3], None, 8),
    "first_empty": ([0, 5, 3], None, 8),
    "last_empty": ([5, 3, 0], None, 8),
    "one_has_all": ([0, 0, 17, 0], None, 17),
    "all_empty": ([0, 0, 0], None, 4),
    "single": ([9], None, 9),
    "one_row": ([1], None, 1),
    "ones": ([1] * 8, None, 8),
    "many_groups": ([g % 3 for g in range(300)], None, 300),
    "tail": ([2, 3], None, 11),
    "gaps": ([5, 0, 9], [0, 8, 16], 32),
    "reversed": ([4, 3, 2], [5, 2, 0], 9),
    "negative_count": ([3, -2, 4], [0, 3, 3], 7),
    "past_end": ([4, 9], [0, 6], 10),
    "far_start": ([4, 3, 2], [0, 1 << 40, -(1 << 40)], 6),
    "before_start": ([5, 3], [-2, 4], 8),
    "too_many": ([3, 50, 4], None, 8),
    "rows_past_16_bits": ([65537, 0, 3], None, 65540),
    "no_rows": ([0, 0], None, 0),
    "no_groups": ([], None, 3),
}
REFS = {"uneven": ("C34",), "one_row": ("C29",), "no_rows": ("C33",), "far_start": ("C36",)}
SIZES = ((1, 127), (7, 128), (9, 129), (64, 576), (65, 1), (3, 0), (0, 64))
FULL = ("uneven", "small", "gaps")
HARDWARE_BENCH = tuple(
    (groups, rows, n, k)
    for n, k in ((4096, 7168), (7168, 2048), (4096, 4096), (4096, 2048))
    for groups, rows in ((4, 8192), (8, 4096))
)
BENCH = ((8, 64, 1024, 1024), (8, 2, 256, 256))


def make(
    pair: str, layout: tuple[list[int], list[int] | None, int], n: int, k: int, generator: torch.Generator, *,
    out: torch.dtype | None = None, index: torch.dtype = torch.int32, strides: str = "", bad: str = "",
    bulk: bool = False,
) -> dict[str, Any]:
    """Canonical arguments; `index` is the dtype of counts and starts (int64 where a value needs it)."""
    counts, starts, m = layout
    dtype, a_recipe, b_recipe = data.PAIRS[pair]
    fill = data.bulk if bulk else data.random
    a, b = fill((m, k), a_recipe, dtype, generator), fill((len(counts), n, k), b_recipe, dtype, generator)
    if strides:
        a, b = data.restride(strides, a), data.restride(strides, b)
    if bad:
        _spoil(a[0] if bad == "a" else b[0][0])
    return {
        **data.flat("a", a, a_recipe), **data.flat("b", b, b_recipe), **data.unpacked(),
        "counts": _vector(counts, index, strides),
        "starts": None if starts is None else _vector(starts, index, strides),
        "out_dtype": out or dtype,
    }


def _vector(values: Sequence[int], dtype: torch.dtype, strides: str) -> torch.Tensor:
    wide = max((abs(v) for v in values), default=0) >= 1 << 31
    made = torch.tensor(values, dtype=torch.int64 if wide else dtype)
    return torch.stack((made, made - 77), dim=1)[:, 0] if strides else made


def _case(op: str, pair: str, layout: str, n: int, k: int, refs: tuple[str, ...] = (), **options: Any) -> Case:
    k += k % 2 if pair == "fp8_fp4" else 0
    shape = LAYOUTS[layout]
    shown = {key: str(val).removeprefix("torch.") for key, val in options.items()}
    params = {"groups": len(shape[0]), "M": shape[2], "N": n, "K": k, "dtype": pair, "layout": layout, **shown}
    edge = set() if layout in FULL and n and k else {"edge"}
    return Case(op, params, partial(make, pair, shape, n, k, **options), frozenset({"quick", *edge}), refs=refs)


def cases(op: str) -> Iterable[Case]:
    """All cases of the op."""
    for pair, (dtype, _a, _b) in data.PAIRS.items():
        for layout in LAYOUTS:
            if layout != "rows_past_16_bits":
                yield _case(op, pair, layout, 9, 132, REFS.get(layout, ("C28",)))
        for n, k in SIZES:
            yield _case(op, pair, "small", n, k, ("C30",))
        for strides in STRIDES:
            yield _case(op, pair, "gaps", 34, 130, ("C35",), strides=strides)
        for layout in ("small", "gaps"):
            yield _case(op, pair, layout, 7, 129, index=torch.int64)
            if dtype is not torch.float32:
                yield _case(op, pair, layout, 7, 129, out=torch.float32)
        yield _case(op, pair, "uneven", 65, 256, ("C34",))
        yield _case(op, pair, "small", 7, 130, bad="a")
    for pair in ("bf16", "fp8"):
        yield _case(op, pair, "rows_past_16_bits", 3, 2, ("C38",))
    yield from _bench(op)


def _bench(op: str) -> Iterable[Case]:
    shapes = [(shape, frozenset({"bench"})) for shape in BENCH]
    shapes += [(shape, frozenset({"bench", "profile:hardware"})) for shape in HARDWARE_BENCH]
    for (groups, mean, n, k), tags in shapes:
        for pair in ("bf16", "fp8"):
            for sizes, rows in (("uniform", [mean] * groups), ("spread", _spread(mean, groups))):
                layout = (rows, None, sum(rows))
                params = {
                    "groups": groups, "M": sum(rows), "N": n, "K": k, "mean": mean, "dtype": pair, "sizes": sizes,
                }
                yield Case(op, params, partial(make, pair, layout, n, k, bulk=True), tags)


def _spread(mean: int, groups: int) -> list[int]:
    """Group sizes from 0.7 to 1.3 times the mean."""
    return [round(mean * (0.7 + 0.6 * g / max(groups - 1, 1))) for g in range(groups)]


def error_cases(op: str) -> Iterable[ErrorCase]:
    """Calls that must raise; those with `validate` depend on values."""
    good = partial(make, "bf16", LAYOUTS["gaps"], 6, 64)
    table: tuple[tuple[str, dict[str, Any], tuple[str, ...], bool], ...] = (
        ("b-rank", {"b": torch.ones(6, 64).bfloat16()}, ("b", "[G,N,K]"), False),
        ("depth", {"a": torch.ones(32, 63).bfloat16()}, ("a", "64"), False),
        ("counts-shape", {"counts": torch.tensor([1, 2])}, ("counts", "[3]"), False),
        ("counts-dtype", {"counts": torch.ones(3)}, ("counts", "float32"), False),
        ("starts-shape", {"starts": torch.tensor([1, 2, 3, 4])}, ("starts", "[3]"), False),
        ("starts-dtype", {"starts": torch.ones(3).short()}, ("starts", "int16"), False),
        ("out-dtype", {"out_dtype": torch.int8}, ("out_dtype", "int8"), False),
        ("overlap", {"starts": torch.tensor([0, 8, 4])}, ("group 2", "group 0"), True),
        ("negative", {"counts": torch.tensor([5, -1, 9])}, ("counts[1]", "-1"), True),
        ("outside", {"counts": torch.tensor([5, 0, 17])}, ("group 2", "32"), True),
        ("before", {"starts": torch.tensor([-1, 8, 16])}, ("group 0", "-1"), True),
    )
    for name, change, mentions, validate in table:
        yield ErrorCase(op, name, partial(changed, good, change), InvalidArgument, mentions, validate)
