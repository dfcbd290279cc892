"""Finds the simulator's shared library, or builds it once into the cache folder.

Order: inside the installed package; a CMake build of this checkout that is newer than every source; a build with g++
named by the hash of its sources. An outdated library is never used.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from deepinfer import config
from deepinfer.config import cache_dir, logger
from deepinfer.errors import BackendUnavailable
from deepinfer_ascend950.toolchain.gxx import find
from deepinfer_ascend950.toolchain.sources import PACKAGE, SIM_INCLUDE

NAME = "libdeepinfer_ascend950_sim.so"
SOURCES = PACKAGE / "sim" / "src"
FLAGS = (
    "-std=c++20",
    "-O2",
    "-fno-strict-aliasing",
    "-fno-semantic-interposition",
    "-Wall",
    "-Wextra",
    "-fPIC",
    "-shared",
)


def _abi_include() -> Path:
    for candidate in (PACKAGE.parents[2] / "include", Path(config.__file__).parent / "include"):
        if (candidate / "deepinfer" / "driver.h").exists():
            return candidate
    raise BackendUnavailable(
        "the simulator cannot be built", ["include/deepinfer/driver.h is not part of this installation"]
    )


def _inputs() -> list[Path]:
    return sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h"), *SIM_INCLUDE.rglob("*.h")])


def find_library() -> Path:
    """Path of a current library; builds one when there is none. BackendUnavailable when that fails."""
    installed = PACKAGE / "sim" / NAME
    if installed.exists():
        return installed
    newest = max(path.stat().st_mtime for path in _inputs())
    root = PACKAGE.parents[2] / "build"
    for built in (root / "backends" / "ascend950" / NAME, root / "ascend950" / NAME):
        if built.exists() and built.stat().st_mtime >= newest:
            return built
    return _cached()


def _cached() -> Path:
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in _inputs():
        digest.update(path.name.encode() + path.read_bytes())
    target = cache_dir() / "ascend950" / digest.hexdigest()[:24] / NAME
    if not target.exists():
        _build(target)
    return target


def _build(target: Path) -> None:
    logger.info("building the Ascend 950 simulator into %s", target)
    target.parent.mkdir(parents=True, exist_ok=True)
    includes = [f"-I{path}" for path in (SIM_INCLUDE, SOURCES, _abi_include())]
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        output = Path(folder) / NAME
        units = [str(path) for path in sorted(SOURCES.glob("*.cpp"))]
        done = subprocess.run(
            [find(), *FLAGS, *includes, *units, "-o", str(output), "-ldl"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BackendUnavailable(
                "the Ascend 950 simulator does not build on this machine", [done.stderr.strip()[-2000:]]
            )
        os.replace(output, target)  # atomic: another process may have won
