"""Cache rows and merged states on the simulator, under every schedule; the conformance suite runs all formats."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinfer_ascend950.drivers.sim import SimDriver

import deepinfer.hal as hal
from deepinfer.ops.flash_mla.cache_cases import Shape
from deepinfer.ops.flash_mla.formats import LAYOUTS
from deepinfer.registry import Op, get_spec


def run(name: str, args: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    spec = get_spec(name)
    with hal.use_backend("ascend950/sim"):
        results = Op(spec)(*(args[p.name] for p in spec.params))
    return results if isinstance(results, tuple) else (results,)


def copied(args: dict[str, Any]) -> dict[str, Any]:
    return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in args.items()}


@pytest.mark.parametrize("policy", [0, 1, 2])
@pytest.mark.parametrize("name", list(LAYOUTS))
def test_written_bytes(sim: SimDriver, name: str, policy: int) -> None:
    sim.set_option("policy", policy)
    args = Shape(name, n=40, page=8, blocks=7, kind="hard", slots="skip").make_write(torch.Generator().manual_seed(1))
    wanted = copied(args)
    get_spec("flash_mla.kv_cache_write").reference(wanted)
    run("flash_mla.kv_cache_write", args)
    assert torch.equal(args["kv_cache"].view(torch.uint8), wanted["kv_cache"].view(torch.uint8))
    assert sim.warnings() == []


@pytest.mark.parametrize("name", ["f32", "bf16"])
def test_wide_plain_rows_go_in_pieces(name: str) -> None:
    args = Shape(name, n=3, d=9001).make_write(torch.Generator().manual_seed(2))
    wanted = copied(args)
    get_spec("flash_mla.kv_cache_write").reference(wanted)
    run("flash_mla.kv_cache_write", args)
    assert torch.equal(args["kv_cache"], wanted["kv_cache"])
    back = {"kv_cache": args["kv_cache"], "slots": args["slots"], "format": name, "dtype": torch.float32}
    (rows,) = run("flash_mla.kv_cache_read", back)
    assert torch.equal(rows.double(), get_spec("flash_mla.kv_cache_read").reference(back)[0])


@pytest.mark.parametrize("policy", [0, 1, 2])
def test_merge(sim: SimDriver, policy: int) -> None:
    sim.set_option("policy", policy)
    g = torch.Generator().manual_seed(3)
    outs, lses = torch.randn(70, 2, 1, 3, 2500, generator=g), torch.randn(70, 2, 3, 1, generator=g) * 9
    lses[::2] = -torch.inf
    outs[::2] = torch.nan
    lses[:, 1, 2] = -torch.inf
    args = {"outs": outs, "lses": lses, "attn_sink": torch.tensor([0.5, torch.inf, 1.0])}
    out, lse = run("flash_mla.merge_states", args)
    wanted_out, wanted_lse = get_spec("flash_mla.merge_states").reference(args)
    torch.testing.assert_close(out.double(), wanted_out, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(lse.double(), wanted_lse, atol=1e-6, rtol=1e-6)
    assert out[1, 0, 2].eq(0).all()
    assert lse[1, 2, 0] == -torch.inf
