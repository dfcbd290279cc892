"""Inputs of `deep_gmm.grouped_swiglu_mlp`: every recipe, group layouts, limits, route weights, strides, bad calls."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from deepinfer.errors import InvalidArgument
from deepinfer.ops.deep_gmm import data
from deepinfer.ops.deep_gmm.gemm_cases import changed
from deepinfer.ops.deep_gmm.grouped_cases import LAYOUTS, _vector
from deepinfer.registry import Case, ErrorCase

# pair of both products -> how the activation enters the second one
QUANTIZE = {
    "bf16": "", "f32": "", "f16": "", "fp8": "fp8_1x128", "fp8_rows": "fp8_1x128", "mxfp8": "mxfp8",
    "mxfp8_rows": "mxfp8", "fp8_fp4": "mxfp8",
}
SIZES = ((1, 2, 2), (9, 130, 66), (65, 128, 256), (0, 64, 64), (8, 0, 64), (8, 64, 0))  # H, K, I
BENCH = ((8, 1, 256, 256, 128), (8, 2, 256, 256, 128), (8, 64, 256, 256, 128))
HARDWARE_BENCH = ((8, 512, 7168, 7168, 2048), (32, 16, 7168, 7168, 2048))


def make(
    pair: str, layout: tuple[list[int], list[int] | None, int], h: int, k: int, width: int, generator: torch.Generator,
    *, route: torch.dtype | None = torch.float32, limit: float | None = None, out: torch.dtype | None = None,
    index: torch.dtype = torch.int32, strides: str = "", bulk: bool = False,
) -> dict[str, Any]:
    """Canonical arguments; weights are scaled so that gates are of order 1."""
    counts, starts, m = layout
    dtype, a_recipe, b_recipe = data.PAIRS[pair]
    shapes = ((m, k), (len(counts), 2 * width, k), (len(counts), h, width))
    recipes = (a_recipe, b_recipe, b_recipe)
    if bulk:
        x, w13, w2 = (data.bulk(s, r, dtype, generator) for s, r in zip(shapes, recipes, strict=True))
    else:
        wide = [torch.randn(shape, generator=generator) for shape in shapes]
        wide[1] *= 2 / max(k, 1) ** 0.5
        x, w13, w2 = (data.encode(v, r, dtype) for v, r in zip(wide, recipes, strict=True))
    if strides:
        x, w13, w2 = (data.restride(strides, value) for value in (x, w13, w2))
    return {
        **data.flat("x", x, a_recipe), **data.flat("w13", w13, b_recipe), **data.unpacked("w13"),
        **data.flat("w2", w2, b_recipe), **data.unpacked("w2"), "counts": _vector(counts, index, strides),
        "starts": None if starts is None else _vector(starts, index, strides),
        "route_weights": None if route is None else torch.rand(m, generator=generator).to(route),
        "limit": limit, "quantize": QUANTIZE[pair], "out_dtype": out or dtype,
    }


def _case(
    op: str, pair: str, layout: str, size: tuple[int, int, int], refs: tuple[str, ...] = (), **options: Any
) -> Case:
    h, k, width = size
    shape = LAYOUTS[layout]
    shown = {key: str(val).removeprefix("torch.") for key, val in options.items()}
    params = {
        "groups": len(shape[0]), "M": shape[2], "H": h, "K": k, "I": width, "dtype": pair, "layout": layout, **shown,
    }
    edge = set() if layout in ("small", "gaps", "uneven") and 0 not in size else {"edge"}
    return Case(op, params, partial(make, pair, shape, h, k, width, **options), frozenset({"quick", *edge}), refs=refs)


def cases(op: str) -> Iterable[Case]:
    """All cases of the op."""
    for pair, (dtype, _a, _b) in data.PAIRS.items():
        for layout in LAYOUTS:
            if layout == "rows_past_16_bits":
                continue
            yield _case(op, pair, layout, (10, 64, 40), ("C34",))
        for size in SIZES:
            yield _case(op, pair, "small", size, ("C30",))
        yield _case(op, pair, "gaps", (10, 64, 40), route=None)
        yield _case(op, pair, "gaps", (10, 64, 40), limit=0.5)
        yield _case(op, pair, "gaps", (10, 64, 40), limit=10.0, route=torch.bfloat16)
        yield _case(op, pair, "gaps", (10, 64, 40), index=torch.int64)
        if dtype is not torch.float32:
            yield _case(op, pair, "small", (10, 64, 40), out=torch.float32)
        for strides in ("transposed", "step"):
            yield _case(op, pair, "gaps", (10, 64, 40), ("C35",), strides=strides)
    shapes = [(shape, frozenset({"bench"})) for shape in BENCH]
    shapes += [(shape, frozenset({"bench", "profile:hardware"})) for shape in HARDWARE_BENCH]
    for (groups, mean, h, k, width), tags in shapes:
        for pair in ("bf16", "fp8"):
            params = {"groups": groups, "M": groups * mean, "H": h, "K": k, "I": width, "mean": mean, "dtype": pair}
            layout_ = ([mean] * groups, None, groups * mean)
            yield Case(op, params, partial(make, pair, layout_, h, k, width, bulk=True), tags)


def error_cases(op: str) -> Iterable[ErrorCase]:
    """Calls that must raise."""
    good = partial(make, "bf16", LAYOUTS["gaps"], 6, 64, 32)
    fp8 = partial(make, "fp8", LAYOUTS["gaps"], 6, 64, 32)
    table: tuple[tuple[str, Any, dict[str, Any], tuple[str, ...], bool], ...] = (
        ("x-rank", good, {"x": torch.ones(4).bfloat16()}, ("x", "[M,K]"), False),
        ("depth", good, {"x": torch.ones(32, 63).bfloat16()}, ("x", "64"), False),
        ("odd", good, {"w13": torch.ones(3, 63, 64).bfloat16()}, ("w13", "even"), False),
        ("w2-shape", good, {"w2": torch.ones(3, 6, 33).bfloat16()}, ("w2", "[3, H, 32]"), False),
        ("w2-groups", good, {"w2": torch.ones(2, 6, 32).bfloat16()}, ("w2", "[3, H, 32]"), False),
        ("w2-dtype", good, {"w2": torch.ones(3, 6, 32)}, ("w2", "float32", "bfloat16"), False),
        ("quantize", good, {"quantize": "int8"}, ("quantize", "int8"), False),
        ("quantize-fit", good, {"quantize": "mxfp8"}, ("quantize", "plain"), False),
        ("quantize-missing", fp8, {"quantize": ""}, ("quantize", "fp8_1x128"), False),
        ("limit", good, {"limit": 0.0}, ("limit", "0.0"), False),
        ("limit-nan", good, {"limit": float("nan")}, ("limit", "nan"), False),
        ("route-shape", good, {"route_weights": torch.ones(31)}, ("route_weights", "[32]"), False),
        ("route-dtype", good, {"route_weights": torch.ones(32).int()}, ("route_weights", "int32"), False),
        ("counts", good, {"counts": torch.ones(2).int()}, ("counts", "[3]"), False),
        ("overlap", good, {"starts": torch.tensor([0, 8, 4])}, ("group 2", "group 0"), True),
    )
    for name, base, change, mentions, validate in table:
        yield ErrorCase(op, name, partial(changed, base, change), InvalidArgument, mentions, validate)
