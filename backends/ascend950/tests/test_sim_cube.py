"""The cube and the FixPipe: element types, layouts, scales, accumulation, number conversions on the way out."""

from __future__ import annotations

import math

import pytest
import torch
from asc_harness import run

from deepinfer.errors import DriverError

TYPES = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "i8": torch.int8,
}


def operands(m: int, k: int, n: int, dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    if dtype is torch.int8:
        return tuple(torch.randint(-128, 128, s, generator=g, dtype=torch.int8) for s in ((m, k), (n, k)))
    return tuple(torch.randn(s, generator=g).to(dtype) for s in ((m, k), (n, k)))


def raw(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.uint8) if x.dtype.itemsize == 1 else x


# 128 x 128 x 128 and 48 x 96 x 80 in int8 are sizes that the vendor's multiply examples use.
@pytest.mark.parametrize(("m", "k", "n"), [(128, 128, 128), (48, 96, 80), (40, 70, 50), (1, 1, 1), (17, 33, 18)])
@pytest.mark.parametrize("name", TYPES)
def test_multiply(name: str, m: int, k: int, n: int) -> None:
    a, b = operands(m, k, n, TYPES[name])
    c = torch.empty((m, n), dtype=torch.int32 if name == "i8" else torch.float32)
    run("cube", f"mmad_{name}", [raw(a), raw(b)], [c], [m, k, n, 1])
    expected = a.double() @ b.double().t()
    if name == "i8":
        assert torch.equal(c.double(), expected)
    else:
        torch.testing.assert_close(c.double(), expected, rtol=2e-6, atol=2e-5)


def test_f32_operands_lose_bits_unless_hf32_is_switched_off() -> None:
    a, b = torch.full((16, 16), 1 + 2**-14), torch.eye(16)
    c = torch.empty(16, 16)
    run("cube", "mmad_f32", [a, b], [c], [16, 16, 16, 0])
    assert (c == 1).all()
    run("cube", "mmad_f32", [a, b], [c], [16, 16, 16, 1])
    assert (c == 1 + 2**-14).all()


def test_bias_accumulation_and_empty_multiply() -> None:
    a, b = operands(20, 40, 24, torch.bfloat16)
    bias, c = torch.randn(24), torch.empty(20, 24)
    run("cube", "accumulate", [a, b, bias], [c], [20, 40, 24])
    torch.testing.assert_close(c, 2 * (a.float() @ b.float().t()) + bias, rtol=1e-5, atol=1e-4)


def test_fixpipe_saturates_unless_told_to_keep_nan() -> None:
    a, b = torch.ones(16, 16).bfloat16(), torch.ones(16, 16).bfloat16()
    a[3, 0], a[4, 0] = math.nan, math.inf
    c = torch.empty(16, 16).bfloat16()
    run("cube", "fix_bf16", [a, b], [c], [16, 16, 16, 0])
    assert not c[3].any()
    assert torch.isfinite(c[4]).all()
    assert (c[5] == 16).all()
    run("cube", "fix_bf16", [a, b], [c], [16, 16, 16, 1])
    assert c[3].isnan().all()
    assert c[4].isinf().all()


def test_scalar_quantisation_on_the_way_out() -> None:
    a, b = operands(16, 32, 48, torch.bfloat16)
    c = torch.empty((16, 48), dtype=torch.uint8)
    run("cube", "fix_fp8_scaled", [a, b], [c], [16, 32, 48])
    expected = ((a.float() @ b.float().t()) * 0.25).to(torch.float8_e4m3fn)
    assert (c.view(torch.float8_e4m3fn).float() - expected.float()).abs().max() <= 0.25 * 0.5
    assert (c.view(torch.float8_e4m3fn).float() == expected.float()).float().mean() > 0.99


def test_fixpipe_nz_lays_out_column_blocks_of_16() -> None:
    a, b = operands(32, 16, 48, torch.bfloat16)
    c = torch.empty(3, 32, 16)
    run("cube", "fix_nz", [a, b], [c], [32, 16, 48])
    expected = (a.float() @ b.float().t()).reshape(32, 3, 16).permute(1, 0, 2)
    torch.testing.assert_close(c, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", [1, 2])
def test_dual_destination_gives_each_vector_core_one_half(mode: int) -> None:
    a, b = operands(64, 32, 64, torch.bfloat16)
    halves = (torch.empty(32, 64), torch.empty(32, 64)) if mode == 1 else (torch.empty(64, 32), torch.empty(64, 32))
    run("cube", "fix_dual", [a, b], halves, [64, 32, 64, mode])
    expected = a.float() @ b.float().t()
    torch.testing.assert_close(torch.cat(halves, 0 if mode == 1 else 1), expected, rtol=1e-5, atol=1e-5)


def test_dual_destination_below_32_rows_is_refused() -> None:
    a, b = operands(16, 32, 64, torch.bfloat16)
    with pytest.raises(DriverError, match=r"fix_dual.*asc_copy_l0c2ub at cube\.asc"):
        run("cube", "fix_dual", [a, b], [torch.empty(8, 64), torch.empty(8, 64)], [16, 32, 64, 1])


def test_unit_flags_order_cube_and_fixpipe() -> None:
    a, b = operands(64, 32, 64, torch.bfloat16)
    c = torch.empty(64, 64)
    run("cube", "unit_flag", [a, b], [c], [64, 32, 64, 1])
    torch.testing.assert_close(c, a.float() @ b.float().t(), rtol=1e-5, atol=1e-5)
    with pytest.raises(DriverError, match="race: read after write on L0C"):
        run("cube", "unit_flag", [a, b], [c], [64, 32, 64, 0])


def test_transposing_load() -> None:
    g = torch.Generator().manual_seed(3)
    a, b = torch.randn((32, 48), generator=g).half(), torch.randn((48, 64), generator=g).half()
    c = torch.empty(32, 64)
    run("cube", "transposed_b", [a, b], [c], [32, 48, 64])
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-5, atol=1e-4)


def _scale_layout(scale: torch.Tensor) -> torch.Tensor:
    """[rows, K/32] exponents as [rows/16][K/64][16][2]; rows padded with 0x7F."""
    rows, blocks = scale.shape
    padded = torch.full((-(-rows // 16) * 16, blocks), 0x7F, dtype=torch.uint8)
    padded[:rows] = scale
    return padded.reshape(-1, 16, blocks // 2, 2).permute(0, 2, 1, 3).contiguous().flatten()


@pytest.mark.parametrize(("m", "k", "n"), [(40, 128, 50), (16, 64, 16), (128, 256, 64)])
def test_block_scaled_multiply(m: int, k: int, n: int) -> None:
    g = torch.Generator().manual_seed(5)
    a, b = operands(m, k, n, torch.float8_e4m3fn)
    sa, sb = (torch.randint(120, 134, (rows, k // 32), generator=g, dtype=torch.uint8) for rows in (m, n))
    c = torch.empty(m, n)
    run("cube", "mmad_mx", [raw(a), raw(b), torch.cat([_scale_layout(sa), _scale_layout(sb)])], [c], [m, k, n])
    wide = [x.double() * torch.exp2(s.double() - 127).repeat_interleave(32, 1) for x, s in ((a, sa), (b, sb))]
    torch.testing.assert_close(c.double(), wide[0] @ wide[1].t(), rtol=1e-5, atol=1e-3)
