"""The shipped checkpoint on the simulator: the equality rule of engine tests, and no family op elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import deepinfer
from tests.engine.conftest import SHIPPED, teacher, yardstick
from tests.engine.test_equality import check_bfloat16

FAMILIES = ("flash_mla.", "deep_gmm.", "deep_ep.")
# Family ops that may still run on the portable tier; an entry that has become needless fails.
ALLOWED: frozenset[str] = frozenset()
__all__ = ["teacher", "yardstick"]  # fixtures


@pytest.fixture(autouse=True)
def backend_restored() -> Iterator[None]:
    yield
    deepinfer.set_backend("cpu")


def check(teacher: Callable[..., torch.Tensor], lengths: list[int], new: int) -> None:
    """Prefill, decode and score on the backend that `set_backend` chose."""
    device = deepinfer.set_backend("ascend/sim")
    assert device.spec.startswith("ascend950/sim")
    before = dict(device.statistics)
    options = {"num_blocks": 24, "max_model_len": 256, "activation_dtype": "bfloat16"}
    check_bfloat16("shipped", SHIPPED, teacher, lengths, new, None, **options)
    used = {name.removeprefix("fallback:") for name, n in device.statistics.items() if n != before.get(name, 0)}
    assert used, "nothing ran on the portable tier: the small ops have kernels now, look for them here"
    assert not {name for name in used if name.startswith(FAMILIES)}


def test_a_few_tokens(teacher: Callable[..., torch.Tensor]) -> None:
    check(teacher, [9, 30], 4)


@pytest.mark.long
def test_more_tokens(teacher: Callable[..., torch.Tensor]) -> None:
    check(teacher, [1, 40, 65], 16)
