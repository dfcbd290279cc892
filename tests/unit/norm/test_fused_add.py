"""Fused residual add: equal to the two ops it fuses, in place or not."""

from __future__ import annotations

import pytest
import torch

from deepinfer.ops import norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_equals_add_then_norm(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    x, stream = (torch.randn(4, 96, generator=generator).to(dtype) for _ in range(2))
    weight = torch.rand(96, generator=generator).to(dtype)
    y, total = norm.fused_add_rms_norm(x, stream, weight, 1e-6)
    assert torch.equal(total, x + stream)
    assert torch.equal(y, norm.rms_norm(x + stream, weight, 1e-6))


def test_updates_the_stream_in_place_when_asked() -> None:
    x, stream, weight = torch.randn(3, 8), torch.randn(3, 8), torch.ones(8)
    wanted = norm.fused_add_rms_norm(x, stream, weight)
    y = torch.empty(3, 8)
    norm.fused_add_rms_norm(x, stream, weight, out=(y, stream))
    assert torch.equal(y, wanted[0])
    assert torch.equal(stream, wanted[1])


def test_norm_equals_transformers() -> None:
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RMSNorm

    layer = DeepseekV3RMSNorm(64, eps=1e-6)
    layer.weight.data.uniform_(0.5, 1.5)
    x = torch.randn(5, 64)
    torch.testing.assert_close(norm.rms_norm(x, layer.weight.data, 1e-6), layer(x).detach(), rtol=1e-6, atol=1e-6)


def test_a_nan_row_stays_alone() -> None:
    x = torch.randn(3, 8)
    x[1, 2] = torch.nan
    y, _ = norm.fused_add_rms_norm(x, torch.zeros(3, 8), torch.ones(8))
    assert y.isnan().any(1).tolist() == [False, True, False]
