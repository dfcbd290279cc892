"""Muon for the matrices inside the layers, AdamW for everything else.

Muon replaces a momentum matrix by the nearest orthogonal one (its polar factor), found by a Newton-Schulz iteration:
https://kellerjordan.github.io/posts/muon gives the method and the coefficients.
Stacked experts are a batch of matrices.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrix: Tensor, iterations: int = 5) -> Tensor:
    """Singular values of [..., m, n] moved to about 1, singular vectors kept; in bf16 where that is fast."""
    a, b, c = COEFFICIENTS
    x = matrix.bfloat16() if matrix.is_cuda else matrix
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised; matrices of one shape are stepped as one batch."""

    def __init__(self, params: list[nn.Parameter], lr: float, weight_decay: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.by_shape: dict[tuple[int, ...], list[nn.Parameter]] = {}
        for param in params:
            self.by_shape.setdefault(tuple(param.shape), []).append(param)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        group = self.param_groups[0]
        for shape, params in self.by_shape.items():
            updates = orthogonalise(torch.stack([self._momentum(param, group["momentum"]) for param in params]))
            scale = group["lr"] * max(1.0, shape[-2] / shape[-1]) ** 0.5
            for param, update in zip(params, updates, strict=True):
                param.mul_(1 - group["lr"] * group["weight_decay"]).add_(update.to(param.dtype), alpha=-scale)

    def _momentum(self, param: nn.Parameter, momentum: float) -> Tensor:
        if param.grad is None:
            raise RuntimeError(f"Muon: a parameter of shape {tuple(param.shape)} has no gradient")
        state = self.state[param]
        if "average" not in state:
            state["average"] = torch.zeros_like(param)
        state["average"].lerp_(param.grad, 1 - momentum)
        return param.grad.lerp(state["average"], momentum)


def build(model: nn.Module, lr: float) -> list[torch.optim.Optimizer]:
    """Both optimisers. `lr` is Muon's; AdamW's is a fixed share of it."""
    matrices, others = [], []
    for name, param in model.named_parameters():
        inside = name.startswith("layers.") and param.ndim >= 2 and not name.endswith("gate.weight")
        (matrices if inside else others).append(param)
    adam = torch.optim.AdamW(others, lr=lr * 0.15, betas=(0.9, 0.95), weight_decay=0.0)
    return [Muon(matrices, lr=lr, weight_decay=0.1), adam]
