"""Inputs of `sampling.verify_draft`: random p and q, and every way a request can end."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from deepinfer.errors import InvalidArgument
from deepinfer.registry import Case, ErrorCase

# name -> refs
KINDS: dict[str, tuple[str, ...]] = {
    "random": ("C58",), "close": (), "equal": (), "one-hot-draft": (), "greedy": (), "filtered": ("C59",),
    "zero-target": ("C58",), "zero-draft": (), "no-drafts": (), "short-drafts": (), "bad-ids": (),
    "nan-target": ("C56",), "nan-draft": (), "empty-target": (),
}
SHAPES = ((5, 2, 5), (4, 5, 33), (4, 0, 17), (0, 2, 9), (2, 1, 260))


def verify_cases(op: str) -> Iterable[Case]:
    for b, s, v in SHAPES:
        for number, (kind, refs) in enumerate(KINDS.items()):
            params = {"b": b, "s": s, "V": v, "data": kind}
            edge = frozenset({"quick", "edge"} if 0 in (b, s) or kind not in ("random", "close") else {"quick"})
            yield Case(op, params, partial(_make, b, s, v, kind), edge, seed=number, refs=refs)
    make = partial(_make, 64, 5, 129280, "random")
    yield Case(op, {"b": 64, "s": 5, "V": 129280, "data": "random"}, make, frozenset({"bench"}))


def _make(b: int, s: int, v: int, kind: str, g: torch.Generator) -> dict[str, Any]:
    logits = torch.randn((b, s + 1, v), generator=g) * 2
    drafted = logits[:, :s] + torch.randn((b, s, v), generator=g) * (0.3 if kind == "close" else 1.5)
    if kind == "equal":
        drafted = logits[:, :s].clone()
    elif kind == "filtered" and v > 2:
        logits[:, :, v // 2 :], drafted[:, :, : v // 4] = -torch.inf, -torch.inf
    elif kind == "greedy":
        logits, drafted = logits * 1e6, drafted * 1e6
    target, draft = logits.log_softmax(-1), drafted.log_softmax(-1)
    noise = torch.rand((b, s, v), generator=g).clamp(min=1e-9)
    ids = (draft - (-noise.log()).log()).argmax(-1) if v and s else torch.zeros((b, s), dtype=torch.int64)
    target, made, ids = _edge(kind, target, draft, ids)
    return {
        "target": target, "draft_ids": ids, "draft": made,
        "seeds": torch.randint(-(2**62), 2**62, (b,), generator=g), "sample_index": torch.arange(b),
        "positions": torch.randint(0, 2**32, (b,), generator=g),
    }


def _edge(
    kind: str, target: torch.Tensor, draft: torch.Tensor, ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    s = ids.shape[1]
    if kind in ("one-hot-draft", "greedy"):
        return target, None, target[:, :s].argmax(-1) if kind == "greedy" else ids
    if kind == "no-drafts":
        ids[:] = -1
    elif kind == "short-drafts":
        ids[1::2, 1:] = -1
    elif kind == "bad-ids":
        ids[::2, -1:] = target.shape[2]
        ids[1::2, :1] = -(2**40)
    elif kind in ("zero-target", "zero-draft") and s:
        table = target[:, :s] if kind == "zero-target" else draft
        table.scatter_(2, ids[:, :, None], -torch.inf)
    elif kind == "nan-target":
        target[::2, s // 2, 0] = torch.nan
    elif kind == "nan-draft":
        draft[::2, :, 1] = torch.nan
    elif kind == "empty-target":
        target[1::2, 0] = -torch.inf
    return target, draft, ids


def verify_errors(op: str) -> Iterable[ErrorCase]:
    spoiled: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
        "rank": ({"target": torch.zeros(3, 5)}, ("target", "3 dimensions")),
        "no-rows": ({"target": torch.zeros(3, 0, 5)}, ("target.shape[1]", "1")),
        "no-vocabulary": ({"target": torch.zeros(3, 3, 0)}, ("target.shape[2]", "1")),
        "ids-shape": ({"draft_ids": torch.zeros(3, 3).long()}, ("draft_ids", "[3, 2]")),
        "ids-dtype": ({"draft_ids": torch.zeros(3, 2)}, ("draft_ids", "float32")),
        "draft-shape": ({"draft": torch.zeros(3, 2, 4)}, ("draft", "[3, 2, 5]")),
        "draft-dtype": ({"draft": torch.zeros(3, 2, 5).double()}, ("draft", "float64")),
        "seeds-size": ({"seeds": torch.zeros(2).long()}, ("seeds", "3")),
        "positions-dtype": ({"positions": torch.zeros(3)}, ("positions", "float32")),
    }
    for name, (change, mentions) in spoiled.items():
        yield ErrorCase(op, name, partial(_spoil, change), InvalidArgument, mentions)


def _spoil(change: dict[str, Any], g: torch.Generator) -> dict[str, Any]:
    return {**_make(3, 2, 5, "random", g), **change}
