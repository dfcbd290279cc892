"""GEMM kernels on the simulator against float64, with the race checker on and under every schedule."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

import pytest
import torch
from deepinfer_ascend950.drivers.sim import SimDriver
from deepinfer_ascend950.ops import base, gemm

import deepinfer
import deepinfer.hal as hal
from deepinfer import fallback
from deepinfer.ops.deep_gmm import data
from deepinfer.ops.deep_gmm.operand import FP8_ROWS, FP8_TILES, MXFP4_ROWS, MXFP8_ROWS, MXFP8_TILES, widen_exact
from deepinfer.registry import Call, TensorMeta
from deepinfer.registry.dispatch import Op
from deepinfer.registry.specs import get_spec

SHAPES = [(1, 1, 1), (17, 33, 65), (128, 256, 256), (200, 300, 130), (300, 513, 40)]


def op(name: str) -> Op:
    return Op(get_spec(name))


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Launches inside run on one AI core, one tile after another."""
    launch = base.Loaded.launch

    def narrow(self: base.Loaded, stream: hal.Stream, blocks: int, args: list[hal.Arg]) -> None:
        launch(self, stream, min(blocks, 1) if self.entry.startswith("gemm") else blocks, args)

    with mock.patch.object(base.Loaded, "launch", narrow):
        yield


def dense(a: torch.Tensor, b: torch.Tensor, out: torch.dtype, bias: torch.Tensor | None = None) -> torch.Tensor:
    with hal.use_backend("ascend950/sim"):
        return op("deep_gmm.gemm")(a, None, "plain", b, None, "plain", None, "", None, bias, out)[0]


def close(d: torch.Tensor, expected: torch.Tensor) -> None:
    """Within the rounding of d's type, relative to the largest value."""
    step = {torch.float32: 3e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}[d.dtype]
    error = (d.double() - expected).abs().max()
    assert error <= step * expected.abs().max(), error  # false for NaN as well


@pytest.mark.parametrize("policy", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_dense(sim: SimDriver, m: int, n: int, k: int, dtype: torch.dtype, policy: int) -> None:
    sim.set_option("policy", policy)
    g = torch.Generator().manual_seed(m)
    a, b, bias = (torch.randn(s, generator=g).to(dtype) for s in ((m, k), (n, k), (n,)))
    expected = a.double() @ b.double().t() + bias.double()
    close(dense(a, b, torch.float32, bias), expected)
    close(dense(a, b, dtype, bias), expected)


def test_column_major_operands() -> None:
    g = torch.Generator().manual_seed(1)
    a, b = torch.randn(70, 90, generator=g).bfloat16().t(), torch.randn(70, 50, generator=g).bfloat16().t()
    close(dense(a, b, torch.float32), a.double() @ b.double().t())


def test_nan_stays_in_its_row_and_column() -> None:
    a, b = torch.ones(40, 32).bfloat16(), torch.ones(50, 32).bfloat16()
    a[3, 5], b[7, 9] = torch.nan, torch.inf
    d = dense(a, b, torch.bfloat16)
    assert d[3].isnan().all()
    assert torch.isposinf(d[:3, 7]).all()
    assert (d[:3, :7] == 32).all()


@pytest.mark.parametrize("wide", [torch.int32, torch.int64])
def test_grouped_rows(wide: torch.dtype) -> None:
    g = torch.Generator().manual_seed(2)
    counts = torch.tensor([5, 0, 130, 17, -3, 40], dtype=wide)
    a, b = torch.randn(200, 96, generator=g).bfloat16(), torch.randn(6, 70, 96, generator=g).bfloat16()
    out = torch.full((200, 70), 7.0)
    with hal.use_backend("ascend950/sim"):
        op("deep_gmm.grouped_gemm")(
            a, None, "plain", b, None, "plain", None, "", counts, None, torch.float32, out=(out,)
        )
    begin = 0
    for group, count in enumerate(counts.clamp(min=0).tolist()):
        if count:
            close(out[begin : begin + count], a[begin : begin + count].double() @ b[group].double().t())
        begin += count
    assert (out[begin:] == 7).all()


def test_masked_rows() -> None:
    g = torch.Generator().manual_seed(3)
    counts = torch.tensor([0, 33, 999])
    a, b = torch.randn(3, 150, 64, generator=g).half(), torch.randn(3, 30, 64, generator=g).half()
    out = torch.full((3, 150, 30), 7.0).half()
    with hal.use_backend("ascend950/sim"):
        op("deep_gmm.masked_grouped_gemm")(
            a, None, "plain", b, None, "plain", None, "", counts, torch.float16, out=(out,)
        )
    assert (out[0] == 7).all()
    assert (out[1, 33:] == 7).all()
    close(out[1, :33], a[1, :33].double() @ b[1].double().t())
    close(out[2], a[2].double() @ b[2].double().t())


@pytest.mark.parametrize("policy", [0, 1])
@pytest.mark.parametrize("b_recipe", [MXFP8_ROWS, MXFP8_TILES])
@pytest.mark.parametrize(("m", "n", "k"), [(5, 33, 64), (200, 300, 704), (130, 17, 128), (9, 40, 1), (33, 65, 550)])
def test_block_scaled(sim: SimDriver, m: int, n: int, k: int, b_recipe: str, policy: int) -> None:
    sim.set_option("policy", policy)
    g = torch.Generator().manual_seed(4)
    a, sa = data.random((m, k), MXFP8_ROWS, torch.bfloat16, g)
    b, sb = data.random((n, k), b_recipe, torch.bfloat16, g)
    with hal.use_backend("ascend950/sim"):
        d = op("deep_gmm.gemm")(a, sa, MXFP8_ROWS, b, sb, b_recipe, None, "", None, None, torch.float32)[0]
    close(d, widen_exact(a, sa, MXFP8_ROWS) @ widen_exact(b, sb, b_recipe).t())


def test_block_scaled_groups_with_tiles() -> None:
    g = torch.Generator().manual_seed(5)
    a, sa = data.random((90, 128), MXFP8_ROWS, torch.bfloat16, g)
    b, sb = data.random((3, 48, 128), MXFP8_TILES, torch.bfloat16, g)
    counts = torch.tensor([31, 7, 52])
    with hal.use_backend("ascend950/sim"):
        d = op("deep_gmm.grouped_gemm")(a, sa, MXFP8_ROWS, b, sb, MXFP8_TILES, None, "", counts, None, torch.float32)[0]
    wide_a, wide_b = widen_exact(a, sa, MXFP8_ROWS), widen_exact(b, sb, MXFP8_TILES)
    close(d, torch.cat([part @ w.t() for part, w in zip(wide_a.split(counts.tolist()), wide_b, strict=True)]))


def test_no_depth_gives_bias_and_addend() -> None:
    a, b, c, bias = torch.empty(20, 0).bfloat16(), torch.empty(30, 0).bfloat16(), torch.randn(20, 30), torch.randn(30)
    assert not dense(a, b, torch.float32).any()
    assert torch.equal(dense(a, b, torch.float32, bias), bias.expand(20, 30))
    with hal.use_backend("ascend950/sim"):
        d = op("deep_gmm.gemm")(a, None, "plain", b, None, "plain", None, "", c, bias, torch.float32)[0]
    assert torch.equal(d, c + bias)


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("k", [127, 132, 200])
def test_block_scales_in_any_layout(k: int, step: int) -> None:
    g = torch.Generator().manual_seed(7)
    a, sa = data.random((20, k), MXFP8_ROWS, torch.bfloat16, g)
    b, sb = data.random((40, k), MXFP8_TILES, torch.bfloat16, g)
    assert sa is not None
    assert sb is not None
    wanted = widen_exact(a, sa, MXFP8_ROWS) @ widen_exact(b, sb, MXFP8_TILES).t()
    sa, sb = (x.repeat_interleave(step, 1)[:, ::step] for x in (sa, sb))
    with hal.use_backend("ascend950/sim"):
        d = op("deep_gmm.gemm")(a, sa, MXFP8_ROWS, b, sb, MXFP8_TILES, None, "", None, None, torch.float32)[0]
    close(d, wanted)


@pytest.mark.parametrize("policy", [0, 1, 2])
@pytest.mark.parametrize("b_recipe", [FP8_ROWS, FP8_TILES])
@pytest.mark.parametrize(("m", "n", "k"), [(5, 33, 64), (200, 300, 704), (130, 17, 1)])
def test_float32_scales(sim: SimDriver, m: int, n: int, k: int, b_recipe: str, policy: int) -> None:
    sim.set_option("policy", policy)
    g = torch.Generator().manual_seed(6)
    a, sa = data.random((m, k), FP8_ROWS, torch.bfloat16, g)
    b, sb = data.random((n, k), b_recipe, torch.bfloat16, g)
    c, bias = torch.randn(m, n, generator=g), torch.randn(n, generator=g)
    with hal.use_backend("ascend950/sim"):
        d = op("deep_gmm.gemm")(a, sa, FP8_ROWS, b, sb, b_recipe, None, "", c, bias, torch.float32)[0]
    close(d, widen_exact(a, sa, FP8_ROWS) @ widen_exact(b, sb, b_recipe).t() + c.double() + bias.double())
    assert sim.warnings() == []


@pytest.mark.parametrize("policy", [0, 1, 2])
@pytest.mark.parametrize("addend", [False, True])
@pytest.mark.parametrize("b_recipe", [MXFP8_ROWS, MXFP4_ROWS])
@pytest.mark.parametrize(("m", "n", "k"), [(5, 33, 64), (200, 300, 1100), (130, 17, 2), (33, 65, 550)])
def test_block_scaled_ends(sim: SimDriver, m: int, n: int, k: int, b_recipe: str, addend: bool, policy: int) -> None:
    sim.set_option("policy", policy)
    g = torch.Generator().manual_seed(8)
    a, sa = data.random((m, k), MXFP8_ROWS, torch.bfloat16, g)
    b, sb = data.random((n, k), b_recipe, torch.bfloat16, g)
    c, bias = torch.randn(m, n, generator=g) if addend else None, torch.randn(n, generator=g)
    with hal.use_backend("ascend950/sim"), fallback("error"):
        d = op("deep_gmm.gemm")(a, sa, MXFP8_ROWS, b, sb, b_recipe, None, "", c, bias, torch.float32)[0]
    wanted = widen_exact(a, sa, MXFP8_ROWS) @ widen_exact(b, sb, b_recipe).t() + bias.double()
    close(d, wanted if c is None else wanted + c.double())
    assert sim.warnings() == []


def test_every_e2m1_code_is_widened_exactly() -> None:
    codes = torch.arange(256, dtype=torch.uint8).repeat_interleave(2).reshape(16, 32)  # rows of 64 values
    ones = torch.full((16, 2), 127, dtype=torch.uint8)
    eye, unit = torch.eye(64).to(torch.float8_e4m3fn), torch.full((64, 2), 127, dtype=torch.uint8)
    with hal.use_backend("ascend950/sim"), fallback("error"):
        d = op("deep_gmm.gemm")(eye, unit, MXFP8_ROWS, codes, ones, MXFP4_ROWS, None, "", None, None, torch.float32)[0]
    assert torch.equal(d.t().double(), widen_exact(codes, ones, MXFP4_ROWS))


@pytest.mark.parametrize("policy", [0, 1, 2])
@pytest.mark.parametrize(("recipe", "b_recipe"), [(FP8_ROWS, FP8_TILES), (MXFP8_ROWS, MXFP4_ROWS)])
def test_a_core_whose_second_vector_core_pauses(sim: SimDriver, policy: int, recipe: str, b_recipe: str) -> None:
    """Tiles of 100, 10 and 100 rows on one core: the second vector core skips one; buffers must not be reused early."""
    sim.set_option("policy", policy)
    g = torch.Generator().manual_seed(9)
    counts = torch.tensor([100, 10, 100, 7, 128])
    a, sa = data.random((345, 128), recipe, torch.bfloat16, g)
    b, sb = data.random((5, 24, 128), b_recipe, torch.bfloat16, g)
    device = deepinfer.device("ascend950/sim")
    kernel = next(
        k for k in gemm.GROUPED_KERNELS if isinstance(k, gemm.ScaledGemm if recipe == FP8_ROWS else gemm.MxGemm)
    )
    d = torch.empty(345, 24)
    args = (a, sa, recipe, b, sb, b_recipe, None, "", counts, None, torch.float32)
    names = dict(zip(gemm.NAMES[gemm.GROUPED], args, strict=True))
    metas = {name: TensorMeta.of(v) if isinstance(v, torch.Tensor) else v for name, v in names.items()}
    plan = kernel.plan(device, Call(gemm.GROUPED, metas, d.device))
    with one_core():
        kernel.run(plan, device.current_stream(), args, (d,), torch.empty(max(plan.workspace, 1), dtype=torch.uint8))
    wide_a, wide_b = widen_exact(a, sa, recipe), widen_exact(b, sb, b_recipe)
    close(d, torch.cat([part @ w.t() for part, w in zip(wide_a.split(counts.tolist()), wide_b, strict=True)]))
