"""Contract of `sampling.apply_token_mask`: forbid tokens by a packed bit mask."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from deepinfer.errors import InvalidArgument
from deepinfer.ops import checks
from deepinfer.ops.sampling import contract
from deepinfer.ops.sampling.adjust import allowed
from deepinfer.registry import EXACT, Call, Case, Cost, ErrorCase, Kind, OpSpec, Param, TensorMeta, Tolerance, register
from deepinfer.registry.spec import Args, Tensors


@register
class ApplyTokenMask(OpSpec):
    """logits [n, V] with -inf at forbidden tokens; the others keep their bits.

    mask [m, ceil(V/32)] int32: token v of a row is allowed iff bit v % 32 of word v // 32 is 1 (the layout of common
    grammar compilers); bits past V are ignored. row_map [n]: the mask row of each logits row, anything outside [0, m)
    means no mask; absent: row i uses mask row i (m = n). The input is left as it is unless it is also `out`.
    """

    name = "sampling.apply_token_mask"
    params = (Param("logits"), Param("mask"), Param("row_map", Kind.OPT_TENSOR))
    returns = ("masked",)
    in_place = (("masked", "logits"),)

    def check(self, call: Call) -> None:
        logits, row_map = call["logits"], call["row_map"]
        checks.rank(self.name, "logits", logits, 2, "[n,V]")
        checks.dtype(self.name, "logits", logits, contract.DTYPES)
        if row_map is not None:
            checks.shape(self.name, "row_map", row_map, (logits.shape[0],), "[n]")
            checks.dtype(self.name, "row_map", row_map, checks.INDEX_DTYPES)
        contract.check_mask(self.name, call["mask"], row_map, logits.shape)

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        logits = call["logits"]
        return (TensorMeta.dense(logits.shape, logits.dtype, logits.device),)

    def reference(self, args: Args) -> Tensors:
        made, mask = args["logits"].clone(), args["mask"].tolist()
        for row in range(made.shape[0]):
            source = row if args["row_map"] is None else int(args["row_map"][row])
            if 0 <= source < len(mask):
                for v in range(made.shape[1]):
                    if not mask[source][v // 32] >> v % 32 & 1:
                        made[row, v] = -torch.inf
        return (made,)

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        logits = args["logits"]
        made = logits.masked_fill(~allowed(args["mask"], args["row_map"], logits.shape), -torch.inf)
        return (made if out[0] is None else out[0].copy_(made),)

    def cost(self, call: Call) -> Cost:
        logits = call["logits"]
        return Cost(flops=float(logits.numel), nbytes=float(2 * logits.nbytes + call["mask"].nbytes))

    def cases(self) -> Iterable[Case]:
        for n, v in ((1, 1), (3, 32), (5, 33), (4, 260), (0, 40), (3, 0)):
            for mapped in (False, True):
                for dtype in contract.DTYPES:
                    params = {"n": n, "V": v, "mapped": mapped, "dtype": str(dtype).removeprefix("torch.")}
                    tags = frozenset({"quick", "edge"} if 0 in (n, v) else {"quick"})
                    yield Case(self.name, params, partial(_make, n, v, mapped, dtype), tags)
        make = partial(_make, 64, 129280, False, torch.float32)
        yield Case(self.name, {"n": 64, "V": 129280, "mapped": False, "dtype": "float32"}, make, frozenset({"bench"}))

    def error_cases(self) -> Iterable[ErrorCase]:
        spoiled: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
            "mask-width": ({"mask": torch.zeros(4, 1).int()}, ("mask", "2")),
            "mask-rows": ({"mask": torch.zeros(5, 2).int()}, ("mask", "4")),
            "mask-dtype": ({"mask": torch.zeros(4, 2).long()}, ("mask", "int64")),
            "map-size": ({"row_map": torch.zeros(3).long()}, ("row_map", "4")),
            "rank": ({"logits": torch.zeros(40)}, ("logits", "2 dimensions")),
        }
        for name, (change, mentions) in spoiled.items():
            yield ErrorCase(self.name, name, partial(_spoil, change), InvalidArgument, mentions)

    def tolerance(self, args: Args, output: str) -> Tolerance:
        return EXACT

    def poison(self, args: Args, generator: torch.Generator) -> dict[str, Any] | None:
        """Forbidden logits are NaN, bits past the vocabulary flipped."""
        logits, mask = args["logits"].clone(), args["mask"].clone()
        logits[~allowed(mask, args["row_map"], logits.shape)] = torch.nan
        if logits.shape[1] % 32:
            mask[:, -1] ^= -1 << logits.shape[1] % 32
        return {**args, "logits": logits, "mask": mask}


def _make(n: int, v: int, mapped: bool, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Any]:
    rows = 3 if mapped else n
    mask = torch.randint(-(2**31), 2**31, (rows, -(-v // 32)), generator=generator).to(torch.int32)
    row_map = torch.tensor([[-1, 2, 0, 3, 1][i % 5] for i in range(n)], dtype=torch.int64) if mapped else None
    return {"logits": torch.randn((n, v), generator=generator).to(dtype), "mask": mask, "row_map": row_map}


def _spoil(change: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    return {**_make(4, 40, False, torch.float32, generator), **change}
