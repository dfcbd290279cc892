"""bisheng, the vendor's compiler, as the compiler of hardware kernels: pure command builders and the `Compiler`.

The commands follow how public kernel packages call it; they were never run, because no toolkit was available.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from deepinfer.errors import BackendUnavailable
from deepinfer.jit import Build, CompileError

FLAGS = ("-std=c++20", "-O2", "--npu-arch=dav-3510", "--cce-aicore-only", "-c")


def compile_command(
    compiler: str, source: str, output: str, includes: tuple[str, ...], flags: tuple[str, ...] = ()
) -> list[str]:
    """The command that turns an AscendC source into a relocatable device object."""
    return [compiler, *FLAGS, *flags, *[f"-I{path}" for path in includes], "-x", "asc", source, "-o", output]


def link_command(linker: str, objects: tuple[str, ...], output: str) -> list[str]:
    """The command that turns device objects into an image that aclrtBinaryLoadFromFile takes."""
    return [linker, "-m", "aicorelinux", "-Ttext", "0", "--no-mmap-output-file", *objects, "-o", output]


def toolkit(environment: Mapping[str, str] | None = None) -> Path | None:
    """Root of the vendor's toolkit as its own set_env.sh announces it, or None."""
    found = os.environ if environment is None else environment
    value = found.get("ASCEND_HOME_PATH") or found.get("ASCEND_TOOLKIT_HOME")
    return Path(value) if value else None


def include_dirs(root: Path | None, machine: str) -> tuple[str, ...]:
    """The toolkit's include folders for a host of `machine` ("x86_64", "aarch64")."""
    if root is None:
        return ()
    host = root / f"{machine}-linux"
    return str(host / "include"), str(host / "asc" / "include")


def find(name: str, root: Path | None) -> str:
    """Path of one of the toolkit's programs; BackendUnavailable when it is absent."""
    candidates = [str(root / "bin" / name)] if root is not None else []
    for candidate in [*candidates, name]:
        found = shutil.which(candidate)
        if found:
            return found
    raise BackendUnavailable(
        f"Ascend 950 kernels are compiled with the vendor's {name}, which was not found",
        [f"ASCEND_HOME_PATH is {root or 'not set'} and {name} is not on PATH"],
        "install CANN 9.1 or later and source its set_env.sh",
    )


class BishengCompiler:
    """Compiles kernels for the hardware. Thread-safe."""

    def identity(self) -> str:
        compiler = find("bisheng", toolkit())
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
        return f"{done.stdout.splitlines()[0] if done.stdout else compiler} {' '.join(FLAGS)}"

    def compile(self, build: Build) -> tuple[bytes, str]:
        """(device image, compiler output)."""
        root = toolkit()
        compiler, linker = find("bisheng", root), find("ld.lld", root)
        with tempfile.TemporaryDirectory(prefix="deepinfer-asc-") as name:
            folder = Path(name)
            for include, text in build.headers.items():
                path = folder / include
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            unit = folder / f"{build.name}.asc"
            unit.write_text(build.source)
            image, log = folder / "kernel.o", ""
            vendor = include_dirs(root, platform.machine())
            for line in (
                compile_command(compiler, str(unit), str(folder / "unit.o"), (name, *vendor), build.flags),
                link_command(linker, (str(folder / "unit.o"),), str(image)),
            ):
                done = subprocess.run(line, capture_output=True, text=True, check=False)
                log += done.stderr
                if done.returncode:
                    raise CompileError(build.name, " ".join(line), log)
            return image.read_bytes(), log
