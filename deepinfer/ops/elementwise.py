"""Elementwise functions whose value at an element does not depend on where it stands in its tensor.

torch computes sigmoid, silu and softplus in vector code and, for the few elements that are left over at the end of a
thread's part, in scalar code with other roundings. So a row's bits would depend on its batch and on the number of
threads. Built from exp and log1p, which have one code for all elements, and from operations that IEEE 754 rounds
exactly, they do not. float64 works as well (references).
"""

from __future__ import annotations

import torch


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """1 / (1 + exp(-x))."""
    return torch.neg(x).exp_().add_(1.0).reciprocal_()


def silu(x: torch.Tensor) -> torch.Tensor:
    """x / (1 + exp(-x)); 0 far below zero, where exp overflows."""
    return x / torch.neg(x).exp_().add_(1.0)


def softplus(x: torch.Tensor) -> torch.Tensor:
    """log(1 + exp(x)) without a threshold, which would lose the last bits above it."""
    return torch.abs(x).neg_().exp_().log1p_().add_(x.clamp(min=0))
