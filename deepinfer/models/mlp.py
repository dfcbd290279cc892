"""The feed-forward halves of a layer: a dense SwiGLU, and routed experts with shared ones beside them.

Both take the normalised hidden state in the model's dtype and return float32, which is added to a float32 residual.
"""

from __future__ import annotations

from typing import cast

import torch

from deepinfer.hal import Device
from deepinfer.models.config import ModelConfig, RoutingConfig
from deepinfer.models.linear import Linear
from deepinfer.models.weights import Weights
from deepinfer.ops import deep_gmm, moe


class DenseMlp:
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, device: Device, weights: Weights, prefix: str, bias: bool) -> None:
        self.gate_up = Linear(device, weights, [prefix + "gate_proj", prefix + "up_proj"], (bias, bias))
        self.down = Linear(device, weights, [prefix + "down_proj"], (bias,))

    def __call__(self, x: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
        """x [T, hidden] -> [T, hidden] float32; `exact` (x before rounding) is not needed here."""
        return self.down(cast("torch.Tensor", moe.swiglu_quantize(self.gate_up(x))))


class MoeMlp:
    """Top-k of the routed experts by a float32 router, plus the shared experts.

    Each token's expert results are summed in the order of its slots, so the sum does not depend on the batch.
    """

    def __init__(
        self, device: Device, config: ModelConfig, routing: RoutingConfig, weights: Weights, prefix: str
    ) -> None:
        self.routing = routing
        self.router = deep_gmm.prepack(device.to_device(weights.exact(prefix + "gate.weight")))
        self.bias: torch.Tensor | None = None
        if routing.correction_bias:
            self.bias = device.to_device(weights.exact(prefix + "gate.e_score_correction_bias"))
        names = [f"{prefix}experts.{expert}." for expert in range(routing.experts)]
        self.w13 = self._stack(device, weights, names, ("gate_proj", "up_proj"))
        self.w2 = self._stack(device, weights, names, ("down_proj",))
        shared = prefix + "shared_experts."
        self.shared = DenseMlp(device, weights, shared, config.mlp_bias) if config.n_shared_experts else None

    @staticmethod
    def _stack(device: Device, weights: Weights, names: list[str], parts: tuple[str, ...]) -> deep_gmm.Packed:
        matrices = (torch.cat([weights.matrix(f"{name}{part}.weight") for part in parts]) for name in names)
        first = next(matrices)
        stacked = device.empty((len(names), *first.shape), first.dtype)
        stacked[0].copy_(first)
        for index, matrix in enumerate(matrices, 1):
            stacked[index].copy_(matrix)
        return deep_gmm.prepack(stacked)

    def __call__(self, x: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
        """x [T, hidden] -> [T, hidden] float32; the router looks at `exact`, x before rounding, float32."""
        r = self.routing
        weights, ids = moe.route(
            deep_gmm.gemm(exact, self.router),
            r.top_k,
            scoring=r.scoring,
            bias=self.bias,
            n_group=r.n_group,
            topk_group=r.topk_group,
            group_score=r.group_score,
            renormalize=r.renormalize,
            scale=r.scale,
        )
        rows, starts, counts = deep_gmm.group_rows(ids.view(-1), r.experts)
        grouped = deep_gmm.grouped_swiglu_mlp(
            x[rows // r.top_k],
            self.w13,
            self.w2,
            counts,
            starts=starts,
            route_weights=weights.view(-1)[rows],
            out_dtype=torch.float32,
        )
        slots = torch.empty_like(grouped).index_copy_(0, rows, grouped)
        routed = slots.view(*ids.shape, -1).sum(1)
        return routed if self.shared is None else routed + self.shared(x, exact)
