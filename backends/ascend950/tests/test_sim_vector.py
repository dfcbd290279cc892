"""Rules of the vector unit, one probe each; expectations are written out here, not computed by the simulator."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from asc_harness import run
from deepinfer_ascend950.drivers.sim import SimDriver

LANES = torch.arange(64, dtype=torch.float32)


def probe(kernel: str, x: torch.Tensor, fill: float = -7.0) -> torch.Tensor:
    """Run a vector probe on the bytes of `x`; 256 floats of output that start as `fill`."""
    data = torch.zeros(1024, dtype=torch.uint8)
    raw = x.contiguous().view(torch.uint8).flatten()
    data[: raw.numel()] = raw
    before, out = torch.full((256,), fill), torch.empty(256)
    run("vector", kernel, [data, before.view(torch.uint8)], [out])
    return out


def floats(seed: int = 0, count: int = 256) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def test_masked_lanes_become_zero_and_merging_keeps_them() -> None:
    x = floats()
    d = probe("masked_lanes_are_zero", x)
    assert torch.equal(d[:8], 2 * x[:8])
    assert not d[8:64].any()
    d = probe("merging_keeps_lanes", x)
    assert torch.equal(d[:8], torch.maximum(x[:8], x[64:72]))
    assert torch.equal(d[8:64], x[8:64])


def test_a_16_bit_mask_governs_32_bit_lanes_by_its_even_bits() -> None:
    d = probe("b16_mask_on_b32", LANES)
    assert torch.equal(d[:8], LANES[:8] + 1)
    assert not d[8:64].any()


def test_compares_set_one_bit_of_four() -> None:
    x = floats()
    bits = np.unpackbits(probe("compare_bits", x).numpy().view(np.uint8)[:32], bitorder="little")
    assert not bits.reshape(64, 4)[:, 1:].any()
    assert np.array_equal(bits[::4].astype(bool), (x[:64] > 0).numpy())


def test_masked_store_leaves_memory() -> None:
    x = floats()
    d = probe("masked_store", x)
    expected = torch.full((64,), -7.0)
    expected[::4] = x[:64:4]
    assert torch.equal(d[:64], expected)


def test_single_element_store_needs_element_alignment_only() -> None:
    x = floats()
    d = probe("store_first", x)
    assert d[3] == x[0]
    assert (d[:3] == -7).all()
    assert (d[4:] == -7).all()


def test_postupdate_counts_elements_and_may_go_back() -> None:
    x = floats()
    d = probe("postupdate", x)
    assert torch.equal(d[:64], x[64:128])
    assert torch.equal(d[64:128], x[:64])
    assert torch.equal(d[128:192], x[8:72])


def test_strided_load_reads_blocks_and_leaves_masked_ones_untouched() -> None:
    x = floats()
    d = probe("strided_load", x)
    for block in range(4):
        assert torch.equal(d[8 * block : 8 * block + 8], x[8 + 24 * block : 16 + 24 * block])
    assert not d[32:64].any()


def test_strided_store_steps_in_32_byte_units() -> None:
    x = floats()
    d = probe("strided_store", x).reshape(-1, 8)
    assert torch.equal(d[0:16:2].flatten(), x[:64])
    assert (d[1:16:2] == -7).all()


def test_narrowing_fills_one_part_and_zeroes_the_other() -> None:
    x = floats()
    d = probe("bf16_parts", x).view(torch.bfloat16)
    even, odd, both = d[:128], d[128:256], d[256:384]
    assert torch.equal(even[::2], x[:64].bfloat16())
    assert not even[1::2].any()
    assert torch.equal(odd[1::2], x[64:128].bfloat16())
    assert not odd[::2].any()
    assert torch.equal(both, torch.stack([x[:64], x[64:128]], 1).flatten().bfloat16())


def test_fp8_parts_are_every_fourth_byte() -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    value = torch.from_numpy(codes.numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float32))
    d = probe("fp8_parts", codes).reshape(4, 64)
    for row, part in ((0, 0), (1, 1), (2, 3)):
        assert torch.equal(d[row].nan_to_num(99), value[part::4].nan_to_num(99))
    assert torch.equal(d[3].nan_to_num(99), value[1:128:2].nan_to_num(99))  # unpacked: byte 4i+2 holds element 2i+1


def test_fp4_pairs_low_nibble_first() -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    d = probe("fp4_parts", codes).view(torch.bfloat16)[:128].float()
    pairs = codes[::4].long()
    assert torch.equal(d, torch.stack([table[pairs & 15], table[pairs >> 4]], 1).flatten())


def test_interleave_may_read_its_own_destinations() -> None:
    x = floats()
    d = probe("interleave", x)
    mixed = torch.stack([x[:64], x[64:128]], 1).flatten()
    assert torch.equal(d[:128], mixed)
    assert torch.equal(d[128:192], x[:64])
    assert torch.equal(d[192:], x[64:128])


def test_reductions_pack_their_results() -> None:
    x = floats()
    d = probe("reductions", x).reshape(4, 64)
    assert math.isclose(d[0, 0], x[:8].sum(), rel_tol=1e-5)
    assert not d[0, 1:].any()
    assert d[1, 0] == x[:64].max()
    assert not d[1, 1:].any()
    assert torch.equal(d[2, :8], x[:64].reshape(8, 8).max(1).values)
    assert not d[2, 8:].any()
    big = torch.tensor([1e8] + [1.0] * 62 + [-1e8])  # a running sum from the left would lose every 1
    assert 0 < probe("reductions", big).reshape(4, 64)[3, 0] <= 62


def test_rounding_modes() -> None:
    base = torch.tensor([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 2.5, -2.5, 3.5, 1e30])
    x = torch.zeros(64)
    x[:8] = base
    d = probe("rounding", x)
    rn, rna, rz = (d.view(torch.bfloat16)[128 * i : 128 * i + 16 : 2].float() for i in range(3))
    assert rn[1:4].tolist() == [1.0, 1 + 2**-6, -1.0]
    assert rna[1:4].tolist() == [1 + 2**-7, 1 + 2**-6, -1 - 2**-7]
    assert rz[1:4].tolist() == [1.0, 1 + 2**-7, -1.0]
    assert d.view(torch.int32)[192:200].tolist() == [1, 1, 1, -1, 2, -2, 4, 2**31 - 1]


def test_fp8_overflow_is_nan_or_saturates() -> None:
    x = torch.zeros(64)
    x[:6] = torch.tensor([448.0, 465.0, 1e6, -1e6, math.inf, math.nan])
    d = probe("fp8_saturation", x).view(torch.uint8)
    assert d[0:24:4].tolist() == [0x7E, 0x7F, 0x7F, 0xFF, 0x7F, 0x7F]
    assert d[256:280:4].tolist() == [0x7E, 0x7E, 0x7E, 0xFE, 0x7E, 0]


@pytest.mark.parametrize("flush", [False, True])
def test_subnormal_results_flush_on_request(sim: SimDriver, flush: bool) -> None:
    sim.set_option("ftz", flush)
    x = torch.full((64,), 1.5e-38)
    d = probe("subnormal", x)[0].item()
    assert d == (0.0 if flush else torch.tensor(1.5e-38).mul(0.5).item())


def test_pack_stores_the_low_part() -> None:
    x = torch.arange(64, dtype=torch.int32) * 0x01010101
    d = probe("pack_store", x).view(torch.uint8)
    halves = d[:64].view(torch.int16)
    assert torch.equal(halves, (x[:32] & 0xFFFF).to(torch.int16))
    assert torch.equal(d[256:320], torch.arange(64, dtype=torch.uint8))


def test_load_shapes() -> None:
    x = floats()
    d = probe("load_shapes", x).reshape(4, 64)
    assert (d[0] == x[1]).all()
    assert torch.equal(d[1], x[8:16].repeat(8))
    assert torch.equal(d[2], x[16:24].repeat_interleave(8))
    assert torch.equal(d[3], x[1:128:2])


def test_gather_and_scatter() -> None:
    x = floats()
    d = probe("gather_scatter", x)
    assert torch.equal(d[:32], x[:64].flip(0)[:32])
    assert not d[32:64].any()
    assert torch.equal(d[120:128], x[:8].flip(0))
    assert (d[64:120] == -7).all()


def test_update_mask_counts_down() -> None:
    x = floats()
    d = probe("tail_loop", x)
    assert torch.equal(d[:70], 2 * x[:70])
    assert (d[70:128] == -7).all()


def test_integer_shifts_and_select() -> None:
    x = torch.arange(-32, 32, dtype=torch.int32)
    d = probe("integer_ops", x).view(torch.int32).reshape(4, 64)
    assert torch.equal(d[0], x >> 1)
    assert torch.equal(d[1].long() & 0xFFFFFFFF, (x.long() & 0xFFFFFFFF) >> 1)
    assert torch.equal(d[2], torch.where(x < 0, x, x + 5))


def test_unaligned_store_holds_its_tail_back_until_the_end() -> None:
    x = floats()
    d = probe("unaligned_store", x)
    assert torch.equal(d[3:8], x[:5])
    assert torch.equal(d[8:28], x[:20])
    assert (d[28:] == -7).all()
