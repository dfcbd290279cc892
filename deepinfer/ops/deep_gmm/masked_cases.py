"""Inputs of `deep_gmm.masked_grouped_gemm`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from deepinfer.errors import InvalidArgument
from deepinfer.ops.deep_gmm import data
from deepinfer.ops.deep_gmm.gemm_cases import STRIDES, _spoil, changed
from deepinfer.ops.deep_gmm.grouped_cases import _vector
from deepinfer.registry import Case, ErrorCase

# (counts, Mmax)
LAYOUTS: dict[str, tuple[list[int], int]] = {
    "uneven": ([20, 0, 7, 16], 20),
    "empty_group": ([0, 3], 5),
    "all_empty": ([0, 0, 0], 4),
    "full": ([6, 6], 6),
    "clamped": ([-3, 9, 2], 7),
    "one": ([1], 1),
    "capacity_zero": ([0, 2], 0),
    "no_groups": ([], 4),
    "wide": ([70, 1, 64, 129], 130),
}
SIZES = ((1, 127), (7, 129), (65, 576), (3, 0), (0, 64))
HARDWARE_BENCH = tuple((n, k, mean) for n, k in ((4096, 7168), (7168, 2048), (4096, 4096), (4096, 2048))
                       for mean in (16, 64, 128, 256))


def make(
    pair: str, counts: list[int], capacity: int, n: int, k: int, generator: torch.Generator, *,
    out: torch.dtype | None = None, index: torch.dtype = torch.int32, strides: str = "", bad: str = "",
    bulk: bool = False,
) -> dict[str, Any]:
    """Canonical arguments."""
    dtype, a_recipe, b_recipe = data.PAIRS[pair]
    fill, groups = data.bulk if bulk else data.random, len(counts)
    a, b = fill((groups, capacity, k), a_recipe, dtype, generator), fill((groups, n, k), b_recipe, dtype, generator)
    if strides:
        a, b = data.restride(strides, a), data.restride(strides, b)
    if bad:
        _spoil(a[0][0])
    return {
        **data.flat("a", a, a_recipe), **data.flat("b", b, b_recipe), **data.unpacked(),
        "counts": _vector(counts, index, strides), "out_dtype": out or dtype,
    }


def _case(op: str, pair: str, layout: str, n: int, k: int, refs: tuple[str, ...] = ("C27",), **options: Any) -> Case:
    k += k % 2 if pair == "fp8_fp4" else 0
    counts, capacity = LAYOUTS[layout]
    shown = {key: str(val).removeprefix("torch.") for key, val in options.items()}
    params = {
        "groups": len(counts), "Mmax": capacity, "N": n, "K": k, "dtype": pair, "layout": layout, **shown,
    }
    tags = {"quick"} if layout in ("uneven", "full", "wide") and n and k else {"quick", "edge"}
    return Case(op, params, partial(make, pair, counts, capacity, n, k, **options), frozenset(tags), refs=refs)


def cases(op: str) -> Iterable[Case]:
    """All cases of the op."""
    for pair, (dtype, _a, _b) in data.PAIRS.items():
        for layout in LAYOUTS:
            yield _case(op, pair, layout, 9, 132)
        for n, k in SIZES:
            yield _case(op, pair, "empty_group", n, k, ("C30",))
        for strides in STRIDES:
            yield _case(op, pair, "uneven", 34, 130, ("C35",), strides=strides)
        yield _case(op, pair, "clamped", 7, 129, index=torch.int64)
        if dtype is not torch.float32:
            yield _case(op, pair, "uneven", 7, 129, out=torch.float32)
        yield _case(op, pair, "uneven", 7, 130, bad="a")
    for n, k, mean in HARDWARE_BENCH:
        for pair in ("bf16", "fp8"):
            params = {"groups": 32, "M": 1024, "N": n, "K": k, "mean": mean, "dtype": pair}
            build = partial(make, pair, [mean] * 32, 1024, n, k, bulk=True)
            yield Case(op, params, build, frozenset({"bench", "profile:hardware"}))
    for pair in ("bf16", "fp8"):
        params = {"groups": 8, "M": 64, "N": 512, "K": 512, "mean": 16, "dtype": pair}
        yield Case(op, params, partial(make, pair, [16] * 8, 64, 512, 512, bulk=True), frozenset({"bench"}))


def error_cases(op: str) -> Iterable[ErrorCase]:
    """Calls that must raise."""
    good = partial(make, "bf16", [3, 1, 2], 4, 6, 64)
    table: tuple[tuple[str, dict[str, Any], tuple[str, ...], bool], ...] = (
        ("a-rank", {"a": torch.ones(4, 64).bfloat16()}, ("a", "[G,Mmax,K]"), False),
        ("groups", {"a": torch.ones(2, 4, 64).bfloat16()}, ("a", "3"), False),
        ("depth", {"a": torch.ones(3, 4, 65).bfloat16()}, ("a", "64"), False),
        ("counts-shape", {"counts": torch.tensor([[1, 2, 3]])}, ("counts", "[G]"), False),
        ("counts-dtype", {"counts": torch.ones(3)}, ("counts", "float32"), False),
        ("above", {"counts": torch.tensor([3, 5, 2])}, ("counts[1]", "5", "4"), True),
        ("negative", {"counts": torch.tensor([-1, 0, 2])}, ("counts[0]", "-1"), True),
    )
    for name, change, mentions, validate in table:
        yield ErrorCase(op, name, partial(changed, good, change), InvalidArgument, mentions, validate)
