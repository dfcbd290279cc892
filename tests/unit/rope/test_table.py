"""Rotary tables against transformers' DeepseekV3 tables, and their refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from deepinfer.errors import InvalidArgument
from deepinfer.ops import rope

YARN = {
    "type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
    "mscale": 1.0, "mscale_all_dim": 1.0,
}
SCALINGS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "linear": {"rope_type": "linear", "factor": 4.0},
    "v3": YARN,
    "v2-lite": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
    "unequal": {**YARN, "mscale": 0.5, "mscale_all_dim": 1.0},
    "no-mscale": {k: v for k, v in YARN.items() if "mscale" not in k},
    "attention-factor": {**YARN, "attention_factor": 1.0},
    "small-context": {**YARN, "original_max_position_embeddings": 64, "factor": 2.0},
    "untruncated": {**YARN, "truncate": False},
}


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("theta", [10000.0, 160000.0])
def test_table_equals_transformers(name: str, theta: float) -> None:
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RotaryEmbedding

    scaling = SCALINGS[name]
    kind = "default" if scaling is None else scaling.get("rope_type", scaling.get("type"))
    parameters = {**{k: v for k, v in (scaling or {}).items() if k != "type"}, "rope_type": kind, "rope_theta": theta}
    config = DeepseekV3Config(
        hidden_size=64, num_attention_heads=2, qk_rope_head_dim=64, max_position_embeddings=4096,
        rope_parameters=parameters,
    )
    positions = torch.arange(0, 4096, 7)[None]
    cos, sin = DeepseekV3RotaryEmbedding(config)(torch.zeros(1), positions)
    ours = rope.build_table(4096, 64, theta, scaling=scaling)[positions[0]]
    torch.testing.assert_close(ours[:, :32], cos[0, :, :32], rtol=0, atol=3e-4)
    torch.testing.assert_close(ours[:, 32:], sin[0, :, :32], rtol=0, atol=3e-4)
    early = positions[0] < 64  # where an ulp of the frequency has not grown into the angle
    torch.testing.assert_close(ours[early, :32], cos[0, early, :32], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", SCALINGS)
def test_softmax_factor_equals_transformers(name: str) -> None:
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import yarn_apply_mscale

    scaling = SCALINGS[name] or {}
    parameters = {"rope_type": scaling.get("type", "default"), **scaling}
    assert rope.softmax_factor(SCALINGS[name]) == pytest.approx(yarn_apply_mscale(parameters, 1.0), rel=1e-12)


def test_v41_ramp_is_the_published_one() -> None:
    """theta 160000, factor 16, context 65536: indices 0..15 untouched, 25..31 divided by 16, linear between."""
    from deepinfer.ops.rope.table import inverse_frequencies

    scaling = {
        "type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32, "beta_slow": 1,
        "attention_factor": 1.0,
    }
    scaled, magnitude = inverse_frequencies(64, 160000.0, scaling)
    plain, _ = inverse_frequencies(64, 160000.0, None)
    ratio = (scaled / plain).double()
    assert magnitude == 1.0
    wanted = [1 - min(max((k - 15) / 10, 0), 1) * 15 / 16 for k in range(32)]
    torch.testing.assert_close(ratio, torch.tensor(wanted, dtype=torch.float64), rtol=1e-6, atol=0)


def test_rotation_depends_on_distance_only() -> None:
    table = rope.build_table(200, 64, 10000.0)
    generator = torch.Generator().manual_seed(3)
    q, k = torch.randn(1, 64, generator=generator), torch.randn(1, 64, generator=generator)

    def product(i: int, j: int) -> float:
        turned = rope.apply(q, torch.tensor([i]), table), rope.apply(k, torch.tensor([j]), table)
        return (turned[0] * turned[1]).sum().item()

    assert product(17, 5) == pytest.approx(product(117, 105), rel=1e-4)
    assert product(17, 5) != pytest.approx(product(17, 6), rel=1e-4)


@pytest.mark.parametrize("interleaved", [True, False])
def test_in_place_result(interleaved: bool) -> None:
    table = rope.build_table(50, 16, 10000.0)
    x, positions = torch.randn(5, 3, 24), torch.tensor([0, 3, 49, -1, 50])
    wanted = rope.apply(x, positions, table, interleaved=interleaved)
    rope.apply(x, positions, table, interleaved=interleaved, out=x)
    assert torch.equal(x, wanted)


@pytest.mark.parametrize("x_shape", [(4, 64), (4, 2, 64)])
def test_interleaved_and_halves_are_one_rotation_of_permuted_channels(x_shape: tuple[int, ...]) -> None:
    table, x, positions = rope.build_table(9, 64, 10000.0), torch.randn(x_shape), torch.tensor([1, 8, 4, 2])
    split = torch.cat((x[..., 0::2], x[..., 1::2]), -1)
    halves = rope.apply(split, positions, table, interleaved=False)
    woven = torch.stack(halves.chunk(2, -1), -1).flatten(-2)
    assert torch.equal(rope.apply(x, positions, table), woven)


@pytest.mark.parametrize(
    ("arguments", "mention"),
    [
        ((-1, 64, 1e4), "positions_max"), ((4, 63, 1e4), "dim"), ((4, 64, 0.0), "theta"), ((4, 64, math.nan), "theta"),
        ((4.0, 64, 1e4), "positions_max"), ((4, True, 1e4), "dim"), ((4, 64, "x"), "theta"),
    ],
)
def test_bad_sizes(arguments: tuple[Any, ...], mention: str) -> None:
    with pytest.raises(InvalidArgument, match=mention):
        rope.build_table(*arguments)


@pytest.mark.parametrize(
    ("scaling", "mention"),
    [
        ({"type": "llama3"}, "llama3"), ({"type": "yarn"}, "original_max|factor"), ({"type": "linear"}, "factor"),
        ({**YARN, "beta_fats": 3}, "beta_fats"), ({**YARN, "factor": 0.0}, "factor"), (3, "mapping"),
        ({**YARN, "rope_theta": 5.0}, "rope_theta"), ({**YARN, "factor": "a"}, "factor"),
        ({**YARN, "original_max_position_embeddings": math.inf}, "original_max"),
    ],
)
def test_bad_scaling(scaling: Any, mention: str) -> None:
    with pytest.raises(InvalidArgument, match=mention):
        rope.build_table(4, 64, 10000.0, scaling=scaling)


def test_null_values_count_as_absent() -> None:
    assert torch.equal(
        rope.build_table(9, 64, 1e4, scaling={**YARN, "mscale": None, "truncate": None}),
        rope.build_table(9, 64, 1e4, scaling={k: v for k, v in YARN.items() if k != "mscale"}),
    )


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_outside_the_table_keep_their_bits(interleaved: bool, dtype: torch.dtype) -> None:
    """Infinities, NaN and the sign of zero included; in place too."""
    row = torch.tensor([-0.0, -1.0, torch.inf, 2.0, torch.nan, -0.0, -torch.inf, torch.inf] * 2).to(dtype)
    x, positions, table = row.repeat(3, 1), torch.tensor([-1, 1, 300]), rope.build_table(300, 16, 1e4)
    made = rope.apply(x, positions, table, interleaved=interleaved)
    rope.apply(x, positions, table, interleaved=interleaved, out=x)
    for found in (made, x):
        assert torch.equal(found[::2].view(torch.uint8), row.repeat(2, 1).view(torch.uint8))
        assert not torch.equal(found[1].view(torch.uint8), row.view(torch.uint8))
