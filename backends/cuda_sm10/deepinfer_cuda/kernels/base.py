"""What all CUDA kernels share: code compiled from this package's sources, loaded once per device."""

from __future__ import annotations

import threading
import weakref

from deepinfer.hal import Device, Executable, Image
from deepinfer.registry import Kernel
from deepinfer_cuda import jit

_lock = threading.Lock()
_modules: weakref.WeakKeyDictionary[Device, dict[str, Executable]] = weakref.WeakKeyDictionary()


class CudaKernel(Kernel):
    """A kernel compiled from `kernels/<source>.cu` for one architecture family."""

    source: str
    archs: tuple[str, ...]

    def __init_subclass__(cls) -> None:
        """The code is decided by the kernel's own two files and every header of the package, as in the build's key."""
        super().__init_subclass__()
        if hasattr(cls, "source"):
            own = (f"kernels/{cls.source}.cuh", f"kernels/{cls.source}.cu")
            cls.sources = own + tuple(f"include/{name}" for name in jit.headers() if not name.startswith("kernels/"))

    def load(self, device: Device) -> Executable:
        """Compile (or fetch) and load the code for `device`."""
        fmt = "ptx" if device.simulated else "cubin"
        with _lock:
            modules = _modules.setdefault(device, {})
            if self.source not in modules:
                build = jit.kernel_build(self.source, device.props.arch, fmt)
                compiled = jit.default_cache().get(build, jit.NvrtcCompiler())
                modules[self.source] = device.load(Image(compiled.image, fmt, self.source))
            return modules[self.source]
