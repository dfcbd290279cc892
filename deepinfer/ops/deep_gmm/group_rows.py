"""Contract of `deep_gmm.group_rows`: the stable order that brings rows of one group together."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from deepinfer.errors import InvalidArgument, invalid
from deepinfer.ops import checks
from deepinfer.registry import (
    EXACT,
    Call,
    Case,
    Cost,
    ErrorCase,
    Kind,
    OpSpec,
    Param,
    TensorMeta,
    Tolerance,
    register,
)
from deepinfer.registry.spec import Args, Tensors

MAX_ELEMENTS = 1 << 31
MAX_GROUPS = 1 << 20


@register
class GroupRows(OpSpec):
    """ids int [M] -> (permutation int64 [P], starts int32 [G], counts int32 [G]).

    Row m belongs to group ids[m]; an id outside [0, groups) belongs to none. Group g takes positions starts[g] ..
    starts[g] + counts[g] - 1, its rows in their old order (stable), starts ascending in g and multiples of `alignment`.
    permutation[p] is the row at position p, -1 where there is none (gaps and the tail). P depends on shapes alone: M
    for alignment 1, else M + groups * (alignment - 1) rounded up to a multiple of alignment. Exact.
    """

    name = "deep_gmm.group_rows"
    params = (Param("ids"), Param("groups", Kind.INT), Param("alignment", Kind.INT))
    returns = ("permutation", "starts", "counts")

    def check(self, call: Call) -> None:
        ids = call["ids"]
        checks.rank(self.name, "ids", ids, 1, "[M]")
        checks.dtype(self.name, "ids", ids, checks.INDEX_DTYPES)
        checks.between(self.name, "groups", call["groups"], 0, MAX_GROUPS)
        checks.at_least(self.name, "alignment", call["alignment"], 1)
        size = capacity(ids.shape[0], call["groups"], call["alignment"])
        if size >= MAX_ELEMENTS:
            raise invalid(f"{self.name}: groups, alignment", (call["groups"], call["alignment"]),
                          f"positions must stay below 2^31, these need {size}", nearest=(call["groups"], 1))

    def check_values(self, args: Args) -> None:
        for m, group in enumerate(args["ids"].tolist()):
            if not -1 <= group < args["groups"]:
                raise invalid(f"{self.name}: ids[{m}]", group, f"must be -1 or in [0, {args['groups']})", nearest=-1)

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        ids, groups = call["ids"], call["groups"]
        size = capacity(ids.shape[0], groups, call["alignment"])
        table = TensorMeta.dense((groups,), torch.int32, ids.device)
        return (TensorMeta.dense((size,), torch.int64, ids.device), table, table)

    def reference(self, args: Args) -> Tensors:
        members: list[list[int]] = [[] for _ in range(args["groups"])]
        for m, group in enumerate(args["ids"].tolist()):
            if 0 <= group < args["groups"]:
                members[group].append(m)
        align = args["alignment"]
        permutation = [-1] * capacity(args["ids"].shape[0], args["groups"], align)
        starts, position = [], 0
        for rows in members:
            starts.append(position)
            permutation[position : position + len(rows)] = rows
            position += -(-len(rows) // align) * align
        counts = [len(rows) for rows in members]
        return (
            torch.tensor(permutation, dtype=torch.int64), torch.tensor(starts, dtype=torch.int32),
            torch.tensor(counts, dtype=torch.int32),
        )

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        ids, groups, align = args["ids"], args["groups"], args["alignment"]
        total, device = ids.shape[0], ids.device
        key = torch.where((ids >= 0) & (ids < groups), ids, groups).long()
        order = torch.argsort(key, stable=True)
        counts = torch.zeros(groups + 1, dtype=torch.int64, device=device)
        counts.scatter_add_(0, key, torch.ones_like(key))
        room = (counts + align - 1) // align * align
        starts = room.cumsum(0) - room
        shift = starts - (counts.cumsum(0) - counts)
        size = capacity(total, groups, align)
        sorted_key = key[order]
        position = torch.arange(total, device=device) + shift[sorted_key]
        position = torch.where(sorted_key < groups, position, size)
        permutation = torch.full((size + 1,), -1, dtype=torch.int64, device=device)
        permutation[position] = order
        found = (permutation[:size], starts[:groups].int(), counts[:groups].int())
        return tuple(value if given is None else given.copy_(value) for given, value in zip(out, found, strict=True))

    def cost(self, call: Call) -> Cost:
        nbytes = call["ids"].nbytes + sum(meta.nbytes for meta in self.outputs(call))
        return Cost(flops=float(call["ids"].numel), nbytes=float(nbytes))

    def cases(self) -> Iterable[Case]:
        for rows, groups in ((0, 0), (0, 4), (5, 0), (1, 1), (7, 3), (64, 8), (300, 17), (16, 8), (513, 64)):
            for align in (1, 4, 128):
                for dtype in (torch.int32, torch.int64):
                    for ids in ("random", "wild"):
                        kind = str(dtype).removeprefix("torch.")
                        params = {"M": rows, "groups": groups, "alignment": align, "index": kind, "ids": ids}
                        make = partial(_make, rows, groups, align, dtype, ids)
                        tags = {"quick", "edge"} if ids == "wild" or not rows else {"quick"}
                        yield Case(self.name, params, make, frozenset(tags), refs=("C28", "C34"))
        for rows in (64, 65536):
            params = {"M": rows, "groups": 64, "alignment": 128}
            make = partial(_make, rows, 64, 128, torch.int32, "random")
            yield Case(self.name, params, make, frozenset({"bench"}))

    def error_cases(self) -> Iterable[ErrorCase]:
        table: tuple[tuple[str, dict[str, Any], tuple[str, ...], bool], ...] = (
            ("rank", {"ids": torch.zeros(2, 2, dtype=torch.int32)}, ("ids", "[M]"), False),
            ("dtype", {"ids": torch.zeros(2)}, ("ids", "float32"), False),
            ("groups", {"groups": -1}, ("groups", "-1"), False),
            ("alignment", {"alignment": 0}, ("alignment", "0"), False),
            ("too-big", {"alignment": 1 << 30}, ("alignment", "2^31"), False),
            ("id", {"ids": torch.tensor([0, 4])}, ("ids[1]", "4"), True),
        )
        for name, change, mentions, validate in table:
            make = partial(_changed, change)
            yield ErrorCase(self.name, name, make, InvalidArgument, mentions, validate)

    def tolerance(self, args: Args, output: str) -> Tolerance:
        return EXACT


def capacity(rows: int, groups: int, alignment: int) -> int:
    """Length of the permutation."""
    if alignment == 1:
        return rows
    return -(-(rows + groups * (alignment - 1)) // alignment) * alignment


def _make(
    rows: int, groups: int, alignment: int, dtype: torch.dtype, kind: str, generator: torch.Generator
) -> dict[str, Any]:
    low, high = (-3, groups + 3) if kind == "wild" else (0, max(groups, 1))
    ids = torch.randint(low, high, (rows,), generator=generator)
    if kind == "wild":
        ids[::5] = -1
        ids = torch.where(ids == groups, 2**31 - 1, ids)
    return {"ids": ids.to(dtype), "groups": groups, "alignment": alignment}


def _changed(change: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    return {**_make(9, 4, 1, torch.int32, "random", generator), **change}
