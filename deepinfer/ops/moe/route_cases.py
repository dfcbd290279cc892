"""Inputs of `moe.route`: the gates of the model classes, ties, NaN and infinite logits, group limits.

Logits lie on a grid of 1/64, so that two ranks are either equal on purpose or far apart compared with float32 rounding;
a reference in float64 then chooses the same experts.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from deepinfer.errors import InvalidArgument
from deepinfer.registry import Case, ErrorCase

PLAIN = {
    "top_k": 2, "scoring": "sigmoid", "bias": None, "n_group": 1, "topk_group": 1, "group_score": "top2_sum",
    "renormalize": True, "scale": 1.0, "eps": 1e-20,
}
# name -> (T, E, options); bias True asks for one
GATES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "tiny": (5, 8, {"bias": True, "scale": 2.0}),
    "v2-lite": (7, 64, {"scoring": "softmax", "top_k": 6, "renormalize": False, "group_score": "max"}),
    "v2": (6, 160, {
        "scoring": "softmax", "top_k": 6, "n_group": 8, "topk_group": 3, "group_score": "max", "renormalize": False,
        "scale": 16.0,
    }),
    "v3": (9, 256, {"bias": True, "top_k": 8, "n_group": 8, "topk_group": 4, "scale": 2.5}),
    "v41": (9, 384, {"bias": True, "scoring": "sqrtsoftplus", "top_k": 6, "scale": 1.5}),
    "v41-draft": (4, 128, {"bias": True, "scoring": "sqrtsoftplus", "top_k": 3, "scale": 1.5}),
    "softmax-renorm": (4, 16, {"scoring": "softmax", "top_k": 4}),
    "all": (3, 6, {"top_k": 6}),
    "one-expert": (3, 1, {"top_k": 1}),
    "groups-of-one": (3, 4, {"n_group": 4, "topk_group": 2}),
    "no-tokens": (0, 8, {}),
    "no-choice": (3, 8, {"top_k": 0}),
    "no-experts": (3, 0, {"top_k": 0}),
}
EDGES = (
    "equal", "pairs", "nan-row", "one-nan", "all-nan-but-one", "neg-inf-row", "one-pos-inf", "huge", "bf16", "f16",
    "strided", "zero-signs", "nan-groups",
)


def route_cases(op: str) -> Iterable[Case]:
    for gate, (tokens, experts, options) in GATES.items():
        tags = frozenset({"quick", "edge"} if 0 in (tokens, experts, options.get("top_k", 1)) else {"quick"})
        yield Case(op, {"gate": gate, "T": tokens, "E": experts}, partial(_make, gate, "grid"), tags)
    for data in EDGES:
        for gate in ("tiny", "v2", "v3", "v41"):
            refs = ("C48",) if "nan" in data or "inf" in data or data == "equal" else ()
            make = partial(_make, gate, data)
            yield Case(op, {"gate": gate, "data": data}, make, frozenset({"quick", "edge"}), refs=refs)
    params = {"gate": "v3", "T": 8192}
    yield Case(op, params, partial(_bench, "v3", 8192), frozenset({"bench"}))


def _make(gate: str, data: str, generator: torch.Generator) -> dict[str, Any]:
    tokens, experts, options = GATES[gate]
    logits = torch.randint(-256, 256, (tokens, experts), generator=generator) / 64.0
    made = {**PLAIN, **options}
    if made["bias"]:
        # steps of 1/8: equal sums of a score and a bias cannot arise by accident
        made["bias"] = torch.randint(-2, 3, (experts,), generator=generator) / 8.0
    if logits.numel():
        logits = _edge(data, logits)
    return {**made, "logits": logits}


def _edge(data: str, logits: torch.Tensor) -> torch.Tensor:
    if data == "equal":
        logits[:] = 0.5
    elif data == "pairs":
        logits[:, 1::2] = logits[:, ::2]
    elif data == "nan-row":
        logits[1] = torch.nan
    elif data == "one-nan":
        logits[:, 3] = torch.nan
    elif data == "all-nan-but-one":
        logits[:, :-1] = torch.nan
    elif data == "neg-inf-row":
        logits[-1] = -torch.inf
    elif data == "one-pos-inf":
        logits[0, 2] = torch.inf
    elif data == "huge":
        logits *= 20.0  # sigmoid saturates: ties at 1.0 are real
    elif data == "zero-signs":
        logits[:, ::2], logits[:, 1::2] = 0.0, -0.0
    elif data == "nan-groups":
        logits[:, : logits.shape[1] // 2] = torch.nan
    elif data == "strided":
        return torch.stack((logits, logits + 1), 2)[:, :, 0]
    elif data in ("bf16", "f16"):
        return logits.to(torch.bfloat16 if data == "bf16" else torch.float16)
    return logits


def _bench(gate: str, tokens: int, generator: torch.Generator) -> dict[str, Any]:
    made = _make(gate, "grid", generator)
    return {**made, "logits": torch.randn((tokens, GATES[gate][1]), generator=generator)}


def route_errors(op: str) -> Iterable[ErrorCase]:
    spoiled: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
        "rank": ({"logits": torch.zeros(8)}, ("logits", "2 dimensions")),
        "scoring": ({"scoring": "relu"}, ("scoring", "relu", "sigmoid")),
        "group-score": ({"group_score": "mean"}, ("group_score", "mean")),
        "top-k-large": ({"top_k": 9}, ("top_k", "9", "8")),
        "top-k-negative": ({"top_k": -1}, ("top_k", "-1")),
        "groups-do-not-divide": ({"n_group": 3}, ("n_group", "3", "8")),
        "no-groups": ({"n_group": 0}, ("n_group", "0")),
        "too-many-groups": ({"topk_group": 2}, ("topk_group", "2")),
        "too-few-in-groups": ({"n_group": 8, "topk_group": 1}, ("top_k", "2", "1")),
        "bias-size": ({"bias": torch.zeros(7)}, ("bias", "8")),
        "bias-dtype": ({"bias": torch.zeros(8).long()}, ("bias", "int64")),
        "nan-scale": ({"scale": float("nan")}, ("scale", "nan")),
        "eps": ({"eps": -1.0}, ("eps", "-1.0")),
    }
    for name, (change, mentions) in spoiled.items():
        yield ErrorCase(op, name, partial(_spoil, change), InvalidArgument, mentions)


def _spoil(change: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    return {**_make("tiny", "grid", generator), **change}
