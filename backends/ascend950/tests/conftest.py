"""Registers this backend when its distribution is not installed, and gives tests the simulator."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent):  # this folder's helpers, and the package where it is not installed
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import pytest  # noqa: E402
from deepinfer_ascend950.drivers.sim import SimDriver, driver  # noqa: E402
from deepinfer_ascend950.plugin import create  # noqa: E402

from deepinfer.hal import discovery  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def registered() -> None:
    if discovery.state("ascend950").backend is None:
        discovery.register_backend("ascend950", create)


@pytest.fixture
def sim() -> Iterator[SimDriver]:
    """The simulator with default options; options a test sets are undone after it."""
    found = driver()
    names = ("policy", "seed", "race", "ftz", "uninit", "strict", "deadline_s", "ai_cores", "ub_usable")
    with found.options(**{name: found.get_option(name) for name in names}):
        yield found
