"""Cases of `flash_mla.prefill`: three forms of keys, ragged segments, empty ones, odd offsets, corners of the mask."""

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
from deepinfer.ops.flash_mla.segments import covered, cut
from deepinfer.registry import Case, ErrorCase

PAIRS = ((1, 1), (3, 3), (0, 5), (2, 70), (5, 2))
KINDS = ("latent", "paged", "per_head")


@dataclass(frozen=True)
class Shape:
    """What a prefill case varies; `pairs` are (query tokens, keys) per request, keys counting the query tokens."""

    kind: str = "latent"
    pairs: tuple[tuple[int, int], ...] = PAIRS
    h: int = 3
    format: str = "bf16"
    page: int = 16
    causal: bool = True
    sink: str = "none"
    layout: str = "dense"
    index: torch.dtype = torch.int32
    d: int = 0
    d_v: int = 0
    tail: int = 0
    note: str = ""

    @property
    def widths(self) -> tuple[int, int]:
        natural = (192, 128) if self.kind == "per_head" else (LAYOUTS[self.format].width or 576, 512)
        return self.d or natural[0], self.d_v or natural[1]

    def params(self) -> dict[str, Any]:
        tokens, keys = (sum(column) for column in (list(zip(*self.pairs, strict=True)) or [(), ()]))
        named = {
            "kind": self.kind, "b": len(self.pairs), "s_q": tokens, "h": self.h, "d_qk": self.widths[0], "len": keys,
            "format": self.format,
        }
        if self.kind == "paged":
            named["page"] = self.page
        if 0 < len(self.pairs) < 4:
            named["pairs"] = "/".join(f"{a}:{b}" for a, b in self.pairs)
        plain = Shape()
        for key in ("causal", "sink", "layout", "d_v", "tail", "note"):
            if getattr(self, key) != getattr(plain, key):
                named[key] = getattr(self, key)
        return named | ({"index": "int64"} if self.index is torch.int64 else {})

    def make(self, g: torch.Generator) -> dict[str, Any]:
        n_q, n_k = [p[0] for p in self.pairs], [p[1] for p in self.pairs]
        (d, d_v), dtype = self.widths, data.dtype_of(self.format)
        move = data.spread if self.layout != "dense" else (lambda t: t)
        q = move(data.queries((sum(n_q) + self.tail, self.h, d), dtype, g))
        args: dict[str, Any] = dict.fromkeys(("v", "cu_k", "block_table", "seq_lens", "format"))
        args |= {"q": q, "cu_q": self._offsets(n_q), "attn_sink": data.sinks(self.sink, self.h, g), "d_v": d_v,
                 "causal": self.causal, "softmax_scale": d**-0.5}
        if self.kind == "paged":
            return args | self._paged(n_k, d, g)
        heads = (self.h,) if self.kind == "per_head" else ()
        rows = data.rows((sum(n_k) + self.tail) * max(sum(heads), 1), d, g).to(dtype)
        args |= {"cu_k": self._offsets(n_k), "kv": move(rows.view(-1, *heads, d))}
        if heads:
            args["v"] = move(data.rows((sum(n_k) + self.tail) * self.h, d_v, g).to(dtype).view(-1, self.h, d_v))
        return args

    def _offsets(self, counts: list[int]) -> torch.Tensor:
        cu = torch.tensor([0, *counts]).cumsum(0).to(self.index)
        return data.arrange(cu, self.layout)

    def _paged(self, n_k: list[int], d: int, g: torch.Generator) -> dict[str, Any]:
        needed = [-(-n // self.page) for n in n_k]
        blocks = sum(needed) + 1
        table = data.table(n_k, self.page, blocks, max(needed, default=0) + 1, g).to(self.index)
        return {
            "kv": data.cache(self.format, blocks, self.page, d, g, self.layout != "dense"), "format": self.format,
            "block_table": data.arrange(table, self.layout),
            "seq_lens": data.arrange(torch.tensor(n_k, dtype=self.index), self.layout),
        }


def _sweeps() -> Iterator[Shape]:
    dense = [("latent", name) for name in ("bf16", "f32")] + [("per_head", name) for name in ("bf16", "f32")]
    forms = dense + [("paged", name) for name in ("bf16", "f32", "v32_fp8", "v41_fp8", "v41_fp8_paged", "v4_fp8")]
    for (kind, name), causal, sink in itertools.product(forms, (True, False), ("none", "mixed")):
        yield Shape(kind, format=name, causal=causal, sink=sink)
    for (kind, name), layout in itertools.product(forms, ("strided", "turned")):
        yield Shape(kind, format=name, layout=layout, index=torch.int64)
    for kind, h in itertools.product(KINDS, (1, 2, 8, 16, 64, 127, 128)):
        yield Shape(kind, ((4, 20),), h=h)
    for kind, (n_q, n_k) in itertools.product(KINDS, ((2, 3), (3, 2), (1, 4), (4, 1), (5, 0), (0, 0))):
        yield Shape(kind, ((n_q, n_k),), format="f32")
    for page in (1, 2, 5, 61, 64, 256):
        yield Shape("paged", page=page)
    for kind, n in itertools.product(KINDS, (63, 64, 65, 129)):
        yield Shape(kind, ((n, n),), h=2, format="f32")
    for sink in ("+inf", "-inf", "normal"):
        yield Shape("latent", format="f32", sink=sink)
    # Few small shapes that bring together what is varied one by one above.
    pairs, i64 = ((2, 9), (3, 4)), torch.int64
    yield Shape("paged", pairs, 1, "v41_fp8", 5, causal=False, sink="normal", index=i64, d_v=100, note="mixed")
    yield Shape("paged", pairs[:1], 5, "v32_fp8", 1, sink="mixed", layout="strided", d_v=448, note="mixed")
    yield Shape("paged", pairs, 2, "v4_fp8", 3, sink="normal", layout="turned", d_v=100, note="mixed")
    yield Shape("per_head", pairs, 1, causal=False, sink="normal", layout="turned", index=i64, note="mixed")


def cases(op: str) -> Iterable[Case]:
    """All cases of prefill."""
    quick, edge = frozenset({"quick"}), frozenset({"quick", "edge"})
    for shape in _sweeps():
        corner = len(shape.pairs) == 1 and shape.pairs[0][0] < 5
        yield Case(op, shape.params(), shape.make, quick, refs=("C18",) if corner else ())
    for kind in KINDS:
        for shape in (
            Shape(kind, (), note="no-request"), Shape(kind, ((0, 0), (0, 3)), note="no-query"),
            Shape(kind, ((2, 0), (3, 0)), note="no-key"),
        ):
            yield Case(op, shape.params(), shape.make, edge, refs=("C02",) if shape.note == "no-query" else ())
        outside = Shape(kind, ((2, 3), (1, 1)), tail=0 if kind == "paged" else 3, note="rows-outside")
        yield Case(op, outside.params(), partial(_shift, outside), edge)
        falling = Shape(kind, ((2, 3), (1, 1), (4, 5)), note="falling-offsets")
        yield Case(op, falling.params(), partial(_fall, falling), edge)
    yield from _extreme(op, edge)
    chunk = Shape("latent", ((4, 4), (4, 0), (3, 2)), note="first-chunk")
    yield Case(op, chunk.params(), chunk.make, edge, refs=("C05",))
    for kind, pairs in itertools.product(KINDS, (((213, 512),), ((62, 128), (1, 95), (0, 7)), ((300, 300),))):
        shape = Shape(kind, pairs, h=8, note="grid")
        yield Case(op, shape.params(), shape.make, frozenset({"full"}))
    for kind, n, h in itertools.product(KINDS, (512, 1024), (4, 16)):
        params = {"kind": kind, "b": 1, "s_q": n, "h": h, "d_qk": Shape(kind).widths[0], "len": n, "page": 64,
                  "format": "bf16"}
        yield Case(op, params, Shape(kind, ((n, n),), h=h, page=64).make, frozenset({"bench"}))


def _extreme(op: str, edge: frozenset[str]) -> Iterator[Case]:
    for kind, name in itertools.product(KINDS, ("bf16", "f32")):
        shape = Shape(kind, ((3, 40), (2, 2)), h=4, format=name, note="infinite-logits")
        yield Case(op, shape.params(), partial(data.infinite_logits, shape.make, "kv"), edge)
    for kind in KINDS:
        shape = Shape(kind, ((3, 40), (2, 2)), format="f32", sink="normal", note="queries-300")
        yield Case(op, shape.params(), partial(data.large_queries, shape.make), edge)
    shape = Shape("per_head", ((40, 40),), format="f32", note="key-without-weight")
    yield Case(op, shape.params(), partial(_weightless, shape), edge)


def _weightless(shape: Shape, g: torch.Generator) -> dict[str, Any]:
    """Key 0 has a logit of -inf for every query: the first query's only key, one of many for the others."""
    args = shape.make(g)
    args["q"][..., 0] = args["q"][..., 0].abs() + 0.1
    args["kv"][0, :, 0] = -torch.inf
    return args


def _shift(shape: Shape, g: torch.Generator) -> dict[str, Any]:
    """Segments that leave the first and the last query row to nobody."""
    args = shape.make(g)
    cu = torch.tensor([1, 2, args["q"].shape[0] - 1], dtype=torch.int32)
    return args | {"cu_q": cu}


def _fall(shape: Shape, g: torch.Generator) -> dict[str, Any]:
    """Offsets that fall, go negative and beyond the rows."""
    args = shape.make(g)
    args |= {"cu_q": torch.tensor([-3, 4, 2, 2**31 - 1], dtype=torch.int32)}
    if args["cu_k"] is not None:
        args["cu_k"] = torch.tensor([0, 5, 3, 8], dtype=torch.int32)
    return args


def error_cases(op: str) -> Iterable[ErrorCase]:
    """Calls of prefill that must raise InvalidArgument."""
    bases = {kind: Shape(kind, ((2, 3), (1, 1))) for kind in KINDS}

    def case(name: str, kind: str, change: dict[str, Any], *mentions: str, validate: bool = False) -> ErrorCase:
        return ErrorCase(op, name, lambda g: bases[kind].make(g) | change, InvalidArgument, mentions, validate)

    ints = torch.zeros(3, dtype=torch.int32)
    yield case("q-rank", "latent", {"q": torch.zeros(3, 576).bfloat16()}, "q", "3 dimensions")
    yield case("no-cu_k", "latent", {"cu_k": None}, "cu_k", "latent rows")
    yield case("cu-length", "latent", {"cu_k": ints[:2]}, "cu_k", "3")
    yield case("cu-dtype", "latent", {"cu_q": ints.float()}, "cu_q", "int32")
    yield case("cu-empty", "latent", {"cu_q": ints[:0], "cu_k": ints[:0]}, "cu_q", "b + 1")
    yield case("kv-rank", "latent", {"kv": torch.zeros(4, 3, 576).bfloat16()}, "kv", "2 dimensions")
    yield case("kv-width", "latent", {"kv": torch.zeros(4, 512).bfloat16()}, "kv", "576")
    yield case("kv-dtype", "latent", {"kv": torch.zeros(4, 576)}, "kv", "bfloat16")
    yield case("format-unused", "latent", {"format": "bf16"}, "format", "latent rows")
    yield case("both-forms", "paged", {"cu_k": ints}, "cu_k", "paged")
    yield case("no-lens", "paged", {"seq_lens": None}, "seq_lens", "paged")
    yield case("lens-shape", "paged", {"seq_lens": ints}, "seq_lens", "2")
    yield case("v-shape", "per_head", {"v": torch.zeros(4, 3, 64).bfloat16()}, "v", "128")
    yield case("v-heads", "per_head", {"kv": torch.zeros(4, 2, 192).bfloat16()}, "kv", "3")
    yield case("v-paged", "paged", {"v": torch.zeros(4, 3, 128).bfloat16()}, "v", "paged")
    yield case("sink", "latent", {"attn_sink": torch.zeros(4)}, "attn_sink", "3")
    yield case("falls", "latent", {"cu_q": torch.tensor([0, 3, 2])}, "cu_q[2]", "2", validate=True)
    yield case("starts", "latent", {"cu_k": torch.tensor([1, 3, 4])}, "cu_k[0]", "1", validate=True)
    yield case("beyond", "latent", {"cu_k": torch.tensor([0, 3, 99])}, "cu_k[2]", "99", validate=True)
    yield case("lens-value", "paged", {"seq_lens": torch.tensor([3, 5000])}, "seq_lens[1]", "5000", validate=True)


def poison(args: Any, g: torch.Generator) -> dict[str, Any] | None:
    """NaN in rows of no segment, in gaps and in unused slots; garbage in table entries past a length."""
    q = data.surround(args["q"])
    q[~covered(args["cu_q"], q.shape[0])] = torch.nan
    changed = dict(args) | {"q": q}
    if args["block_table"] is not None:
        table, cache = data.poisoned_pages(args["block_table"], args["seq_lens"], args["kv"], args["format"], g)
        return changed | {"block_table": table, "kv": cache}
    for name in ("kv", "v"):
        if args[name] is not None:
            changed[name] = _poison_rows(args[name], args["cu_k"])
    return changed


def _poison_rows(rows: torch.Tensor, cu: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = data.surround(rows)
    start, length = cut(cu, rows.shape[0])
    kept = torch.zeros(rows.shape[0], dtype=torch.bool)
    for first, n in zip(start.tolist(), length.tolist(), strict=True):
        kept[first : first + n] = True
    made[~kept] = torch.nan
    return made


def batch_variants(args: Any) -> Sequence[tuple[dict[str, Any], tuple[Any, ...]]]:
    """Each of the first three requests alone."""
    made = []
    start, length = cut(args["cu_q"], args["q"].shape[0])
    for r in range(min(len(start), 3)):
        rows = slice(int(start[r]), int(start[r] + length[r]))
        one = dict(args) | {"q": args["q"][rows], "cu_q": torch.tensor([0, int(length[r])], dtype=torch.int32)}
        if args["block_table"] is not None:
            one |= {"block_table": args["block_table"][r : r + 1], "seq_lens": args["seq_lens"][r : r + 1]}
        else:
            first, n = (int(edge[r]) for edge in cut(args["cu_k"], args["kv"].shape[0]))
            one |= {"kv": args["kv"][first : first + n], "cu_k": torch.tensor([0, n], dtype=torch.int32)}
            one["v"] = None if args["v"] is None else args["v"][first : first + n]
        made.append((one, (rows, (slice(None), rows))))
    return made
