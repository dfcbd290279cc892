"""`cuda_route` in the PTX simulator against the specification: ties, NaN, infinities, any bias, ragged tiles, turnover.

Logits on a grid make ranks equal on purpose or far apart (deepinfer.ops.moe.route_cases): a reference in float64 then
chooses the same experts. Ranks that differ by single bits are compared with the Triton kernel's choices.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from deepinfer_cuda import simdevice
from deepinfer_cuda.kernels.base import load
from deepinfer_cuda.kernels.route import SHAPES, Route, prepare

import deepinfer
from deepinfer.hal import Device
from deepinfer.registry import Op, get_spec, pin
from deepinfer.registry.dispatch import make_call

pytestmark = pytest.mark.skipif(not simdevice.probe().available, reason="the PTX simulator is not built")
SPEC = get_spec("moe.route")
GATES = [  # experts, groups, kept, top_k, group score
    (256, 8, 4, 8, "top2_sum"), (256, 8, 4, 5, "max"), (256, 1, 1, 8, "top2_sum"), (256, 4, 1, 3, "top2_sum"),
    (128, 8, 1, 2, "top2_sum"), (128, 2, 1, 8, "max"), (128, 1, 1, 1, "max"), (128, 8, 8, 8, "top2_sum"),
]
KINDS = ("grid", "few", "equal", "nan", "one-nan", "all-nan", "infinite", "huge", "tiny", "zeros", "nan-beside-plain")
BIASES = ("none", "grid", "large", "infinite", "one-per-lane", "nan", "bf16", "f16-strided")
INFINITY = float("inf")


def logits(kind: str, tokens: int, experts: int, generator: torch.Generator) -> torch.Tensor:
    x = torch.randint(-256, 256, (tokens, experts), generator=generator) / 64.0
    some = torch.rand(x.shape, generator=generator)
    if kind == "few":
        x = torch.randint(-1, 2, x.shape, generator=generator).float()
    elif kind == "equal":
        x[:] = 0.5
    elif kind == "nan":
        x[some < 0.4] = torch.nan
    elif kind == "one-nan":
        x[::2, 37] = torch.nan
    elif kind == "all-nan":
        x[1] = torch.nan
    elif kind == "infinite":
        x[some < 0.1], x[some > 0.5] = INFINITY, -INFINITY
    elif kind == "huge":
        x = torch.where(some < 0.5, x * 20, x * 40)  # scores that are 1, and scores that are below 2^-126
    elif kind == "tiny":
        x -= 92.0  # scores around 2^-132: float32 keeps a few bits of them
    elif kind == "zeros":
        x[:, ::2], x[:, 1::2] = 0.0, -0.0
    elif kind == "nan-beside-plain":
        x[2] = torch.nan
    return x


def bias_of(kind: str, experts: int, generator: torch.Generator) -> torch.Tensor | None:
    x = torch.randint(-2, 3, (experts,), generator=generator) / 8.0
    if kind == "none":
        return None
    if kind == "large":
        x[::7], x[3::7] = 1e30, -1e30
    elif kind == "infinite":
        x[::7], x[3::7] = INFINITY, -INFINITY
    elif kind == "one-per-lane":  # the second rank of every eighth is -inf
        kept = x[:: experts // 8].clone()
        x[:], x[:: experts // 8] = -INFINITY, kept
    elif kind == "nan":
        x[5::11] = torch.nan
    elif kind == "bf16":
        return x.bfloat16()
    elif kind == "f16-strided":
        return torch.stack((x, x + 1), 1).half()[:, 0]
    return x


def routed(device: Device, args: tuple[Any, ...], kernel: str = Route.name) -> tuple[torch.Tensor, torch.Tensor]:
    with deepinfer.use_backend(device), pin(device, SPEC.name, kernel):
        weights, ids = Op(SPEC)(*args)
    return weights, ids


def check(args: tuple[Any, ...], got: tuple[torch.Tensor, torch.Tensor], label: object) -> None:
    wanted, chosen = SPEC.reference(dict(zip((param.name for param in SPEC.params), args, strict=True)))
    assert torch.equal(got[1], chosen), label
    assert torch.allclose(got[0].double(), wanted, rtol=1e-5, atol=2.5e-6, equal_nan=True), label


@pytest.mark.parametrize("gate", GATES, ids=str)
def test_choices_are_those_of_the_specification(gate: tuple[int, int, int, int, str]) -> None:
    experts, groups, kept, top_k, score = gate
    device = deepinfer.device("cuda_sm90/sim")
    for seed, kind in enumerate(KINDS):
        generator = torch.Generator().manual_seed(seed)
        bias = bias_of("grid" if seed % 2 else "none", experts, generator)
        args = (logits(kind, 6, experts, generator), top_k, "sigmoid", bias, groups, kept, score, True, 2.5, 1e-20)
        check(args, routed(device, args), (kind, seed))


@pytest.mark.parametrize("kind", BIASES)
@pytest.mark.parametrize("arch", ["cuda_sm90", "cuda_sm10"])
def test_any_bias_is_added(kind: str, arch: str) -> None:
    device = deepinfer.device(f"{arch}/sim")
    for experts, groups, kept in ((256, 8, 4), (128, 1, 1)):
        generator = torch.Generator().manual_seed(experts)
        x = logits("grid", 5, experts, generator)
        args = (x, 8, "sigmoid", bias_of(kind, experts, generator), groups, kept, "max", False, 1.0, 0.0)
        check(args, routed(device, args), (kind, experts))


@pytest.mark.parametrize("tokens", [0, 1, 3, 131])
def test_ragged_tiles_and_steps_between_tokens(tokens: int) -> None:
    generator = torch.Generator().manual_seed(tokens)
    device = deepinfer.device("cuda_sm90/sim")
    dense = logits("grid", tokens, 256, generator)
    wide = torch.cat((torch.full((tokens, 4), torch.nan), dense, torch.full((tokens, 8), torch.nan)), 1)
    for x in (dense, wide[:, 4:260]):
        args = (x, 8, "sigmoid", None, 8, 4, "top2_sum", True, 1.0, 1e-20)
        check(args, routed(device, args), f"seed {tokens}, strides {x.stride()}")


@pytest.mark.parametrize("experts", [128, 256])
def test_stages_turn_over(experts: int) -> None:
    """All tokens on one SM: warps take more tiles than they have stages."""
    device, shape = deepinfer.device("cuda_sm90/sim"), SHAPES[experts]
    tokens = 4 * shape.warps * shape.blocks * 5 + 2
    generator = torch.Generator().manual_seed(experts)
    x, bias = logits("grid", tokens, experts, generator), bias_of("grid", experts, generator)
    x[::97] = torch.nan  # single warps choose by exact comparisons
    args = (x, 8, "sigmoid", bias, 8, 4, "top2_sum", True, 2.5, 1e-20)
    out = torch.full((tokens, 8), -1.0), torch.full((tokens, 8), -1, dtype=torch.int32)
    one = SimpleNamespace(props=SimpleNamespace(compute_units=1))
    prepare(load(device, shape.unit), one, shape, args, out)(device.current_stream())
    device.synchronize()
    check(args, out, f"seed {experts}")


@pytest.mark.parametrize("seed", range(6))
def test_ranks_that_differ_in_their_last_bits(seed: int) -> None:
    """Logits that are no multiples of anything, a few steps of float32 apart in value and in group scores."""
    pytest.importorskip("triton", reason="the compiler is an optional dependency")
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(0, (4, 64, 1024, 1 << 20, 8, 16)[seed], (24, 256), generator=generator, dtype=torch.int32)
    x = (torch.tensor(1.3).view(torch.int32) + steps).view(torch.float32)
    if seed > 3:  # few enough to be listed: what differs between the rough and the exact rank decides
        x[torch.rand(x.shape, generator=generator) < 0.9] = -3.0
    device = deepinfer.device("cuda_sm90/sim")
    for groups, kept in ((8, 4), (1, 1)):
        args = (x, 8, "sigmoid", None, groups, kept, "top2_sum", True, 1.0, 1e-20)
        (weights, ids), (wanted, chosen) = routed(device, args), routed(device, args, "triton_route")
        assert torch.equal(ids, chosen), f"seed {seed}"
        assert torch.allclose(weights, wanted, rtol=1e-6, atol=0.0), f"seed {seed}"


def test_a_token_does_not_see_its_neighbours() -> None:
    """Other tokens of its warp may force exact comparisons: the bits stay."""
    generator = torch.Generator().manual_seed(9)
    device = deepinfer.device("cuda_sm90/sim")
    x, bias = torch.randn(8, 256, generator=generator) * 3, torch.randn(256, generator=generator)
    spoiled = x.clone()
    spoiled[1], spoiled[3, 7], spoiled[6] = torch.nan, -INFINITY, 0.25
    rest = (8, "sigmoid", bias, 8, 4, "top2_sum", True, 1.0, 1e-20)
    (weights, ids), (others, chosen) = routed(device, (x, *rest)), routed(device, (spoiled, *rest))
    for token in (0, 2, 4, 5, 7):
        assert torch.equal(ids[token], chosen[token]), token
        assert torch.equal(weights[token], others[token]), token


@pytest.mark.parametrize(("change", "mentions"), [
    ({"scoring": "softmax"}, "sigmoid"),
    ({"logits": torch.zeros(2, 256).bfloat16()}, "bfloat16"),
    ({"logits": torch.zeros(2, 64)}, "128 or 256 experts, got 64"), ({"n_group": 16}, "got 16"),
    ({"top_k": 9}, "got top_k = 9"), ({"top_k": 0}, "got top_k = 0"),
    ({"n_group": 8, "topk_group": 1, "top_k": 3}, "got top_k = 3"),
    ({"logits": torch.zeros(2, 258)[:, :256]}, "16 bytes"),
    ({"logits": torch.zeros(2, 512)[:, ::2]}, "unit stride"),
])
def test_other_calls_are_left_to_triton(change: dict[str, Any], mentions: str) -> None:
    plain = {
        "logits": torch.zeros(2, 256), "top_k": 2, "scoring": "sigmoid", "bias": None, "n_group": 1, "topk_group": 1,
        "group_score": "max", "renormalize": True, "scale": 1.0, "eps": 0.0,
    }
    device = deepinfer.device("cuda_sm90/sim")
    assert Route().supports(device.props, call_of(plain)).ok
    reasons = Route().supports(device.props, call_of({**plain, **change})).reasons
    assert any(mentions in reason for reason in reasons), reasons


def call_of(values: dict[str, Any]) -> Any:
    return make_call(SPEC, tuple(values.values()), (None, None), values["logits"].device)
