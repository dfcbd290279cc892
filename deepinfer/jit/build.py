"""What one compilation is made of, and the key that names its result."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from deepinfer.errors import DeepInferError

KEY_FORMAT = b"deepinfer-build-1"


class CompileError(DeepInferError, RuntimeError):
    """A compiler refused a kernel; `log` is its full output."""

    def __init__(self, name: str, command: str, log: str) -> None:
        super().__init__(f"compiling {name} failed\n  {command}\n{log.strip()}")
        self.name, self.log = name, log


@dataclass(frozen=True)
class Build:
    """One compilation.

    Attributes:
        name: readable tag of the entry's folder; letters, digits, `_`, `-`, `.`. Not part of the key.
        source: the translation unit.
        headers: texts by include name, all that the source may include from this project.
        flags: compiler flags that change the code, in order.
        arch: target architecture ("sm_90a", "dav-3510", "host").
        fmt: format of the result ("cubin", "ptx", "elf").
    """

    name: str
    source: str
    headers: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    arch: str = ""
    fmt: str = "cubin"

    def key(self, compiler: str) -> str:
        """Hex digest over everything that decides the result; `compiler` is its name and version."""
        digest = hashlib.sha256(KEY_FORMAT)
        parts = [compiler, self.arch, self.fmt, str(len(self.flags)), *self.flags, self.source]
        for include in sorted(self.headers):
            parts += [include, self.headers[include]]
        for part in parts:
            raw = part.encode()
            digest.update(len(raw).to_bytes(8, "little"))
            digest.update(raw)
        return digest.hexdigest()[:40]


@dataclass(frozen=True)
class Compiled:
    """Result of a compilation: the image, and whether it came from the cache."""

    image: bytes
    key: str
    cached: bool
    log: str = ""


class Compiler(Protocol):
    """A compiler as the cache sees it. Thread-safe."""

    def identity(self) -> str:
        """Name and exact version; part of every key."""
        ...

    def compile(self, build: Build) -> tuple[bytes, str]:
        """(image, log); raises CompileError."""
        ...
