"""Quantisers bit for bit against the numpy oracle, on the case data and on drawn matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deepinfer
from deepinfer.errors import InvalidArgument
from deepinfer.ops import quant
from deepinfer.ops.quant import cases
from tests.unit.quant import oracle

BLOCKS = [(1, 128), (1, 32), (128, 128), (32, 32), (2, 3), (1, 1)]


@pytest.fixture(autouse=True)
def _on_cpu():
    with deepinfer.use_backend("cpu"):
        yield


def _matrix(kind: str, rows: int, cols: int, seed: int) -> torch.Tensor:
    return cases.values(kind, (rows, cols), torch.float32, torch.Generator().manual_seed(seed))


def _check_fp8(x: torch.Tensor, block: tuple[int, int], ue8m0: bool, floor: float) -> None:
    got = quant.quantize_fp8(x, block=block, scale_dtype="ue8m0" if ue8m0 else "f32", amax_floor=floor)
    data, scale = oracle.fp8(x.float().numpy(), block, ue8m0, floor)
    assert torch.equal(got.data.view(torch.uint8), torch.from_numpy(data))
    assert torch.equal(got.scale.nan_to_num(-1), torch.from_numpy(scale).nan_to_num(-1))


@pytest.mark.parametrize("data", cases.DATA)
@pytest.mark.parametrize("ue8m0", [False, True])
@pytest.mark.parametrize("block", BLOCKS[:-1])
@pytest.mark.parametrize("floor", [1e-4, 0.0])
def test_fp8_matches_the_oracle(block: tuple[int, int], ue8m0: bool, data: str, floor: float) -> None:
    for shape in ((1, 1), (3, 127), (33, 129)):
        _check_fp8(_matrix(data, *shape, seed=shape[1]), block, ue8m0, floor)


@pytest.mark.parametrize("data", cases.DATA)
@pytest.mark.parametrize("block", BLOCKS[:-1])
def test_mxfp4_matches_the_oracle(block: tuple[int, int], data: str) -> None:
    for shape in ((1, 2), (3, 126), (33, 130)):
        x = _matrix(data, *shape, seed=shape[1])
        got = quant.quantize_mxfp4(x, block=block)
        want, scale = oracle.mxfp4(x.numpy(), block)
        assert torch.equal(got.data, torch.from_numpy(want))
        assert torch.equal(got.scale, torch.from_numpy(scale))


finite = st.floats(width=32, allow_nan=True, allow_infinity=True)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(BLOCKS), st.booleans(), st.sampled_from([0.0, 1e-4, 2.0]))
def test_fp8_matches_the_oracle_on_any_floats(data, block, ue8m0, floor) -> None:
    rows, cols = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 7))
    values = data.draw(st.lists(finite, min_size=rows * cols, max_size=rows * cols))
    with deepinfer.use_backend("cpu"):
        _check_fp8(torch.tensor(values, dtype=torch.float32).view(rows, cols), block, ue8m0, floor)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(BLOCKS))
def test_mxfp4_matches_the_oracle_on_any_floats(data, block) -> None:
    rows, cols = data.draw(st.integers(1, 4)), 2 * data.draw(st.integers(1, 4))
    values = data.draw(st.lists(finite, min_size=rows * cols, max_size=rows * cols))
    x = torch.tensor(values, dtype=torch.float32).view(rows, cols)
    with deepinfer.use_backend("cpu"):
        got = quant.quantize_mxfp4(x, block=block)
    want, scale = oracle.mxfp4(x.numpy(), block)
    assert torch.equal(got.data, torch.from_numpy(want))
    assert torch.equal(got.scale, torch.from_numpy(scale))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(BLOCKS), st.booleans())
def test_dequantised_values_are_within_half_a_step(seed, block, ue8m0) -> None:
    """C32: a rounded-up scale must come with a payload for that scale; keeping the old payload is off by up to 2x."""
    x = _matrix("randn", 5, 70, seed)
    with deepinfer.use_backend("cpu"):
        q = quant.quantize_fp8(x, block=block, scale_dtype="ue8m0" if ue8m0 else "f32")
        back = quant.dequantize(q)
        ones = torch.ones(tuple(q.data.shape)).to(torch.float8_e4m3fn)
        scale = quant.dequantize(deepinfer.ops.Quantized(ones, q.scale, q.block, q.scale_dtype))
    # Half a step is 2^-4 of the value for normal numbers and 2^-10 of the scale below them.
    assert bool(((back - x).abs() <= (x.abs() * 2.0**-4).clamp(min=0) + scale * 2.0**-10).all()), seed


@pytest.mark.parametrize("zeros", [torch.zeros(2, 64), -torch.zeros(2, 64)])
@pytest.mark.parametrize("scale_dtype", ["f32", "ue8m0"])
@pytest.mark.parametrize("floor", [0.0, 1e-4])
def test_zero_blocks_keep_a_usable_scale(zeros: torch.Tensor, scale_dtype: str, floor: float) -> None:
    """C41."""
    zeros = zeros.clone()
    zeros[1, 32:] = 3.0
    q = quant.quantize_fp8(zeros, block=(1, 32), scale_dtype=scale_dtype, amax_floor=floor)
    back = quant.dequantize(q)
    assert back.isfinite().all()
    assert (back[0] == 0).all()
    assert (back[1, 32:] == 3).all()
    if scale_dtype == "f32":
        assert (q.scale > 0).all()


def test_a_nan_spoils_its_own_block_only() -> None:
    x = torch.ones(3, 256)
    x[1, 130] = torch.nan
    back = quant.dequantize(quant.quantize_fp8(x))
    assert back[1, 128:].isnan().all()
    assert back.isnan().sum() == 128


@pytest.mark.parametrize("view", cases.VIEWS[1:])
def test_strided_input_gives_the_same_bytes(view: str) -> None:
    """C35."""
    x = _matrix("randn", 6, 130, 3)
    strided = cases.view(view, x)
    got, want = quant.quantize_fp8(strided), quant.quantize_fp8(strided.contiguous())
    assert torch.equal(got.data.view(torch.uint8), want.data.view(torch.uint8))
    assert torch.equal(got.scale, want.scale)


def test_out_is_used() -> None:
    x = torch.randn(4, 64)
    data, scale = torch.empty(4, 64, dtype=torch.float8_e4m3fn), torch.empty(4, 1)
    q = quant.quantize_fp8(x, out=(data, scale))
    assert q.data is data
    assert q.scale is scale


@pytest.mark.parametrize("block", [None, 128, (1,), (1.0, 128), (1, 0), "1x128", (True, 128)])
def test_a_bad_block_is_named(block: object) -> None:
    with pytest.raises(InvalidArgument, match="block"):
        quant.quantize_fp8(torch.ones(2, 4), block=block)  # type: ignore[arg-type]


def test_dequantize_wants_a_quantized() -> None:
    with pytest.raises(InvalidArgument, match="Quantized"):
        quant.dequantize(torch.ones(2, 2))  # type: ignore[arg-type]


def test_bytes_do_not_depend_on_other_rows() -> None:
    x = _matrix("randn", 9, 257, 1)
    whole = quant.quantize_fp8(x, block=(1, 32), scale_dtype="ue8m0")
    one = quant.quantize_fp8(x[4:5], block=(1, 32), scale_dtype="ue8m0")
    assert np.array_equal(whole.data[4:5].view(torch.uint8).numpy(), one.data.view(torch.uint8).numpy())
