"""Weights in the layout the GEMM kernels of the current device like, behind calls that look like linear layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from deepinfer.hal import Device
from deepinfer.models.weights import Weights
from deepinfer.ops import deep_gmm


class Linear:
    """y = x W^T (+ bias), several checkpoint matrices with the same input stacked into one GEMM.

    Args:
        names: checkpoint names of the modules (".weight", ".bias" are appended), stacked along the output.
    """

    def __init__(self, device: Device, weights: Weights, names: Sequence[str], biased: Sequence[bool] = ()) -> None:
        parts = [weights.matrix(f"{name}.weight") for name in names]
        self.dtype = weights.compute
        self.splits = [part.shape[0] for part in parts]
        self.weight = deep_gmm.prepack(device.to_device(torch.cat(parts) if len(parts) > 1 else parts[0]))
        self.bias: torch.Tensor | None = None
        if any(biased):
            flags = zip(names, biased, self.splits, strict=True)
            bias = [
                weights.exact(f"{name}.bias") if has else torch.zeros(size, dtype=torch.float32)
                for name, has, size in flags
            ]
            self.bias = device.to_device(torch.cat(bias))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, K], rounded to the weights' dtype -> [T, N] float32."""
        return deep_gmm.gemm(x.to(self.dtype), self.weight, bias=self.bias, out_dtype=torch.float32)
