"""Builds kernels with NVRTC from its wheel: no toolkit, no GPU, seconds per kernel, cached by content.

Headers are read from this package and handed to NVRTC as texts, so no path enters the key. A translation unit holds one
instance of a kernel template, so that a launch waits for nothing it does not run and several compile side by side.
Hardware gets a cubin for exactly its architecture; the simulator gets the PTX of the same build.
"""

from __future__ import annotations

import re
import threading
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from deepinfer.errors import invalid
from deepinfer.jit import Build, BuildCache, CompileError

PACKAGE = Path(__file__).resolve().parent
FLAGS = ("--std=c++20", "-default-device", "-lineinfo")
ARCHITECTURES = {"sm_90": "90a", "sm_100": "100a", "sm_103": "103a"}


@lru_cache(maxsize=1)
def headers() -> dict[str, str]:
    """All device headers of the package by include name."""
    found: dict[str, str] = {}
    for folder, base in (("include", PACKAGE / "include"), ("kernels", PACKAGE)):
        for path in sorted((PACKAGE / folder).rglob("*.cuh")):
            found[str(path.relative_to(base))] = path.read_text()
    return found


class NvrtcCompiler:
    """`deepinfer.jit.Compiler` over cuda.bindings.nvrtc."""

    def identity(self) -> str:
        return _identity()

    def compile(self, build: Build) -> tuple[bytes, str]:
        from cuda.bindings import nvrtc

        names = [name.encode() for name in build.headers]
        texts = [text.encode() for text in build.headers.values()]
        source, title = build.source.encode(), f"{build.name}.cu".encode()
        program = _ok(nvrtc.nvrtcCreateProgram(source, title, len(names), texts, names))
        try:
            options = [flag.encode() for flag in (*build.flags, _target(build))]
            (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
            log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
            if int(status) != 0:
                raise CompileError(build.name, "nvrtc " + b" ".join(options).decode(), log)
            size, read = (
                (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX) if build.fmt == "ptx"
                else (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
            )
            image = _bytes(size, read, program)
            return (image.rstrip(b"\0") if build.fmt == "ptx" else image), log  # NVRTC ends its PTX with a NUL
        finally:
            nvrtc.nvrtcDestroyProgram(program)


def _target(build: Build) -> str:
    kind = "compute" if build.fmt == "ptx" else "sm"
    return f"--gpu-architecture={kind}_{build.arch}"


@lru_cache(maxsize=1)
def _identity() -> str:
    from cuda.bindings import nvrtc

    major, minor = _ok(nvrtc.nvrtcVersion())
    return f"nvrtc {major}.{minor}"


def _ok(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if int(status) != 0:
        raise CompileError("nvrtc", "nvrtc API call", getattr(status, "name", str(status)))
    return values[0] if len(values) == 1 else tuple(values)


def _bytes(size: Any, read: Any, program: Any) -> bytes:
    buffer = b" " * int(_ok(size(program)))
    _ok((*read(program, buffer), None))
    return buffer


def _text(size: Any, read: Any, program: Any) -> str:
    return _bytes(size, read, program).rstrip(b"\0").decode("utf-8", "replace")


_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def closure(source: str) -> dict[str, str]:
    """The headers of the package that `source` includes, directly or not: only they enter the build and its key."""
    known, found, open_texts = headers(), dict[str, str](), [source]
    while open_texts:
        for name in _INCLUDE.findall(open_texts.pop()):
            if name not in known:
                raise invalid("#include", name, "must be a header of the package", nearest=_nearest(name, known))
            if name not in found:
                found[name] = known[name]
                open_texts.append(known[name])
    return dict(sorted(found.items()))


def _nearest(name: str, known: dict[str, str]) -> str:
    return (get_close_matches(name, known, 1, 0.0) or [""])[0]


def translation_unit(name: str, source: str, arch: str, fmt: str = "cubin") -> Build:
    """The build of `source` for devices of `arch` ("sm_90", "sm_100", "sm_103"); `name` tags its cache entry."""
    if arch not in ARCHITECTURES:
        raise invalid("arch", arch, f"must be one of {tuple(ARCHITECTURES)}", nearest="'sm_90'")
    return Build(name, source, closure(source), FLAGS, ARCHITECTURES[arch], fmt)


_cache_lock = threading.Lock()
_caches: dict[Path, BuildCache] = {}


def default_cache() -> BuildCache:
    """The process's cache: the configured folder, then what was compiled ahead and lies inside the package."""
    from deepinfer.config import cache_dir

    root = cache_dir() / "jit"
    with _cache_lock:
        return _caches.setdefault(root, BuildCache([root, PACKAGE / "aot"]))
