"""Shared fixtures: every test starts and ends with no backend chosen and torch's seed at 0.

Properties are derandomised in the quick tier, so a failure there repeats; the long tier searches new examples each time
and prints the blob that repeats one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

from deepinfer.hal import current


def pytest_configure(config: pytest.Config) -> None:
    """Choose the profile of hypothesis before any test module is imported."""
    settings.register_profile("quick", derandomize=True, print_blob=True)
    settings.register_profile("long", print_blob=True)
    settings.load_profile("quick" if "not long" in config.getoption("markexpr", "") else "long")
    _share_cores(config)


def _share_cores(config: pytest.Config) -> None:
    """Each worker of xdist takes its share of the cores: threads that wait for a core spin, which made small products
    four times as slow. Tests that are about threads ask for theirs."""
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:
        torch.set_num_threads(max(torch.get_num_threads() // workers, 1))


@pytest.fixture(autouse=True)
def _fresh_choice(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("DEEPINFER_BACKEND", raising=False)
    torch.manual_seed(0)
    yield
    current.reset()
