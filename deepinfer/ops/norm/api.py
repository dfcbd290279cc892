"""Public normalisation ops: argument conversion only; the contracts are in the specs."""

from __future__ import annotations

import torch

from deepinfer.ops import checks
from deepinfer.ops.norm.fused_add import FusedAddRmsNorm
from deepinfer.ops.norm.rms_norm import RmsNorm
from deepinfer.registry import Op, get_spec

_rms_norm = Op(get_spec(RmsNorm.name))
_fused_add = Op(get_spec(FusedAddRmsNorm.name))


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    out: torch.Tensor | None = None,
    validate: bool = False,
) -> torch.Tensor:
    """Normalise each row of `x` by its root mean square and scale it.

    Args:
        x: [..., d] bf16, f16 or f32.
        weight: [d], any of these dtypes.
        eps: added to the mean square, >= 0.
        out: result tensor of x's shape and dtype, or None to allocate.
        validate: accepted for uniformity; this op has no values on the device to check.

    Returns:
        [..., d] in x's dtype.

    Raises:
        InvalidArgument: shapes or dtypes break the contract.

    Source: arXiv:1910.07467; contract: `deepinfer.ops.norm.rms_norm.RmsNorm`.

    >>> import torch
    >>> from deepinfer.ops import norm
    >>> norm.rms_norm(torch.tensor([[3.0, 4.0]]), torch.ones(2), 0.0).square().mean().item()
    1.0
    """
    wanted = None if out is None else (out,)
    (y,) = _rms_norm(x, weight, checks.number("norm.rms_norm", "eps", eps), out=wanted, validate=validate)
    return y


def fused_add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    validate: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add `x` to the residual stream, round, and normalise the rounded sum.

    Args:
        x: [..., d] bf16, f16 or f32: the output of a sub-layer.
        residual: x's shape and dtype; not modified.
        weight: [d], any of these dtypes.
        eps: added to the mean square, >= 0.
        out: (y, new_residual) tensors, or None to allocate. `out=(y, residual)` updates the stream in place.
        validate: accepted for uniformity; this op has no values on the device to check.

    Returns:
        (y, new_residual), both [..., d] in x's dtype.

    Raises:
        InvalidArgument: shapes or dtypes break the contract.

    Source: arXiv:1910.07467; contract: `deepinfer.ops.norm.fused_add.FusedAddRmsNorm`.

    >>> import torch
    >>> from deepinfer.ops import norm
    >>> y, stream = norm.fused_add_rms_norm(torch.ones(1, 2), torch.tensor([[2.0, -4.0]]), torch.ones(2), 0.0)
    >>> stream.tolist(), [round(value, 4) for value in y[0].tolist()]
    ([[3.0, -3.0]], [1.0, -1.0])
    """
    number = checks.number("norm.fused_add_rms_norm", "eps", eps)
    y, total = _fused_add(x, residual, weight, number, out=out, validate=validate)
    return y, total
