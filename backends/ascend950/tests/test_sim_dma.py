"""The copy engines: units, strides, padding, layout changes, state, atomics, limits."""

from __future__ import annotations

import pytest
import torch
from asc_harness import run

from deepinfer.errors import DriverError


def counting(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int32).remainder(251).to(torch.uint8)


def test_strides_run_from_head_to_head_in_bytes() -> None:
    src, before, out = counting(1024), torch.full((256,), 255, dtype=torch.uint8), torch.empty(256, dtype=torch.uint8)
    run("dma", "gm2ub_strided", [src, before], [out], [4, 20, 100, 64, 256])
    for row in range(4):
        assert torch.equal(out[64 * row : 64 * row + 20], src[100 * row : 100 * row + 20])
        assert (out[64 * row + 32 : 64 * row + 64] == 255).all()


def test_a_ragged_burst_is_filled_up_with_its_first_element() -> None:
    src, before, out = counting(1024), torch.full((64,), 255, dtype=torch.uint8), torch.empty(64, dtype=torch.uint8)
    run("dma", "gm2ub_strided", [src[5:], before], [out], [1, 20, 100, 64, 64])
    assert torch.equal(out[:20], src[5:25])
    assert (out[20:32] == src[5]).all()
    assert (out[32:] == 255).all()


def test_zero_bursts_are_skipped() -> None:
    src, before, out = counting(64), torch.full((64,), 7, dtype=torch.uint8), torch.empty(64, dtype=torch.uint8)
    run("dma", "gm2ub_strided", [src, before], [out], [0, 20, 100, 64, 64])
    assert (out == 7).all()


def test_padding_with_a_value_on_both_sides() -> None:
    src, out = torch.arange(12, dtype=torch.float32), torch.empty(4, 8)
    run("dma", "padded", [src], [out])
    expected = torch.full((4, 8), 9.0)
    expected[:, 2:5] = src.reshape(4, 3)
    assert torch.equal(out, expected)


def test_outer_loops() -> None:
    src, out = counting(1024), torch.empty(384, dtype=torch.uint8)
    run("dma", "looped", [src], [out])
    for two in range(2):
        for one in range(3):
            for burst in range(2):
                to, at = two * 192 + one * 64 + burst * 32, two * 512 + one * 128 + burst * 64
                assert torch.equal(out[to : to + 32], src[at : at + 32])


def test_gaps_between_ub_and_l1_run_from_end_to_head() -> None:
    src, before, out = counting(384), torch.full((512,), 255, dtype=torch.uint8), torch.empty(512, dtype=torch.uint8)
    run("dma", "ub_l1_gaps", [src, before], [out])
    expected = before.clone()
    for burst in range(4):
        expected[128 * burst : 128 * burst + 64] = src[96 * burst : 96 * burst + 64]
    assert torch.equal(out, expected)


@pytest.mark.parametrize(
    ("rows", "cols", "pitch", "dn"), [(20, 40, 32, 0), (16, 16, 16, 0), (20, 40, 21, 1), (1, 17, 16, 0)]
)
def test_matrix_to_fractals(rows: int, cols: int, pitch: int, dn: int) -> None:
    g = torch.Generator().manual_seed(1)
    x = torch.randn((cols, rows) if dn else (rows, cols), generator=g).half()
    blocks = -(-cols // 16)
    out = torch.empty(blocks, pitch, 16).half()
    run("dma", "to_nz", [x], [out], [rows, cols, x.stride(0) * 2, pitch, dn])
    matrix = torch.zeros(rows, blocks * 16).half()
    matrix[:, :cols] = x.t() if dn else x
    expected = matrix.reshape(rows, blocks, 16).permute(1, 0, 2)
    assert torch.equal(out[:, :rows], expected)  # columns beyond the matrix are zeros inside its rows
    assert (out[:, rows:] == -1).all()  # rows beyond it are left alone


def test_atomic_adds_of_all_blocks_and_the_mode_that_sticks() -> None:
    src, total, plain = torch.arange(64, dtype=torch.float32), torch.zeros(64), torch.ones(64)
    run("dma", "atomic_add", [src], [total, plain], [0], grid=5)
    assert torch.equal(total, 5 * src)
    assert torch.equal(plain, src)
    total, plain = torch.zeros(64), torch.ones(64)
    run("dma", "atomic_add", [src], [total, plain], [1], grid=5)
    assert torch.equal(plain, src + 1)


def test_limits() -> None:
    src = counting(1024)
    with pytest.raises(DriverError, match="burst"):
        run("dma", "burst_too_many", [src])
    with pytest.raises(DriverError, match="multiple of 32"):
        run("dma", "ub2l1_odd_size", [src])
