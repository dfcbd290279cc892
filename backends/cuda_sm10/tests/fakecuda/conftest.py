"""The fake libcuda of this tree, built once, and scenarios run in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
SOURCE = ROOT / "backends/cuda_sm10/deepinfer_cuda/sim"
Scenario = Callable[..., str]


@pytest.fixture(scope="session")
def fakecuda() -> Path:
    """Path of libcuda.so.1: DEEPINFER_FAKECUDA_LIBRARY, else built (incrementally) in the build folder of this tree."""
    given = os.environ.get("DEEPINFER_FAKECUDA_LIBRARY")
    if given:
        return Path(given)
    whole = ROOT / "build"  # the root build has the simulator as its subdirectory ptxsim
    build = whole / "ptxsim"
    tree = whole if (whole / "CMakeCache.txt").exists() and not (build / "CMakeCache.txt").exists() else build
    if not (tree / "CMakeCache.txt").exists():
        subprocess.run(["cmake", "-S", str(SOURCE), "-B", str(tree)], check=True, capture_output=True)
    command = ["cmake", "--build", str(tree), "--target", "deepinfer_fakecuda", "-j2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return build / "fakecuda/libcuda.so.1"


@pytest.fixture
def scenario(fakecuda: Path) -> Scenario:
    """Runs a function of scenarios.py with the library preloaded; returns what it printed, fails with its stderr."""

    def run(name: str, profile: str = "sm90", how: str = "LD_PRELOAD", **environment: str) -> str:
        variables = {key: value for key, value in os.environ.items() if key not in ("CUDA_VISIBLE_DEVICES", how)}
        variables |= {"DEEPINFER_FAKECUDA": profile, "OMP_NUM_THREADS": "1", **environment}
        if how == "LD_PRELOAD":
            variables[how] = str(fakecuda)
        elif how == "LD_LIBRARY_PATH":
            variables[how] = str(fakecuda.parent)
        command = [sys.executable, str(HERE / "scenarios.py"), name]
        command += [str(fakecuda)] if how == "soname" else []
        done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=300)
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"{name} ended with {done.returncode}\n{said[-6000:]}"
        return said

    return run
