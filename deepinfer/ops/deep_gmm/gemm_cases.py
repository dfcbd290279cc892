"""Inputs of `deep_gmm.gemm`: every dtype pair at sizes round tile and block borders, addends, strides, NaN, errors."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from deepinfer.errors import InvalidArgument
from deepinfer.ops.deep_gmm import data
from deepinfer.ops.deep_gmm.operand import PLAIN
from deepinfer.registry import Case, ErrorCase

# (M, N, K); K is rounded up to even where two values share a byte.
SIZES = (
    (1, 1, 1), (1, 9, 127), (3, 7, 128), (7, 3, 129), (9, 1, 576), (1, 65, 576), (64, 64, 128), (65, 9, 129),
    (9, 65, 127), (64, 7, 576), (3, 64, 257), (130, 130, 130), (65, 1, 1),
    (0, 9, 128), (9, 0, 128), (0, 0, 0), (3, 7, 0),
)
BENCH = ((512, 1024, 1024), (8, 1024, 1024))
HARDWARE_BENCH = tuple(
    (m, n, k)
    for n, k in ((7168, 16384), (4096, 7168), (24576, 1536), (7168, 2048), (2112, 7168))
    for m in (64, 128, 4096)
)
STRIDES = ("transposed", "step", "expanded", "offset")


def make(
    pair: str, m: int, n: int, k: int, generator: torch.Generator, *, out: torch.dtype | None = None,
    c: str = "", bias: torch.dtype | None = None, strides: str = "", bad: str = "", bulk: bool = False,
) -> dict[str, Any]:
    """Canonical arguments. c: "", "d" (out dtype) or "f32"; bad: "", "a" or "b" gets one NaN and one infinity."""
    dtype, a_recipe, b_recipe = data.PAIRS[pair]
    fill = data.bulk if bulk else data.random
    a, b = fill((m, k), a_recipe, dtype, generator), fill((n, k), b_recipe, dtype, generator)
    if strides:
        a, b = data.restride(strides, a), data.restride(strides, b)
    if bad:
        _spoil(a[0] if bad == "a" else b[0])
    out_dtype = out or dtype
    addend = torch.randn(m, n, generator=generator).to(out_dtype if c == "d" else torch.float32) if c else None
    return {
        **data.flat("a", a, a_recipe), **data.flat("b", b, b_recipe), **data.unpacked(), "c": addend,
        "bias": None if bias is None else torch.randn(n, generator=generator).to(bias), "out_dtype": out_dtype,
    }


def _spoil(values: torch.Tensor) -> None:
    if values.dtype is torch.float8_e4m3fn:
        values.view(torch.uint8)[0, 0] = 0x7F
        return
    values[0, 0], values[-1, -1] = torch.nan, torch.inf


def _case(op: str, pair: str, size: tuple[int, int, int], refs: tuple[str, ...] = (), **options: Any) -> Case:
    m, n, k = size
    k += k % 2 if pair == "fp8_fp4" else 0
    shown = {key: str(val).removeprefix("torch.") for key, val in options.items()}
    edge = {"edge"} if 0 in size or options.get("bad") else set()
    params = {"M": m, "N": n, "K": k, "dtype": pair, **shown}
    return Case(op, params, partial(make, pair, m, n, k, **options), frozenset({"quick", *edge}), refs=refs)


def cases(op: str) -> Iterable[Case]:
    """All cases of the op."""
    f32 = torch.float32
    for pair, (dtype, a_recipe, _b) in data.PAIRS.items():
        for size in SIZES:
            yield _case(op, pair, size, ("C30", "C33") if size[0] == 0 else ("C30",))
        for strides in STRIDES:
            yield _case(op, pair, (6, 34, 130), ("C35",), strides=strides)
        for size in ((7, 9, 129), (64, 65, 576)):
            if dtype is not f32:
                yield _case(op, pair, size, out=f32)
                yield _case(op, pair, size, out=f32, c="d", bias=f32)
            yield _case(op, pair, size, c="d")
            yield _case(op, pair, size, c="f32", bias=dtype)
            yield _case(op, pair, size, bias=f32)
        yield _case(op, pair, (5, 7, 0), c="d", bias=f32)
        yield _case(op, pair, (9, 7, 130), bad="a")
        if a_recipe == PLAIN or pair != "fp8_fp4":
            yield _case(op, pair, (9, 7, 130), bad="b")
    for pair in ("bf16", "f32", "fp8"):
        for m, n, k in BENCH:
            params = {"M": m, "N": n, "K": k, "dtype": pair}
            yield Case(op, params, partial(make, pair, m, n, k, bulk=True), frozenset({"bench"}))
    for pair in ("bf16", "fp8"):
        for m, n, k in HARDWARE_BENCH:
            params = {"M": m, "N": n, "K": k, "dtype": pair}
            yield Case(op, params, partial(make, pair, m, n, k, bulk=True), frozenset({"bench", "profile:hardware"}))


def error_cases(op: str) -> Iterable[ErrorCase]:
    """Calls that must raise."""
    plain, fp8 = partial(make, "bf16", 4, 6, 256), partial(make, "fp8", 4, 6, 256)
    table: tuple[tuple[str, Any, dict[str, Any], tuple[str, ...]], ...] = (
        ("rank", plain, {"a": torch.ones(4).bfloat16()}, ("a", "[M,K]")),
        ("depth", plain, {"a": torch.ones(4, 255).bfloat16()}, ("a", "256")),
        ("dtype", plain, {"a": torch.ones(4, 256).int()}, ("a", "int32")),
        ("mixed", plain, {"a": torch.ones(4, 256)}, ("float32", "bfloat16", "one dtype")),
        ("mixed-recipes", fp8, data.flat("a", (torch.ones(4, 256).bfloat16(), None), PLAIN), ("plain", "second")),
        ("recipe", fp8, {"a_recipe": "e4m3:1x64:f32"}, ("a", "1x64")),
        ("recipe-text", fp8, {"a_recipe": "fp8"}, ("recipe", "fp8")),
        ("no-scale", fp8, {"a_scale": None}, ("a_scale", "None")),
        ("scale-shape", fp8, {"a_scale": torch.ones(4, 3)}, ("a.scale", "[4, 2]")),
        ("scale-dtype", fp8, {"b_scale": torch.ones(1, 2).bfloat16()}, ("b.scale", "bfloat16")),
        ("stray-scale", plain, {"b_scale": torch.ones(1, 2)}, ("b_scale", "None")),
        ("out-dtype", plain, {"out_dtype": torch.float16}, ("out_dtype", "float16")),
        ("c-shape", plain, {"c": torch.ones(4, 5)}, ("c", "[4, 6]")),
        ("c-dtype", plain, {"c": torch.ones(4, 6).int()}, ("c", "int32")),
        ("bias-shape", plain, {"bias": torch.ones(4)}, ("bias", "[6]")),
        ("layout", plain, {"b_layout": "cpu_f32"}, ("b_layout", "cpu_f32")),
        ("not-a-tensor", plain, {"b": 3}, ("b", "Tensor")),
    )
    for name, good, change, mentions in table:
        yield ErrorCase(op, name, partial(changed, good, change), InvalidArgument, mentions)


def changed(good: Any, change: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    """Arguments of a good call with some replaced."""
    return {**good(generator), **change}
