"""Device code of the token mask."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def apply_token_mask(
    logits, mask, row_map, masked, step, mask_step, map_step, masks, vocabulary, tiles, BLOCK: tl.constexpr
):
    """A program takes BLOCK tokens of one row; forbidden ones become -inf, the others keep their bits."""
    row = (tl.program_id(0) // tiles).to(tl.int64)
    first = (tl.program_id(0) % tiles) * (BLOCK // 32) + tl.arange(0, BLOCK // 32)
    token = first[:, None] * 32 + tl.arange(0, 32)[None, :]
    there = token < vocabulary
    source = row
    if row_map is not None:
        source = tl.load(row_map + row * map_step).to(tl.int64)
    named = (source >= 0) & (source < masks)
    word = tl.load(mask + source * mask_step + first, mask=(first * 32 < vocabulary) & named, other=-1)
    value = tl.load(logits + row * step + token, mask=there, other=0.0)
    allowed = ((word[:, None] >> tl.arange(0, 32)[None, :]) & 1) != 0
    tl.store(masked + row * vocabulary + token, tl.where(allowed, value, float("-inf")), mask=there)
