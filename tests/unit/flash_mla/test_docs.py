"""The examples in the docstrings run, and the C header compiles as C and C++."""

from __future__ import annotations

import doctest
import shutil
import subprocess
from pathlib import Path

import pytest

from deepinfer.ops.flash_mla import api, formats

HEADER = Path(__file__).parents[3] / "include" / "deepinfer" / "kv_format.h"


@pytest.mark.parametrize("module", [api, formats], ids=lambda module: module.__name__)
def test_examples(module: object) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize(("compiler", "language"), [("cc", "c"), ("c++", "c++")])
def test_header_compiles(compiler: str, language: str) -> None:
    path = shutil.which(compiler)
    if path is None:
        pytest.skip(f"no {compiler} on this machine")
    command = [path, "-x", language, "-fsyntax-only", "-Wall", "-Wextra", "-Werror", str(HEADER)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
