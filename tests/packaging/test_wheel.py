"""Wheel and sdist, built here, installed into a fresh environment and used from a folder that has no source tree.

The environment borrows every installed package (torch above all) by symbolic links, except those of this project.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
SECONDS = 900


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@dataclass(frozen=True)
class Fresh:
    """An environment with the built wheel: its interpreter and an empty folder to work in."""

    python: Path
    home: Path
    wheel: Path
    sdist: Path

    def run(self, *arguments: str) -> str:
        return run(self.python, "-P", *arguments, cwd=self.home)


def _borrow(packages: Path) -> None:
    """Links to everything that is installed here, without this project and without editable hooks."""
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        own = "deepinfer" in entry.name or entry.suffix == ".pth" or entry.name in ("pip", "__pycache__")
        target = packages / entry.name
        if not own and not target.exists():
            target.symlink_to(entry)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    base = tmp_path_factory.mktemp("packaging")
    dist, env, home = base / "dist", base / "env", base / "elsewhere"
    home.mkdir()
    for target in ("sdist", "wheel"):
        run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", dist, cwd=ROOT)
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    run(sys.executable, "-m", "venv", "--without-pip", env, cwd=base)
    _borrow(env / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages")
    python = env / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=base)
    return Fresh(python, home, wheel, sdist)


def test_the_package_is_the_installed_one(fresh: Fresh) -> None:
    code = "import deepinfer, deepinfer_cpu; print(deepinfer.__file__, deepinfer_cpu.__file__)"
    where = fresh.run("-c", code).split()
    assert all(str(fresh.python.parents[1]) in path for path in where)


def test_doctor(fresh: Fresh) -> None:
    report = json.loads(fresh.run("-m", "deepinfer.cli.main", "doctor", "--json"))
    assert report["ok"] is True
    assert {row["device"] for row in report["devices"]} >= {"cpu:0"}
    missing = {row["device"]: row["fix"] for row in report["unavailable"]}
    assert missing["cuda"] == "pip install deepinfer-cuda"
    assert (fresh.python.parent / "deepinfer").is_file()


def test_an_op_and_a_model(fresh: Fresh) -> None:
    code = (
        "import torch, deepinfer; from deepinfer.ops import norm\n"
        "print(norm.rms_norm(torch.ones(1, 4), torch.ones(4), 0.0).sum().item(), deepinfer.current_device().spec)\n"
        f"llm = deepinfer.LLM({str(ROOT / 'examples' / 'models' / 'tiny-v3')!r}, num_blocks=64)\n"
        "(result,) = llm.generate('def ', deepinfer.SamplingParams(max_tokens=4, temperature=0.0), use_tqdm=False)\n"
        "print(len(result.outputs[0].token_ids))"
    )
    assert fresh.run("-c", code).split() == ["4.0", "cpu:0", "4"]


def test_conformance_through_pytest(fresh: Fresh) -> None:
    arguments = ["--pyargs", "deepinfer.conformance", "--backend", "cpu", "-k", "rms_norm", "-q"]
    last = fresh.run("-m", "pytest", *arguments).strip().splitlines()[-1]
    assert " passed" in last
    assert "failed" not in last
    assert int(last.split(" passed")[0].split()[-1]) > 50


def test_typed_marker_headers_and_licence_travel(fresh: Fresh) -> None:
    names = set(zipfile.ZipFile(fresh.wheel).namelist())
    assert {"deepinfer/py.typed", "deepinfer/include/deepinfer/driver.h"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if "test_" in name and "conformance" not in name]


def test_the_sdist_builds_the_same_wheel(fresh: Fresh, tmp_path: Path) -> None:
    with tarfile.open(fresh.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "again", cwd=source)
    (again,) = (tmp_path / "again").glob("*.whl")
    first, second = (zipfile.ZipFile(path) for path in (fresh.wheel, again))
    assert sorted(first.namelist()) == sorted(second.namelist())
    for name in first.namelist():
        assert first.read(name) == second.read(name), name
