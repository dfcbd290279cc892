"""Device code of the normalisation kernels: ROWS rows per program, statistics in float32."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _scaled(value, gain, d, eps):
    """value [ROWS, BLOCK] / rms of its rows * gain [BLOCK]."""
    mean = tl.div_rn(tl.sum(value * value, axis=1), d.to(tl.float32))
    scale = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
    return value * scale[:, None] * gain.to(tl.float32)[None, :]


@triton.jit
def rms_norm(x, weight, y, stride, rows, d, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """`y` is contiguous. The weight is loaded before the sum, not after it: its way is as long as that of x."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = column < d
    both = (row < rows)[:, None] & inside[None, :]
    value = tl.load(x + row[:, None] * stride + column[None, :], mask=both, other=0.0).to(tl.float32)
    gain = tl.load(weight + column, mask=inside, other=0.0)
    made = _scaled(value, gain, d, eps)
    tl.store(y + row[:, None] * d + column[None, :], made.to(y.dtype.element_ty), mask=both)


@triton.jit
def fused_add_rms_norm(
    x, residual, weight, y, new_residual, stride, step, rows, d, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Both results are contiguous; the rounded sum is what gets normalised."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = column < d
    both = (row < rows)[:, None] & inside[None, :]
    value = tl.load(x + row[:, None] * stride + column[None, :], mask=both, other=0.0).to(tl.float32)
    value += tl.load(residual + row[:, None] * step + column[None, :], mask=both, other=0.0).to(tl.float32)
    gain = tl.load(weight + column, mask=inside, other=0.0)
    total = value.to(new_residual.dtype.element_ty)
    place = row[:, None] * d + column[None, :]
    tl.store(new_residual + place, total, mask=both)
    tl.store(y + place, _scaled(total.to(tl.float32), gain, d, eps).to(y.dtype.element_ty), mask=both)
