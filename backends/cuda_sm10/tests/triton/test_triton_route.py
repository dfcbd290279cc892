"""Ranking by one warp: its sorting network, and choices among ties, NaN and groups against the specification."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from deepinfer_cuda import simdevice
from deepinfer_triton import warp_top
from deepinfer_triton.moe import Route

import deepinfer
from deepinfer.registry import Op, get_spec, pin
from deepinfer.registry.dispatch import make_call

pytest.importorskip("triton", reason="the compiler is an optional dependency")
SPEC = get_spec("moe.route")


@pytest.mark.parametrize("count", [4, 8])
def test_the_network_sorts(count: int) -> None:
    """A network that sorts all zeros and ones sorts everything (Knuth's 0-1 principle)."""
    for values in product((0, 1), repeat=count):
        line = list(values)
        for up, low in warp_top.exchanges(count):
            line[up], line[low] = max(line[up], line[low]), min(line[up], line[low])
        assert line == sorted(values, reverse=True)


def logits(kind: str, experts: int, generator: torch.Generator) -> torch.Tensor:
    x = torch.randn(5, experts, generator=generator)
    if kind == "ties":  # also inside lanes
        x = torch.randint(-1, 2, x.shape, generator=generator).float()
        x[0] = 0.5
    elif kind == "nan":
        x[torch.rand(x.shape, generator=generator) < 0.4] = torch.nan
        x[0] = torch.nan
    return x


@pytest.mark.skipif(not simdevice.probe().available, reason="the PTX simulator is not built")
@pytest.mark.parametrize(("experts", "groups", "kept", "top_k", "kind", "score"), [
    (256, 8, 4, 8, "ties", "top2_sum"), (256, 8, 4, 8, "nan", "top2_sum"), (256, 1, 1, 12, "ties", "max"),
    (128, 32, 5, 8, "nan", "max"), (128, 4, 2, 32, "ties", "top2_sum"), (128, 1, 1, 1, "normal", "max"),
])
def test_choices_are_those_of_the_specification(
    experts: int, groups: int, kept: int, top_k: int, kind: str, score: str
) -> None:
    generator = torch.Generator().manual_seed(experts + top_k)
    bias = torch.randint(-1, 2, (experts,), generator=generator).float() if kind != "ties" else None
    args = (logits(kind, experts, generator), top_k, "sigmoid", bias, groups, kept, score, True, 2.5, 1e-20)
    (program,) = Route().programs(make_call(SPEC, args, (None, None), args[0].device))
    assert program.function == "moe.route_warp"
    device = deepinfer.device("cuda_sm90/sim")
    with deepinfer.use_backend(device), pin(device, SPEC.name, Route.name):
        weights, ids = Op(SPEC)(*args)
    wanted, chosen = SPEC.reference(dict(zip((param.name for param in SPEC.params), args, strict=True)))
    assert torch.equal(ids, chosen), f"seed {experts + top_k}"
    assert torch.allclose(weights.double(), wanted, rtol=1e-5, atol=2.5e-6, equal_nan=True), f"seed {experts + top_k}"


@pytest.mark.skipif(not simdevice.probe().available, reason="the PTX simulator is not built")
@pytest.mark.parametrize("scoring", ["sigmoid", "softmax"])
@pytest.mark.parametrize("layout", ["one element off", "every second", "odd rows"])
def test_layouts_without_vectors_take_the_general_kernel(layout: str, scoring: str) -> None:
    """Triton spreads values over lanes as their alignment suggests; the network needs neighbours in a lane."""
    x = logits("normal", 256, torch.Generator().manual_seed(3))
    if layout == "one element off":
        x = torch.cat((torch.zeros(1), x.flatten()))[1:].view(x.shape)
    elif layout == "every second":
        x = torch.stack((x, x), 2)[..., 0]
    else:
        x = torch.cat((x, x[:, :1]), 1)[:, :256]
    args = (x, 8, scoring, None, 8, 4, "max", True, 2.5, 1e-20)
    (program,) = Route().programs(make_call(SPEC, args, (None, None), x.device))
    assert program.function == "moe.route"
    device = deepinfer.device("cuda_sm90/sim")
    with deepinfer.use_backend(device), pin(device, SPEC.name, Route.name):
        weights, ids = Op(SPEC)(*args)
    wanted, chosen = SPEC.reference(dict(zip((param.name for param in SPEC.params), args, strict=True)))
    assert torch.equal(ids, chosen)
    assert torch.allclose(weights.double(), wanted, rtol=1e-5, atol=2.5e-6)
