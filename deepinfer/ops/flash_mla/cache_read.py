"""Contract of `flash_mla.kv_cache_read`: slots of a paged cache back to latent rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from deepinfer.ops import checks
from deepinfer.ops.flash_mla import cache_cases, rules, values
from deepinfer.ops.flash_mla.codec import read_slots
from deepinfer.ops.flash_mla.formats import LAYOUTS
from deepinfer.registry import Call, Case, Cost, ErrorCase, Kind, OpSpec, Param, TensorMeta, Tolerance, register
from deepinfer.registry.spec import Args, Tensors

# One rounding of code * scale to the result's dtype.
TOLERANCES = {
    torch.float32: Tolerance(abs=1e-37, rel=2.0**-23, cos=1e-13),
    torch.bfloat16: Tolerance(abs=1e-37, rel=2.0**-8, cos=1e-5),
}


@register
class KvCacheRead(OpSpec):
    """Rows [n, d] of kv_cache at slots [n], dequantised, in `dtype` (f32 or bf16).

    slots int32 | int64, slot = block * page + offset; a slot < 0 or >= blocks * page gives a row of zeros. Values are
    code * scale with scales as stored, rounded once to `dtype`; plain channels are copied.
    """

    name = "flash_mla.kv_cache_read"
    params = (Param("kv_cache"), Param("slots"), Param("format", Kind.STR), Param("dtype", Kind.DTYPE))
    returns = ("rows",)

    def check(self, call: Call) -> None:
        rules.cache(self.name, "kv_cache", call["kv_cache"], call["format"])
        checks.rank(self.name, "slots", call["slots"], 1, "[n]")
        checks.dtype(self.name, "slots", call["slots"], checks.INDEX_DTYPES)
        rules.result_dtype(self.name, call["dtype"])

    def check_values(self, args: Args) -> None:
        blocks, page = args["kv_cache"].shape[:2]
        values.within(self.name, "slots", args["slots"], -1, blocks * page - 1, "-1 or a slot of the cache")

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        cache = call["kv_cache"]
        width = LAYOUTS[call["format"]].width or cache.shape[2]
        return (TensorMeta.dense((call["slots"].shape[0], width), call["dtype"], cache.device),)

    def reference(self, args: Args) -> Tensors:
        cache, layout = args["kv_cache"], LAYOUTS[args["format"]]
        rows = torch.zeros(args["slots"].shape[0], layout.width or cache.shape[2], dtype=torch.float64)
        for i, slot in enumerate(args["slots"].tolist()):
            if 0 <= slot < cache.shape[0] * cache.shape[1]:
                rows[i] = read_slots(cache, layout, torch.tensor([slot]), torch.float64)[0]
        return (rows,)

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        cache, slots, layout = args["kv_cache"], args["slots"].long(), LAYOUTS[args["format"]]
        capacity = cache.shape[0] * cache.shape[1]
        if capacity == 0:
            width = layout.width or cache.shape[2]
            rows = torch.zeros((slots.shape[0], width), dtype=torch.float32, device=cache.device)
        else:
            exists = (slots >= 0) & (slots < capacity)
            rows = read_slots(cache, layout, torch.where(exists, slots, 0)).masked_fill_(~exists[:, None], 0.0)
        return (rows.to(args["dtype"]) if out[0] is None else out[0].copy_(rows),)

    def cost(self, call: Call) -> Cost:
        (rows,) = self.outputs(call)
        stored = rules.row_bytes(LAYOUTS[call["format"]], call["kv_cache"]) * rows.shape[0]
        return Cost(float(rows.numel), float(stored + rows.nbytes + call["slots"].nbytes))

    def cases(self) -> Iterable[Case]:
        return cache_cases.read_cases(self.name)

    def error_cases(self) -> Iterable[ErrorCase]:
        return cache_cases.read_error_cases(self.name)

    def tolerance(self, args: Args, output: str) -> Tolerance:
        return TOLERANCES[args["dtype"]]

    def poison(self, args: Args, generator: torch.Generator) -> dict[str, Any] | None:
        return cache_cases.poison_read(args)

    def batch_variants(self, args: Args) -> Sequence[tuple[dict[str, Any], tuple[Any, ...]]]:
        n = args["slots"].shape[0]
        picks = [torch.tensor([i]) for i in range(min(n, 2))] + ([torch.arange(n).flip(0)] if n > 1 else [])
        return [(dict(args) | {"slots": args["slots"][pick]}, (pick,)) for pick in picks]
