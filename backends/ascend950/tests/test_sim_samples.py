"""Kernels in the style of hardware samples run right under all schedules, with the checkers on and no report."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from asc_harness import SimDriver, run

from deepinfer.errors import DriverError


@pytest.fixture(params=[0, 1, 2], ids=["eager", "lazy", "random"], autouse=True)
def schedule(request: pytest.FixtureRequest, sim: SimDriver) -> int:
    sim.set_option("policy", request.param)
    return int(request.param)


def floats(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("count", "grid"), [(1, 1), (1023, 1), (5000, 2), (40000, 6)])
def test_vector_add_in_two_buffers(sim: SimDriver, count: int, grid: int) -> None:
    x, y, z = floats(count), floats(count, seed=1), torch.full((count,), torch.nan)
    run("samples_vector", "vector_add", [x, y], [z], [count], grid)
    assert np.array_equal(z.numpy(), x.numpy() + y.numpy())
    assert sim.warnings() == []


@pytest.mark.parametrize(("rows", "n"), [(1, 1), (5, 100), (7, 64), (3, 1999)])
def test_softmax_and_layer_norm(sim: SimDriver, rows: int, n: int) -> None:
    x, weight, y = 4 * floats(rows, n), floats(2, n, seed=1), torch.full((rows, n), torch.nan)
    run("samples_vector", "row_wise", [x, weight], [y], [rows, n, 0], 3)
    wide = x.double().numpy()
    e = np.exp(wide - wide.max(1, keepdims=True))
    np.testing.assert_allclose(y.numpy(), e / e.sum(1, keepdims=True), rtol=3e-6, atol=1e-9)
    run("samples_vector", "row_wise", [x, weight], [y], [rows, n, 1], 3)
    normal = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y.numpy(), normal * weight[0].numpy() + weight[1].numpy(), rtol=1e-5, atol=1e-5)
    assert sim.warnings() == []


def test_gather_of_row_pairs(sim: SimDriver) -> None:
    """Two rows to a request, its stride computed by the vector unit; requests for nothing are no operation."""
    rows, g = 300, torch.Generator().manual_seed(3)
    x, out = floats(rows, 64), torch.full((128, 64), torch.nan)
    index = torch.randint(0, rows, (128,), generator=g).int()
    index[10:14], index[21], index[40], index[126:] = -1, -5, 2**30, rows
    run("samples_vector", "gather_pairs", [x, index], [out], [0, rows])
    pairs = np.sort(index.numpy().view(np.uint32).reshape(64, 2), axis=1)
    expected = np.zeros((64, 2, 64), np.float32)
    for i, (small, large) in enumerate(pairs):
        if small < rows:
            expected[i, 0], expected[i, 1] = x[int(small)].numpy(), x[int(large if large < rows else small)].numpy()
    assert np.array_equal(out.numpy(), expected.reshape(128, 64))
    assert sim.warnings() == []


def test_rearrangements(sim: SimDriver) -> None:
    x = floats(32, 128).half()
    out = torch.empty(8, 32, 16).half()
    run("samples_vector", "rearranged", [x, x], [out], [0, 8192])
    assert np.array_equal(out.numpy(), x.numpy().reshape(32, 8, 16).transpose(1, 0, 2))
    x, out = floats(64, 64), torch.empty(64, 64)
    run("samples_vector", "rearranged", [x, x], [out], [1, 16384])
    assert np.array_equal(out.numpy(), x.numpy().T)
    x, out = torch.arange(2048, dtype=torch.int16).reshape(16, 128), torch.empty(128, 16, dtype=torch.int16)
    run("samples_vector", "rearranged", [x, x], [out], [2, 4096])
    assert np.array_equal(out.numpy(), x.numpy().T)
    assert sim.warnings() == []


def test_reduction_by_atomic_adds(sim: SimDriver) -> None:
    x, total = floats(10001), torch.zeros(8)
    run("samples_vector", "reduced_atomically", [x, x], [total], [10001], 7)
    np.testing.assert_allclose(total.double().sum(), x.double().sum(), rtol=1e-5, atol=1e-4)
    assert sim.warnings() == []


def trimmed(scale: torch.Tensor) -> np.ndarray:
    """Scales as the device keeps them: the lowest 13 bits of a float are dropped."""
    return (scale.numpy().view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64)


def outputs(mode: int, c: np.ndarray, words: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, np.ndarray]:
    """(memory to fill, what it must hold) of one output mode of matmul_pipelined."""
    m, n = c.shape
    if mode == 1:
        return torch.zeros(m, n).half(), np.maximum(c, 0).astype(np.float32).astype(np.float16)
    if mode == 2:
        return torch.zeros(m, n, dtype=torch.int8), np.clip(np.rint(2 * c), -128, 127)
    if mode == 3:
        return torch.zeros(m, n, dtype=torch.int8), np.clip(np.rint(np.maximum(c * trimmed(scale), 0)), -128, 127)
    if mode in (4, 5):
        wide = 16 if mode == 4 else 8
        return torch.zeros(n // wide, m, wide), c.reshape(m, n // wide, wide).transpose(1, 0, 2)
    return (torch.zeros(n, m), c.T) if mode == 6 else (torch.zeros(m, n), c)


@pytest.mark.parametrize("mode", range(7))
@pytest.mark.parametrize(("m", "k", "n"), [(128, 128, 256), (48, 80, 144)])
def test_matmul_in_two_buffers(sim: SimDriver, mode: int, m: int, k: int, n: int) -> None:
    """[128, 128, 256] and the outputs (ND, NZ, DN, split channels, ReLU, int8 by the scalar 2.0 and by
    a vector) are those of the vendor's asc_copy_l0c2gm example."""
    g = torch.Generator().manual_seed(m + mode)
    a = torch.randint(-2, 3, (m, k), generator=g).half()
    b = torch.randint(-2, 3, (k, n), generator=g).half() / 4
    scale = torch.rand(n, generator=g) + 0.5
    words = torch.from_numpy(scale.numpy().view(np.uint32).astype(np.int64) | (1 << 46))
    c = a.double().numpy() @ b.double().numpy()
    found, expected = outputs(mode, c, words, scale)
    run("samples_cube", "matmul_pipelined", [a, b, words], [found], [m, k, n, mode], 2)
    assert np.array_equal(found.numpy(), expected.astype(found.numpy().dtype))  # sums of small quarters are exact
    assert sim.warnings() == []


def pieces(scale: np.ndarray) -> torch.Tensor:
    """[rows][k/32] as pieces of 16 rows x 2; rows are filled up."""
    rows, groups = scale.shape
    full = np.full((-(-rows // 16) * 16, groups), 127, np.uint8)
    full[:rows] = scale
    return torch.from_numpy(np.ascontiguousarray(full.reshape(-1, 16, groups // 2, 2).transpose(0, 2, 1, 3))).flatten()


FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


@pytest.mark.parametrize(("m", "k", "n"), [(16, 64, 16), (40, 192, 50)])
def test_block_scaled_fp4(m: int, k: int, n: int) -> None:
    r = np.random.default_rng(7)
    codes = [r.integers(0, 16, (rows, k)) for rows in (m, n)]
    scales = [r.integers(120, 134, (rows, k // 32)) for rows in (m, n)]
    packed = [torch.from_numpy((c[:, ::2] | c[:, 1::2] << 4).astype(np.uint8)) for c in codes]
    wide = [FP4[c] * np.repeat(2.0 ** (s - 127), 32, axis=1) for c, s in zip(codes, scales, strict=True)]
    found = torch.empty(m, n)
    factors = torch.cat([pieces(s.astype(np.uint8)) for s in scales])
    run("samples_cube", "matmul_mx4", [*packed, factors], [found], [m, k, n])
    np.testing.assert_allclose(found.numpy(), wide[0] @ wide[1].T, rtol=1e-6, atol=1e-3)


def attention(q: torch.Tensor, kv: torch.Tensor, index: torch.Tensor) -> np.ndarray:
    out = []
    for query, keys in zip(q.double().numpy(), index.numpy(), strict=True):
        rows = kv.double().numpy()[keys[(keys >= 0) & (keys < len(kv))]]
        p = np.exp(query @ rows.T / 128**0.5 - (query @ rows.T / 128**0.5).max(1, keepdims=True))
        out.append(p / p.sum(1, keepdims=True) @ rows)
    return np.stack(out)


@pytest.mark.parametrize(("queries", "steps", "grid"), [(1, 1, 1), (3, 3, 2)])
def test_sparse_attention(sim: SimDriver, queries: int, steps: int, grid: int) -> None:
    """Padding rows that nobody writes, empty copies, unit flags over small blocks, primed flags: no report."""
    g = torch.Generator().manual_seed(11)
    kv, q = floats(200, 128, seed=2).bfloat16(), (2 * floats(queries, 16, 128, seed=3)).bfloat16()
    index = torch.randint(0, 200, (queries, 64 * steps), generator=g).int()
    index[:, 5:20], index[:, 33] = -1, 200
    if steps > 1:
        index[0, :64] = -1  # a step without any key
    out = torch.full((queries, 16, 128), torch.nan).bfloat16()
    run("samples_cube", "sparse_attention", [q, kv, index], [out], [queries, 200, 64 * steps], grid)
    np.testing.assert_allclose(out.float().numpy(), attention(q, kv, index), rtol=0.02, atol=0.02)
    told = sim.warnings()
    assert any("flag MTE1->MTE2 id 0 is still set" in line for line in told)
    assert all("unused credits" in line or "still set" in line for line in told)


def test_a_strict_launch_stops_at_padding_rows(sim: SimDriver) -> None:
    sim.set_option("strict", 1)
    kv, q, out = floats(200, 128).bfloat16(), floats(1, 16, 128).bfloat16(), torch.zeros(1, 16, 128).bfloat16()
    index = torch.arange(64, dtype=torch.int32).reshape(1, 64)
    with pytest.raises(DriverError, match="matrix A uses bytes of L0A that were never written"):
        run("samples_cube", "sparse_attention", [q, kv, index], [out], [1, 200, 64])


def test_forms_that_only_a_compiler_can_refuse(sim: SimDriver) -> None:
    out = torch.zeros(64, dtype=torch.int64)
    for rounded in (0, 1):
        run("samples_forms", "forms", [], [out], [rounded])
        assert (out == 1).all()  # -1 x -1 in 64 bits
