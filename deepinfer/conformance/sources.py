"""Which files decide a kernel, and one hash over them: the key that tells current evidence from stale evidence.

`Kernel.sources` are relative to the top-level package of the kernel's class (or to the folder that holds it). A kernel
that names none is decided by its own module; the portable tier by the folder of its op family.
Names are "package/path", so the hash is the same in a checkout, in a wheel and on another machine.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from deepinfer import ops
from deepinfer.errors import invalid
from deepinfer.registry import Kernel, PortableKernel


def _package_folder(package: str) -> Path | None:
    module = sys.modules.get(package)
    spec = module.__spec__ if module is not None else find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def files(kernel: Kernel) -> dict[str, Path]:
    """Source files by name. A declared file that does not exist is listed all the same."""
    if isinstance(kernel, PortableKernel):
        return family(kernel.spec.family)
    package = type(kernel).__module__.partition(".")[0]
    folder = _package_folder(package)
    if not kernel.sources or folder is None:
        module = Path(inspect.getfile(type(kernel)))
        name = f"{package}/{module.relative_to(folder)}" if folder and folder in module.parents else module.name
        return {name: module}
    return dict(_declared(folder, name) for name in kernel.sources)


def _declared(folder: Path, name: str) -> tuple[str, Path]:
    if Path(name).is_absolute():
        rule = "must be relative to the package, to mean the same file on every machine"
        raise invalid(f"sources of a kernel in {folder.name}", name, rule, nearest=Path(name).name)
    inside = folder / name
    if inside.is_file() or not (folder.parent / name).is_file():
        return f"{folder.name}/{name}", inside
    return name, folder.parent / name


def family(name: str) -> dict[str, Path]:
    """The Python files of op family `name`."""
    folder = Path(ops.__file__).parent / name
    return {f"deepinfer/ops/{name}/{path.name}": path for path in sorted(folder.glob("*.py"))}


def missing(kernel: Kernel) -> list[str]:
    """Declared source files that do not exist."""
    return [name for name, path in files(kernel).items() if not path.is_file()]


def digest(found: Mapping[str, Path]) -> str:
    """16 hex digits over names and contents, independent of the order; "" when a file is missing."""
    state = hashlib.sha256()
    for name, path in sorted(found.items()):
        if not path.is_file():
            return ""
        state.update(f"{name}\0{path.stat().st_size}\0".encode())
        state.update(path.read_bytes())
    return state.hexdigest()[:16]


def locate(root: Path, name: str) -> Path:
    """Where "package/path" lies in a checkout at `root`: in the core or under backends/*."""
    candidates = [root / name, *(folder / name for folder in sorted((root / "backends").glob("*")))]
    return next((path for path in candidates if path.is_file()), root / name)
