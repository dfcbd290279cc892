"""Public mixture-of-experts ops: argument conversion only; the contracts are in the specs."""

from __future__ import annotations

import torch

from deepinfer.ops import checks
from deepinfer.ops.moe.route import Route
from deepinfer.ops.moe.swiglu_quantize import FORMS, SwigluQuantize
from deepinfer.ops.quantized import Quantized
from deepinfer.registry import Op, get_spec

_route = Op(get_spec(Route.name))
_swiglu = Op(get_spec(SwigluQuantize.name))


def route(
    logits: torch.Tensor,
    top_k: int,
    *,
    scoring: str = "softmax",
    bias: torch.Tensor | None = None,
    n_group: int = 1,
    topk_group: int = 1,
    group_score: str = "max",
    renormalize: bool = True,
    scale: float = 1.0,
    eps: float = 1e-20,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    validate: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts and weights for each token.

    Args:
        logits: [T, E] f32, bf16 or f16 router outputs.
        top_k: experts per token K, 0 .. E (fewer with group limits).
        scoring: "softmax" (deepseek_v2), "sigmoid" (v3) or "sqrtsoftplus" (v4).
        bias: [E] added to the scores for choosing only, or None.
        n_group, topk_group: experts stand in n_group equal groups of which topk_group stay; 1 and 1 mean no limit.
        group_score: "max" (v2) or "top2_sum" (v3).
        renormalize: divide the chosen weights by their sum + eps.
        scale: factor on the weights (`routed_scaling_factor`).
        out: (weights, ids) tensors, or None to allocate.
        validate: accepted for uniformity; any logits have a defined result.

    Returns:
        (weights [T, K] f32, ids [T, K] int32), from the highest rank down; equal ranks go to the lower id.

    Raises:
        InvalidArgument: shapes, dtypes, names or counts break the contract.

    Source: gates of DeepSeek-V2 and V3 (arXiv:2405.04434, arXiv:2412.19437, section 2.1.2); contract:
        `deepinfer.ops.moe.route.Route`.

    >>> import torch
    >>> from deepinfer.ops import moe
    >>> weights, ids = moe.route(torch.tensor([[0.0, 2.0, 2.0, -1.0]]), 2, scoring="sigmoid", scale=3.0)
    >>> ids.tolist(), weights.tolist()
    ([[1, 2]], [[1.5, 1.5]])
    """
    op = Route.name
    weights, ids = _route(
        logits, checks.integer(op, "top_k", top_k), scoring, bias, checks.integer(op, "n_group", n_group),
        checks.integer(op, "topk_group", topk_group), group_score, renormalize, checks.number(op, "scale", scale),
        checks.number(op, "eps", eps), out=out, validate=validate,
    )
    return weights, ids


def swiglu_quantize(
    gate_up: torch.Tensor,
    *,
    route_weights: torch.Tensor | None = None,
    limit: float | None = None,
    quantize: str | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    validate: bool = False,
) -> torch.Tensor | Quantized:
    """silu(gate) * up with optional clamps, route weights and fp8 quantisation.

    Args:
        gate_up: [M, 2I] bf16, f16 or f32; gate in the first I columns.
        route_weights: [M] f32 factors, or None.
        limit: gate is cut at limit, up to [-limit, limit]; None: no clamp.
        quantize: None, "fp8_1x128" (float32 scales per 128) or "mxfp8" (UE8M0 scales per 32).
        out: (data, scale) tensors, or None to allocate; without quantisation scale is [M, 0] float32.
        validate: accepted for uniformity.

    Returns:
        [M, I] in gate_up's dtype, or a `Quantized` of that shape.

    Raises:
        InvalidArgument: shapes, dtypes, limit or quantize break the contract.

    Source: SwiGLU (arXiv:2002.05202); contract: `deepinfer.ops.moe.swiglu_quantize.SwigluQuantize`.

    >>> import torch
    >>> from deepinfer.ops import moe
    >>> moe.swiglu_quantize(torch.tensor([[0.0, 20.0, 5.0, 3.0]]), limit=4.0).tolist()
    [[0.0, 11.784...]]
    >>> moe.swiglu_quantize(torch.ones(2, 256), quantize="mxfp8").scale.shape
    torch.Size([2, 4])
    """
    bound = None if limit is None else checks.number(SwigluQuantize.name, "limit", limit)
    data, scale = _swiglu(gate_up, route_weights, bound, quantize or "", out=out, validate=validate)
    if not quantize:
        return data
    block, ue8m0 = FORMS[quantize]
    return Quantized(data, scale, block, "ue8m0" if ue8m0 else "f32", "e4m3")
