"""The static prover's verdict on the SM100 GEMM, and that it can say no: see bench/sentryward_gemm.py."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from gemm_mutants import mutation

SCRIPT = Path(__file__).resolve().parents[4] / "bench" / "sentryward_gemm.py"
COMMAND = shutil.which("sentryward")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(COMMAND is None, reason="the prover is not installed: pip install sentryward==0.1.1"),
]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sentryward_gemm", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("ctas", [1, 2])
def test_kernel_is_proven_free_of_races(ctas: int, tmp_path: Path) -> None:
    found = script().prove(COMMAND, ctas, 600, tmp_path)
    assert found["result"] == "race_free", found["diagnostics"]


@pytest.mark.parametrize("name", [
    "wait passes at once 0", "drop tcgen05.commit 0", "drop mbarrier.arrive 1", "expect 16 bytes less 0",
])
def test_wrong_kernels_are_not_proven(name: str, tmp_path: Path) -> None:
    module = script()
    text = next(mutant.text for mutant in mutation.mutants(module.ptx(1)) if mutant.name == name)
    (tmp_path / "wrong.ptx").write_text(text)
    (tmp_path / "wrong.json").write_text(json.dumps(module.launch(1)))
    call = [COMMAND, str(tmp_path / "wrong.ptx"), "--input", str(tmp_path / "wrong.json"), "--timeout", "600"]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["result"] in {"not_wellsynced", "potential_race", "invalid_lifecycle"}, done.stdout
