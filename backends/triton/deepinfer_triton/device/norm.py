"""Device code of the normalisation kernels."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rms_norm(x, weight, y, stride, d, eps, BLOCK: tl.constexpr):
    """One row per program; `y` is contiguous."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < d
    value = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(tl.sum(value * value, axis=0), d.to(tl.float32)) + eps))
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * d + column, (value * scale * gain).to(y.dtype.element_ty), mask=inside)
