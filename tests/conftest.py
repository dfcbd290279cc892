"""Shared fixtures: every test starts and ends with no backend chosen, one torch thread, and a printed seed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from deepinfer.hal import current


@pytest.fixture(autouse=True)
def _fresh_choice(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("DEEPINFER_BACKEND", raising=False)
    torch.manual_seed(0)
    yield
    current.reset()
