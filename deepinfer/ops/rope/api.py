"""Public rotary-embedding ops: argument conversion only; the contracts are in the specs."""

from __future__ import annotations

import torch

from deepinfer.ops import checks
from deepinfer.ops.rope.apply import RopeApply
from deepinfer.registry import Op, get_spec

_apply = Op(get_spec(RopeApply.name))


def apply(
    x: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    *,
    interleaved: bool = True,
    inverse: bool = False,
    width: int | None = None,
    out: torch.Tensor | None = None,
    validate: bool = False,
) -> torch.Tensor:
    """Rotate the last `width` channels of each row by the angle of its position.

    Args:
        x: [T, h, d] or [T, d] bf16, f16 or f32; any strides.
        positions: [T] int32 or int64; a row whose position is outside the table is copied.
        table: [P, width] float32 from `build_table`.
        interleaved: pairs are neighbouring channels (deepseek classes); False: channel k with k + width/2.
        inverse: rotate back.
        width: rotated channels, even; default the width of the table.
        out: result of x's shape and dtype, or None to allocate; may be x itself.
        validate: also raise for a position outside the table (synchronises with the device).

    Returns:
        A copy of x with the last `width` channels rotated.

    Raises:
        InvalidArgument: shapes, dtypes or width break the contract.

    Source: arXiv:2104.09864; contract: `deepinfer.ops.rope.apply.RopeApply`.

    >>> import torch
    >>> from deepinfer.ops import rope
    >>> x, table = torch.randn(3, 2, 8), rope.build_table(10, 4, 10000.0)
    >>> turned = rope.apply(x, torch.tensor([0, 4, 9]), table)
    >>> torch.equal(turned[..., :4], x[..., :4]), torch.equal(turned[0], x[0])
    (True, True)
    >>> torch.allclose(rope.apply(turned, torch.tensor([0, 4, 9]), table, inverse=True), x, atol=1e-6)
    True
    """
    if width is None:
        width = table.shape[-1] if isinstance(table, torch.Tensor) and table.ndim == 2 else 0
    size = checks.integer("rope.apply", "width", width)
    wanted = None if out is None else (out,)
    (y,) = _apply(x, positions, table, interleaved, inverse, size, out=wanted, validate=validate)
    return y
