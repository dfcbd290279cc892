"""bisheng, the vendor's compiler, as the compiler of hardware kernels: pure command builders and the `Compiler`.

The commands follow how public kernel packages call it; they were never run, because no toolkit was available.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from deepinfer.errors import BackendUnavailable
from deepinfer.jit import Build, CompileError

INSTALL = "install CANN 9.1 or later and source its set_env.sh in this shell"
# Where the vendor's installer puts it, newest layout first.
DEFAULT_ROOTS = tuple(
    Path(base, name)
    for base in ("/usr/local/Ascend", os.path.expanduser("~/Ascend"))
    for name in ("cann", "ascend-toolkit/latest")
)
FLAGS = ("-std=c++20", "-O2", "--npu-arch=dav-3510", "--cce-aicore-only", "-c")


def compile_command(
    compiler: str, source: str, output: str, includes: tuple[str, ...], flags: tuple[str, ...] = ()
) -> list[str]:
    """The command that turns an AscendC source into a relocatable device object."""
    return [compiler, *FLAGS, *flags, *[f"-I{path}" for path in includes], "-x", "asc", source, "-o", output]


def link_command(linker: str, objects: tuple[str, ...], output: str) -> list[str]:
    """The command that turns device objects into an image that aclrtBinaryLoadFromFile takes."""
    return [linker, "-m", "aicorelinux", "-Ttext", "0", "--no-mmap-output-file", *objects, "-o", output]


def toolkit(environment: Mapping[str, str] | None = None, defaults: Sequence[Path] = DEFAULT_ROOTS) -> Path | None:
    """Root of the vendor's toolkit: as its set_env.sh announces it, else a default folder that exists, else None."""
    found = os.environ if environment is None else environment
    value = found.get("ASCEND_HOME_PATH") or found.get("ASCEND_TOOLKIT_HOME")
    if value:
        return Path(value)
    return next((root for root in defaults if root.is_dir()), None)


def include_dirs(root: Path | None, machine: str) -> tuple[str, ...]:
    """The toolkit's include folders for a host of `machine` ("x86_64", "aarch64")."""
    if root is None:
        return ()
    host = root / f"{machine}-linux"
    return str(host / "include"), str(host / "asc" / "include")


def _where(root: Path | None) -> str:
    if root is None:
        return "neither ASCEND_HOME_PATH nor ASCEND_TOOLKIT_HOME is set, and no default folder has a toolkit"
    return f"the toolkit's root is {root}" + ("" if root.is_dir() else ", which is no folder")


def find(name: str, root: Path | None) -> str:
    """Path of one of the toolkit's programs; BackendUnavailable when it is absent or cannot be run."""
    candidates = [str(root / "bin" / name)] if root is not None else []
    for candidate in [*candidates, name]:
        found = shutil.which(candidate)
        if found:
            return found
    reasons = [_where(root), f"{name} is not on PATH"]
    blocked = [path for path in candidates if Path(path).exists()]
    if blocked:
        reasons.insert(0, f"{blocked[0]} exists and may not be executed by this user")
    raise BackendUnavailable(
        f"Ascend 950 kernels are compiled with the vendor's {name}, which was not found", reasons, INSTALL
    )


def checked_includes(root: Path | None, machine: str) -> tuple[str, ...]:
    """`include_dirs`, after a look at whether the kernel headers are there."""
    folders = include_dirs(root, machine)
    if folders and not any(Path(folder).is_dir() for folder in folders):
        reasons = [_where(root), f"none of {', '.join(folders)} exists"]
        raise BackendUnavailable("the toolkit has no kernel headers for this machine", reasons, INSTALL)
    return folders


def _run(name: str, line: list[str], output: Path) -> str:
    """Run one command that makes `output`; its log, or CompileError with the command and what it said."""
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompileError(name, " ".join(line), f"{line[0]} cannot be started: {error}") from error
    if done.returncode:
        said = done.stderr or done.stdout or f"no output, exit status {done.returncode}"
        raise CompileError(name, " ".join(line), said)
    if not output.exists():
        raise CompileError(name, " ".join(line), f"it succeeded without making {output.name}; {done.stderr}")
    return done.stderr


class BishengCompiler:
    """Compiles kernels for the hardware. Thread-safe."""

    def identity(self) -> str:
        compiler = find("bisheng", toolkit())
        try:
            done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
        except OSError as error:
            raise BackendUnavailable(f"{compiler} cannot be started", [str(error)], INSTALL) from error
        return f"{done.stdout.splitlines()[0] if done.stdout else compiler} {' '.join(FLAGS)}"

    def compile(self, build: Build) -> tuple[bytes, str]:
        """(device image, compiler output)."""
        root = toolkit()
        compiler, linker = find("bisheng", root), find("ld.lld", root)
        vendor = checked_includes(root, platform.machine())
        with tempfile.TemporaryDirectory(prefix="deepinfer-asc-") as name:
            folder = Path(name)
            for include, text in build.headers.items():
                path = folder / include
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            source, unit, image = folder / f"{build.name}.asc", folder / "unit.o", folder / "kernel.o"
            source.write_text(build.source)
            line = compile_command(compiler, str(source), str(unit), (name, *vendor), build.flags)
            log = _run(build.name, line, unit)
            log += _run(build.name, link_command(linker, (str(unit),), str(image)), image)
            return image.read_bytes(), log
