"""Byte codecs against ml_dtypes: every code, every midpoint, saturation, NaN."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from deepinfer.ops.quant import codec, exact


def test_every_e4m3_byte_decodes_as_ml_dtypes_does() -> None:
    codes = np.arange(256, dtype=np.uint8)
    want = torch.from_numpy(codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32))
    assert torch.equal(codec.e4m3_decode(torch.from_numpy(codes)).nan_to_num(-1e9), want.nan_to_num(-1e9))


@pytest.mark.parametrize("without", [(), (0x7F,), (0xFF,), (0x7F, 0xFF)], ids=str)
def test_many_bytes_decode_as_few_do(without: tuple[int, ...]) -> None:
    """From MANY bytes on the host computes them instead of looking them up; NaN has two codes."""
    some = np.array([code for code in range(256) if code not in without], dtype=np.uint8)
    codes = np.tile(some, codec.MANY // len(some) + 1)
    want = torch.from_numpy(codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32))
    got = codec.e4m3_decode(torch.from_numpy(codes))
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.nan_to_num(), want.nan_to_num())
    assert torch.equal(got.signbit()[~want.isnan()], want.signbit()[~want.isnan()])


def _probes(values: list[float]) -> torch.Tensor:
    grid = torch.tensor(sorted(set(values)), dtype=torch.float64)
    middle = (grid[1:] + grid[:-1]) / 2
    near = torch.cat((grid, middle, middle * (1 + 2.0**-20), middle * (1 - 2.0**-20))).float()
    return torch.cat((near, -near))


def test_e4m3_rounds_at_every_midpoint_as_ml_dtypes_does() -> None:
    x = _probes(exact.e4m3_values())
    want = x.numpy().astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert torch.equal(codec.e4m3_encode(x).view(torch.uint8), torch.from_numpy(want))


@pytest.mark.parametrize(
    ("value", "want"),
    [(447.0, 448.0), (448.0, 448.0), (463.0, 448.0), (464.0, 448.0), (465.0, 448.0), (480.0, 448.0),
     (torch.inf, 448.0)],
)
def test_e4m3_saturates(value: float, want: float) -> None:
    got = codec.e4m3_encode(torch.tensor([value, -value])).float()
    assert got.tolist() == [want, -want]


def test_e4m3_keeps_nan() -> None:
    assert codec.e4m3_encode(torch.tensor([torch.nan])).float().isnan().all()


def test_every_e2m1_code_and_midpoint_matches_ml_dtypes() -> None:
    codes = np.arange(16, dtype=np.uint8)
    want = torch.from_numpy(codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32))
    assert torch.equal(codec.e2m1_decode(torch.from_numpy(codes)), want)
    x = _probes(list(codec.E2M1_VALUES)).clamp(-6, 6)
    ours = codec.e2m1_encode(x)
    assert torch.equal(ours, torch.from_numpy(x.numpy().astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15))


def test_e2m1_packs_the_even_element_low() -> None:
    code = torch.tensor([[1, 2, 15, 0]], dtype=torch.uint8)
    assert codec.e2m1_pack(code).tolist() == [[0x21, 0x0F]]
    assert torch.equal(codec.e2m1_unpack(codec.e2m1_pack(code)), code)


def test_packed_bytes_decode_as_their_codes() -> None:
    packed = torch.arange(256, dtype=torch.uint8).view(4, 64)
    want = codec.e2m1_decode(codec.e2m1_unpack(packed))
    assert torch.equal(codec.e2m1_decode_packed(packed), want)
    assert torch.equal(codec.e2m1_decode_packed(packed.t()).flatten(), want.view(4, 64, 2).transpose(0, 1).flatten())


def test_every_ue8m0_byte_decodes_as_ml_dtypes_does() -> None:
    codes = np.arange(256, dtype=np.uint8)
    want = torch.from_numpy(codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float32))
    got = codec.ue8m0_decode(torch.from_numpy(codes))
    assert torch.equal(got.nan_to_num(-1), want.nan_to_num(-1))
    assert torch.equal(codec.ue8m0_encode(got), torch.from_numpy(codes))


@pytest.mark.parametrize(
    ("scale", "byte"),
    [(1.0, 127), (1.0000001, 128), (0.3, 126), (0.0, 0), (1e-45, 0), (2.0**-127, 0), (2.0**-126, 1), (3e38, 254),
     (-1.0, 255), (torch.nan, 255), (torch.inf, 255), (6e-39, 1)],
)
def test_ue8m0_rounds_up(scale: float, byte: int) -> None:
    assert codec.ue8m0_encode(torch.tensor([scale])).item() == byte
