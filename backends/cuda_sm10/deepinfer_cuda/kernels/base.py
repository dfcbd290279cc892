"""What all CUDA kernels share: build, load, and launches that are prepared once per set of pointers."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from deepinfer.hal import Device, Image, Stream
from deepinfer.registry import Kernel
from deepinfer_cuda import jit

PREPARED_LIMIT = 256
_load_lock = threading.Lock()
_modules: weakref.WeakKeyDictionary[Device, dict[str, Any]] = weakref.WeakKeyDictionary()


@dataclass
class LaunchState:
    """Plan state of a kernel: its loaded code and the launches prepared so far, by the pointers they use."""

    executable: Any
    prepared: dict[tuple[int, ...], Any] = field(default_factory=dict)

    def launch(self, stream: Stream, tensors: Sequence[torch.Tensor], make: Callable[[], Any]) -> None:
        """Launch with `tensors`' addresses, calling `make` for a prepared launch when they are new."""
        key = tuple(tensor.data_ptr() for tensor in tensors)
        found = self.prepared.get(key)
        if found is None:
            if len(self.prepared) >= PREPARED_LIMIT:
                self.prepared.clear()
            found = self.prepared[key] = make()
        found.launch(stream.handle)


class CudaKernel(Kernel):
    """A kernel compiled from `kernels/<source>.cu` for one architecture family."""

    source: str
    archs: tuple[str, ...]

    def load(self, device: Device) -> LaunchState:
        """Compile (or fetch) and load the code for `device`."""
        fmt = "ptx" if device.simulated else "cubin"
        with _load_lock:
            modules: dict[str, Any] = _modules.setdefault(device, {})
            if self.source not in modules:
                build = jit.kernel_build(self.source, device.props.arch, fmt)
                compiled = jit.default_cache().get(build, jit.NvrtcCompiler())
                modules[self.source] = device.load(Image(compiled.image, fmt, self.source))
            return LaunchState(modules[self.source])
