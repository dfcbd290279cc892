"""The slices that bench/ascend_attention.py models: what they launch on, and that the race checker only checks.

Launch arguments hold addresses, not tensors: an argument whose memory is freed before its launch lets a kernel write
into memory of somebody else, and whether that shows depends on what else is allocated.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from deepinfer_ascend950.drivers.sim import SimDriver
from deepinfer_ascend950.ops import base
from torch.multiprocessing.reductions import StorageWeakRef

import deepinfer.hal as hal
from deepinfer.registry import Op, get_spec

BENCH = Path(__file__).resolve().parents[3] / "bench"
SLICES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "sparse": ("sparse", (1, 64, 512, ("",), (128,))),
    "two pools": ("sparse", (1, 64, 512, ("v41_fp8", "v41_fp4"), (128, 128))),
    "dense": ("dense", (1, 1, 64, "bf16", 256, 1)),
    "split": ("dense", (1, 1, 64, "v41_fp8", 512, 2)),
    "per head": ("per_head", (1, 128)),
    "merge": ("merged", (2, 2)),
    "store": ("stored", (2, "v32_fp8")),
    "rotate": ("turned", (2, 16, False)),
    "quantise": ("turned", (2, 16, True)),
}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("ascend_attention")


@pytest.mark.parametrize("name", SLICES)
def test_arguments_outlive_their_launch(
    name: str, sim: SimDriver, bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, sizes = SLICES[name]
    seen: list[StorageWeakRef] = []
    pointer, run = base.tensor_arg, bench.launch

    def noted(tensor: torch.Tensor, writable: bool = True) -> hal.Arg:
        seen.append(StorageWeakRef(tensor.untyped_storage()))
        return pointer(tensor, writable)

    def checked(source: str, entry: str, args: list[hal.Arg]) -> Any:
        assert seen
        freed = [i for i, storage in enumerate(seen) if storage.expired()]
        assert not freed, f"{entry}: pointers {freed} of {len(seen)} lead to freed memory"
        return run(source, entry, args)

    monkeypatch.setattr(base, "tensor_arg", noted)
    monkeypatch.setattr(bench, "launch", checked)
    assert getattr(bench, function).__wrapped__(*sizes).cycles > 0  # past the cache, so that it launches


@pytest.mark.parametrize("name", SLICES)
def test_timeline_without_the_race_checker(name: str, sim: SimDriver, bench: ModuleType) -> None:
    function, sizes = SLICES[name]
    found = []
    for race in (1, 0):
        sim.set_option("race", race)
        found.append(getattr(bench, function).__wrapped__(*sizes))
    assert found[0] == found[1]


@pytest.mark.parametrize("policy", [0, 1, 2])
def test_results_without_the_race_checker(policy: int, sim: SimDriver) -> None:
    g = torch.Generator().manual_seed(3)
    a, b = (torch.randn(n, 320, generator=g).bfloat16() for n in (200, 300))
    sim.set_option("policy", policy)
    found = []
    for race in (1, 0):
        sim.set_option("race", race)
        with hal.use_backend("ascend950/sim"):
            op = Op(get_spec("deep_gmm.gemm"))
            found.append(op(a, None, "plain", b, None, "plain", None, "", None, None, torch.float32)[0])
    assert torch.equal(found[0], found[1])
    assert torch.allclose(found[1], a.float() @ b.float().T, rtol=1e-4, atol=1e-3)
