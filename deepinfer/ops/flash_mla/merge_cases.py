"""Cases of `flash_mla.merge_states`: numbers of states, empty ones in every place, far-apart states, sinks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch

from deepinfer.errors import InvalidArgument
from deepinfer.ops.flash_mla import data
from deepinfer.registry import Case, ErrorCase


def _make(
    shape: tuple[int, ...], dtype: torch.dtype, empties: str, sink: str, spread: float, layout: str, g: torch.Generator
) -> dict[str, Any]:
    """States outs [n, *, t, h, d]; `empties`: which of them are (0, -inf)."""
    n, *lead, tokens, heads, _ = shape
    lses = torch.randn((n, *lead, heads, tokens), generator=g) * spread
    which = torch.zeros_like(lses, dtype=torch.bool)
    if empties == "all":
        which[:] = True
    elif empties in ("first", "last") and n:
        which[0 if empties == "first" else -1] = True
    elif empties == "random":
        which = torch.rand(lses.shape, generator=g) < 0.5
    outs = torch.randn(shape, generator=g).masked_fill(which.transpose(-1, -2)[..., None], 0.0).to(dtype)
    lses = lses.masked_fill(which, -torch.inf)
    if layout != "dense":
        outs, lses = data.spread(outs), data.turned(lses)
    return {"outs": outs, "lses": lses, "attn_sink": data.sinks(sink, heads, g)}


def _case(
    op: str, shape: tuple[int, ...], tags: frozenset[str], dtype: torch.dtype = torch.bfloat16, empties: str = "none",
    sink: str = "none", spread: float = 2.0, layout: str = "dense", refs: tuple[str, ...] = (),
) -> Case:
    params = {
        "n": shape[0], "shape": "x".join(map(str, shape[1:])), "dtype": "f32" if dtype is torch.float32 else "bf16",
        "empties": empties, "sink": sink, "spread": spread, "layout": layout,
    }
    return Case(op, params, partial(_make, shape, dtype, empties, sink, spread, layout), tags, refs=refs)


def cases(op: str) -> Iterable[Case]:
    """All cases of merge_states."""
    quick, edge = frozenset({"quick"}), frozenset({"quick", "edge"})
    both = (torch.bfloat16, torch.float32)
    for n, dtype, empties in itertools.product((1, 2, 3, 8), both, ("none", "first", "last", "random", "all")):
        yield _case(op, (n, 2, 3, 4, 64), quick, dtype, empties, refs=("C04", "C05") if empties != "none" else ())
    for shape, sink in itertools.product(((2, 5, 3, 32), (3, 2, 1, 16, 512)), ("mixed", "+inf", "-inf", "normal")):
        yield _case(op, shape, quick, torch.float32, "random", sink)
    for spread, dtype in itertools.product((0.01, 50.0, 1e30), both):
        yield _case(op, (3, 4, 2, 16), edge, dtype, spread=spread)
    for n in (2, 160, 200):
        yield _case(op, (n, 1, 2, 8), edge, torch.float32, "random")
    for shape in ((0, 2, 3, 4), (2, 0, 3, 4), (2, 3, 0, 4), (2, 3, 4, 0), (0, 0, 0, 0)):
        yield _case(op, shape, edge, refs=("C02", "C04"))
    yield _case(op, (2, 3, 5, 40), quick, layout="strided")
    for heads in (16, 128):
        yield _case(op, (8, 64, 1, heads, 512), frozenset({"bench"}), torch.float32)


def error_cases(op: str) -> Iterable[ErrorCase]:
    """Calls of merge_states that must raise InvalidArgument."""
    base = partial(_make, (2, 3, 4, 8), torch.bfloat16, "none", "none", 1.0, "dense")

    def case(name: str, change: dict[str, Any], *mentions: str, validate: bool = False) -> ErrorCase:
        return ErrorCase(op, name, lambda g: base(g) | change, InvalidArgument, mentions, validate)

    yield case("rank", {"outs": torch.zeros(2, 3, 4)}, "outs", "4 or more")
    yield case("outs-dtype", {"outs": torch.zeros(2, 3, 4, 8).half()}, "outs", "float16")
    yield case("lses-dtype", {"lses": torch.zeros(2, 4, 3).double()}, "lses", "float64")
    yield case("lses-order", {"lses": torch.zeros(2, 3, 4)}, "lses", "[2, 4, 3]")
    yield case("lses-count", {"lses": torch.zeros(3, 4, 3)}, "lses", "[2, 4, 3]")
    yield case("sink", {"attn_sink": torch.zeros(3)}, "attn_sink", "4")
    yield case("plus-inf", {"lses": torch.full((2, 4, 3), torch.inf)}, "lses", "inf", validate=True)


def poison(args: Any) -> dict[str, Any]:
    """NaN in every out whose lse is -inf, and in all gaps."""
    outs = data.surround(args["outs"])
    empty = (args["lses"] == -torch.inf).transpose(-1, -2)[..., None]
    if outs.numel():
        outs.copy_(torch.where(empty, torch.nan, args["outs"]))
    return dict(args) | {"outs": outs, "lses": data.surround(args["lses"])}


def batch_variants(args: Any) -> Sequence[tuple[dict[str, Any], tuple[Any, ...]]]:
    """The first tokens alone, and all in reverse order."""
    tokens = args["outs"].shape[-3]
    picks = [torch.tensor([t]) for t in range(min(tokens, 2))] + ([torch.arange(tokens).flip(0)] if tokens > 1 else [])
    return [
        (
            dict(args) | {"outs": args["outs"][..., pick, :, :], "lses": args["lses"][..., pick]},
            ((..., pick, slice(None), slice(None)), (..., pick)),
        )
        for pick in picks
    ]
