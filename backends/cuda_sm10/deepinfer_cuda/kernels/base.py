"""What all CUDA kernels share: instances of templates in this package, compiled one by one, loaded once per device."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from deepinfer.hal import Device, Executable, Image
from deepinfer.jit import Build
from deepinfer.registry import Kernel
from deepinfer_cuda import jit

_lock = threading.Lock()
_modules: weakref.WeakKeyDictionary[Device, dict[Unit, Executable]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Unit:
    """One instance of a kernel template: macro `macro` of `header` makes entry `symbol` with template arguments."""

    symbol: str
    header: str
    macro: str
    arguments: tuple[int | str, ...]

    def build(self, arch: str, fmt: str = "cubin") -> Build:
        """Its translation unit for `arch`."""
        values = ", ".join(str(value) for value in self.arguments)
        source = f'#include "{self.header}"\n{self.macro}({self.symbol}, {values})\n'
        return jit.translation_unit(self.symbol, source, arch, fmt)


def load(device: Device, unit: Unit) -> Executable:
    """Compile (or fetch) and load `unit` for `device`. Threads compile different units side by side."""
    with _lock:
        found = _modules.setdefault(device, {}).get(unit)
    if found is not None:
        return found
    fmt = "ptx" if device.simulated else "cubin"
    compiled = jit.default_cache().get(unit.build(device.props.arch, fmt), jit.NvrtcCompiler())
    with _lock:
        modules = _modules[device]
        if unit not in modules:
            modules[unit] = device.load(Image(compiled.image, fmt, unit.symbol))
        return modules[unit]


class CudaKernel(Kernel):
    """A kernel whose code is templates in `header` and `more_headers`, for the architectures `archs`."""

    header: str
    more_headers: tuple[str, ...] = ()
    archs: tuple[str, ...]

    def __init_subclass__(cls) -> None:
        """The code is decided by the headers and all that they include, as in the build's key."""
        super().__init_subclass__()
        if hasattr(cls, "header"):
            included = jit.closure("".join(f'#include "{name}"\n' for name in (cls.header, *cls.more_headers)))
            cls.sources = tuple(name if name.startswith("kernels/") else f"include/{name}" for name in included)

    def units(self) -> Sequence[Unit]:
        """Everything the kernel may launch, for compiling ahead."""
        return ()
