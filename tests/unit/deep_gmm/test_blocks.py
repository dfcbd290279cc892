"""Memory-bounded paths: with a tiny block budget every loop over blocks runs many times and must change nothing."""

from __future__ import annotations

import pytest
import torch
from deepinfer_cpu import matmul
from deepinfer_cpu.product import product

import deepinfer
from deepinfer.conformance.compare import close
from deepinfer.hal.current import current_device
from deepinfer.ops import deep_gmm
from deepinfer.ops.deep_gmm import data, gemm_cases, grouped_cases, masked_cases, portable, swiglu_cases
from deepinfer.ops.deep_gmm.operand import PLAIN
from deepinfer.registry import Op, get_spec, pin

LAYOUT = ([37, 0, 90, 3], [100, 0, 5, 140], 150)


@pytest.fixture(autouse=True)
def _tiny_budget(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(portable, "BLOCK_ELEMENTS", 5000)
    monkeypatch.setattr(matmul, "BLOCK_ELEMENTS", 5000)
    with deepinfer.use_backend("cpu"):
        yield


def _agrees(name: str, kernel: str, args: dict) -> None:
    spec = get_spec(name)
    with pin(current_device(), name, kernel):
        (got,) = Op(spec)(*(args[param.name] for param in spec.params))
    (want,), (valid,) = spec.reference(args), spec.valid(args)
    assert not close("d", got, want, spec.tolerance(args, spec.returns[0]), valid)


@pytest.mark.parametrize("pair", list(data.PAIRS))
@pytest.mark.parametrize("kernel", ["portable", "cpu_gemm_f32"])
def test_dense(pair: str, kernel: str) -> None:
    args = gemm_cases.make(pair, 150, 300, 258, torch.Generator().manual_seed(1), c="f32", bias=torch.float32)
    _agrees("deep_gmm.gemm", kernel, args)


@pytest.mark.parametrize("pair", list(data.PAIRS))
@pytest.mark.parametrize("kernel", ["portable", "cpu_grouped_gemm_f32"])
def test_grouped(pair: str, kernel: str) -> None:
    args = grouped_cases.make(pair, LAYOUT, 300, 258, torch.Generator().manual_seed(2))
    _agrees("deep_gmm.grouped_gemm", kernel, args)


@pytest.mark.parametrize("pair", list(data.PAIRS))
@pytest.mark.parametrize("kernel", ["portable", "cpu_masked_gemm_f32"])
def test_masked(pair: str, kernel: str) -> None:
    args = masked_cases.make(pair, [40, 0, 64, 7], 64, 300, 258, torch.Generator().manual_seed(3))
    _agrees("deep_gmm.masked_grouped_gemm", kernel, args)


@pytest.mark.parametrize("pair", list(data.PAIRS))
@pytest.mark.parametrize("kernel", ["portable", "cpu_swiglu_mlp_f32"])
def test_expert_mlp(pair: str, kernel: str) -> None:
    args = swiglu_cases.make(pair, LAYOUT, 300, 258, 130, torch.Generator().manual_seed(4))
    _agrees("deep_gmm.grouped_swiglu_mlp", kernel, args)


def test_the_budget_is_kept() -> None:
    rows = portable.step(1000, 1)
    assert rows * 1000 <= portable.BLOCK_ELEMENTS
    assert portable.step(1000, 128) == 128, "a whole scale block is the least that can be widened"
    assert portable.ranges(10, 4) == [(0, 4), (4, 8), (8, 10)]


@pytest.mark.parametrize("rows", [1, 4, 9])
def test_the_gap_between_rows_of_weights_changes_no_bit(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Widened weights 4 KiB wide lie with a gap behind every row; packed ones always do."""
    monkeypatch.setattr(portable, "BLOCK_ELEMENTS", 1 << 22)
    monkeypatch.setattr(matmul, "BLOCK_ELEMENTS", 1 << 22)
    g = torch.Generator().manual_seed(rows)
    a, b = torch.randn(rows, portable.PITCH, generator=g).bfloat16(), torch.randn(70, portable.PITCH, generator=g)
    b = b.bfloat16()
    wide = portable.weights_of(b, None, PLAIN, portable.COPIED)
    packed = matmul.pack(b, None, PLAIN)
    assert wide.stride(0) == portable.PITCH + portable.GAP
    assert packed.stride(1) == 70 + portable.GAP
    assert torch.equal(wide, b.float())
    assert torch.equal(packed, b.float())
    assert portable.weights_of(b, None, PLAIN, portable.COPIED - 1).is_contiguous()
    got = deep_gmm.gemm(a, b, out_dtype=torch.float32)
    assert torch.equal(got, product(a.float(), b.float().t()))
    assert torch.equal(deep_gmm.gemm(a, deep_gmm.Packed(b, packed, matmul.LAYOUT), out_dtype=torch.float32), got)
