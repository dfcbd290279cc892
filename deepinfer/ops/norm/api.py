"""Public normalisation ops: argument conversion only; the contracts are in the specs."""

from __future__ import annotations

import torch

from deepinfer.ops import checks
from deepinfer.ops.norm.rms_norm import RmsNorm
from deepinfer.registry import Op, get_spec

_rms_norm = Op(get_spec(RmsNorm.name))


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Normalise each row of `x` by its root mean square and scale it.

    Args:
        x: [..., d] bf16, f16 or f32.
        weight: [d], any of these dtypes.
        eps: added to the mean square, >= 0.
        out: result tensor of x's shape and dtype, or None to allocate.

    Returns:
        [..., d] in x's dtype.

    Raises:
        InvalidArgument: shapes or dtypes break the contract.
    """
    (y,) = _rms_norm(x, weight, checks.number("norm.rms_norm", "eps", eps), out=None if out is None else (out,))
    return y
