"""The cost model: counters of a real launch, and the path that bounds it."""

from __future__ import annotations

import pytest
import torch
from deepinfer_ascend950.device import open_simulated
from deepinfer_ascend950.drivers.sim import Counters, SimDriver
from deepinfer_ascend950.model_clock import CLOCK_HZ, CUBE_RATE, estimate
from deepinfer_ascend950.ops import mla

import deepinfer.hal as hal
from deepinfer.ops.flash_mla.sparse_prefill_cases import Shape as PrefillShape
from deepinfer.registry import Op, get_spec


def test_counters_of_a_product(sim: SimDriver) -> None:
    m, n, k = 128, 256, 512
    a, b = torch.ones(m, k).bfloat16(), torch.ones(n, k).bfloat16()
    with hal.use_backend("ascend950/sim"):
        Op(get_spec("deep_gmm.gemm"))(a, None, "plain", b, None, "plain", None, "", None, None, torch.float32)
    counters = sim.counters()
    assert counters.macs == m * n * k
    assert counters.mte2_bytes == (m + n) * k * 2
    assert counters.fix_bytes >= m * n * 4
    cost = estimate(counters, cores=1)
    assert cost.cycles["cube"] == pytest.approx(m * n * k / CUBE_RATE["bf16"])
    assert cost.bound in ("cube", "mte2")
    assert cost.seconds == pytest.approx(max(cost.cycles.values()) / CLOCK_HZ)


def test_busiest_path_bounds_and_cores_share() -> None:
    counters = Counters(macs=0, vf=0, mte2_bytes=96 * 320, mte3_bytes=96, mte1_bytes=0, fix_bytes=0, instructions=1)
    assert estimate(counters).bound == "mte2"
    assert estimate(counters).cycles["mte2"] == pytest.approx(10)
    assert estimate(counters, cores=1).cycles["mte2"] == pytest.approx(320)


def test_timeline_of_sparse_attention(sim: SimDriver) -> None:
    """Four tokens of 64 heads and 512 keys on one core: every unit's work at its rate, and the cube busy most of it."""
    tokens, keys, d = 4, 512, 576
    args = PrefillShape(tokens, 2048, 64, keys, d, holes="none").make(torch.Generator().manual_seed(0))
    out, lse = torch.empty(tokens, 64, 512).bfloat16(), torch.empty(64, tokens)
    cut = mla.plain_rows(d, 2 * d)
    pool = mla.Pool(args["kv"], args["indices"].unsqueeze(1), None, cut, 2048, 2048, 0, keys)
    results = (out.unsqueeze(1), lse.t().unsqueeze(-1))
    problem = mla.Problem(args["q"].unsqueeze(1), (pool,), *results, mla.SPARSE, d**-0.5)
    device = open_simulated(0)
    code = device.executable("mla_attend")
    code.launch(problem.entry, (1, 1, 1), (1, 1, 1), problem.pack(), stream=device.current_stream())
    line = sim.timeline()
    products = tokens * 64 * keys * (d + 512)
    assert line.busy["AIC", "M"] == pytest.approx(products / CUBE_RATE["bf16"])
    assert line.busy["AIV0", "MTE2"] == pytest.approx(tokens * keys / 2 * d * 2 / 48, rel=1e-3)
    assert max(line.busy.values()) <= line.cycles <= sum(line.busy.values())
    assert line.busy["AIC", "M"] / line.cycles > 0.85
