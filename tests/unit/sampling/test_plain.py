"""Rows drawn from the whole softmax: the cpu kernel's short way gives the bits of the portable version."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from deepinfer_cpu.kernels.sampling import plain

from deepinfer.hal import use_backend
from deepinfer.ops import sampling
from deepinfer.registry import get_spec

SPEC = get_spec("sampling.sample")
EXTREME = ([1.0], [0.8], [0.3, 0.8, 2.0], [0.0, 1.0], [-1.0, float("nan"), float("inf")], [1e-30, 1e30])


def random_call(seed: int) -> dict[str, Any]:
    """Keywords of `sampling.sample`, logits included, without filters."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rows, vocab = rng.choice([0, 1, 2, 8, 32]), rng.choice([0, 1, 3, 31, 256, 1000, 4099])
    logits = torch.randn(rows, vocab, generator=generator) * rng.choice([0.1, 5.0, 1e38])
    if rows and vocab and rng.random() < 0.4:
        logits[rng.randrange(rows), rng.randrange(vocab)] = rng.choice([torch.nan, torch.inf, -torch.inf])
    if rng.random() < 0.1:
        logits.fill_(rng.choice([1.0, -torch.inf]))
    call: dict[str, Any] = {"logits": logits.to(rng.choice([torch.float32, torch.bfloat16, torch.float16]))}
    if rng.random() < 0.3:
        call["logits"] = call["logits"].t().contiguous().t()

    def per_row(values: list[Any], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([rng.choice(values) for _ in range(rows)], dtype=dtype)

    index = rng.choice([torch.int32, torch.int64])
    call["seeds"] = per_row([0, -1, 2**62, -(2**63), 12345], torch.int64)
    if rng.random() < 0.3:
        call["seeds"] = call["seeds"].to(torch.int32)
    if rng.random() < 0.8:
        call["temperature"] = per_row(rng.choice(EXTREME), rng.choice([torch.float32, torch.float64]))
    if rng.random() < 0.5:
        call["positions"] = per_row([0, 1, 2**31 - 1, -5], index)
    if rng.random() < 0.5:
        call["sample_index"] = per_row([0, 3, -1], index)
    return call | {"purpose": rng.choice(["target", "draft"]), "logprobs": rng.choice(["raw", "processed", "none"])}


@pytest.mark.parametrize("block", range(8))
def test_bits_of_the_portable_version(block: int) -> None:
    for seed in range(block * 25, block * 25 + 25):
        call = random_call(seed)
        args = {param.name: call.get(param.name) for param in SPEC.params} | {"greedy": False}
        with use_backend("cpu"):
            found = sampling.sample(**call)
        for name, got, wanted in zip(SPEC.returns, found, SPEC.portable(args, (None,) * 3), strict=True):
            assert torch.equal(got.isnan(), wanted.isnan()), (seed, name)
            assert torch.equal(got.nan_to_num(), wanted.nan_to_num()), (seed, name)


def test_rows_that_need_more_are_left_alone() -> None:
    """Greedy and spoiled rows go the long way; the others do not."""
    base = {param.name: None for param in SPEC.params} | {
        "logits": torch.randn(2, 9), "seeds": torch.arange(2), "purpose": "target", "logprobs": "none", "greedy": False,
    }
    assert plain(base) is not None
    assert plain(base | {"greedy": True}) is None
    assert plain(base | {"temperature": torch.tensor([1.0, 0.0])}) is None
    assert plain(base | {"logits": torch.tensor([[0.0], [torch.nan]])}) is None


def test_logits_that_need_a_gradient() -> None:
    logits = torch.randn(2, 9, requires_grad=True)
    with use_backend("cpu"):
        ids, _, chosen = sampling.sample(logits, seeds=torch.arange(2), temperature=0.5)
        assert torch.equal(ids, sampling.sample(logits.detach(), seeds=torch.arange(2), temperature=0.5)[0])
    assert not chosen.requires_grad
