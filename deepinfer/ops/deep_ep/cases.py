"""The list of Deep EP cases, for tests and for the conformance suite of any backend.

    for case in ep_cases():
        assert case.run("cpu") == []
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from deepinfer.ops.deep_ep.case import EpCase

FORMATS = ("fp8_f32", "fp8_ue8m0", "fp4_ue8m0")
QUICK, EDGE = frozenset({"quick"}), frozenset({"quick", "edge"})

_DEFAULT: dict[str, Any] = {
    "ranks": 2, "T": 0, "tokens": (), "hidden": 64, "top_k": 2, "experts": 4, "dtype": "bf16", "layout": "experts",
    "alignment": 1, "reduce": "ranks", "weights": True, "bias": False, "sync": True, "ids": "plain", "replicas": 0,
}


def _case(tags: frozenset[str] = QUICK, refs: tuple[str, ...] = (), **changes: Any) -> EpCase:
    params = _DEFAULT | changes
    params["T"] = max(params["tokens"])
    return EpCase(params, tags, refs, seed=len(repr(params)))


def ragged(ranks: int, most: int) -> tuple[int, ...]:
    """Tokens per rank: different on each, one rank without any when there are three or more."""
    return tuple((most * (rank + 1) // ranks) * (rank != 1 or ranks < 3) for rank in range(ranks))


def _over_ranks() -> Iterator[EpCase]:
    for ranks, layout, dtype in itertools.product((1, 2, 3, 4, 8), ("tokens", "experts"), ("bf16", "f16", "f32")):
        reduce = "slots" if layout == "experts" and dtype == "f16" else "ranks"
        yield _case(
            ranks=ranks, tokens=ragged(ranks, 9), layout=layout, dtype=dtype, experts=3 * ranks, top_k=3,
            reduce=reduce, bias=dtype == "f32", weights=layout == "experts", refs=("C45",),
        )


def _over_forms() -> Iterator[EpCase]:
    for layout, dtype, sync in itertools.product(("tokens", "experts"), FORMATS, (True, False)):
        alignment = 16 if layout == "experts" else 1
        yield _case(tokens=(5, 8), layout=layout, dtype=dtype, sync=sync, hidden=256, alignment=alignment, top_k=3)
    for alignment, sync, reduce in itertools.product((1, 4, 16, 128), (True, False), ("ranks", "slots")):
        yield _case(tokens=(7, 4, 0), ranks=3, experts=6, alignment=alignment, sync=sync, reduce=reduce, refs=("C46",))
    for hidden, dtype in itertools.product((1, 7, 100, 576), ("bf16", "f32")):
        yield _case(tokens=(3, 4), hidden=hidden, dtype=dtype)
    for hidden in (2, 66, 130):
        yield _case(tokens=(3, 4), hidden=hidden, dtype="fp8_f32")
    for weights, bias, reduce, layout in itertools.product(
        (True, False), (True, False), ("ranks", "slots"), ("tokens", "experts")
    ):
        if (reduce, layout) != ("slots", "tokens"):
            yield _case(tokens=(4, 5), weights=weights, bias=bias, reduce=reduce, layout=layout, refs=("C51",))


def _over_edges() -> Iterator[EpCase]:
    empties = ((0, 0), (0, 1), (6, 0), (0, 0, 0, 0), (0, 3, 0, 1))
    for tokens, layout, sync in itertools.product(empties, ("tokens", "experts"), (True, False)):
        yield _case(EDGE, ("C43",), tokens=tokens, ranks=len(tokens), layout=layout, sync=sync, weights=False)
    patterns = ("holes", "none", "same", "range")
    for ids, layout, sync in itertools.product(patterns, ("tokens", "experts"), (True, False)):
        by_row = layout == "experts"
        yield _case(
            EDGE, ("C44",), tokens=(6, 7), ids=ids, layout=layout, sync=sync, top_k=4, weights=by_row, bias=True
        )
    for ids in ("holes", "same", "range"):
        yield _case(EDGE, ("C44",), tokens=(6, 7, 2), ranks=3, experts=6, ids=ids, top_k=6, reduce="slots")
    for layout, ranks in itertools.product(("tokens", "experts"), (1, 2, 4)):
        yield _case(EDGE, tokens=(5,) * ranks, ranks=ranks, layout=layout, experts=2 * ranks, replicas=2, refs=("C50",))
    yield _case(EDGE, tokens=(3, 2), top_k=1)
    yield _case(EDGE, tokens=(3, 2), top_k=0)
    yield _case(EDGE, tokens=(3, 2), top_k=0, layout="tokens", bias=True)
    yield _case(EDGE, tokens=(3, 2), hidden=0)
    yield _case(EDGE, tokens=(33, 40), experts=64, top_k=32, hidden=8)


def _large() -> Iterator[EpCase]:
    full = frozenset({"full"})
    for ranks, dtype, reduce in itertools.product((2, 4, 8), ("bf16", "fp8_f32", "f32"), ("ranks", "slots")):
        yield _case(
            full, tokens=ragged(ranks, 130), ranks=ranks, hidden=1024, experts=32, top_k=8, dtype=dtype, reduce=reduce,
            alignment=128, bias=True,
        )
    bench = frozenset({"bench"})
    for tokens, dtype, layout in itertools.product((1, 128, 1024), ("bf16", "fp8_f32"), ("tokens", "experts")):
        yield _case(
            bench, tokens=(tokens,) * 4, ranks=4, hidden=2048, experts=64, top_k=6, dtype=dtype, layout=layout,
            alignment=128 if layout == "experts" else 1,
        )


def ep_cases() -> list[EpCase]:
    """All cases: quick ones (edges included), "full" ones of the long tier, "bench" ones that are timed."""
    makers: tuple[Callable[[], Iterator[EpCase]], ...] = (_over_ranks, _over_forms, _over_edges, _large)
    return [case for maker in makers for case in maker()]
