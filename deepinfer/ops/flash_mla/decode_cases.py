"""Cases of `flash_mla.decode`: lengths around block borders, every format, heads, pages, sinks, layouts, edge rules."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from deepinfer.errors import InvalidArgument
from deepinfer.ops.flash_mla import data
from deepinfer.ops.flash_mla.formats import LAYOUTS
from deepinfer.registry import Case, ErrorCase

FORMATS = ("bf16", "f32", "v32_fp8", "v41_fp8", "v41_fp8_paged")
MIXED = (0, 1, 63, 64, 65)


@dataclass(frozen=True)
class Shape:
    """Everything a decode case varies. `extra` blocks and `slack` columns are allocated beyond what lengths need."""

    lens: tuple[int, ...] = MIXED
    s_q: int = 1
    h: int = 4
    format: str = "bf16"
    page: int = 64
    causal: bool = True
    sink: str = "none"
    layout: str = "dense"
    index: torch.dtype = torch.int32
    d: int = 576
    d_v: int = 512
    slack: int = 1
    note: str = ""
    scale: float = 1.0

    @property
    def width(self) -> int:
        return LAYOUTS[self.format].width or self.d

    def params(self) -> dict[str, Any]:
        lens = self.lens if len(self.lens) < 9 else (max(self.lens),)
        named = {
            "b": len(self.lens), "s_q": self.s_q, "h": self.h, "d_qk": self.width, "len": "/".join(map(str, lens)),
            "page": self.page, "format": self.format,
        }
        plain = Shape()
        for key in ("causal", "sink", "layout", "d_v", "note", "scale"):
            if getattr(self, key) != getattr(plain, key):
                named[key] = getattr(self, key)
        return named | ({"index": "int64"} if self.index is torch.int64 else {})

    def make(self, g: torch.Generator) -> dict[str, Any]:
        columns = max([-(-max(n, 0) // self.page) for n in self.lens], default=0) + self.slack
        blocks = sum(-(-max(n, 0) // self.page) for n in self.lens) + self.slack
        strided = self.layout != "dense"
        q = data.queries((len(self.lens), self.s_q, self.h, self.width), data.dtype_of(self.format), g)
        table = data.table(self.lens, self.page, blocks, columns, g).to(self.index)
        return {
            "q": data.spread(q) if strided else q,
            "kv_cache": data.cache(self.format, blocks, self.page, self.width, g, strided),
            "block_table": data.arrange(table, self.layout),
            "seq_lens": data.arrange(torch.tensor(self.lens, dtype=self.index), self.layout),
            "attn_sink": data.sinks(self.sink, self.h, g), "format": self.format, "d_v": self.d_v,
            "causal": self.causal, "softmax_scale": self.scale * self.width**-0.5,
        }


def _sweeps() -> Iterator[Shape]:
    for name, s_q, h in itertools.product(FORMATS, (1, 2, 3), (1, 3, 16)):
        yield Shape(s_q=s_q, h=h, format=name)
    for h in (2, 5, 7, 8, 9, 31, 32, 33, 63, 64, 65, 96, 100, 126, 127, 128):
        yield Shape((70,), h=h)
    for page, name in itertools.product((1, 2, 3, 5, 16, 32, 61, 69, 128, 256, 576), ("bf16", "v41_fp8_paged")):
        yield Shape((0, 1, 70), format=name, page=page)
    for name, kind in itertools.product(("bf16", "f32", "v32_fp8"), ("mixed", "+inf", "-inf", "normal")):
        yield Shape((0, 33), h=6, format=name, sink=kind)
    for name, layout, index in itertools.product(FORMATS, ("strided", "turned"), (torch.int32, torch.int64)):
        yield Shape((5, 66), s_q=2, format=name, layout=layout, index=index, page=5)
    for s_q, name in itertools.product((1, 2, 4), FORMATS):
        yield Shape(s_q=s_q, format=name, causal=False, sink="mixed")
    for name in ("v4_fp8", "v41_fp4", "v41_fp4_paged"):
        yield Shape((3, 40), s_q=2, format=name, page=7)
    for pages, n in itertools.product((64, 256), (255, 256, 257, 511, 512, 513)):
        yield Shape((n,), s_q=2, h=2, page=pages, format="f32")


def _mixed() -> Iterator[Shape]:
    """Few small shapes that bring together what the sweeps vary one by one."""
    i64 = torch.int64
    few: dict[str, Any] = {"lens": (3, 20), "note": "mixed"}
    yield Shape(**few, h=1, format="v4_fp8", page=1, causal=False, sink="mixed", layout="turned", index=i64)
    yield Shape(**few, h=2, format="v41_fp4", page=8, causal=False, sink="normal", layout="strided", d_v=100)
    yield Shape(**few, h=1, format="v41_fp4_paged", page=3, sink="mixed", scale=-0.5)
    yield Shape(**few, h=3, s_q=2, format="v32_fp8", page=1, sink="normal", layout="strided")
    yield Shape(**few, h=5, format="v41_fp8", page=5, sink="normal", index=i64, d_v=100)
    yield Shape(**few, h=1, s_q=2, format="v41_fp8_paged", page=5, causal=False, sink="normal", scale=0.0)
    yield Shape(**few, h=1, page=3, causal=False, sink="mixed", index=i64, scale=-0.3)


def _pinned() -> Iterator[tuple[Shape, tuple[str, ...]]]:
    yield Shape((0, 1, 63, 64, 65, 0), h=16, note="empty-rows"), ("C01", "C06", "C07")
    yield Shape((0,) * 16, h=16, note="all-empty"), ("C01",)
    for s_q, n in ((2, 3), (3, 2), (1, 4), (4, 1)):
        yield Shape((n,), s_q=s_q, format="f32", page=4, note="bottom-right"), ("C18",)
    yield Shape((13,), page=4, note="part-page"), ("C13",)
    yield Shape((100, 1, 64, 65, 7, 0, 0, 0), page=16, note="refilled-plan"), ("C26", "C82")
    yield Shape((9, 40), s_q=2, layout="turned", page=8, note="strided-index"), ("C20",)
    for s_q in (256, 1024):
        yield Shape((s_q + 3,), s_q=s_q, h=1, d=64, d_v=64, note="long-query"), ("C03",)
    for name in ("v32_fp8", "v41_fp8"):
        yield Shape((5,), s_q=0, format=name, note="no-query"), ("C02",)


def cases(op: str) -> Iterable[Case]:
    """All cases of decode."""
    quick, edge = frozenset({"quick"}), frozenset({"quick", "edge"})
    for shape in itertools.chain(_sweeps(), _mixed()):
        yield Case(op, shape.params(), shape.make, quick)
    for shape, refs in _pinned():
        yield Case(op, shape.params(), shape.make, edge, refs=refs)
    for shape in (
        Shape((), note="no-request"), Shape((5, 6), s_q=0, note="no-query"), Shape((0, 0), slack=0, note="no-block"),
        Shape((3,), h=2, d=8, d_v=8, format="f32", note="narrow"), Shape((70,), h=3, d=40, d_v=1, format="f32"),
        Shape((20,), h=2, d=512, d_v=512), Shape((20,), h=2, d=512, d_v=512, format="f32"),
    ):
        yield Case(op, shape.params(), shape.make, edge)
    yield from _wild(op, edge)
    for heads, n, s_q in itertools.product((1, 9, 63, 128), (20, 140, 1024), (1, 2, 4)):
        shape = Shape((n, max(n - 17, 0), 0), s_q=s_q, h=heads, note="grid")
        yield Case(op, shape.params(), shape.make, frozenset({"full"}))
    yield from _bench(op)


def _wild(op: str, edge: frozenset[str]) -> Iterator[Case]:
    def clamped(shape: Shape, g: torch.Generator) -> dict[str, Any]:
        args = shape.make(g)
        return args | {"seq_lens": torch.tensor([-5, 10**6, 2**31 - 1, -(2**31)], dtype=torch.int32)}

    def foreign(shape: Shape, g: torch.Generator) -> dict[str, Any]:
        args = shape.make(g)
        args["block_table"][0, 0], args["block_table"][1, 1], args["block_table"][2, :] = -1, 2**31 - 1, 10**6
        return args

    def steep(shape: Shape, g: torch.Generator) -> dict[str, Any]:
        args = shape.make(g)
        return args | {"softmax_scale": 1e29, "q": -args["q"].abs() * 10, "kv_cache": args["kv_cache"].abs() + 0.5}

    for name in FORMATS:
        shape = Shape((40, 40, 40, 40), s_q=2, page=8, format=name)
        yield Case(op, shape.params() | {"note": "wild-lengths"}, partial(clamped, shape), edge)
        yield Case(op, shape.params() | {"note": "foreign-blocks"}, partial(foreign, shape), edge, refs=("C19",))
    for name in ("bf16", "f32"):
        shape = Shape((70, 3, 0), s_q=2, format=name, note="infinite-logits")
        yield Case(op, shape.params(), partial(data.infinite_logits, shape.make, "kv_cache"), edge)
        shape = Shape((1030, 3), h=2, format=name, note="keys-without-weight")
        yield Case(op, shape.params(), partial(_weightless, shape), edge)
    shape = Shape((70, 3), s_q=2, format="f32", note="queries-300")
    yield Case(op, shape.params(), partial(data.large_queries, shape.make), edge)
    yield Case(op, {"note": "logits-1e30"}, partial(steep, Shape((0, 5, 70), h=2, d=64, d_v=64, format="f32")), edge)
    yield Case(op, {"note": "far-below-mask"}, _far_below, edge, refs=("C12",))


def _weightless(shape: Shape, g: torch.Generator) -> dict[str, Any]:
    """The first 1024 keys have logits of -inf but finite values; in request 0 six others follow, in request 1 none."""
    args = shape.make(g)
    args["q"][..., -1] = args["q"][..., -1].abs() + 0.1
    args["kv_cache"][args["block_table"][0, : 1024 // shape.page].long(), :, -1] = -torch.inf
    args["kv_cache"][args["block_table"][1, 0].long(), :, -1] = -torch.inf
    return args


def _far_below(g: torch.Generator) -> dict[str, Any]:
    """The one visible key has logit -20000; a finite stand-in for -inf would let the hidden one win."""
    return {
        "q": torch.tensor([-20000.0, 0.0]).view(1, 1, 1, 2), "kv_cache": torch.tensor([[[1.0, 1.0], [0.0, 100.0]]]),
        "block_table": torch.zeros(1, 1, dtype=torch.int32), "seq_lens": torch.ones(1, dtype=torch.int32),
        "attn_sink": None, "format": "f32", "d_v": 2, "causal": True, "softmax_scale": 1.0,
    }


def _bench(op: str) -> Iterator[Case]:
    for h, s_q, n in itertools.product((16, 64, 128), (1, 2), (4096, 8192)):
        params = {"b": 4, "s_q": s_q, "h": h, "d_qk": 576, "len": n, "page": 64, "format": "bf16"}
        yield Case(op, params, Shape((n,) * 4, s_q, h).make, frozenset({"bench"}))
        whole = params | {"b": 128}
        yield Case(op, whole, Shape((n,) * 128, s_q, h).make, frozenset({"bench", "profile:hardware"}))
    for b, n, name in itertools.product((1, 8), (128, 512), ("f32", "bf16")):
        params = {"b": b, "s_q": 1, "h": 4, "d_qk": 576, "len": n, "page": 64, "format": name}
        yield Case(op, params, Shape((n,) * b, 1, 4, name).make, frozenset({"bench"}))


def error_cases(op: str) -> Iterable[ErrorCase]:
    """Calls of decode that must raise InvalidArgument."""
    base = Shape((5, 6), s_q=2, page=4)

    def case(name: str, change: dict[str, Any], *mentions: str, validate: bool = False) -> ErrorCase:
        return ErrorCase(op, name, lambda g: base.make(g) | change, InvalidArgument, mentions, validate)

    f32, i32 = torch.float32, torch.int32
    yield case("q-rank", {"q": torch.zeros(2, 4, 576)}, "q", "4 dimensions")
    yield case("q-dtype", {"q": torch.zeros(2, 2, 4, 576, dtype=torch.float16)}, "q", "float16")
    yield case("q-list", {"q": [1.0]}, "q", "Tensor")
    yield case("width", {"q": torch.zeros(2, 2, 4, 512).bfloat16()}, "kv_cache", "512")
    yield case("format-name", {"format": "fp8"}, "format", "KVFormat")
    yield case("bytes-without-format", {"kv_cache": torch.zeros(2, 4, 656, dtype=torch.uint8)}, "kv_cache", "V32_FP8")
    yield case("bytes-per-token", {"kv_cache": torch.zeros(2, 4, 584, dtype=torch.uint8), "format": "v32_fp8"}, "656")
    yield case("mixed-dtypes", {"kv_cache": torch.zeros(2, 4, 576), "format": "f32"}, "q", "float32")
    yield case("page-0", {"kv_cache": torch.zeros(2, 0, 576).bfloat16()}, "page")
    yield case("d_v", {"d_v": 577}, "d_v", "576")
    yield case("d_v-0", {"d_v": 0}, "d_v", "1")
    yield case("lens-dtype", {"seq_lens": torch.ones(2)}, "seq_lens", "int32")
    yield case("lens-shape", {"seq_lens": torch.ones(3, dtype=i32)}, "seq_lens", "2")
    yield case("table-rank", {"block_table": torch.zeros(2, dtype=i32)}, "block_table", "2 dimensions")
    yield case("table-rows", {"block_table": torch.zeros(3, 4, dtype=i32)}, "block_table", "2")
    yield case("sink-dtype", {"attn_sink": torch.zeros(4).bfloat16()}, "attn_sink", "float32")
    yield case("sink-shape", {"attn_sink": torch.zeros(5, dtype=f32)}, "attn_sink", "4")
    yield case("scale", {"softmax_scale": float("nan")}, "softmax_scale", "finite")
    yield case("split-stride", {"kv_cache": torch.zeros(2, 4, 600, dtype=torch.uint8)[..., :584], "format": "v4_fp8",
                                "q": torch.zeros(2, 2, 4, 512).bfloat16()}, "kv_cache", "584")
    yield case("too-long", {"seq_lens": torch.tensor([5, 99])}, "seq_lens[1]", "99", validate=True)
    yield case("negative", {"seq_lens": torch.tensor([-1, 4])}, "seq_lens[0]", "-1", validate=True)
    yield case("foreign-block", {"block_table": torch.tensor([[0, 50, 0], [0, 0, 0]])}, "block_table[0,1]", "50",
               validate=True)
    yield case("nan-sink", {"attn_sink": torch.tensor([0.0, torch.nan, 0, 0])}, "attn_sink[1]", "NaN", validate=True)


def poison(args: dict[str, Any] | Any, g: torch.Generator) -> dict[str, Any] | None:
    """NaN in every slot no length reaches and in all gaps; garbage in table entries past a length."""
    table, cache = data.poisoned_pages(args["block_table"], args["seq_lens"], args["kv_cache"], args["format"], g)
    return dict(args) | {"q": data.surround(args["q"]), "block_table": table, "kv_cache": cache}


def batch_variants(args: Any) -> Sequence[tuple[dict[str, Any], tuple[Any, ...]]]:
    """Each of the first requests alone, and all requests in reverse order."""
    b = args["q"].shape[0]
    picks = [torch.tensor([r]) for r in range(min(b, 3))] + ([torch.arange(b).flip(0)] if b > 1 else [])
    names = ("q", "block_table", "seq_lens")
    return [(dict(args) | {name: args[name][pick] for name in names}, (pick, pick)) for pick in picks]
