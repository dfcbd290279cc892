"""Latent attention on the simulator: cases of the op specs against their references, forced branches, schedules."""

from __future__ import annotations

from typing import Any

import asc_attention
import pytest
import torch
from deepinfer_ascend950.device import open_simulated
from deepinfer_ascend950.drivers.sim import SimDriver
from deepinfer_ascend950.ops.attention import parts_of

import deepinfer.hal as hal
from deepinfer.ops.flash_mla.decode_cases import Shape as DenseShape
from deepinfer.ops.flash_mla.prefill_cases import Shape as RaggedShape
from deepinfer.ops.flash_mla.sparse_decode_cases import FORMATS
from deepinfer.ops.flash_mla.sparse_decode_cases import Shape as DecodeShape
from deepinfer.ops.flash_mla.sparse_prefill_cases import Shape as PrefillShape
from deepinfer.registry import Op, get_spec


def run(name: str, args: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    spec = get_spec(name)
    with hal.use_backend("ascend950/sim"):
        return Op(spec)(*(args[p.name] for p in spec.params))


def check(name: str, args: dict[str, Any], slack: float = 0.0) -> tuple[torch.Tensor, ...]:
    """Run an op on the simulator and compare every result with the spec's float64 reference.

    `slack` widens the spec's tolerance by that share of the largest value, for data with a wide range.
    """
    spec, results = get_spec(name), run(name, args)
    for label, got, wanted in zip(spec.returns, results, spec.reference(args), strict=True):
        tolerance = spec.tolerance(args, label)
        assert torch.equal(got.isinf(), wanted.isinf()), label
        error = (got.double() - wanted).nan_to_num(0, 0, 0).abs()
        size = wanted.abs().nan_to_num(0, 0, 0)
        limit = tolerance.abs + tolerance.rel * size + slack * size.max()
        assert not got.isnan().any(), label
        assert (error <= limit).all(), (label, error.max())
    return results


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("policy", [0, 1, 2])
@pytest.mark.parametrize(
    "shape",
    [
        PrefillShape(2, 100, 64, 130, 576, lens=True),
        PrefillShape(3, 50, 33, 20, 512, holes="wild", sink="mixed"),
        PrefillShape(1, 300, 128, 200, 576),
        PrefillShape(2, 5, 1, 70, 64, holes="none"),
        PrefillShape(2, 0, 4, 8),
    ],
    ids=lambda s: f"{s.tokens}x{s.h}x{s.topk}x{s.d}",
)
def test_sparse_prefill(sim: SimDriver, shape: PrefillShape, policy: int) -> None:
    sim.set_option("policy", policy)
    check("flash_mla.sparse_prefill", shape.make(generator()))
    assert sim.warnings() == []


@pytest.mark.parametrize("name", list(FORMATS))
@pytest.mark.parametrize("page", [5, 64])
def test_sparse_decode_formats(name: str, page: int) -> None:
    check(
        "flash_mla.sparse_decode",
        DecodeShape(2, 2, 5, name, 70, page, rows=200, lens="token", holes="wild").make(generator(1)),
    )


@pytest.mark.parametrize("pair", [("v41_fp8", "v41_fp4"), ("v4_fp8", "v4_fp8"), ("v32_fp8", "bf16")])
def test_sparse_decode_two_pools(sim: SimDriver, pair: tuple[str, str]) -> None:
    sim.set_option("policy", 1)
    shape = DecodeShape(2, 1, 64, pair[0], 80, 64, 200, extra=pair[1], extra_topk=100, sink="mixed", lens="request")
    check("flash_mla.sparse_decode", shape.make(generator(2)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["bf16", "f32", "v32_fp8"])
def test_dense_decode(name: str, causal: bool) -> None:
    args = DenseShape(lens=(1, 63, 130, 0, 65), s_q=2, h=40, page=16, format=name).make(generator(3))
    check("flash_mla.decode", args | {"causal": causal})


@pytest.mark.parametrize("policy", [0, 1, 2])
@pytest.mark.parametrize("name", ["bf16", "f32"])
@pytest.mark.parametrize("kind", ["latent", "paged", "per_head"])
def test_dense_prefill(sim: SimDriver, kind: str, name: str, policy: int) -> None:
    """Requests longer than a job, without keys, without queries; tokens of a job that see different keys."""
    sim.set_option("policy", policy)
    pairs = ((70, 133), (3, 0), (0, 9), (5, 2), (1, 1))
    check(
        "flash_mla.prefill", RaggedShape(kind, pairs, h=20 if kind != "per_head" else 2, format=name).make(generator(8))
    )
    assert sim.warnings() == []


@pytest.mark.parametrize("sink", ["none", "mixed"])
@pytest.mark.parametrize("name", ["bf16", "v41_fp8", "f32"])
def test_split_keys(name: str, sink: str) -> None:
    """Long requests beside short and empty ones: parts without keys merge exactly, and runs repeat to the bit."""
    args = DenseShape(lens=(1300, 0, 40), s_q=2, h=3, page=64, format=name, sink=sink).make(generator(9))
    spec = get_spec("flash_mla.decode")
    with hal.use_backend("ascend950/sim"):
        found = Op(spec).resolve(hal.current_device(), tuple(args[p.name] for p in spec.params))
    assert found.kernel.name == "ascend950_mla_decode_split"
    first = check("flash_mla.decode", args)
    assert all(torch.equal(a, b) for a, b in zip(first, run("flash_mla.decode", args), strict=True))


@pytest.mark.parametrize("policy", [0, 1])
@pytest.mark.parametrize("name", ["index_fp8", "index_fp4"])
def test_narrow_quantised_rows(sim: SimDriver, name: str, policy: int) -> None:
    """Rows of 128 channels: a single tile of float32 scales, without plain channels."""
    sim.set_option("policy", policy)
    args = DecodeShape(2, 2, 70, name, 90, 16, 100, holes="wild").make(generator(14))
    check("flash_mla.sparse_decode", args | {"d_v": 100})
    args = DenseShape(lens=(70, 131), s_q=3, h=8, page=16, format=name).make(generator(15))
    check("flash_mla.decode", args | {"causal": True, "d_v": 128})


def test_parts_fill_the_cores() -> None:
    assert parts_of(1, 1, 128, 8192, 32) == 16
    assert parts_of(1, 1, 64, 8192, 32) == 32
    assert parts_of(1, 1, 64, 600, 32) == 2  # no part below 256 keys
    assert parts_of(128, 1, 64, 8192, 32) == 1
    assert parts_of(4, 2, 16, 8192, 32) == 8  # two tokens of 16 heads share a job


def test_maximum_that_jumps_between_blocks() -> None:
    """Later blocks hold much larger logits, then much smaller ones: old results must shrink to nothing, then stay."""
    args = PrefillShape(1, 192, 64, 192, 512, holes="none").make(generator(4))
    args["indices"] = torch.arange(192, dtype=torch.int32)[None]
    args["kv"][64:128] *= 40
    args["kv"][128:] *= 0.01
    check("flash_mla.sparse_prefill", args, slack=2**-7)


def test_base_that_moves_again_and_again(sim: SimDriver) -> None:
    """Logits grow from block to block: O leaves the cube several times and shrinks each time."""
    args = PrefillShape(2, 512, 64, 512, 576, holes="none").make(generator(10))
    args["indices"] = torch.arange(512, dtype=torch.int32).expand(2, 512).contiguous()
    args["kv"] *= torch.linspace(0.1, 6, 512)[:, None]
    args["softmax_scale"] *= 8
    check("flash_mla.sparse_prefill", args, slack=2**-7)
    piece = 64 * 512 * 4
    assert sim.counters().fix_bytes >= 2 * (8 * 64 * 64 * 4 + 3 * piece)  # O left the cube three times and more


def test_blocks_without_any_key() -> None:
    args = PrefillShape(2, 100, 40, 256, 576, holes="none").make(generator(5))
    args["indices"][:, :64] = -1
    args["indices"][:, 128:192] = 100
    args["indices"][1] = -1
    check("flash_mla.sparse_prefill", args)


def test_garbage_behind_every_border_changes_nothing() -> None:
    spec = get_spec("flash_mla.sparse_decode")
    args = DecodeShape(2, 2, 3, "v4_fp8", 30, 16, 90, lens="token", holes="wild").make(generator(6))
    spoiled = spec.poison(args, generator(7))
    assert spoiled is not None
    clean, dirty = (run("flash_mla.sparse_decode", x) for x in (args, spoiled))
    assert all(torch.equal(a, b) for a, b in zip(clean, dirty, strict=True))


@pytest.mark.parametrize("policy", [0, 1, 2])
def test_many_jobs_on_one_core(sim: SimDriver, policy: int) -> None:
    """Jobs that follow each other on a core share its buffers; the ones here differ in rows, keys and parts."""
    sim.set_option("policy", policy)
    device = open_simulated(0)
    for entry, _, args, right, _ in asc_attention.launches("mla_attend"):
        device.executable("mla_attend").launch(entry, (1, 1, 1), (1, 1, 1), args, stream=device.current_stream())
        assert right()
        assert sim.warnings() == []
