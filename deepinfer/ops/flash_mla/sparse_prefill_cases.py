"""Cases of `flash_mla.sparse_prefill`: holes, lengths, heads, K and S around block borders, layouts, edge rules."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from deepinfer.errors import InvalidArgument
from deepinfer.ops.flash_mla import data
from deepinfer.ops.flash_mla.attend import visible_slots
from deepinfer.registry import Case, ErrorCase


@dataclass(frozen=True)
class Shape:
    """What a sparse prefill case varies; `tokens` is T, `rows` is S."""

    tokens: int = 3
    rows: int = 50
    h: int = 4
    topk: int = 20
    d: int = 576
    holes: str = "random"
    lens: bool = False
    sink: str = "none"
    layout: str = "dense"
    index: torch.dtype = torch.int32
    dtype: torch.dtype = torch.bfloat16
    note: str = ""

    def params(self) -> dict[str, Any]:
        name = "f32" if self.dtype is torch.float32 else "bf16"
        named = {"s_q": self.tokens, "h": self.h, "d_qk": self.d, "len": self.rows, "topk": self.topk, "dtype": name}
        plain = Shape()
        for key in ("holes", "lens", "sink", "layout", "note"):
            if getattr(self, key) != getattr(plain, key):
                named[key] = getattr(self, key)
        return named | ({"index": "int64"} if self.index is torch.int64 else {})

    def make(self, g: torch.Generator) -> dict[str, Any]:
        """q, kv ~ N/10 plus one shared shift, scale 0.5: softmax weights are far from uniform."""
        move = data.spread if self.layout != "dense" else (lambda t: t)
        shift = (torch.rand(1, generator=g) - 0.5) / 10
        q = torch.randn((self.tokens, self.h, self.d), generator=g) / 10 + shift
        kv = torch.randn((self.rows, self.d), generator=g) / 10 + shift
        chosen = data.indices((self.tokens, self.topk), self.rows, g, self.holes).to(self.index)
        lengths = torch.randint(self.topk + 1, (self.tokens,), generator=g).to(self.index) if self.lens else None
        return {
            "q": move(q.to(self.dtype)), "kv": move(kv.to(self.dtype)), "indices": data.arrange(chosen, self.layout),
            "topk_length": None if lengths is None else data.arrange(lengths, self.layout),
            "attn_sink": data.sinks(self.sink, self.h, g), "d_v": min(self.d, 512), "softmax_scale": 0.5,
        }


def _sweeps() -> Iterator[tuple[Shape, tuple[str, ...]]]:
    f32, bf16 = torch.float32, torch.bfloat16
    for holes, d, dtype in itertools.product(data.HOLES, (512, 576), (bf16, f32)):
        yield Shape(holes=holes, d=d, dtype=dtype), ("C10",)
    for sink, dtype, lens in itertools.product(("mixed", "+inf", "-inf", "normal"), (bf16, f32), (False, True)):
        yield Shape(sink=sink, dtype=dtype, lens=lens), ("C11",) if sink == "normal" else ()
    for h in (1, 2, 3, 7, 8, 9, 16, 31, 32, 63, 64, 65, 100, 127, 128):
        yield Shape(1, h=h, d=512), ("C22",)
    for topk in (1, 2, 63, 64, 65, 128, 129, 192, 255, 256, 257, 511, 512, 513, 2047, 2048, 2049):
        yield Shape(1, topk, 2, topk), ("C22",)
    for rows in (1, 2, 63, 64, 65, 95, 153):
        yield Shape(2, rows, 2, 32, holes="wild"), ("C16",)
    for layout, index, dtype in itertools.product(("strided", "turned"), (torch.int32, torch.int64), (bf16, f32)):
        yield Shape(layout=layout, index=index, dtype=dtype, lens=True), ("C20",)
    yield Shape(130, 200, 2, 8, lens=True, holes="wild", note="many-tokens"), ("C14",)


def cases(op: str) -> Iterable[Case]:
    """All cases of sparse prefill."""
    quick, edge = frozenset({"quick"}), frozenset({"quick", "edge"})
    for shape, refs in _sweeps():
        yield Case(op, shape.params(), shape.make, quick, refs=refs)
    for shape in (
        Shape(0, note="no-query"), Shape(topk=0, note="no-entry"), Shape(0, topk=0, note="nothing"),
        Shape(rows=0, note="no-row"), Shape(d=16, h=2, dtype=torch.float32, note="narrow"),
        Shape(rows=3, topk=30, holes="none", note="repeated"),
    ):
        yield Case(op, shape.params(), shape.make, edge, refs=("C02",) if shape.note.startswith("no") else ())
    for dtype in (torch.bfloat16, torch.float32):
        shape = Shape(dtype=dtype, note="infinite-logits")
        yield Case(op, shape.params(), partial(data.infinite_logits, shape.make, "kv"), edge)
    shape = Shape(dtype=torch.float32, sink="normal", note="queries-300")
    yield Case(op, shape.params(), partial(data.large_queries, shape.make), edge)
    for (rows, topk), tokens in itertools.product(
        ((128, 128), (592, 128), (1840, 256), (1592, 384), (1521, 512), (153, 256), (114, 384)), (1, 62)
    ):
        shape = Shape(tokens, rows, 64, topk, 512, lens=True, sink="mixed", note="grid")
        yield Case(op, shape.params(), shape.make, frozenset({"full"}))
    for h, d, topk, rows in (
        (128, 576, 2048, 8192), (128, 512, 2048, 32768), (64, 512, 512, 32768), (128, 512, 1024, 32768)
    ):
        for tokens, tag, pool in ((8, "", 4096), (4096, "profile:hardware", rows)):
            shape = Shape(tokens, pool, h, topk, d, "none", sink="mixed")
            yield Case(op, shape.params(), shape.make, frozenset({"bench", tag} - {""}))


def error_cases(op: str) -> Iterable[ErrorCase]:
    """Calls of sparse prefill that must raise InvalidArgument."""
    base = Shape()

    def case(name: str, change: dict[str, Any], *mentions: str, validate: bool = False) -> ErrorCase:
        return ErrorCase(op, name, lambda g: base.make(g) | change, InvalidArgument, mentions, validate)

    i32 = torch.int32
    yield case("q-rank", {"q": torch.zeros(4, 576).bfloat16()}, "q", "3 dimensions")
    yield case("kv-rank", {"kv": torch.zeros(50, 1, 576).bfloat16()}, "kv", "2 dimensions")
    yield case("kv-width", {"kv": torch.zeros(50, 512).bfloat16()}, "kv", "576")
    yield case("kv-dtype", {"kv": torch.zeros(50, 576)}, "kv", "bfloat16")
    yield case("indices-rows", {"indices": torch.zeros(4, 20, dtype=i32)}, "indices", "[3, 20]")
    yield case("length-shape", {"topk_length": torch.zeros(2, dtype=i32)}, "topk_length", "[3]")
    yield case("d_v", {"d_v": 600}, "d_v", "576")
    yield case("sink", {"attn_sink": torch.zeros(3)}, "attn_sink", "4")
    yield case("scale", {"softmax_scale": float("inf")}, "softmax_scale", "finite")
    yield case("index-high", {"indices": torch.full((3, 20), 50)}, "indices[0,0]", "50", validate=True)
    yield case("length-low", {"topk_length": torch.tensor([0, -1, 3])}, "topk_length[1]", "-1", validate=True)


def poison(args: Any, g: torch.Generator) -> dict[str, Any] | None:
    """NaN in rows that no list names; garbage past lengths and where an index was ignored anyway."""
    indices, kv, lengths = args["indices"], args["kv"], args["topk_length"]
    rows, top = kv.shape[0], indices.shape[1]
    limit = torch.full((indices.shape[0],), top) if lengths is None else lengths
    past = torch.arange(top) >= limit[:, None]
    swap = data.garbage(indices.shape, g)
    swap = torch.where(past & (torch.rand(indices.shape, generator=g) < 0.5), max(rows - 1, -1), swap)
    kept = torch.zeros(rows, dtype=torch.bool)
    for row, n in zip(indices, limit.tolist(), strict=True):
        kept[visible_slots(row, n, rows)] = True
    spoiled = data.surround(kv)
    spoiled[~kept] = torch.nan
    outside = (indices < 0) | (indices >= rows)
    return dict(args) | {
        "q": data.surround(args["q"]), "kv": spoiled,
        "indices": torch.where(past | outside, swap, indices.long()).to(indices.dtype),
    }


def batch_variants(args: Any) -> Sequence[tuple[dict[str, Any], tuple[Any, ...]]]:
    """Each of the first tokens alone, and all of them in reverse order."""
    tokens = args["q"].shape[0]
    picks = [torch.tensor([t]) for t in range(min(tokens, 3))] + ([torch.arange(tokens).flip(0)] if tokens > 1 else [])
    names = [name for name in ("q", "indices", "topk_length") if args[name] is not None]
    turned = slice(None)
    return [
        (dict(args) | {name: args[name][pick] for name in names}, (pick, (turned, pick), (turned, pick)))
        for pick in picks
    ]
