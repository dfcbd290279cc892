"""Worked examples of the vendor's public documentation, from the numbers printed there.

Pages are named by their file in the public asc-devkit documentation (docs/api/context).
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import pytest
import torch
from asc_harness import run

from deepinfer.errors import DriverError

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


@dataclass(frozen=True)
class Fix:
    """Numbers of a FixPipe copy: the matrix in L0C, then the documented parameters."""

    rows: int
    cols: int
    n: int
    m: int
    dst_stride: int
    src_stride: int
    layout: int = 0  # 0 NZ, 1 ND, 2 DN
    matrices: int = 1
    src_matrix: int = 0
    dst_matrix: int = 0
    row_stride: int = 1
    dual: int = 0
    to_ub: int = 0
    bytes: int = 0
    quant: int = 0
    relu: int = 0


BEFORE = -1.0


def fixpipe(f: Fix, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(L0C as lines of 16 values, what was copied out). Value of (row, column): row + 128 column."""
    a, b = torch.zeros(f.rows, 16).half(), torch.zeros(f.cols, 16).half()
    a[:, 0], a[:, 1], b[:, 0], b[:, 1] = torch.arange(f.rows), 1, 1, 128.0 * torch.arange(f.cols)
    run("examples", "out_of_l0c", [a, b, torch.tensor(astuple(f))], [out])
    c = torch.arange(f.rows).reshape(-1, 1) + 128.0 * torch.arange(f.cols)
    return c.reshape(f.rows, -1, 16).permute(1, 0, 2).reshape(-1, 16), out


def test_fixpipe_nz_of_one_target() -> None:
    """Fixpipe, single mode: nSize 48, mSize 24, srcStride 64, dstStride 40 * C0."""
    f = Fix(64, 48, 48, 24, 40 * 16, 64)
    lines, out = fixpipe(f, torch.full((3, 40, 16), BEFORE))
    expected = torch.full((3, 40, 16), BEFORE)
    for block in range(3):
        expected[block, :24] = lines[64 * block :][:24]
    assert torch.equal(out, expected)


def test_fixpipe_nz_split_between_the_vector_cores() -> None:
    """Fixpipe, dual mode along N: nSize 32, mSize 48, srcStride 64, dstStride 64 * C0; a column block for each core.
    Along M the example's 24 rows are below what public kernels found to work, and are refused."""
    f = Fix(64, 32, 32, 48, 64 * 16, 64, dual=2, to_ub=1, bytes=4096)
    lines, out = fixpipe(f, torch.empty(2, 64, 16))
    assert torch.equal(out[0, :48], lines[:48])
    assert torch.equal(out[1, :48], lines[64:112])
    filled = torch.zeros(32, 16).half()  # the first KiB of A, with which UB was filled
    filled[:, 0], filled[:, 1] = torch.arange(32), 1
    assert torch.equal(out[:, 48:].flatten(1).view(torch.int32), filled.view(torch.int32).flatten().expand(2, 256))
    with pytest.raises(DriverError, match="m_size >= 32"):
        fixpipe(Fix(64, 32, 32, 24, 40 * 16, 64, dual=1, to_ub=1, bytes=4096), torch.empty(2, 64, 16))


def matrices(f: Fix, lines: torch.Tensor) -> torch.Tensor:
    """[matrices, m, n] as the documented strides find them in L0C."""
    row = torch.arange(f.m).reshape(-1, 1) * f.row_stride + torch.arange(f.n) // 16 * f.src_stride
    return torch.stack([lines[row + i * f.src_matrix, torch.arange(f.n) % 16] for i in range(f.matrices)])


def test_fixpipe_nz2nd() -> None:
    """Fixpipe, NZ2ND: ndNum 2, nSize 32, mSize 48, srcStride 64, dstStride 64, srcNdStride 256, dstNdStride 4096."""
    f = Fix(64, 96, 32, 48, 64, 64, layout=1, matrices=2, src_matrix=256, dst_matrix=4096)
    lines, out = fixpipe(f, torch.full((2, 64, 64), BEFORE))
    expected = torch.full((2, 64, 64), BEFORE)
    expected[:, :48, :32] = matrices(f, lines)
    assert torch.equal(out, expected)


def test_fixpipe_nz2nd_split_between_the_vector_cores() -> None:
    """Fixpipe, NZ2ND in dual mode: the same with srcNdStride 240; each core gets 24 rows of both matrices."""
    f = Fix(64, 128, 32, 48, 64, 64, 1, 2, 240, 4096, dual=1, to_ub=1, bytes=32768)
    lines, out = fixpipe(f, torch.empty(2, 2, 64, 64))
    halves = matrices(f, lines).reshape(2, 2, 24, 32)
    assert torch.equal(out[:, :, :24, :32], halves.permute(1, 0, 2, 3))


@pytest.mark.parametrize(
    ("n", "m", "pitch", "row_stride", "dst_matrix"), [(32, 48, 80, 1, 3840), (24, 24, 60, 2, 2880)]
)
def test_fixpipe_nz2dn(n: int, m: int, pitch: int, row_stride: int, dst_matrix: int) -> None:
    """Fixpipe, NZ2DN: dnNum 2, srcStride 80, srcNzMatrixStride 240; dstStride 80 with rows one after the other, or
    dstStride 60 with srcNzC0Stride 2."""
    f = Fix(80, 96, n, m, pitch, 80, layout=2, matrices=2, src_matrix=240, dst_matrix=dst_matrix, row_stride=row_stride)
    lines, out = fixpipe(f, torch.full((2, dst_matrix), BEFORE))
    expected = torch.full((2, dst_matrix), BEFORE)
    expected.reshape(2, -1, pitch)[:, :n, :m] = matrices(f, lines).permute(0, 2, 1)
    assert torch.equal(out, expected)


def test_fixpipe_of_nothing_is_no_operation() -> None:
    """Fixpipe: nSize = 0, mSize = 0 or ndNum = 0 counts as NOP."""
    for f in (Fix(64, 32, 0, 48, 64, 64), Fix(64, 32, 32, 0, 64, 64), Fix(64, 32, 32, 48, 64, 64, 1, matrices=0)):
        assert (fixpipe(f, torch.full((64, 64), BEFORE))[1] == BEFORE).all()


def test_fixpipe_scales_saturates_and_rectifies() -> None:
    """asc_copy_l0c2gm: QF322B8_PRE with asc_set_l0c_copy_prequant(2.0F, 0, true); NORMAL ReLU. Values row + 128 column
    - 40 so that both ends of int8 are met."""
    a, b = torch.zeros(64, 16).half(), torch.zeros(32, 16).half()
    a[:, 0], a[:, 1], b[:, 0], b[:, 1] = torch.arange(64), 1, 1, 128.0 * torch.arange(32) - 40.25
    c = (a.float() @ b.float().t()).double()
    for relu in (0, 1):
        f, out = Fix(64, 32, 32, 64, 32, 64, layout=1, quant=1, relu=relu), torch.zeros(64, 32, dtype=torch.int8)
        run("examples", "out_of_l0c", [a, b, torch.tensor(astuple(f))], [out])
        scaled = (2 * c).clamp(min=0) if relu else 2 * c
        assert torch.equal(out.double(), scaled.round().clamp(-128, 127))  # 2 * x.25 lies halfway: ties to even


def test_scales_are_loaded_in_pieces_of_32_bytes() -> None:
    """asc_copy_l12l0a_mx: positions, steps and strides in pieces of 16 rows x 2 scales; x runs over M, y over K; the
    piece of a fractal lies at a sixteenth of its address."""
    m, k, n, blocks, pitch, x0, y0 = 32, 192, 48, 5, 7, 1, 2
    g = torch.Generator().manual_seed(4)
    a, b = (torch.randn(rows, k, generator=g).to(torch.float8_e4m3fn) for rows in (m, n))
    array = torch.randint(120, 134, (2, blocks, pitch, 16, 2), generator=g, dtype=torch.uint8)
    out = torch.empty(m, n)
    given = [a.view(torch.uint8), b.view(torch.uint8), array]
    run("examples", "scales_from_the_middle", given, [out], [m, k, n, blocks, pitch, x0, y0])
    wide = []
    for x, pieces in zip((a, b), array, strict=True):
        part = pieces[x0 : x0 + len(x) // 16, y0 : y0 + k // 64]
        scale = part.permute(0, 2, 1, 3).reshape(len(x), k // 32)
        wide.append(x.double() * torch.exp2(scale.double() - 127).repeat_interleave(32, 1))
    torch.testing.assert_close(out.double(), wide[0] @ wide[1].t(), rtol=1e-5, atol=1e-3)
