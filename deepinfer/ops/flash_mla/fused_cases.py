"""Cases of `flash_mla.sparse_attention_fused`: pools, positions, heads, K, lengths; data as in sparse decode."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from deepinfer.errors import InvalidArgument
from deepinfer.ops.flash_mla import data, sparse_decode_cases
from deepinfer.registry import Case, ErrorCase


@dataclass(frozen=True)
class Shape:
    """What a fused case varies: a sparse decode of b = T requests with one token each, and the rotation."""

    tokens: int
    sparse: sparse_decode_cases.Shape
    wild: bool = False

    def params(self) -> dict[str, Any]:
        named = {"s_q": self.tokens} | {k: v for k, v in self.sparse.params().items() if k not in ("b", "s_q")}
        return named | ({"positions": "wild"} if self.wild else {})

    def make(self, g: torch.Generator) -> dict[str, Any]:
        args = self.sparse.make(g)
        del args["d_v"]
        for name in ("q", "indices", "topk_length", "extra_indices", "extra_topk_length"):
            if args[name] is not None and (args[name].ndim > 1 or name == "q"):
                args[name] = args[name][:, 0]
        angle = torch.rand((40, 32), generator=g) * 6.3
        positions = torch.randint(40, (self.tokens,), generator=g).to(self.sparse.index)
        if self.wild:
            positions[::2] = torch.tensor([-1, 40, 2**31 - 1])[: len(positions[::2])].to(positions.dtype)
        return args | {"positions": positions, "cos_sin": torch.cat((angle.cos(), angle.sin()), dim=1)}


def _shape(tokens: int = 3, wild: bool = False, **changes: Any) -> Shape:
    made = {"b": tokens, "s_q": 1, "d": 512, "rows": 40, "topk": 16} | changes
    return Shape(tokens, sparse_decode_cases.Shape(**made), wild)


def _sweeps() -> Iterator[Shape]:
    formats = ("bf16", "f32", "v4_fp8", "v41_fp8", "v41_fp8_paged", "v41_fp4", "v41_fp4_paged")
    for name, lens, sink in itertools.product(formats, ("none", "request"), ("none", "mixed")):
        yield _shape(format=name, lens=lens, sink=sink)
    for (name, extra), lens in itertools.product(
        (("v41_fp8", "v41_fp4"), ("v41_fp8_paged", "v41_fp4_paged"), ("v4_fp8", "v4_fp8"), ("bf16", "v41_fp8")),
        ("none", "request"),
    ):
        yield _shape(format=name, extra=extra, lens=lens, sink="mixed")
    for h in (1, 2, 7, 8, 16, 63, 64, 128):
        yield _shape(1, h=h)
    for topk in (1, 63, 64, 65, 120, 152, 240, 264):
        yield _shape(1, h=2, topk=topk, rows=270)
    for holes in ("front", "all", "wild"):
        yield _shape(holes=holes)
    for name, layout in itertools.product(("v41_fp8", "bf16"), ("strided", "turned")):
        yield _shape(format=name, layout=layout, lens="request", index=torch.int64)
    yield _shape(6, wild=True)
    for sink in ("+inf", "-inf"):
        yield _shape(sink=sink)
    few: dict[str, Any] = {"rows": 12, "topk": 9, "note": "mixed", "sink": "normal"}
    yield _shape(2, h=1, format="v41_fp8", extra="v41_fp4_paged", page=5, index=torch.int64, lens="request", **few)
    yield _shape(2, h=3, format="v41_fp4", extra="v4_fp8", page=1, layout="strided", scale=-0.5, **few)


def cases(op: str) -> Iterable[Case]:
    """All cases of the fused op."""
    quick, edge = frozenset({"quick"}), frozenset({"quick", "edge"})
    for shape in _sweeps():
        yield Case(op, shape.params(), shape.make, quick)
    for shape in (_shape(0), _shape(topk=0), _shape(0, topk=0), _shape(rows=0), _shape(topk=0, extra="v41_fp4")):
        yield Case(op, shape.params(), shape.make, edge, refs=("C02",))
    for name in ("bf16", "f32"):
        shape = _shape(format=name, note="infinite-logits")
        yield Case(op, shape.params(), partial(data.infinite_logits, shape.make, "kv_cache"), edge)
    shape = _shape(format="f32", sink="normal", note="queries-300")
    yield Case(op, shape.params(), partial(data.large_queries, shape.make), edge)
    for topk, tokens in itertools.product((600, 2896), (1, 19)):
        shape = _shape(tokens, h=64, topk=topk, rows=3000, sink="mixed")
        yield Case(op, shape.params(), shape.make, frozenset({"full"}))
    for h, tokens in itertools.product((64, 128), (2, 64)):
        shape = _shape(tokens, h=h, topk=128, page=256, rows=4096, extra="v41_fp4", extra_topk=512, sink="mixed",
                       holes="none")
        tags = {"bench"} if tokens == 2 else {"bench", "profile:hardware"}
        yield Case(op, shape.params(), shape.make, frozenset(tags))


def error_cases(op: str) -> Iterable[ErrorCase]:
    """Calls of the fused op that must raise InvalidArgument."""
    base = _shape()

    def case(name: str, change: dict[str, Any], *mentions: str, validate: bool = False) -> ErrorCase:
        return ErrorCase(op, name, lambda g: base.make(g) | change, InvalidArgument, mentions, validate)

    yield case("width", {"q": torch.zeros(3, 4, 576).bfloat16()}, "q", "512")
    yield case("positions-dtype", {"positions": torch.zeros(3)}, "positions", "int32")
    yield case("positions-shape", {"positions": torch.zeros(4, dtype=torch.int32)}, "positions", "3")
    yield case("table-width", {"cos_sin": torch.zeros(9, 32)}, "cos_sin", "64")
    yield case("table-dtype", {"cos_sin": torch.zeros(9, 64).bfloat16()}, "cos_sin", "float32")
    yield case("table-empty", {"cos_sin": torch.zeros(0, 64)}, "cos_sin", "row")
    yield case("indices-rank", {"indices": torch.zeros(3, 1, 4, dtype=torch.int32)}, "indices", "2 dimensions")
    yield case("format", {"format": "bf16"}, "kv_cache", "V32_FP8")
    yield case("extra-alone", {"extra_format": "v41_fp4"}, "extra_kv_cache", "together")
    yield case("position-high", {"positions": torch.tensor([0, 40, 1])}, "positions[1]", "40", validate=True)
    yield case("index-high", {"indices": torch.full((3, 16), 48)}, "indices[0,0]", "48", validate=True)


def poison(args: Any, g: torch.Generator) -> dict[str, Any] | None:
    """As in sparse decode; table rows that no token uses become NaN too."""
    changed = sparse_decode_cases.poison(args, g)
    table = data.surround(args["cos_sin"])
    used = args["positions"].long().clamp(0, table.shape[0] - 1)
    kept = torch.zeros(table.shape[0], dtype=torch.bool)
    kept[used] = True
    table[~kept] = torch.nan
    return None if changed is None else changed | {"cos_sin": table}


def batch_variants(args: Any) -> Sequence[tuple[dict[str, Any], tuple[Any, ...]]]:
    """Each of the first tokens alone, and all of them in reverse order."""
    tokens = args["q"].shape[0]
    picks = [torch.tensor([t]) for t in range(min(tokens, 3))] + ([torch.arange(tokens).flip(0)] if tokens > 1 else [])
    names = ("q", "indices", "positions", "topk_length", "extra_indices", "extra_topk_length")
    return [
        (dict(args) | {name: args[name][pick] for name in names if args[name] is not None},
         (pick, pick, (slice(None), pick)))
        for pick in picks
    ]
