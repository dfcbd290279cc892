"""Simulator and kernels under the address and undefined-behaviour sanitizers, a process per file of tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from deepinfer_ascend950.toolchain.gxx import find

HERE = Path(__file__).parent
TESTS = (
    "test_gemm.py",
    "test_mla.py",
    "test_mla_masked.py",
    "test_fused.py",
    "test_cache.py",
    "test_ep.py",
    "test_index.py",
    "test_sim_checks.py",
    "test_sim_cube.py",
    "test_sim_dma.py",
    "test_sim_examples.py",
    "test_sim_round.py",
    "test_sim_samples.py",
    "test_sim_select.py",
    "test_sim_strangers.py",
    "test_sim_subset.py",
    "test_sim_vector.py",
)


def library(name: str) -> str:
    """Path of a runtime library of the compiler; skips where it has none."""
    done = subprocess.run([find(), f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    path = done.stdout.strip()
    if not os.path.isabs(path):
        pytest.skip(f"the compiler has no {name}")
    return path


@pytest.mark.long
@pytest.mark.parametrize("name", TESTS)
def test_kernels_are_clean(name: str) -> None:
    """Between them the files run every kernel; a report of a sanitizer ends the process."""
    preload = " ".join(library(name) for name in ("libasan.so", "libubsan.so", "libstdc++.so"))
    environment = os.environ | {
        "LD_PRELOAD": preload,
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",  # leaks are Python's; stacks are fibers'
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": str(HERE),
        "OMP_NUM_THREADS": "1",
    }
    # Broken kernels too: what they would do outside their buffers, the simulator reports before it happens.
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "asc_sanitize", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(HERE / name)],
        env=environment,
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=5400,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert " passed" in done.stdout
    print(done.stdout.strip().splitlines()[-1])  # -rA or -s shows the figures
