"""The pytest plugin: works from anywhere, stays out of everybody else's way, and imports nothing heavy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SELECT = ["--levels", "L2", "--ops", "norm.rms_norm"]


def pytest_in(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args]
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=180, check=False, env=env)


def test_suite_runs_by_module_name_from_another_directory(tmp_path: Path) -> None:
    report = tmp_path / "out.json"
    done = pytest_in(
        tmp_path, "--pyargs", "deepinfer.conformance", "--backend", "cpu", *SELECT, "--conformance-report", str(report)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "deepinfer conformance: backend cpu" in done.stdout
    assert "skipped" not in done.stdout.splitlines()[-1]
    assert json.loads(report.read_text("utf-8"))["ok"] is True


OWN_OPTION = "def pytest_addoption(parser):\n    parser.addoption('--backend')\n"


def test_explicit_plugin_and_somebody_who_owns_backend(tmp_path: Path) -> None:
    """Somebody's own --backend wins, in a conftest or in a plugin; the long name still reaches the suite."""
    (tmp_path / "conftest.py").write_text(OWN_OPTION, "utf-8")
    (tmp_path / "own_plugin.py").write_text(OWN_OPTION, "utf-8")
    (tmp_path / "test_mine.py").write_text(
        "def test_mine(pytestconfig):\n    assert pytestconfig.getoption('--backend') == 'theirs'\n", "utf-8"
    )
    mine = pytest_in(tmp_path, "-p", "deepinfer.conformance.plugin", "test_mine.py", "--backend", "theirs")
    assert mine.returncode == 0, mine.stdout + mine.stderr
    (tmp_path / "conftest.py").unlink()
    both = pytest_in(
        tmp_path, "-p", "own_plugin", "-p", "deepinfer.conformance.plugin", "--pyargs", "deepinfer.conformance",
        "--deepinfer-backend", "cpu", "--levels", "L0",
    )
    assert both.returncode == 0, both.stdout + both.stderr


def test_backend_is_required_and_must_exist(tmp_path: Path) -> None:
    missing = pytest_in(tmp_path, "--pyargs", "deepinfer.conformance")
    assert missing.returncode != 0
    assert "--backend NAME is required" in missing.stdout + missing.stderr
    unknown = pytest_in(tmp_path, "--pyargs", "deepinfer.conformance", "--backend", "nowhere")
    assert unknown.returncode != 0
    assert "unknown backend 'nowhere'" in unknown.stdout + unknown.stderr


def test_failures_are_told_with_the_check_and_the_reason(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, "--pyargs", "deepinfer.conformance", "--backend", "null", *SELECT)
    assert done.returncode == 1
    assert "norm.rms_norm/shape=3x7,dtype=float32/reference" in done.stdout
    assert "not supported and not listed" in done.stdout


def test_importing_the_plugin_loads_nothing_heavy() -> None:
    heavy = "('torch', 'numpy', 'triton')"
    code = f"import sys, deepinfer.conformance.plugin; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
