"""Contract of `deep_ep.reduce`: add rows of a token in slot order, with one rounding at the end.

The arithmetic is fixed to the bit, so that every backend and every number of ranks gives the same answer: float32
accumulator, product rounded to float32 and then added (no fused multiply-add), slots in ascending order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch

from deepinfer.errors import InvalidArgument
from deepinfer.ops import checks
from deepinfer.ops.deep_ep.geometry import DTYPES
from deepinfer.registry import EXACT, Call, Case, Cost, ErrorCase, Kind, OpSpec, Param, TensorMeta, Tolerance, register
from deepinfer.registry.spec import Args, Tensors

BLOCK_VALUES = 1 << 18  # float32 accumulators of a block: 1 MiB, so that they stay in a core's cache


@register
class Reduce(OpSpec):
    """y[t] = round(bias[t] + sum over k of w[i] * rows[i]), i = index[t,k], in float32, k ascending.

    rows [N,H] bf16 | f16 | f32; index [T,K] int32 | int64, outside [0, N) = no contribution; weights [N] f32 or None
    (no multiplication); bias [T,H] bf16 | f16 | f32 or None (start at 0). y [T,H] in `out_dtype`.
    """

    name = "deep_ep.reduce"
    params = (
        Param("rows"), Param("index"), Param("weights", Kind.OPT_TENSOR), Param("bias", Kind.OPT_TENSOR),
        Param("out_dtype", Kind.DTYPE),
    )
    returns = ("y",)

    def check(self, call: Call) -> None:
        rows, index, weights, bias = call["rows"], call["index"], call["weights"], call["bias"]
        checks.rank(self.name, "rows", rows, 2, "[N,H]")
        checks.dtype(self.name, "rows", rows, DTYPES)
        checks.rank(self.name, "index", index, 2, "[T,K]")
        checks.dtype(self.name, "index", index, checks.INDEX_DTYPES)
        if weights is not None:
            checks.shape(self.name, "weights", weights, (rows.shape[0],), "[N]")
            checks.dtype(self.name, "weights", weights, (torch.float32,))
        if bias is not None:
            checks.shape(self.name, "bias", bias, (index.shape[0], rows.shape[1]), "[T,H]")
            checks.dtype(self.name, "bias", bias, DTYPES)
        if call["out_dtype"] not in DTYPES:
            raise InvalidArgument(f"{self.name}: out_dtype: got {call['out_dtype']}, must be one of {DTYPES}")

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        return (TensorMeta.dense((call["index"].shape[0], call["rows"].shape[1]), call["out_dtype"], call.device),)

    def reference(self, args: Args) -> Tensors:
        rows, weights, bias = args["rows"].float(), args["weights"], args["bias"]
        index = args["index"].tolist()
        acc = torch.zeros(len(index), rows.shape[1]) if bias is None else bias.float()
        acc = acc.clone()
        for t, line in enumerate(index):
            for i in line:
                if 0 <= i < rows.shape[0]:
                    acc[t] = acc[t] + (rows[i] if weights is None else rows[i] * weights[i])
        return (acc.to(args["out_dtype"]),)

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        rows, tokens = args["rows"], args["index"].shape[0]
        y = out[0]
        if y is None:
            y = torch.empty((tokens, rows.shape[1]), dtype=args["out_dtype"], device=rows.device)
        place, unused = _compact(args["index"], rows.shape[0])
        block = max(1, BLOCK_VALUES // max(rows.shape[1], 1))
        for begin in range(0, tokens, block):
            part = slice(begin, begin + block)
            bias = None if args["bias"] is None else args["bias"][part]
            y[part] = _block(rows, place[part], unused[part], args["weights"], bias)
        return (y,)

    def cost(self, call: Call) -> Cost:
        y = self.outputs(call)[0]
        read = sum(call[name].nbytes for name in ("rows", "index", "weights", "bias") if call[name] is not None)
        per_term = 1.0 if call["weights"] is None else 2.0
        return Cost(flops=per_term * call["index"].shape[1] * y.numel, nbytes=float(read + y.nbytes))

    def cases(self) -> Iterable[Case]:
        sizes = [(0, 0, 2, 8), (3, 0, 2, 8), (4, 5, 0, 8), (7, 9, 3, 1), (6, 20, 8, 130), (5, 4, 2, 0)]
        for tokens, rows, lanes, hidden in sizes:
            for dtype in DTYPES:
                for weighted, bias in ((False, False), (True, False), (True, True)):
                    params = {
                        "T": tokens, "rows": rows, "top_k": lanes, "hidden": hidden, "dtype": str(dtype)[6:],
                        "weights": weighted, "bias": bias,
                    }
                    make = partial(_make, tokens, rows, lanes, hidden, dtype, weighted, bias)
                    edge = {"edge"} if 0 in (tokens, rows, lanes, hidden) else set()
                    yield Case(self.name, params, make, frozenset({"quick", *edge}), refs=("C44",))
        params = {"T": 4096, "rows": 32768, "top_k": 8, "hidden": 7168, "dtype": "bfloat16", "weights": True}
        make = partial(_make, 4096, 32768, 8, 7168, torch.bfloat16, True, False)
        yield Case(self.name, params, make, frozenset({"bench"}))

    def error_cases(self) -> Iterable[ErrorCase]:
        good = partial(_make, 3, 4, 2, 8, torch.bfloat16, True, True)
        yield ErrorCase(
            self.name, "weights", lambda g: good(g) | {"weights": torch.ones(3, 2)}, InvalidArgument, ("weights", "[N]")
        )
        yield ErrorCase(self.name, "bias", lambda g: good(g) | {"bias": torch.ones(8)}, InvalidArgument, ("bias",))
        yield ErrorCase(self.name, "rows", lambda g: good(g) | {"rows": torch.ones(4)}, InvalidArgument, ("rows",))
        yield ErrorCase(
            self.name, "index", lambda g: good(g) | {"index": torch.ones(3, 2)}, InvalidArgument, ("index", "float32")
        )
        yield ErrorCase(
            self.name, "out", lambda g: good(g) | {"out_dtype": torch.int8}, InvalidArgument, ("out_dtype", "int8")
        )

    def tolerance(self, args: Args, output: str) -> Tolerance:
        return EXACT

    def poison(self, args: Args, generator: torch.Generator) -> dict[str, Any] | None:
        """Rows that no slot names may hold anything."""
        rows = args["rows"].clone()
        free = torch.ones(rows.shape[0], dtype=torch.bool)
        free[args["index"][(args["index"] >= 0) & (args["index"] < rows.shape[0])].long()] = False
        rows[free] = float("nan")
        changed = dict(args) | {"rows": rows}
        if args["weights"] is not None:
            changed["weights"] = torch.where(free, torch.tensor(float("inf")), args["weights"])
        return changed

    def batch_variants(self, args: Args) -> Sequence[tuple[dict[str, Any], tuple[Any, ...]]]:
        if args["index"].shape[0] < 2:
            return ()
        bias = None if args["bias"] is None else args["bias"][1:2]
        return [(dict(args) | {"index": args["index"][1:2], "bias": bias}, (slice(1, 2),))]


def _compact(index: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Row numbers [T,W] with the used slots of each token first, in order, and a mask of what is unused.

    W is the most slots that a token uses; where the index is not in host memory that would take a synchronisation, so
    W = K there.
    """
    unused = (index < 0) | (index >= rows)
    unused, order = unused.sort(dim=1, stable=True)
    place = index.gather(1, order).long().masked_fill(unused, 0)
    if _in_host_memory(index) and index.numel():
        width = index.shape[1] - int(unused.sum(1).min())
        return place[:, :width], unused[:, :width]
    return place, unused


def _in_host_memory(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"


def _block(
    rows: torch.Tensor, place: torch.Tensor, unused: torch.Tensor, weights: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """float32 sums of one block of tokens."""
    tokens, lanes = place.shape
    acc = rows.new_zeros((tokens, rows.shape[1]), dtype=torch.float32) if bias is None else bias.float().clone()
    if rows.shape[0] == 0:
        return acc
    for lane in range(lanes):
        term = rows.index_select(0, place[:, lane]).float()
        if weights is not None:
            term *= weights.index_select(0, place[:, lane]).unsqueeze(1)
        # Adding -0.0 changes no value at all, a signed zero included; adding +0.0 would turn -0.0 into +0.0.
        acc += term.masked_fill_(unused[:, lane].unsqueeze(1), -0.0)
    return acc


def _make(
    tokens: int, rows: int, lanes: int, hidden: int, dtype: torch.dtype, weighted: bool, bias: bool,
    generator: torch.Generator,
) -> dict[str, Any]:
    index = torch.randint(-1, rows + 1, (tokens, lanes), generator=generator).to(torch.int32)
    return {
        "rows": torch.randn(rows, hidden, generator=generator).to(dtype),
        "index": index,
        "weights": torch.randn(rows, generator=generator) if weighted else None,
        "bias": torch.randn(tokens, hidden, generator=generator).to(dtype) if bias else None,
        "out_dtype": dtype,
    }
