"""Cases of `kv_cache_write` and `kv_cache_read`: every format, pages, skipped slots, hard values, layouts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from deepinfer.errors import InvalidArgument
from deepinfer.ops.flash_mla import data
from deepinfer.ops.flash_mla.formats import LAYOUTS, new_cache
from deepinfer.registry import Case, ErrorCase

# Powers of two and their neighbours, saturation, subnormals, the floors of every format, and exact ties.
HARD = (
    0.0, -0.0, 1.0, -1.0, 448.0, 449.0, 464.0, 480.0, -448.0, 6.0, 5.0, 2.5, 1.25, 0.25, 0.75, 3.5, 1e-4, 9.9e-5,
    2.0**-9, 6 * 2.0**-9, 2.0**-126, 1e-38, 1e-45, 3e38, -3e38, 447.99997, 0.33333334,
)


@dataclass(frozen=True)
class Shape:
    """What a cache case varies; `kind` of rows: normal, wide (magnitudes 2^-40 .. 2^40), zero, hard, broken, offset."""

    format: str
    n: int = 9
    page: int = 4
    blocks: int = 4
    kind: str = "normal"
    slots: str = "random"
    dtype: torch.dtype = torch.bfloat16
    layout: str = "dense"
    index: torch.dtype = torch.int64
    d: int = 576

    @property
    def width(self) -> int:
        return LAYOUTS[self.format].width or self.d

    def params(self) -> dict[str, Any]:
        return {
            "format": self.format, "n": self.n, "page": self.page, "blocks": self.blocks, "rows": self.kind,
            "slots": self.slots, "dtype": "f32" if self.dtype is torch.float32 else "bf16", "layout": self.layout,
            "index": "int64" if self.index is torch.int64 else "int32",
        }

    def slot_list(self, g: torch.Generator) -> torch.Tensor:
        capacity = self.page * self.blocks
        chosen = torch.full((self.n,), -1)
        order = torch.randperm(capacity, generator=g)[: self.n]
        chosen[: len(order)] = order
        if self.slots == "skip":
            chosen[::2] = -1
        elif self.slots == "wild":
            swap = data.garbage((self.n,), g)
            swap = torch.where((swap >= 0) & (swap < capacity), capacity, swap)
            chosen = torch.where(torch.rand(self.n, generator=g) < 0.5, swap, chosen)
        elif self.slots == "none":
            chosen[:] = -1
        return data.arrange(chosen.to(self.index), self.layout)

    def rows(self, g: torch.Generator) -> torch.Tensor:
        rows = torch.randn((self.n, self.width), generator=g)
        if self.kind == "wide":
            rows = rows * 2.0 ** torch.randint(-40, 41, rows.shape, generator=g)
        elif self.kind == "zero":
            rows[:, : self.width // 2] = 0.0
            rows[::2] = -0.0
        elif self.kind == "hard":
            rows = torch.tensor(HARD)[torch.randint(len(HARD), rows.shape, generator=g)]
        elif self.kind == "broken":
            bad = torch.tensor([torch.nan, torch.inf, -torch.inf])[torch.randint(3, rows.shape, generator=g)]
            rows = torch.where(torch.rand(rows.shape, generator=g) < 0.01, bad, rows)
        elif self.kind == "offset":  # small latents beside large rope channels
            rows[:, : self.width - 64] *= 0.03
        return rows.to(self.dtype)

    def cache(self, g: torch.Generator) -> torch.Tensor:
        """A cache full of noise bytes (plain formats: noise values)."""
        layout = LAYOUTS[self.format]
        made = new_cache(self.format, self.blocks, self.page, 0 if layout.quantised else self.d)
        if layout.quantised:
            made.copy_(torch.randint(256, made.shape, generator=g, dtype=torch.uint8))
        else:
            made.copy_(torch.randn(made.shape, generator=g))
        return made if self.layout == "dense" else data.apart(made, layout)

    def make_write(self, g: torch.Generator) -> dict[str, Any]:
        rows = self.rows(g)
        return {
            "kv_cache": self.cache(g), "rows": rows if self.layout == "dense" else data.spread(rows),
            "slots": self.slot_list(g), "format": self.format,
        }

    def make_read(self, g: torch.Generator) -> dict[str, Any]:
        strided = self.layout != "dense"
        cache = data.cache(self.format, self.blocks, self.page, self.width, g, strided)
        if self.kind == "noise":
            data.make_noise(cache, self.format, g)
        return {"kv_cache": cache, "slots": self.slot_list(g), "format": self.format, "dtype": self.dtype}


def _common(kinds: tuple[str, ...]) -> Iterator[Shape]:
    f32, bf16 = torch.float32, torch.bfloat16
    for name, kind, dtype in itertools.product(LAYOUTS, kinds, (bf16, f32)):
        yield Shape(name, kind=kind, dtype=dtype)
    for name, slots in itertools.product(LAYOUTS, ("skip", "wild", "none")):
        yield Shape(name, slots=slots)
    for name, page in itertools.product(LAYOUTS, (1, 61, 64)):
        yield Shape(name, page=page, index=torch.int32)
    for name, layout in itertools.product(LAYOUTS, ("strided", "turned")):
        yield Shape(name, layout=layout, slots="skip")


def _edges() -> Iterator[Shape]:
    for name in LAYOUTS:
        yield Shape(name, n=0)
        yield Shape(name, n=3, blocks=0, slots="none")


def write_cases(op: str) -> Iterable[Case]:
    """All cases of kv_cache_write."""
    for shape in _common(("normal", "wide", "zero", "hard", "broken")):
        yield Case(op, shape.params(), shape.make_write, frozenset({"quick"}))
    for name in ("v32_fp8", "v41_fp8", "v4_fp8"):
        shape = Shape(name, kind="offset")
        yield Case(op, shape.params(), shape.make_write, frozenset({"quick"}), refs=("C23",))
    for shape in _edges():
        yield Case(op, shape.params(), shape.make_write, frozenset({"quick", "edge"}))
    for name, n in itertools.product(("f32", "bf16", "v32_fp8", "v41_fp8", "v41_fp4"), (8, 1024)):
        params = {"s_q": n, "d_qk": LAYOUTS[name].width or 576, "page": 64, "format": name}
        yield Case(op, params, Shape(name, n, 64, 64).make_write, frozenset({"bench"}))


def read_cases(op: str) -> Iterable[Case]:
    """All cases of kv_cache_read."""
    for shape in _common(("normal", "noise")):
        yield Case(op, shape.params(), shape.make_read, frozenset({"quick"}))
    for shape in _edges():
        yield Case(op, shape.params(), shape.make_read, frozenset({"quick", "edge"}))
    for name in ("f32", "bf16", "v32_fp8", "v41_fp8", "v41_fp4"):
        params = {"s_q": 1024, "d_qk": LAYOUTS[name].width or 576, "page": 64, "format": name}
        yield Case(op, params, Shape(name, 1024, 64, 64).make_read, frozenset({"bench"}))


def write_error_cases(op: str) -> Iterable[ErrorCase]:
    """Calls of kv_cache_write that must raise InvalidArgument."""
    base = Shape("v41_fp8", n=3)

    def case(name: str, change: dict[str, Any], *mentions: str, validate: bool = False) -> ErrorCase:
        return ErrorCase(op, name, lambda g: base.make_write(g) | change, InvalidArgument, mentions, validate)

    yield case("rows-width", {"rows": torch.zeros(3, 576).bfloat16()}, "rows", "512")
    yield case("rows-dtype", {"rows": torch.zeros(3, 512).half()}, "rows", "float16")
    yield case("slots-shape", {"slots": torch.zeros(2, dtype=torch.int32)}, "slots", "3")
    yield case("slots-dtype", {"slots": torch.zeros(3)}, "slots", "int32")
    yield case("format", {"format": "bf16"}, "kv_cache", "V32_FP8")
    yield case("bytes", {"format": "v41_fp4"}, "kv_cache", "288")
    overlapping = torch.zeros(1, 1, 528, dtype=torch.uint8).expand(4, 4, 528)
    yield case("overlap", {"kv_cache": overlapping}, "kv_cache", "overlap")
    yield case("slot-high", {"slots": torch.tensor([0, 16, 2])}, "slots[1]", "16", validate=True)
    yield case("slot-twice", {"slots": torch.tensor([5, 0, 5])}, "slots", "twice", validate=True)


def read_error_cases(op: str) -> Iterable[ErrorCase]:
    """Calls of kv_cache_read that must raise InvalidArgument."""
    base = Shape("v41_fp8", n=3)

    def case(name: str, change: dict[str, Any], *mentions: str, validate: bool = False) -> ErrorCase:
        return ErrorCase(op, name, lambda g: base.make_read(g) | change, InvalidArgument, mentions, validate)

    yield case("slots-rank", {"slots": torch.zeros(2, 2, dtype=torch.int32)}, "slots", "1 dimension")
    yield case("dtype", {"dtype": torch.float16}, "dtype", "float16")
    yield case("cache-rank", {"kv_cache": torch.zeros(4, 528, dtype=torch.uint8)}, "kv_cache", "3 dimensions")
    yield case("format", {"format": "nope"}, "format", "nope")
    yield case("slot-low", {"slots": torch.tensor([0, -2, 2])}, "slots[1]", "-2", validate=True)


def poison_write(args: Any) -> dict[str, Any]:
    """NaN in rows whose slot is skipped; gaps of rows as well."""
    rows, slots, (blocks, page) = data.surround(args["rows"]), args["slots"], args["kv_cache"].shape[:2]
    rows[(slots < 0) | (slots >= blocks * page)] = torch.nan
    return dict(args) | {"rows": rows}


def poison_read(args: Any) -> dict[str, Any]:
    """NaN in every slot that is not read."""
    slots, (blocks, page) = args["slots"].long(), args["kv_cache"].shape[:2]
    kept = slots[(slots >= 0) & (slots < blocks * page)].unique()
    return dict(args) | {"kv_cache": data.poisoned_cache(args["kv_cache"], args["format"], kept)}
