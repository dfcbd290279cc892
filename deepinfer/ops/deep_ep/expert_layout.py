"""Contract of `deep_ep.expert_layout`: group received (row, slot) pairs by local expert at an alignment.

The result feeds a grouped GEMM directly: group g is rows starts[g] .. starts[g] + counts[g] - 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from deepinfer.errors import InvalidArgument
from deepinfer.ops import checks
from deepinfer.ops.deep_ep.geometry import align_up, expert_capacity
from deepinfer.registry import EXACT, Call, Case, Cost, ErrorCase, Kind, OpSpec, Param, TensorMeta, Tolerance, register
from deepinfer.registry.spec import Args, Tensors


@register
class ExpertLayout(OpSpec):
    """Where each received pair goes when rows are grouped by expert.

    ids [N,K] int32 | int64: local expert of each slot, outside [0, experts) = not here. `alignment` >= 1, `capacity`
    >= the most rows that can be needed. Returns, all int32:

    - starts [L], counts [L]: groups; starts are multiples of `alignment`, an empty group starts where the next does;
    - total [1]: rows up to the end of the last group's padding;
    - row_of [N,K]: row of a pair, ordered inside its group by (n, k), or -1;
    - source [capacity]: n * K + k of the pair that a row holds, -1 in padding and beyond `total`.
    """

    name = "deep_ep.expert_layout"
    params = (Param("ids"), Param("experts", Kind.INT), Param("alignment", Kind.INT), Param("capacity", Kind.INT))
    returns = ("starts", "counts", "total", "row_of", "source")

    def check(self, call: Call) -> None:
        ids = call["ids"]
        checks.rank(self.name, "ids", ids, 2, "[N,K]")
        checks.dtype(self.name, "ids", ids, checks.INDEX_DTYPES)
        checks.at_least(self.name, "experts", call["experts"], 0)
        checks.at_least(self.name, "alignment", call["alignment"], 1)
        rows, lanes = ids.shape
        need = expert_capacity(rows, lanes, call["experts"], call["alignment"])
        checks.at_least(self.name, "capacity", call["capacity"], need)

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        experts = call["experts"]
        shapes = ((experts,), (experts,), (1,), call["ids"].shape, (call["capacity"],))
        return tuple(TensorMeta.dense(shape, torch.int32, call.device) for shape in shapes)

    def reference(self, args: Args) -> Tensors:
        ids, experts, alignment = args["ids"].tolist(), args["experts"], args["alignment"]
        row_of = torch.full(args["ids"].shape, -1, dtype=torch.int32)
        source = torch.full((args["capacity"],), -1, dtype=torch.int32)
        lanes = args["ids"].shape[1]
        starts, counts, row = [], [], 0
        for expert in range(experts):
            row = align_up(row, alignment)
            starts.append(row)
            for n, lane in ((n, k) for n, line in enumerate(ids) for k, e in enumerate(line) if e == expert):
                row_of[n, lane], source[row] = row, n * lanes + lane
                row += 1
            counts.append(row - starts[-1])
        total = align_up(row, alignment)
        return (*(torch.tensor(v, dtype=torch.int32) for v in (starts, counts, [total])), row_of, source)

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        ids, experts, alignment = args["ids"].long(), args["experts"], args["alignment"]
        flat = ids.reshape(-1)
        key = torch.where((flat >= 0) & (flat < experts), flat, experts)
        grouped, order = key.sort(stable=True)
        counts = key.new_zeros(experts + 1).scatter_add_(0, key, torch.ones_like(key))
        padded = (counts[:experts] + alignment - 1) // alignment * alignment
        ends = padded.cumsum(0)
        starts = torch.cat((ends - padded, key.new_zeros(1)))
        inside = torch.arange(key.numel(), device=key.device) - (counts.cumsum(0) - counts)[grouped]
        row = torch.where(grouped < experts, starts[grouped] + inside, args["capacity"])
        source = key.new_full((args["capacity"] + 1,), -1)
        source[row] = torch.where(grouped < experts, order, -1)
        row_of = torch.empty_like(key)
        row_of[order] = torch.where(grouped < experts, row, -1)
        total = padded.sum().reshape(1)
        found = (starts[:experts], counts[:experts], total, row_of.view(ids.shape), source[: args["capacity"]])
        return tuple(
            value.to(torch.int32) if given is None else given.copy_(value)
            for value, given in zip(found, out, strict=True)
        )

    def cost(self, call: Call) -> Cost:
        return Cost(flops=0.0, nbytes=call["ids"].nbytes * 1.0 + sum(meta.nbytes for meta in self.outputs(call)))

    def cases(self) -> Iterable[Case]:
        sizes = [(0, 2, 3), (4, 0, 3), (1, 1, 1), (4, 1, 1), (9, 4, 5), (40, 8, 16), (5, 3, 0)]
        for rows, lanes, experts in sizes:
            for alignment in (1, 4, 16, 128):
                params = {"N": rows, "top_k": lanes, "experts": experts, "alignment": alignment}
                edge = {"edge"} if 0 in (rows, lanes, experts) else set()
                make = partial(_make, rows, lanes, experts, alignment)
                yield Case(self.name, params, make, frozenset({"quick", *edge}), refs=("C46",))
        params = {"N": 16384, "top_k": 8, "experts": 32, "alignment": 128}
        yield Case(self.name, params, partial(_make, 16384, 8, 32, 128), frozenset({"bench"}))

    def error_cases(self) -> Iterable[ErrorCase]:
        good = partial(_make, 4, 2, 2, 4)
        flat = torch.zeros(3, dtype=torch.int32)
        yield ErrorCase(self.name, "rank", lambda g: good(g) | {"ids": flat}, InvalidArgument, ("ids", "2 dim"))
        real = torch.ones(4, 2)
        yield ErrorCase(self.name, "dtype", lambda g: good(g) | {"ids": real}, InvalidArgument, ("float32",))
        yield ErrorCase(self.name, "alignment", lambda g: good(g) | {"alignment": 0}, InvalidArgument, ("alignment",))
        yield ErrorCase(self.name, "capacity", lambda g: good(g) | {"capacity": 3}, InvalidArgument, ("capacity", "3"))

    def tolerance(self, args: Args, output: str) -> Tolerance:
        return EXACT


def _make(rows: int, lanes: int, experts: int, alignment: int, generator: torch.Generator) -> dict[str, Any]:
    """Random ids, some below and some beyond the local range; the last expert stays empty."""
    ids = torch.randint(-2, experts + 2, (rows, lanes), generator=generator)
    ids = torch.where(ids == experts - 1, torch.zeros_like(ids), ids) if experts > 1 else ids
    capacity = expert_capacity(rows, lanes, experts, alignment) + alignment
    return {"ids": ids.to(torch.int32), "experts": experts, "alignment": alignment, "capacity": capacity}
