"""Contract of `flash_mla.kv_cache_write`: latent rows into slots of a paged cache."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from deepinfer.errors import invalid
from deepinfer.ops import checks
from deepinfer.ops.flash_mla import cache_cases, rules, values
from deepinfer.ops.flash_mla.codec import write_slots
from deepinfer.ops.flash_mla.formats import LAYOUTS
from deepinfer.registry import EXACT, Call, Case, Cost, ErrorCase, Kind, OpSpec, Param, TensorMeta, Tolerance, register
from deepinfer.registry.spec import Args, Tensors


@register
class KvCacheWrite(OpSpec):
    """Writes rows [T, d] into slots [T] of kv_cache, quantised as the format asks; in place, exact to the bit.

    rows bf16 | f32; slots int32 | int64, slot = block * page + offset. A slot < 0 or >= blocks * page skips its row.
    Slots are distinct; which of two equal ones wins is not defined (validate=True refuses them). No other byte of the
    cache changes, padding included.

    Plain formats round once to the cache's dtype. Quantised ones compute in float32: scale = amax / 448 (e4m3) or
    amax / 6 (e2m1) of each tile, payload = row / scale rounded to nearest even. Floors: V41 and INDEX fp8 amax 1e-4;
    V4 scale 1e-4; V32 none, a zero scale becomes 1; INDEX_FP4 amax 6 * 2^-126; V41_FP4 amax 6 * 2^-9. UE8M0 scales
    are rounded up and the payload uses the rounded one. A tile with NaN or inf gets scale NaN and NaN payload (zero
    codes in FP4), namely e4m3 0x7F, UE8M0 0xFF, f32 0x7FC00000; a NaN bf16 channel is stored as 0x7FC0.
    """

    name = "flash_mla.kv_cache_write"
    params = (Param("kv_cache", mutated=True), Param("rows"), Param("slots"), Param("format", Kind.STR))
    returns = ()

    def check(self, call: Call) -> None:
        cache, rows = call["kv_cache"], call["rows"]
        layout = rules.cache(self.name, "kv_cache", cache, call["format"])
        checks.rank(self.name, "rows", rows, 2, "[T,d]")
        checks.dtype(self.name, "rows", rows, rules.QUERY_DTYPES)
        checks.dim(self.name, "rows", rows, 1, layout.width or cache.shape[2], "= the width of the cache's rows")
        rules.ints(self.name, "slots", call["slots"], (rows.shape[0],), "[T]")
        blocks, page, width = cache.shape
        if (page > 1 and cache.stride[1] < width) or (blocks > 1 and cache.stride[0] < width):
            wanted = [page * width, width, 1]
            raise invalid(f"{self.name}: kv_cache.stride", list(cache.stride), "rows must not overlap", wanted)

    def check_values(self, args: Args) -> None:
        slots, (blocks, page) = args["slots"], args["kv_cache"].shape[:2]
        values.within(self.name, "slots", slots, -1, blocks * page - 1, "-1 or a slot of the cache")
        used = slots[slots >= 0]
        again = used.long().sort().values
        same = again[1:] == again[:-1]
        if bool(same.any()):
            raise invalid(f"{self.name}: slots", int(again[1:][same][0]), "must not be written twice in one call")

    def outputs(self, call: Call) -> tuple[TensorMeta, ...]:
        return ()

    def reference(self, args: Args) -> Tensors:
        cache = args["kv_cache"]
        for row, slot in zip(args["rows"], args["slots"].tolist(), strict=True):
            if 0 <= slot < cache.shape[0] * cache.shape[1]:
                write_slots(cache, LAYOUTS[args["format"]], row[None], torch.tensor([slot]))
        return ()

    def portable(self, args: Args, out: tuple[torch.Tensor | None, ...]) -> Tensors:
        cache, rows, slots = args["kv_cache"], args["rows"], args["slots"].long()
        capacity, layout = cache.shape[0] * cache.shape[1], LAYOUTS[args["format"]]
        if not capacity or not rows.shape[0]:
            return ()
        keep = (slots >= 0) & (slots < capacity)
        if cache.device.type == "cpu":
            if not bool(keep.all()):
                rows, slots = rows[keep], slots[keep]
            write_slots(cache, layout, rows, slots)
            return ()
        # Without knowing how many rows are kept: skipped rows repeat the first kept one, which changes nothing.
        first = keep.int().argmax()
        pick = torch.where(keep, torch.arange(rows.shape[0], device=keep.device), first)
        write_slots(cache, layout, rows[pick], slots[pick].clamp(0, capacity - 1), only_if=keep.any())
        return ()

    def cost(self, call: Call) -> Cost:
        rows = call["rows"]
        stored = rules.row_bytes(LAYOUTS[call["format"]], call["kv_cache"]) * rows.shape[0]
        return Cost(4.0 * rows.numel, float(rows.nbytes + call["slots"].nbytes + stored))

    def cases(self) -> Iterable[Case]:
        return cache_cases.write_cases(self.name)

    def error_cases(self) -> Iterable[ErrorCase]:
        return cache_cases.write_error_cases(self.name)

    def tolerance(self, args: Args, output: str) -> Tolerance:
        return EXACT

    def poison(self, args: Args, generator: torch.Generator) -> dict[str, Any] | None:
        return cache_cases.poison_write(args)
