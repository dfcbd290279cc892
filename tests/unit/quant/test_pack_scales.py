"""Scale packing: layout by an independent numpy construction, bad scales named by row, padding never inspected."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import deepinfer
from deepinfer.errors import InvalidArgument
from deepinfer.ops import quant


@pytest.fixture(autouse=True)
def _on_cpu():
    with deepinfer.use_backend("cpu"):
        yield


def test_words_hold_four_exponents_little_endian() -> None:
    exponents = np.random.default_rng(5).integers(1, 255, (5, 10), dtype=np.uint8)
    scale = torch.from_numpy((exponents.astype(np.uint32) << 23).view(np.float32))
    padded = np.zeros((8, 12), np.uint8)
    padded[:5, :10] = exponents
    want = np.ascontiguousarray(padded.view(np.int32).T)
    got = quant.pack_scales(scale)
    assert np.array_equal(got.numpy(), want)
    assert got.is_contiguous()


def test_f32_layout_is_the_aligned_transpose() -> None:
    scale = torch.rand(2, 3, 5)
    got = quant.pack_scales(scale, layout="f32_mn")
    assert got.shape == (2, 5, 4)
    assert torch.equal(got[..., :3], scale.transpose(-1, -2))
    assert (got[..., 3] == 0).all()


def test_rows_of_a_tile_share_its_scale() -> None:
    got = quant.pack_scales(torch.tensor([[2.0], [4.0]]), block_rows=3, mn=5)
    assert got.tolist() == [[128, 128, 128, 129, 129, 0, 0, 0]]


@pytest.mark.parametrize("value", [0.3, 1e-45, 0.0, -1.0, torch.nan, torch.inf])
def test_a_bad_scale_is_named_by_row(value: float) -> None:
    """C31."""
    scale = torch.ones(4, 3)
    scale[2, 1] = value
    with pytest.raises(InvalidArgument, match="row 2"):
        quant.pack_scales(scale)
    unchecked = quant.pack_scales(scale, validate=False)
    assert unchecked[0, 2].item() >> 8 & 0xFF == 0xFF


@pytest.mark.parametrize("value", [0.3, 0.0, -1.0, torch.nan])
def test_padding_is_never_inspected(value: float) -> None:
    """C31: rows past the count come from uninitialised memory."""
    scale = torch.ones(2, 4, 3)
    scale[0, 1:], scale[1, 3:] = value, value
    got = quant.pack_scales(scale, rows=torch.tensor([1, 3]))
    assert torch.equal(got[:, 0] != 0, torch.tensor([[True, False, False, False], [True, True, True, False]]))


def test_rows_may_be_an_int() -> None:
    scale = torch.ones(4, 1)
    scale[3] = torch.nan
    assert (quant.pack_scales(scale, rows=3)[0] != 0).tolist() == [True, True, True, False]


def test_the_smallest_and_largest_powers_pack() -> None:
    got = quant.pack_scales(torch.tensor([[2.0**-127, 2.0**-126, 2.0**127]]))
    assert [got[0, 0].item() >> shift & 0xFF for shift in (0, 8, 16)] == [0, 1, 254]
