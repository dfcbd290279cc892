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
    token = (tl.program_id(0) % tiles) * BLOCK + tl.arange(0, BLOCK)
    there = token < vocabulary
    source = row
    if row_map is not None:
        source = tl.load(row_map + row * map_step).to(tl.int64)
    named = (source >= 0) & (source < masks)
    word = tl.load(mask + source * mask_step + token // 32, mask=there & named, other=-1)
    value = tl.load(logits + row * step + token, mask=there, other=0.0)
    allowed = ((word >> (token % 32)) & 1) != 0
    tl.store(masked + row * vocabulary + token, tl.where(allowed, value, float("-inf")), mask=there)
