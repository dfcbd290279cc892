"""Asks ptxas whether it accepts the PTX of cases; the simulator may accept what hardware does not."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ptx_bitwise.case import Case


def find() -> str:
    """A ptxas: the toolkit's, else the one that Triton carries."""
    import shutil

    toolkit = shutil.which("ptxas") or "/usr/local/cuda/bin/ptxas"
    if Path(toolkit).exists():
        return toolkit
    import triton

    return str(Path(triton.__file__).parent / "backends/nvidia/bin/ptxas-blackwell")


def refusals(cases: Iterable[Case], jobs: int = 2) -> dict[str, str]:
    """Case name -> ptxas's message, of the cases that it refuses."""
    ptxas = find()

    def one(case: Case) -> tuple[str, str]:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "k.ptx")
            source.write_text(case.ptx)
            command = [ptxas, "-arch=sm_90a", str(source), "-o", str(Path(folder, "k.cubin"))]
            done = subprocess.run(command, capture_output=True, text=True)
            return case.name, "" if done.returncode == 0 else (done.stdout + done.stderr)[:600]

    with ThreadPoolExecutor(jobs) as pool:
        return {name: text for name, text in pool.map(one, cases) if text}
