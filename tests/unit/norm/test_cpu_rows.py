"""What the CPU's own rms_norm must not depend on: torch's default dtype, and the batch a row stands in."""

from __future__ import annotations

import pytest
import torch
from deepinfer_cpu.kernels import norm_rope

import deepinfer
from deepinfer.ops import norm


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_default_dtype_leaves_no_trace(dtype: torch.dtype) -> None:
    width = 7168
    x = torch.randn(3, width, generator=torch.Generator().manual_seed(0))
    weight = torch.ones(width)
    norm_rope._constants.cache_clear()
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with deepinfer.use_backend("cpu"):
            found = norm.rms_norm(x, weight, 1e-6)
    finally:
        torch.set_default_dtype(before)
    torch.testing.assert_close(found, torch.rms_norm(x, (width,), weight, 1e-6))
    with deepinfer.use_backend("cpu"):
        assert torch.equal(norm.rms_norm(x, weight, 1e-6), found)


def test_rows_that_threads_would_share_are_left_to_the_portable_form() -> None:
    with deepinfer.use_backend("cpu"):
        for width, takes in ((norm_rope.SERIAL, True), (norm_rope.SERIAL + 1, False)):
            text = str(deepinfer.explain("norm.rms_norm", torch.ones(2, width), torch.ones(width), 1e-6))
            assert ("depend on the batch" in text) is not takes, text
