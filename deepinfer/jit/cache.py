"""The cache on disk and in memory.

Layout: `<root>/<name>.<key>/{image, meta.json}`, written as a private temporary folder and put in place by one atomic
rename. Invariants:
- an entry is valid iff the image's SHA-256 stands in its meta.json; anything else is rebuilt and replaced;
- losing the rename to another process is success;
- of many processes that miss at once one compiles (an advisory file lock that the system drops when its holder dies),
  the others wait and read; where locks do not work (some network file systems) each compiles, which is only slower;
- the first root that can be written gets new entries, all roots are read; a cache without a writable root still works.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from deepinfer.config import cache_dir, logger
from deepinfer.errors import DeepInferError, invalid
from deepinfer.jit.build import Build, Compiled, Compiler

try:
    import fcntl
except ImportError:  # not a POSIX system: every process that misses compiles for itself
    _HAS_LOCKS = False
else:
    _HAS_LOCKS = True


class CompileForbidden(DeepInferError, RuntimeError):
    """A kernel is not in the cache and this cache must not compile."""


class BuildCache:
    """Thread-safe and multi-process-safe cache of compiled kernels."""

    def __init__(self, roots: Sequence[Path] | None = None, *, forbid_compile: bool = False) -> None:
        """`roots` are searched in order (default: `<cache dir>/jit`); `forbid_compile` turns a miss into an error."""
        self.roots = tuple(roots) if roots is not None else (cache_dir() / "jit",)
        if not self.roots:
            raise invalid("roots", [], "must name at least one folder")
        self.forbid_compile = forbid_compile
        self._memory: dict[str, Compiled] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    def get(self, build: Build, compiler: Compiler) -> Compiled:
        """The compiled image of `build`, from memory, disk, or a compilation that is then stored.

        Raises:
            CompileError: the compiler refused the source.
            CompileForbidden: not cached, and this cache must not compile.
        """
        if not re.fullmatch(r"[\w.\-]+", build.name):
            raise invalid("build.name", build.name, "must be letters, digits, '_', '-' and '.'")
        key = build.key(compiler.identity())
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            found = self._memory.get(key) or self._read(build.name, key)
            if found is None:
                found = self._miss(build, compiler, key)
            self._memory[key] = found
        return found

    def contains(self, build: Build, compiler: Compiler) -> bool:
        """Whether `get` would find a valid entry on disk or in memory."""
        key = build.key(compiler.identity())
        return key in self._memory or self._read(build.name, key) is not None

    def _miss(self, build: Build, compiler: Compiler, key: str) -> Compiled:
        if self.forbid_compile:
            places = ", ".join(str(root) for root in self.roots)
            raise CompileForbidden(
                f"kernel {build.name} for {build.arch} (key {key}) is not in {places} and compiling is forbidden; "
                "run the same warm-up where compiling is allowed and copy the folder"
            )
        root = self._writable_root()
        if root is None:
            logger.warning("no folder of %s can be written; compiling %s for this process", self.roots, build.name)
            return self._compile(build, compiler, key)
        with _file_lock(root / f".{key}.lock"):
            found = self._read(build.name, key)
            if found is None:
                found = self._compile(build, compiler, key)
                self._store(root, build, found)
        return found

    @staticmethod
    def _compile(build: Build, compiler: Compiler, key: str) -> Compiled:
        image, log = compiler.compile(build)
        return Compiled(image, key, cached=False, log=log)

    def _writable_root(self) -> Path | None:
        for root in self.roots:
            try:
                root.mkdir(parents=True, exist_ok=True)
            except OSError:
                continue
            if os.access(root, os.W_OK | os.X_OK):
                return root
        return None

    def _read(self, name: str, key: str) -> Compiled | None:
        for root in self.roots:
            folder = root / f"{name}.{key}"
            try:
                meta = json.loads((folder / "meta.json").read_text())
                image = (folder / "image").read_bytes()
            except (OSError, ValueError):
                continue
            if isinstance(meta, dict) and meta.get("sha256") == hashlib.sha256(image).hexdigest():
                return Compiled(image, key, cached=True)
            logger.warning("cache entry %s is corrupt and will be rebuilt", folder)
        return None

    def _store(self, root: Path, build: Build, compiled: Compiled) -> None:
        """Write the entry; a full or failing disk costs the entry, not the caller's kernel."""
        target = root / f"{build.name}.{compiled.key}"
        temporary = Path(tempfile.mkdtemp(prefix=".tmp-", dir=root))
        try:
            meta = {"sha256": hashlib.sha256(compiled.image).hexdigest(), "arch": build.arch, "fmt": build.fmt,
                    "flags": build.flags, "name": build.name}
            _write_synced(temporary / "image", compiled.image)
            _write_synced(temporary / "meta.json", json.dumps(meta, indent=1).encode())
            _put_in_place(temporary, target)
        except OSError as error:
            logger.warning("could not store %s in the kernel cache: %s", target, error)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _put_in_place(temporary: Path, target: Path) -> None:
    """Rename onto `target`; an entry that is there already is another winner's or corrupt, so it is moved away."""
    try:
        temporary.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        stale = Path(tempfile.mkdtemp(prefix=".tmp-", dir=target.parent))
        with contextlib.suppress(OSError):  # another process may have moved it already
            target.rename(stale / "old")
        with contextlib.suppress(OSError):  # losing to another process is success
            temporary.rename(target)
        shutil.rmtree(stale, ignore_errors=True)


@contextlib.contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    """Advisory lock; a lock file is left behind on purpose, since removing it would race with the next holder."""
    if not _HAS_LOCKS:
        yield
        return
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            logger.debug("no file lock on %s: %s", path, error)
        yield
