"""The kernels run in the simulator that is built from this tree; every test starts with its default options."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deepinfer_cuda import simdevice

for folder in (Path(__file__).parent, Path(__file__).parents[1] / "sim"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import simlib  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def simulator() -> Iterator[None]:
    """Both test folders of the simulator use the same library, built once; others find what they found before."""
    path = simlib.build()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simdevice, "library", lambda package=simdevice.PACKAGE: path)
        yield
