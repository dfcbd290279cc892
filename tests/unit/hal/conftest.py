"""Builds the example C backend once (CMake, into build/) and puts its Python half on the path."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def example_plugin(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    spec = importlib.util.spec_from_file_location("example_c_plugin", ROOT / "examples/backend_c/plugin.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert shutil.which("cmake"), "cmake is needed to build the example backend"
    build = tmp_path_factory.mktemp("example_c")
    options = ["-DDEEPINFER_CUDA_SIM=OFF", "-DDEEPINFER_ASCEND_SIM=OFF"]
    subprocess.run(["cmake", "-S", str(ROOT), "-B", str(build), *options], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", str(build)], check=True, capture_output=True)
    module.BUILD = build / "examples" / "backend_c"
    return module
