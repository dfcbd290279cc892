"""Every test starts with the default simulator options; a failing test shows its seed through its parameters."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import simlib


@pytest.fixture(autouse=True)
def default_options() -> Iterator[None]:
    simlib.configure()
    yield
    simlib.configure()
