"""Inputs of the sampling ops: each stage alone and together, its edge values, bad rows among good ones.

Logits are normal with standard deviation 3, so that two tokens are rarely closer than float32 resolves; where ties are
wanted they are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from deepinfer.errors import InvalidArgument
from deepinfer.registry import Case, ErrorCase

NOTHING: dict[str, Any] = dict.fromkeys(
    (
        "temperature", "top_k", "top_p", "min_p", "bias_ids", "bias_values", "history", "prompt_lens", "repetition",
        "frequency", "presence", "banned_ids", "mask", "row_map",
    )
)
BIG = 2**31


def _uniform(rows: int, values: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor([values[i % len(values)] for i in range(rows)], dtype=torch.float32)


def _whole(rows: int, values: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor([values[i % len(values)] for i in range(rows)], dtype=torch.int64)


def _bias(n: int, v: int, g: torch.Generator) -> dict[str, Any]:
    ids = torch.randint(-2, v + 2, (n, 6), generator=g)
    ids[:, 0], ids[:, 1] = BIG, ids[:, 2]
    values = torch.randn((n, 6), generator=g) * 4
    return {"bias_ids": ids, "bias_values": torch.where((ids < 0) | (ids >= v), 1e30, values)}


def _penalties(n: int, v: int, g: torch.Generator) -> dict[str, Any]:
    history = torch.randint(0, min(v, 12), (n, 20), generator=g)
    history[:, 15:] = torch.tensor([-1, v, BIG, -5, v + 7])
    return {
        "history": history, "prompt_lens": _whole(n, (0, 3, 20, 99, -4)),
        "repetition": _uniform(n, (1.0, 1.3, 0.7, 0.0)),
        "frequency": _uniform(n, (0.0, 0.5, -0.25)), "presence": _uniform(n, (0.75, 0.0)),
    }


def _mask(n: int, v: int, g: torch.Generator) -> dict[str, Any]:
    words = torch.randint(-(2**31), 2**31, (3, -(-v // 32)), generator=g).to(torch.int32)
    words[:, 0] |= 1
    return {"mask": words, "row_map": _whole(n, (0, 2, -1, 1, 3, BIG))}


def _all(n: int, v: int, g: torch.Generator) -> dict[str, Any]:
    made = {**_bias(n, v, g), **_penalties(n, v, g), **_mask(n, v, g)}
    return made | {
        "temperature": _uniform(n, (0.7, 0.0, 1.5, 1.0)), "top_k": _whole(n, (0, 5, 50, -1)),
        "top_p": _uniform(n, (0.9, 1.0, 0.5)), "min_p": _uniform(n, (0.0, 0.05)),
        "banned_ids": torch.randint(-1, v, (n, 3), generator=g),
    }


Stage = Callable[[int, int, torch.Generator], dict[str, Any]]
STAGES: dict[str, Stage] = {
    "plain": lambda n, v, g: {},
    "temperature": lambda n, v, g: {"temperature": _uniform(n, (0.5, 1.0, 2.0, 0.0, 1e-30, 1e30, -1.0, torch.nan))},
    "top-k": lambda n, v, g: {"top_k": _whole(n, (1, 2, 7, v, v + 1, 0, -1, BIG))},
    "top-p": lambda n, v, g: {"top_p": _uniform(n, (0.1, 0.5, 0.9, 1.0, 0.0, -1.0, 2.0, torch.nan, 0.999))},
    "min-p": lambda n, v, g: {"min_p": _uniform(n, (0.0, 0.1, 0.5, 1.0, 3.0, -1.0, torch.nan))},
    "top-k-top-p": lambda n, v, g: {"top_k": _whole(n, (3, 0, 9)), "top_p": _uniform(n, (0.6, 0.95))},
    "bias": _bias,
    "penalties": _penalties,
    "banned": lambda n, v, g: {"banned_ids": torch.randint(-3, v + 3, (n, 4), generator=g)},
    "mask": _mask,
    "mask-per-row": lambda n, v, g: {"mask": _mask(n, v, g)["mask"][torch.arange(n) % 3]},
    "all": _all,
}
EDGES = (
    "nan-row", "inf-row", "empty-row", "masked-nan", "all-banned", "ties", "huge", "tiny", "bf16", "f16", "strided",
    "neg-inf-tokens", "int32",
)
SHAPES = ((6, 260), (9, 33), (3, 5), (2, 1), (4, 1031))


def logits_cases(op: str, extra: Callable[[int, torch.Generator], dict[str, Any]]) -> Iterable[Case]:
    """Stages x shapes, then edges; `extra(n, generator)` adds the arguments that the op has beyond `LOGITS`."""
    for n, v in SHAPES:
        for stage in STAGES if v in (260, 33) else ("top-k", "top-k-top-p", "all"):
            params = {"n": n, "V": v, "stage": stage}
            yield Case(op, params, partial(_make, n, v, stage, "", extra), seed=len(stage) + v)
    for edge in EDGES:
        for stage in ("plain", "all"):
            params = {"n": 6, "V": 70, "stage": stage, "edge": edge}
            refs = ("C56",) if edge == "nan-row" else ("C54",) if edge == "ties" else ()
            make = partial(_make, 6, 70, stage, edge, extra)
            yield Case(op, params, make, frozenset({"quick", "edge"}), seed=len(edge), refs=refs)
    for most in (False, True):
        params = {"n": 4, "V": 2200, "stage": "top-p of most" if most else "top-p of all"}
        yield Case(op, params, partial(_many, most, extra), frozenset({"quick", "edge"}), seed=5)
    for n, v in ((0, 17), (3, 0)):
        make = partial(_make, n, v, "plain", "", extra)
        yield Case(op, {"n": n, "V": v, "stage": "plain"}, make, frozenset({"quick", "edge"}))
    for stage in ("plain", "top-k-top-p"):
        make = partial(_make, 8, 129280, stage, "", extra)
        yield Case(op, {"n": 8, "V": 129280, "stage": stage}, make, frozenset({"bench"}))


def _make(
    n: int, v: int, stage: str, edge: str, extra: Callable[[int, torch.Generator], dict[str, Any]], g: torch.Generator
) -> dict[str, Any]:
    made = {**NOTHING, **STAGES[stage](n, v, g)}
    made["logits"] = torch.randn((n, v), generator=g) * 3
    made |= extra(n, g)
    return _edge(made, edge) if edge else made


def _many(
    most: bool, extra: Callable[[int, torch.Generator], dict[str, Any]], g: torch.Generator
) -> dict[str, Any]:
    """top-p after a top-k of most of the vocabulary, or of all and more; half of the tokens hold the mass asked for."""
    top_k = _whole(4, (1500, 2199, 1025, 0) if most else (2200, 3, 2205, BIG))
    cut = {"top_k": top_k, "top_p": _uniform(4, (0.7, 0.6)), "temperature": _uniform(4, (3.0,))}
    return _make(4, 2200, "plain", "", extra, g) | cut


def _edge(made: dict[str, Any], edge: str) -> dict[str, Any]:
    logits = made["logits"]
    v = logits.shape[1]
    if edge in ("nan-row", "inf-row", "empty-row"):
        logits[1] = {"nan-row": torch.nan, "inf-row": torch.inf, "empty-row": -torch.inf}[edge]
        logits[3, 0] = torch.nan if edge == "nan-row" else logits[3, 0]
    elif edge == "masked-nan":
        banned = torch.full((6, 1), 7)
        logits[:, 7] = torch.nan
        made |= {"banned_ids": banned}
    elif edge == "all-banned":
        made |= {"banned_ids": torch.arange(v).repeat(6, 1)}
    elif edge == "ties":
        logits[:] = torch.tensor([1.0, 2.0, 2.0, -0.0, 0.0]).repeat(v // 5)
    elif edge in ("huge", "tiny"):
        logits *= 1e30 if edge == "huge" else 1e-30
    elif edge in ("bf16", "f16"):
        made["logits"] = logits.to(torch.bfloat16 if edge == "bf16" else torch.float16)
    elif edge == "strided":
        made["logits"] = torch.stack((logits, logits), 2)[:, :, 1]
    elif edge == "neg-inf-tokens":
        logits[:, ::3] = -torch.inf
    elif edge == "int32":
        whole = {k: t.int() for k, t in made.items() if isinstance(t, torch.Tensor) and t.dtype == torch.int64}
        made |= {key: value for key, value in whole.items() if int(made[key].abs().max()) < BIG}
    return made


def rows_of(args: Any, picked: torch.Tensor) -> dict[str, Any]:
    """The same call for some of its rows."""
    shared = {"mask"} if args["row_map"] is not None else set()
    return {
        name: value[picked] if isinstance(value, torch.Tensor) and name not in shared else value
        for name, value in args.items()
    }


def _stream(n: int, g: torch.Generator) -> dict[str, Any]:
    return {
        "seeds": torch.randint(-(2**62), 2**62, (n,), generator=g),
        "sample_index": torch.randint(0, 4, (n,), generator=g), "positions": torch.randint(0, 2**20, (n,), generator=g),
        "greedy": False, "purpose": "target", "logprobs": "raw",
    }


def _change(change: dict[str, Any], n: int, g: torch.Generator) -> dict[str, Any]:
    return {**_stream(n, g), **change}


def sample_cases(op: str) -> Iterable[Case]:
    """Cases of `sampling.sample`."""
    yield from logits_cases(op, _stream)
    variants: dict[str, dict[str, Any]] = {
        "greedy": {"greedy": True}, "greedy-no-seeds": {"greedy": True, "seeds": None}, "draft": {"purpose": "draft"},
        "processed": {"logprobs": "processed"}, "none": {"logprobs": "none"},
        "no-index": {"sample_index": None, "positions": None},
    }
    for name, change in variants.items():
        for stage in ("plain", "all"):
            make = partial(_make, 6, 260, stage, "", partial(_change, change))
            yield Case(op, {"n": 6, "V": 260, "stage": stage, "variant": name}, make, seed=3)


def sample_errors(op: str) -> Iterable[ErrorCase]:
    """Calls of `sampling.sample` that must raise."""
    spoiled: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
        "no-seeds": ({"seeds": None}, ("seeds",)),
        "logprobs": ({"logprobs": "all"}, ("logprobs", "all", "raw")),
        "purpose": ({"purpose": "accept"}, ("purpose", "accept")),
        "float-seeds": ({"seeds": torch.zeros(4)}, ("seeds", "float32")),
        "few-seeds": ({"seeds": torch.zeros(3).long()}, ("seeds", "4")),
        **logits_faults(),
    }
    yield from _errors(op, spoiled, _stream)


def logits_faults() -> dict[str, tuple[dict[str, Any], tuple[str, ...]]]:
    """Spoiled arguments that all ops with `LOGITS` refuse, for 4 rows and 40 tokens."""
    return {
        "rank": ({"logits": torch.zeros(40)}, ("logits", "2 dimensions")),
        "dtype": ({"logits": torch.zeros(4, 40).long()}, ("logits", "int64")),
        "temperature-size": ({"temperature": torch.ones(3)}, ("temperature", "4")),
        "temperature-dtype": ({"temperature": torch.ones(4).long()}, ("temperature", "int64")),
        "top-k-dtype": ({"top_k": torch.ones(4)}, ("top_k", "float32")),
        "bias-alone": ({"bias_ids": torch.zeros(4, 1).long()}, ("bias_values",)),
        "bias-shapes": (
            {"bias_ids": torch.zeros(4, 1).long(), "bias_values": torch.zeros(4, 2)}, ("bias_values", "[4, 1]"),
        ),
        "penalty-without-history": ({"repetition": torch.ones(4)}, ("history", "repetition")),
        "history-rank": ({"history": torch.zeros(4).long()}, ("history", "2 dimensions")),
        "banned-rows": ({"banned_ids": torch.zeros(5, 1).long()}, ("banned_ids", "4")),
        "mask-width": ({"mask": torch.zeros(4, 1).int()}, ("mask", "2")),
        "mask-rows": ({"mask": torch.zeros(3, 2).int()}, ("mask", "4")),
        "mask-dtype": ({"mask": torch.zeros(4, 2).long()}, ("mask", "int64")),
        "map-alone": ({"row_map": torch.zeros(4).long()}, ("mask", "row_map")),
    }


def _errors(
    op: str, spoiled: dict[str, tuple[dict[str, Any], tuple[str, ...]]], extra: Callable[..., dict[str, Any]]
) -> Iterable[ErrorCase]:
    for name, (change, mentions) in spoiled.items():
        yield ErrorCase(op, name, partial(_spoil, extra, change), InvalidArgument, mentions)


def _spoil(extra: Callable[..., dict[str, Any]], change: dict[str, Any], g: torch.Generator) -> dict[str, Any]:
    return {**_make(4, 40, "plain", "", extra, g), **change}


def _no_extra(n: int, g: torch.Generator) -> dict[str, Any]:
    return {}


def log_probs_cases(op: str) -> Iterable[Case]:
    """Cases of `sampling.log_probs`."""
    return logits_cases(op, _no_extra)


def log_probs_errors(op: str) -> Iterable[ErrorCase]:
    """Calls of `sampling.log_probs` that must raise."""
    return _errors(op, logits_faults(), _no_extra)
