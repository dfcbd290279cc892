"""Fixtures of the Flash MLA tests: the independent oracle, one torch thread."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from tests.unit.flash_mla import oracle as independent


@pytest.fixture(scope="session")
def oracle() -> ModuleType:
    """The module oracle.py beside this file."""
    return independent


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
