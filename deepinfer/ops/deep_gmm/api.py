"""Public matrix products: argument conversion only; the contracts are in the specs."""

from __future__ import annotations

import torch

from deepinfer.errors import invalid
from deepinfer.ops import checks
from deepinfer.ops.deep_gmm import packed
from deepinfer.ops.deep_gmm.gemm import Gemm
from deepinfer.ops.deep_gmm.group_rows import GroupRows
from deepinfer.ops.deep_gmm.grouped_gemm import GroupedGemm
from deepinfer.ops.deep_gmm.masked_gemm import MaskedGroupedGemm
from deepinfer.ops.deep_gmm.operand import natural_dtype
from deepinfer.ops.deep_gmm.packed import Packed, Weights, flatten, flatten_weights
from deepinfer.ops.deep_gmm.swiglu_mlp import GroupedSwigluMlp
from deepinfer.ops.quantized import Quantized
from deepinfer.registry import Op, get_spec

_gemm = Op(get_spec(Gemm.name))
_grouped = Op(get_spec(GroupedGemm.name))
_masked = Op(get_spec(MaskedGroupedGemm.name))
_mlp = Op(get_spec(GroupedSwigluMlp.name))
_group_rows = Op(get_spec(GroupRows.name))


def gemm(
    a: torch.Tensor | Quantized,
    b: Weights,
    *,
    c: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
    validate: bool = False,
) -> torch.Tensor:
    """D = A x B^T (+ C) (+ bias), summed in float32.

    Args:
        a: [M, K] bf16, f32 or f16, or `Quantized` e4m3 (1x128 with f32 scales, 1x32 with UE8M0 scales).
        b: [N, K] of a's dtype, or `Quantized` that fits a (see `deepinfer.ops.deep_gmm.gemm.Gemm`), or `Packed`.
        c: [M, N] in out_dtype or f32, added before rounding.
        bias: [N] bf16, f32 or f16, added before rounding.
        out_dtype: f32 or a's dtype; default a's dtype, bf16 for quantised operands.
        out: D, or None to allocate.
        validate: accepted for uniformity; any values have a defined result.

    Returns:
        [M, N] in out_dtype. K = 0 gives C + bias or zeros.

    Raises:
        InvalidArgument: shapes, dtypes or recipes do not fit; the message names the argument.

    Source: scaling of 1x128 and 128x128 blocks as in DeepSeek-V3 (arXiv:2412.19437, section 3.3); contract:
        `deepinfer.ops.deep_gmm.gemm.Gemm`.

    >>> import torch
    >>> from deepinfer.ops import deep_gmm
    >>> deep_gmm.gemm(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0]])).tolist()
    [[11.0, 17.0]]
    """
    left = flatten(Gemm.name, "a", a)
    dtype = natural_dtype(left[0].dtype, left[2]) if out_dtype is None else out_dtype
    args = (*left, *flatten_weights(Gemm.name, "b", b), c, bias, dtype)
    (d,) = _gemm(*args, out=None if out is None else (out,), validate=validate)
    return d


def grouped_gemm(
    a: torch.Tensor | Quantized,
    b: Weights,
    counts: torch.Tensor | None = None,
    *,
    starts: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
    validate: bool = False,
) -> torch.Tensor:
    """D[m] = A[m] x B[g]^T for every row m of group g.

    Args:
        a: [M, K], as for `gemm`.
        b: [G, N, K], as for `gemm`.
        counts: int32 or int64 [G] on the device, rows per group; any values (below 0 = none, cut to [0, M)).
        starts: int [G], first row of each group; None = the groups lie one behind another. Gaps are allowed.
        offsets: int [G+1] instead of counts and starts: group g is rows offsets[g] .. offsets[g+1] - 1.
        out_dtype: f32 or a's dtype; default a's dtype, bf16 for quantised operands.
        out: D; rows of no group keep their bytes. None allocates; rows of no group are then unspecified.
        validate: read counts and starts, and raise when groups overlap or leave [0, M).

    Returns:
        [M, N] in out_dtype.

    Raises:
        InvalidArgument: shapes, dtypes or recipes do not fit, both or neither of counts and offsets are given, or
            `validate` found bad values.

    Source: contract: `deepinfer.ops.deep_gmm.grouped_gemm.GroupedGemm`; tensor layouts follow deepseek-ai/DeepGEMM.

    >>> import torch
    >>> from deepinfer.ops import deep_gmm
    >>> a, b = torch.ones(3, 2), torch.tensor([[[1.0, 1.0]], [[2.0, 2.0]]])
    >>> deep_gmm.grouped_gemm(a, b, torch.tensor([1, 2])).flatten().tolist()
    [2.0, 4.0, 4.0]
    """
    if (counts is None) == (offsets is None) or (offsets is not None and starts is not None):
        given = tuple(n for n, v in (("counts", counts), ("starts", starts), ("offsets", offsets)) if v is not None)
        rule = "give counts (with or without starts) or offsets"
        raise invalid(f"{GroupedGemm.name}: counts, starts, offsets", given, rule)
    if offsets is not None:
        counts, starts = _from_offsets(GroupedGemm.name, offsets)
    left = flatten(GroupedGemm.name, "a", a)
    dtype = natural_dtype(left[0].dtype, left[2]) if out_dtype is None else out_dtype
    args = (*left, *flatten_weights(GroupedGemm.name, "b", b), counts, starts, dtype)
    (d,) = _grouped(*args, out=None if out is None else (out,), validate=validate)
    return d


def _from_offsets(op: str, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if not isinstance(offsets, torch.Tensor) or offsets.ndim != 1 or offsets.shape[0] < 1:
        shown = list(offsets.shape) if isinstance(offsets, torch.Tensor) else offsets
        raise invalid(f"{op}: offsets", shown, "must be a tensor [G+1]")
    return offsets[1:] - offsets[:-1], offsets[:-1]


def masked_grouped_gemm(
    a: torch.Tensor | Quantized,
    b: Weights,
    counts: torch.Tensor,
    *,
    out_dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
    validate: bool = False,
) -> torch.Tensor:
    """D[g, m] = A[g, m] x B[g]^T for m < counts[g]; the other rows are neither computed nor written.

    Args:
        a: [G, Mmax, K], as for `gemm`; rows at or past counts[g] may hold anything.
        b: [G, N, K], as for `gemm`.
        counts: int32 or int64 [G] on the device, cut to [0, Mmax].
        out_dtype: f32 or a's dtype; default a's dtype, bf16 for quantised operands.
        out: D; rows past counts keep their bytes. None allocates; those rows are then unspecified.
        validate: read counts and raise outside [0, Mmax].

    Returns:
        [G, Mmax, N] in out_dtype.

    Raises:
        InvalidArgument: shapes, dtypes or recipes do not fit, or `validate` found bad counts.

    Source: contract: `deepinfer.ops.deep_gmm.masked_gemm.MaskedGroupedGemm`; tensor layouts follow
        deepseek-ai/DeepGEMM.

    >>> import torch
    >>> from deepinfer.ops import deep_gmm
    >>> deep_gmm.masked_grouped_gemm(torch.ones(1, 2, 3), torch.ones(1, 1, 3), torch.tensor([1]))[0, 0].tolist()
    [3.0]
    """
    left = flatten(MaskedGroupedGemm.name, "a", a)
    dtype = natural_dtype(left[0].dtype, left[2]) if out_dtype is None else out_dtype
    args = (*left, *flatten_weights(MaskedGroupedGemm.name, "b", b), counts, dtype)
    (d,) = _masked(*args, out=None if out is None else (out,), validate=validate)
    return d


def group_rows(
    ids: torch.Tensor, groups: int, *, alignment: int = 1, validate: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The stable order that brings rows of one group together, on the device.

    Args:
        ids: int32 or int64 [M], the group of each row; anything outside [0, groups) means none.
        groups: number of groups G.
        alignment: every group starts at a multiple of it.
        validate: read ids and raise for those that are neither -1 nor in [0, groups).

    Returns:
        (permutation int64 [P], starts int32 [G], counts int32 [G]): x[permutation] (where >= 0) feeds `grouped_gemm`.
        P = M for alignment 1, else M + G * (alignment - 1) rounded up; positions without a row hold -1.

    Raises:
        InvalidArgument: wrong rank or dtype, groups < 0, alignment < 1.

    Source: contract: `deepinfer.ops.deep_gmm.group_rows.GroupRows`.

    >>> import torch
    >>> from deepinfer.ops import deep_gmm
    >>> order, starts, counts = deep_gmm.group_rows(torch.tensor([1, 0, -1, 1]), 2)
    >>> order.tolist(), starts.tolist(), counts.tolist()
    ([1, 0, 3, -1], [0, 1], [1, 2])
    """
    number = checks.integer(GroupRows.name, "groups", groups)
    align = checks.integer(GroupRows.name, "alignment", alignment)
    permutation, starts, counts = _group_rows(ids, number, align, validate=validate)
    return permutation, starts, counts


def grouped_swiglu_mlp(
    x: torch.Tensor | Quantized,
    w13: Weights,
    w2: Weights,
    counts: torch.Tensor,
    *,
    starts: torch.Tensor | None = None,
    route_weights: torch.Tensor | None = None,
    limit: float | None = None,
    quantize: str | None = None,
    out_dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
    validate: bool = False,
) -> torch.Tensor:
    """The expert MLPs of a mixture: gate/up product, clamped SwiGLU times route weight, down product.

    Args:
        x: [M, K] rows ordered by group, as `a` of `grouped_gemm`.
        w13: [G, 2I, K], gate rows [0, I), up rows [I, 2I).
        w2: [G, H, I].
        counts, starts: as for `grouped_gemm`.
        route_weights: [M] float, multiplied in before the second product; None = 1.
        limit: gate <= limit, up within +-limit; None = no clamp.
        quantize: how the activation enters the second product: None (plain w2), "fp8_1x128" or "mxfp8".
        out_dtype: f32, or x's dtype (bf16 for quantised x), which is the default.
        out: result; rows of no group keep their bytes.
        validate: as for `grouped_gemm`.

    Returns:
        [M, H] in out_dtype. The rounding steps in between are stated in
        `deepinfer.ops.deep_gmm.swiglu_mlp.GroupedSwigluMlp`.

    Raises:
        InvalidArgument: shapes, dtypes or recipes do not fit, limit <= 0, or `validate` found bad values.

    Source: SwiGLU (arXiv:2002.05202) between two products; contract:
        `deepinfer.ops.deep_gmm.swiglu_mlp.GroupedSwigluMlp`.

    >>> import torch
    >>> from deepinfer.ops import deep_gmm
    >>> w13, w2 = torch.ones(1, 2, 1), torch.ones(1, 1, 1)
    >>> y = deep_gmm.grouped_swiglu_mlp(torch.ones(1, 1), w13, w2, torch.tensor([1]))
    >>> round(y.item(), 4)  # silu(1) * 1
    0.7311
    """
    op = GroupedSwigluMlp.name
    left = flatten(op, "x", x)
    dtype = natural_dtype(left[0].dtype, left[2]) if out_dtype is None else out_dtype
    bound = None if limit is None else checks.number(op, "limit", limit)
    weights = (*flatten_weights(op, "w13", w13), *flatten_weights(op, "w2", w2))
    args = (*left, *weights, counts, starts, route_weights, bound, "" if quantize is None else quantize, dtype)
    (y,) = _mlp(*args, out=None if out is None else (out,), validate=validate)
    return y


def prepack(weights: torch.Tensor | Quantized) -> Packed:
    """Weights plus the form that the current device's kernels multiply fastest; do it once, at load.

    Args:
        weights: [N, K] or [G, N, K], plain or `Quantized`. They must not change afterwards.

    Returns:
        `Packed`, accepted wherever weights are. It keeps the plain weights and may hold a second copy (on cpu 2
        bytes per weight on top where half precision holds them exactly, else 4).

    Raises:
        InvalidArgument: wrong rank or type, or the weights lie on another device.

    Source: docs/design/0008-matrix-products.md.

    >>> import torch
    >>> from deepinfer.ops import deep_gmm
    >>> w = deep_gmm.prepack(torch.ones(2, 3, dtype=torch.bfloat16))
    >>> deep_gmm.gemm(torch.ones(1, 3, dtype=torch.bfloat16), w).tolist()
    [[3.0, 3.0]]
    """
    return packed.pack(weights)
