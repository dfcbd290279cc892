"""Worked examples of the vendor's public documentation, from the numbers printed there.

Pages are named by their file in the public asc-devkit documentation (docs/api/context).
"""

from __future__ import annotations

import pytest
import torch
from asc_harness import run

MODES = ("rint", "floor", "ceil", "round", "trunc")  # CAST_RINT, ... in the order of the probes' results


def vector(kernel: str, values: torch.Tensor) -> torch.Tensor:
    """1 KiB of results as bytes."""
    data, out = torch.zeros(1024, dtype=torch.uint8), torch.zeros(1024, dtype=torch.uint8)
    raw = values.contiguous().view(torch.uint8).flatten()
    data[: raw.numel()] = raw
    run("examples", kernel, [data, torch.zeros(1024, dtype=torch.uint8)], [out])
    return out


def test_matrices_to_fractals() -> None:
    """ND2NZ: two matrices of 2 x 24 halves; rows 48 elements, matrices 144 elements apart; in the result a row's two
    pieces 11, rows 2 and matrices 6 blocks of 32 bytes apart. The half-empty second piece is filled up with zeros."""
    source, out = torch.arange(1.0, 289).half(), torch.empty(32, 16).half()
    run("examples", "fractals", [source], [out], [2, 2, 24, 96, 288, 2, 11, 6])
    expected = torch.full((32, 16), -1.0).half()
    for matrix, row in ((0, 0), (0, 1), (1, 0), (1, 1)):
        values = source[144 * matrix + 48 * row :][:24]
        first = 6 * matrix + 2 * row
        expected[first] = values[:16]
        expected[first + 11, :8], expected[first + 11, 8:] = values[16:], 0
    assert torch.equal(out, expected)


def test_columns_to_fractals() -> None:
    """asc_copy_gm2l1_dn2nz: N = 3, D = 3, columns 4 bytes apart; what is missing to 32 bytes becomes zero."""
    source, out = torch.arange(1.0, 257).half(), torch.empty(32, 16).half()
    run("examples", "fractals", [source], [out], [0, 3, 3, 4, 2, 1, 16, 0])
    expected = torch.full((32, 16), -1.0).half()
    expected[:3] = 0
    expected[:3, :3] = torch.tensor([[1, 3, 5], [2, 4, 6], [3, 5, 7]])
    assert torch.equal(out, expected)


@pytest.mark.parametrize(("k", "squares"), [(32, 3), (64, 2), (96, 1)])
def test_squares_of_the_transposing_load(k: int, squares: int) -> None:
    """LoadDataWithTranspose: two fractals of 16 x 32 bytes make a square of 32 x 32, which is turned and split again;
    3 squares (3072 bytes) in the example. Turned and multiplied by the identity, the matrix is itself again."""
    codes = (torch.arange(k * 32 * squares) * 7 % 120).to(torch.uint8).reshape(k, -1)
    eye = torch.eye(k).to(torch.float8_e4m3fn).view(torch.uint8)
    out = torch.empty(k, 32 * squares)
    run("examples", "turned_bytes", [eye, codes], [out], [k, squares])
    assert torch.equal(out, codes.view(torch.float8_e4m3fn).float())


def test_float_to_half() -> None:
    """Cast: 0.5 + 2^-12."""
    found = vector("to_half", torch.tensor([0.5 + 2**-12])).view(torch.float16).reshape(8, 64)[:5, 0].tolist()
    up = 0.5 + 2**-11
    assert dict(zip(MODES, found, strict=True)) == {"rint": 0.5, "floor": 0.5, "ceil": up, "round": up, "trunc": 0.5}


def test_float_to_bfloat16() -> None:
    """Cast: 0.5 + 2^-9 + 2^-11."""
    x = torch.tensor([0.5 + 2**-9 + 2**-11])
    found = vector("to_bfloat16", x).view(torch.bfloat16).reshape(8, 64)[:5, 0].tolist()
    up = 0.5 + 2**-8
    assert dict(zip(MODES, found, strict=True)) == {"rint": up, "floor": 0.5, "ceil": up, "round": up, "trunc": 0.5}


def test_float_to_integers() -> None:
    """Cast: 2^22 + 0.5 to int32, and to int16, where it saturates. ScalarCast: 2.5 rounded half away is 3."""
    out = vector("to_integers", torch.tensor([2.0**22 + 0.5, 2.5]))
    found = out[:640].view(torch.int32).reshape(5, 32)
    low, high = 2**22, 2**22 + 1
    wanted = {"rint": low, "floor": low, "ceil": high, "round": high, "trunc": low}
    assert dict(zip(MODES, found[:, 0].tolist(), strict=True)) == wanted
    assert found[3, 1] == 3
    assert out[640:].view(torch.int16)[0] == 2**15 - 1


def test_rounding_of_both_signs() -> None:
    """scalar_conv (atlastikapi_07_0044): float to int32, columns round, floor, ceil and to-zero."""
    values = [1.8, 1.5, 1.2, 0.8, 0.5, 0.2, -0.2, -0.5, -0.8, -1.2, -1.5, -1.8]
    found = vector("to_integers", torch.tensor(values))[:640].view(torch.int32).reshape(5, 32)[:, :12].tolist()
    assert found[0] == [2, 2, 1, 1, 0, 0, 0, 0, -1, -1, -2, -2]
    assert found[1] == [1, 1, 1, 0, 0, 0, -1, -1, -1, -2, -2, -2]
    assert found[2] == [2, 2, 2, 1, 1, 1, 0, 0, 0, -1, -1, -1]
    assert found[4] == [1, 1, 1, 0, 0, 0, 0, 0, 0, -1, -1, -1]


def test_interleave_and_back() -> None:
    """Interleave: [1 3 5 ...] and [2 4 6 ...] become [1 2 3 ...]; DeInterleave takes them apart again."""
    odd, even = torch.arange(1, 257, 2, dtype=torch.int16), torch.arange(2, 258, 2, dtype=torch.int16)
    out = vector("interleave", torch.cat([odd, even])).view(torch.int16)
    assert torch.equal(out[:256], torch.arange(1, 257, dtype=torch.int16))
    assert torch.equal(out[256:384], odd)
    assert torch.equal(out[384:], even)
