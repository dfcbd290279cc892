"""Cases of `flash_mla.sparse_decode`: every format and pair of pools, holes in the lists, lengths, heads, K, pages."""

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
from deepinfer.ops.flash_mla.formats import LAYOUTS
from deepinfer.registry import Case, ErrorCase

FORMATS = ("bf16", "f32", "v32_fp8", "v4_fp8", "v41_fp8", "v41_fp8_paged", "v41_fp4", "v41_fp4_paged")
EXTRA = ("extra_kv_cache", "extra_indices", "extra_topk_length", "extra_format")


@dataclass(frozen=True)
class Shape:
    """What a sparse decode case varies. `rows` is the least number of slots of the first pool."""

    b: int = 2
    s_q: int = 2
    h: int = 4
    format: str = "v41_fp8"
    topk: int = 24
    page: int = 16
    rows: int = 60
    holes: str = "random"
    lens: str = "none"
    extra: str = ""
    extra_topk: int = 10
    sink: str = "none"
    layout: str = "dense"
    index: torch.dtype = torch.int32
    d: int = 576
    note: str = ""
    d_v: int = 512
    scale: float = 1.0

    @property
    def width(self) -> int:
        return LAYOUTS[self.format].width or (LAYOUTS[self.extra].width if self.extra else 0) or self.d

    def params(self) -> dict[str, Any]:
        named = {"b": self.b, "s_q": self.s_q, "h": self.h, "d_qk": self.width, "len": self.rows, "topk": self.topk,
                 "page": self.page, "format": self.format}
        if self.extra:
            named |= {"extra_format": self.extra, "extra_topk": self.extra_topk}
        plain = Shape()
        for key in ("holes", "lens", "sink", "layout", "note", "d_v", "scale"):
            if getattr(self, key) != getattr(plain, key):
                named[key] = getattr(self, key)
        return named | ({"index": "int64"} if self.index is torch.int64 else {})

    def make(self, g: torch.Generator) -> dict[str, Any]:
        strided = self.layout != "dense"
        q = data.queries((self.b, self.s_q, self.h, self.width), data.dtype_of(self.format), g)
        args: dict[str, Any] = dict.fromkeys(EXTRA)
        args |= {"q": data.spread(q) if strided else q, "format": self.format, "d_v": min(self.width, self.d_v),
                 "attn_sink": data.sinks(self.sink, self.h, g), "softmax_scale": self.scale * self.width**-0.55}
        args |= self._pool("", self.format, self.rows, self.page, self.topk, g)
        if self.extra:
            args |= self._pool("extra_", self.extra, max(self.rows // 2, 1), self.page + 3, self.extra_topk, g)
            args["extra_format"] = self.extra
        return args

    def _pool(self, prefix: str, name: str, rows: int, page: int, topk: int, g: torch.Generator) -> dict[str, Any]:
        blocks = -(-rows // page)
        chosen = data.indices((self.b, self.s_q, topk), blocks * page, g, self.holes).to(self.index)
        shape = {"none": None, "request": (self.b,), "token": (self.b, self.s_q), "zero": (self.b,)}[self.lens]
        lengths = None
        if shape is not None:
            top = 1 if self.lens == "zero" else topk + 1
            lengths = data.arrange(torch.randint(top, shape, generator=g).to(self.index), self.layout)
        return {
            f"{prefix}kv_cache": data.cache(name, blocks, page, self.width, g, self.layout != "dense"),
            f"{prefix}indices": data.arrange(chosen, self.layout), f"{prefix}topk_length": lengths,
        }


def _sweeps() -> Iterator[tuple[Shape, tuple[str, ...]]]:
    for name, holes in itertools.product(FORMATS, data.HOLES):
        refs = ("C10",) if holes in ("front", "middle", "end", "all") else ("C16",) if holes == "wild" else ()
        yield Shape(format=name, holes=holes), refs
    for name, lens, s_q in itertools.product(FORMATS, ("request", "token", "zero"), (1, 3)):
        yield Shape(format=name, lens=lens, s_q=s_q, holes="wild"), ("C14",)
    pairs = [("v41_fp8", "v41_fp4"), ("v41_fp8_paged", "v41_fp4_paged"), ("v4_fp8", "v4_fp8"), ("bf16", "v41_fp8"),
             ("v32_fp8", "v32_fp8"), ("v32_fp8", "bf16"), ("f32", "f32"), ("v41_fp8", "v41_fp8")]
    for (first, second), lens, sink in itertools.product(pairs, ("none", "request", "token"), ("none", "mixed")):
        yield Shape(format=first, extra=second, lens=lens, sink=sink), ()
    for h in (1, 2, 3, 7, 8, 9, 16, 31, 32, 33, 63, 64, 65, 96, 100, 127, 128):
        yield Shape(1, 1, h), ("C22",)
    for topk, name in itertools.product((1, 2, 63, 64, 65, 127, 128, 129, 192, 255, 256, 257), ("v41_fp8", "v32_fp8")):
        yield Shape(1, 1, 2, name, topk, rows=280), ("C22",)
    for topk in (511, 512, 513, 600, 1024, 2047, 2048, 2049):
        yield Shape(1, 1, 2, "bf16", topk, page=64, rows=topk, holes="none"), ()
    for page, name in itertools.product((1, 2, 5, 53, 61, 64, 69, 256, 576), ("v4_fp8", "v41_fp8_paged", "v32_fp8")):
        yield Shape(1, 2, 3, name, page=page), ()
    for name, layout, index in itertools.product(FORMATS, ("strided", "turned"), (torch.int32, torch.int64)):
        yield Shape(format=name, layout=layout, index=index, lens="token", page=5), ("C20",)
    for name, sink in itertools.product(("f32", "v41_fp8"), ("+inf", "-inf", "normal")):
        yield Shape(3, 1, 5, name, sink=sink, holes="all" if sink == "normal" else "random"), ("C11",)


def _mixed() -> Iterator[Shape]:
    """Few small shapes that bring together what the sweeps vary one by one."""
    i64 = torch.int64
    few: dict[str, Any] = {"topk": 9, "rows": 12, "note": "mixed"}
    yield Shape(2, 1, 1, "v41_fp4", extra="v41_fp8", page=1, lens="request", sink="mixed", layout="turned", index=i64,
                d_v=100, **few)
    yield Shape(2, 1, 3, "v41_fp8_paged", extra="v41_fp4", page=5, lens="token", sink="normal", layout="strided",
                d_v=200, **few)
    yield Shape(1, 3, 2, "f32", extra="f32", page=1, sink="mixed", scale=0.0, **few)
    yield Shape(2, 1, 5, "bf16", extra="v4_fp8", page=3, lens="request", sink="normal", index=i64, **few)
    yield Shape(1, 2, 1, "index_fp4", extra="index_fp8", page=1, lens="token", sink="mixed", d_v=64, **few)
    yield Shape(2, 1, 3, "v4_fp8", extra="v41_fp4_paged", page=7, sink="normal", d_v=448, scale=-0.5, **few)


def cases(op: str) -> Iterable[Case]:
    """All cases of sparse decode."""
    quick, edge = frozenset({"quick"}), frozenset({"quick", "edge"})
    for shape, refs in _sweeps():
        yield Case(op, shape.params(), shape.make, quick, refs=refs)
    for shape in _mixed():
        yield Case(op, shape.params(), shape.make, quick)
    for shape in (
        Shape(b=0, note="no-request"), Shape(s_q=0, note="no-query"), Shape(topk=0, note="no-entry"),
        Shape(s_q=0, topk=0, note="nothing"), Shape(rows=0, note="no-block"), Shape(topk=0, extra="v41_fp4"),
        Shape(extra="v41_fp4", extra_topk=0), Shape(format="index_fp4", extra="index_fp8"),
        Shape(format="f32", d=24, h=2, note="narrow"),
    ):
        yield Case(op, shape.params(), shape.make, edge, refs=("C02",) if shape.note.startswith("no") else ())
    for n in (511, 512, 513, 600, 1024):
        shape = Shape(1, 1, 2, "f32", n, page=64, rows=n, note="last-only")
        yield Case(op, shape.params(), partial(_last_only, shape), edge, refs=("C21",))
    for name in ("bf16", "f32"):
        shape = Shape(format=name, note="infinite-logits")
        yield Case(op, shape.params(), partial(data.infinite_logits, shape.make, "kv_cache"), edge)
    shape = Shape(format="f32", sink="normal", note="queries-300")
    yield Case(op, shape.params(), partial(data.large_queries, shape.make), edge)
    for name in ("bf16", "v41_fp8"):
        shape = Shape(2, 1, 3, name, 12, rows=4, page=4, holes="none", note="repeated")
        yield Case(op, shape.params(), shape.make, edge)
    shape = Shape(2, 2, 3, "v32_fp8", note="plain-scales")
    yield Case(op, shape.params(), partial(_plain_scales, shape), edge, refs=("C16",))
    shape = Shape(70, 1, 2, "v41_fp8", 8, lens="request", holes="none", note="many-tokens")
    yield Case(op, shape.params(), shape.make, edge, refs=("C14", "C17"))
    for (rows, topk, page), h, s_q in itertools.product(
        ((512, 64, 5), (512, 64, 69), (1024, 576, 2), (1024, 576, 61), (2046, 2048, 64)), (64, 128), (1, 3)
    ):
        shape = Shape(4, s_q, h, "v4_fp8", topk, page, rows, extra="v4_fp8", extra_topk=100, sink="mixed", note="grid")
        yield Case(op, shape.params(), shape.make, frozenset({"full"}))
    yield from _bench(op)


def _last_only(shape: Shape, g: torch.Generator) -> dict[str, Any]:
    args = shape.make(g)
    only = torch.full_like(args["indices"], -1)
    only[..., -1] = shape.rows - 1
    return args | {"indices": only}


def _plain_scales(shape: Shape, g: torch.Generator) -> dict[str, Any]:
    """V32 scales that are no powers of two; a reader that rounds them is off by up to a factor of two."""
    args = shape.make(g)
    pick = torch.tensor([0.3, 1.7, 0.011, 3.0e-3])[torch.randint(4, (*args["kv_cache"].shape[:2], 4), generator=g)]
    args["kv_cache"][..., 512:528] = (pick / 448).contiguous().view(torch.uint8)
    return args


def _bench(op: str) -> Iterator[Case]:
    for name, h, s_q, topk, page, rows in (
        ("v32_fp8", 128, 1, 2048, 64, 32768), ("v32_fp8", 64, 2, 2048, 64, 32768), ("v4_fp8", 128, 2, 1024, 64, 16384),
        ("v4_fp8", 64, 1, 512, 64, 16384), ("v41_fp8", 64, 1, 640, 64, 16384), ("v41_fp8_paged", 64, 2, 640, 64, 16384),
    ):
        for b, tag, pool in ((2, "", 4096), (64, "profile:hardware", rows), (128, "profile:hardware", rows)):
            shape = Shape(b, s_q, h, name, topk, page, pool, "none", sink="mixed")
            yield Case(op, shape.params(), shape.make, frozenset({"bench", tag} - {""}))
    for first, second, h, extra in (("v4_fp8", "v4_fp8", 64, 512), ("v4_fp8", "v4_fp8", 128, 1024),
                                    ("v41_fp8", "v41_fp4", 64, 512)):
        for b, tag, pool in ((2, "", 4096), (64, "profile:hardware", 16384)):
            shape = Shape(b, 2, h, first, 128, 256, pool, "none", extra=second, extra_topk=extra, sink="mixed")
            yield Case(op, shape.params(), shape.make, frozenset({"bench", tag} - {""}))


def error_cases(op: str) -> Iterable[ErrorCase]:
    """Calls of sparse decode that must raise InvalidArgument."""
    base, two = Shape(), Shape(extra="v41_fp4")

    def case(
        name: str, change: dict[str, Any], *mentions: str, shape: Shape = base, validate: bool = False
    ) -> ErrorCase:
        return ErrorCase(op, name, lambda g: shape.make(g) | change, InvalidArgument, mentions, validate)

    i32 = torch.int32
    yield case("q-rank", {"q": torch.zeros(2, 4, 512).bfloat16()}, "q", "4 dimensions")
    yield case("q-width", {"q": torch.zeros(2, 2, 4, 576).bfloat16()}, "q", "512")
    yield case("indices-rank", {"indices": torch.zeros(2, 24, dtype=i32)}, "indices", "3 dimensions")
    yield case("indices-shape", {"indices": torch.zeros(2, 3, 24, dtype=i32)}, "indices", "[2, 2, 24]")
    yield case("indices-dtype", {"indices": torch.zeros(2, 2, 24)}, "indices", "int32")
    yield case("length-shape", {"topk_length": torch.zeros(3, dtype=i32)}, "topk_length", "[2, 2]")
    yield case("extra-alone", {"extra_indices": torch.zeros(2, 2, 3, dtype=i32)}, "extra_kv_cache", "together")
    lone = {"extra_topk_length": torch.zeros(2, dtype=i32)}
    yield case("extra-length-alone", lone, "extra_topk_length", "extra_indices")
    yield case("extra-width", {"extra_format": "v32_fp8", "extra_kv_cache": torch.zeros(2, 4, 656, dtype=torch.uint8)},
               "extra_kv_cache", "576", shape=two)
    yield case("extra-bytes", {"extra_format": "v41_fp8"}, "extra_kv_cache", "528", shape=two)
    yield case("uint8-as-bf16", {"format": "bf16"}, "kv_cache", "V32_FP8")
    yield case("d_v", {"d_v": 513}, "d_v", "512")
    yield case("index-high", {"indices": torch.full((2, 2, 24), 64)}, "indices[0,0,0]", "64", validate=True)
    yield case("index-low", {"indices": torch.full((2, 2, 24), -2)}, "indices[0,0,0]", "-2", validate=True)
    yield case("length-high", {"topk_length": torch.tensor([3, 25])}, "topk_length[1]", "25", validate=True)


def poison(args: Any, g: torch.Generator) -> dict[str, Any] | None:
    """NaN in every slot that no list names; garbage past lengths; other out-of-range values where one stood."""
    changed = dict(args) | {"q": data.surround(args["q"])}
    for prefix, cache in (("", args["kv_cache"]), ("extra_", args["extra_kv_cache"])):
        if cache is not None:
            changed |= _poison_pool(args, prefix, cache, g)
    return changed


def _poison_pool(args: Any, prefix: str, cache: torch.Tensor, g: torch.Generator) -> dict[str, Any]:
    indices, lengths = args[f"{prefix}indices"], args[f"{prefix}topk_length"]
    capacity, top = cache.shape[0] * cache.shape[1], indices.shape[-1]
    limit = torch.full(indices.shape[:-1], top) if lengths is None else lengths
    limit = limit.reshape(*limit.shape, *(1,) * (indices.ndim - 1 - limit.ndim)).expand(indices.shape[:-1])
    past = torch.arange(top) >= limit[..., None]
    outside = (indices < 0) | (indices >= capacity)
    swap = data.garbage(indices.shape, g)
    swap = torch.where((swap >= 0) & (swap < capacity), -7, swap)
    swap = torch.where(past & (torch.rand(indices.shape, generator=g) < 0.5), torch.tensor(max(capacity - 1, -1)), swap)
    used = [visible_slots(row, int(n), capacity) for row, n in
            zip(indices.reshape(-1, top) if top else (), limit.reshape(-1), strict=bool(top))]
    kept = torch.cat([*used, torch.zeros(0, dtype=torch.int64)])
    return {
        f"{prefix}indices": torch.where(past | outside, swap, indices.long()).to(indices.dtype),
        f"{prefix}kv_cache": data.poisoned_cache(cache, args[f"{prefix}format"], kept),
    }


def batch_variants(args: Any) -> Sequence[tuple[dict[str, Any], tuple[Any, ...]]]:
    """Each of the first requests alone, and all of them in reverse order."""
    names = ("q", "indices", "topk_length", "extra_indices", "extra_topk_length")
    b = args["q"].shape[0]
    picks = [torch.tensor([r]) for r in range(min(b, 3))] + ([torch.arange(b).flip(0)] if b > 1 else [])
    return [
        (dict(args) | {key: args[key][pick] for key in names if args[key] is not None}, (pick, pick)) for pick in picks
    ]
