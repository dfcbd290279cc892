"""Inputs of `rope.apply`: both pairings, both directions, partial widths, strided rows, positions outside the table."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from deepinfer.errors import InvalidArgument
from deepinfer.ops.rope.table import build_table
from deepinfer.registry import Case, ErrorCase

# (T, heads or None, d, width)
SHAPES = (
    (1, None, 64, 64), (3, 1, 2, 2), (5, 2, 192, 64), (4, 3, 576, 64), (7, None, 128, 64), (2, 2, 6, 4),
    (0, 2, 64, 64), (3, 0, 64, 64), (3, 2, 8, 0), (9, 16, 512, 64),
)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def rope_cases(op: str) -> Iterable[Case]:
    for tokens, heads, d, width in SHAPES:
        for interleaved in (True, False):
            for inverse in (False, True):
                dtype = DTYPES[(tokens + interleaved + 2 * inverse) % 3]
                params = _params(tokens, heads, d, width, interleaved, inverse, dtype)
                edge = frozenset({"quick", "edge"} if 0 in (tokens, heads, width) else {"quick"})
                yield Case(op, params, partial(_make, params, "in"), edge)
    for data in ("outside", "strided", "repeated", "int32", "empty-table"):
        for interleaved in (True, False):
            params = _params(6, 2, 192, 64, interleaved, False, torch.float32)
            yield Case(op, {"data": data, **params}, partial(_make, params, data), frozenset({"quick", "edge"}))
    params = _params(8192, 128, 192, 64, True, False, torch.bfloat16)
    yield Case(op, params, partial(_make, params, "in"), frozenset({"bench"}))


def _params(
    tokens: int, heads: int | None, d: int, width: int, interleaved: bool, inverse: bool, dtype: torch.dtype
) -> dict[str, Any]:
    return {
        "T": tokens, "h": heads, "d": d, "width": width, "interleaved": interleaved, "inverse": inverse,
        "dtype": str(dtype).removeprefix("torch."),
    }


def _make(params: dict[str, Any], data: str, generator: torch.Generator) -> dict[str, Any]:
    tokens, heads, d, width = (params[key] for key in ("T", "h", "d", "width"))
    shape = (tokens, d) if heads is None else (tokens, heads, d)
    x = torch.randn(shape, generator=generator).to(getattr(torch, params["dtype"]))
    table = build_table(300, width, 10000.0)
    positions = torch.randint(0, 300, (tokens,), generator=generator)
    if data == "outside":
        positions[:4] = torch.tensor([-1, 300, 2**40, -(2**40)])
        x[:3, 0, -width:] = torch.tensor([torch.inf, -torch.inf, 3e38])[:, None]
    elif data == "strided":  # the rotary tail of a fused projection, as models hold it
        x = torch.randn((tokens, heads, d + 32), generator=generator)[..., 32:]
        positions = torch.stack((positions, positions + 1), 1)[:, 1].clamp(max=299)
    elif data == "repeated":
        positions = torch.full((tokens,), 299)
    elif data == "int32":
        positions = positions.int()
    elif data == "empty-table":
        table = table[:0]
    plain = {key: params[key] for key in ("interleaved", "inverse", "width")}
    return {"x": x, "positions": positions, "table": table, **plain}


def rope_errors(op: str) -> Iterable[ErrorCase]:
    params = _params(3, 2, 8, 4, True, False, torch.float32)
    spoiled: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
        "odd-width": ({"width": 3}, ("width", "3")),
        "wide": ({"width": 10}, ("width", "10", "8")),
        "negative-width": ({"width": -2}, ("width", "-2")),
        "table-width": ({"table": torch.ones(9, 6)}, ("table", "4")),
        "table-dtype": ({"table": torch.ones(9, 4).half()}, ("table", "float16")),
        "positions-size": ({"positions": torch.zeros(4).long()}, ("positions", "3")),
        "positions-dtype": ({"positions": torch.zeros(3)}, ("positions", "float32")),
        "rank": ({"x": torch.ones(3)}, ("x", "[3]")),
    }
    for name, (change, mentions) in spoiled.items():
        yield ErrorCase(op, name, partial(_spoil, params, change), InvalidArgument, mentions)
    outside = {"positions": torch.tensor([0, 300, 1])}
    make = partial(_spoil, params, outside)
    yield ErrorCase(op, "value", make, InvalidArgument, ("positions[1]", "300"), validate=True)


def _spoil(params: dict[str, Any], change: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    return {**_make(params, "in", generator), **change}
