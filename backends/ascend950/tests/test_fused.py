"""`sparse_attention_fused` as its composition: cases of the spec, exact rotations, schedules, what `explain` says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepinfer_ascend950.drivers.sim import SimDriver

import deepinfer.hal as hal
from deepinfer.ops.flash_mla.fused_cases import _shape
from deepinfer.registry import Op, get_spec
from deepinfer.registry.explain import explain_call

SPEC = get_spec("flash_mla.sparse_attention_fused")


def run(args: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    with hal.use_backend("ascend950/sim"):
        return Op(SPEC)(*(args[p.name] for p in SPEC.params))


def check(args: dict[str, Any]) -> None:
    results = dict(zip(SPEC.returns, run(args), strict=True))
    wanted = dict(zip(SPEC.returns, SPEC.reference(args), strict=True))
    for name, got in SPEC.comparable(args, results).items():
        limit = SPEC.tolerance(args, name)
        assert torch.equal(got.isinf(), wanted[name].isinf()), name
        finite = torch.isfinite(wanted[name])
        error = (got.double() - wanted[name])[finite].abs()
        assert bool((error <= torch.clamp(limit.rel * wanted[name][finite].abs(), min=limit.abs)).all()), name


@pytest.mark.parametrize("policy", [0, 1, 2])
@pytest.mark.parametrize("name", ["bf16", "f32", "v4_fp8", "v41_fp8_paged"])
def test_formats(sim: SimDriver, name: str, policy: int) -> None:
    sim.set_option("policy", policy)
    check(_shape(format=name, lens="request", sink="mixed", holes="wild").make(torch.Generator().manual_seed(1)))
    assert sim.warnings() == []


@pytest.mark.parametrize("h", [1, 17, 70])
def test_two_pools_and_heads(h: int) -> None:
    """Groups of 16 heads that are not full; two groups of 64 heads; wild positions."""
    shape = _shape(2, wild=True, format="v41_fp8", extra="v41_fp4", h=h, topk=70, rows=200)
    check(shape.make(torch.Generator().manual_seed(2)))


def test_one_key_and_none() -> None:
    """With one key lse is its logit: what rounding the rotated query to bf16 leaves must not be lost."""
    for seed in range(8):
        check(_shape(1, h=16, topk=1).make(torch.Generator().manual_seed(seed)))
    args = _shape(2, holes="all").make(torch.Generator().manual_seed(3))
    codes, _, lse = run(args)
    assert bool((codes.float() == 0).all())
    assert bool((lse == -torch.inf).all())


def test_explained_as_a_kernel_of_the_backend() -> None:
    """The composition is a candidate of its own; float32 queries over quantised rows are refused with the reason."""
    args = _shape(format="v41_fp8").make(torch.Generator().manual_seed(5))
    with hal.use_backend("ascend950/sim"):
        found = explain_call(SPEC.name, tuple(args[p.name] for p in SPEC.params))
        wide = explain_call(SPEC.name, tuple((args | {"q": args["q"].float()})[p.name] for p in SPEC.params))
    assert [(v.kernel, v.is_fallback) for v in found.verdicts if v.taken] == [
        ("ascend950_sparse_attention_composed", False)
    ]
    assert "kv_cache: quantised rows are expanded to bf16" in str(wide)
