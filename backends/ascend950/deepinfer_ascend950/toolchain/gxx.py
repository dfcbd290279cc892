"""g++ as the compiler of simulated kernels: a pure command builder and the `Compiler` that runs it.

Strict aliasing is off because kernels view registers as other types; -ffast-math is forbidden because it hides NaN.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from deepinfer.errors import BackendUnavailable
from deepinfer.jit import Build, CompileError

FLAGS = (
    "-std=c++20",
    "-O2",
    "-fno-strict-aliasing",
    "-Wall",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-fno-gnu-unique",
)


def command(
    compiler: str, source: str, output: str, includes: tuple[str, ...], flags: tuple[str, ...] = ()
) -> list[str]:
    """The command that turns an AscendC source into a shared object for the simulator."""
    paths = [f"-I{path}" for path in includes]
    return [compiler, *FLAGS, *flags, *paths, "-x", "c++", source, "-o", output]


@lru_cache(maxsize=1)
def find() -> str:
    """Path of g++; BackendUnavailable when the machine has none."""
    found = shutil.which("g++") or shutil.which("c++")
    if found is None:
        raise BackendUnavailable(
            "the Ascend 950 simulator compiles its kernels with g++",
            ["no g++ or c++ on PATH"],
            "install a C++20 compiler (Debian: apt-get install g++)",
        )
    return found


@lru_cache(maxsize=1)
def _version(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[0] if done.stdout else compiler


class GxxCompiler:
    """Compiles kernels for the simulator. Thread-safe."""

    def identity(self) -> str:
        return f"{_version(find())} {' '.join(FLAGS)}"

    def compile(self, build: Build) -> tuple[bytes, str]:
        """(shared object, compiler output)."""
        with tempfile.TemporaryDirectory(prefix="deepinfer-asc-") as folder:
            root = Path(folder)
            for name, text in build.headers.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            unit = root / f"{build.name}.asc"
            unit.write_text(build.source)
            line = command(find(), str(unit), str(root / "kernel.so"), (str(root),), build.flags)
            done = subprocess.run(line, capture_output=True, text=True, check=False)
            if done.returncode:
                raise CompileError(build.name, " ".join(line), done.stderr)
            return (root / "kernel.so").read_bytes(), done.stderr
