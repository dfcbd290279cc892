"""The cost model: counters of a real launch, and the path that bounds it."""

from __future__ import annotations

import pytest
import torch
from deepinfer_ascend950.drivers.sim import Counters, SimDriver
from deepinfer_ascend950.model_clock import CLOCK_HZ, CUBE_RATE, estimate

import deepinfer.hal as hal
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
