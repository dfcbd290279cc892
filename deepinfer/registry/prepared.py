"""Launches prepared once per set of tensor addresses, for kernels whose other arguments are fixed by their plan."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

from deepinfer.hal.device import Stream

LIMIT = 2048  # layers of a model share a plan and differ in addresses


class PreparedLaunches:
    """Part of a plan's state. Thread-safe; bounded: when full it is emptied, which costs time, never correctness."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, ...], Callable[[Stream], None]] = {}
        self._lock = threading.Lock()

    def run(
        self, stream: Stream, tensors: Sequence[torch.Tensor], make: Callable[[], Callable[[Stream], None]]
    ) -> None:
        """Enqueue with `tensors`' addresses; `make` builds the launch when they are new."""
        self.get(tensors, make)(stream)

    def get(
        self, tensors: Sequence[torch.Tensor], make: Callable[[], Callable[[Stream], None]]
    ) -> Callable[[Stream], None]:
        """The launch for `tensors`' addresses."""
        key = tuple(tensor.data_ptr() for tensor in tensors)
        found = self._found.get(key)
        if found is None:
            found = make()
            with self._lock:
                if len(self._found) >= LIMIT:
                    self._found.clear()
                self._found[key] = found
        return found
