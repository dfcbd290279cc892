"""A device that captures graphs without an accelerator: while capturing, every torch call is noted and run once.

A replay runs the noted calls on the same tensors again, so it has what matters about a real graph: fixed addresses,
no Python between the calls, and values that the host took during the capture stay what they were. Reading a value on
the host while capturing is an error, as it is on an accelerator. `flaws` breaks it on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from deepinfer.hal import Backend, Cap, Device, DeviceProps, DriverKind, Graph, Probe
from deepinfer.hal.host import HostStream
from deepinfer.hal.null import NullDevice
from deepinfer.registry import Kernel

Note = tuple[Any, tuple[Any, ...], dict[str, Any], list[torch.Tensor]]


class CaptureError(RuntimeError):
    """What a runtime says when the host waits for the device during a capture."""


class _Recorder(TorchDispatchMode):
    def __init__(self, notes: list[Note]) -> None:
        super().__init__()
        self._notes = notes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select"):
            raise CaptureError(f"operation not permitted while capturing: {name}")
        result = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in _tensors((args, kwargs))}
        fresh = [t for t in _tensors(result) if t.untyped_storage().data_ptr() not in given]
        if "empty" not in name:  # memory without values: a graph keeps what is there
            self._notes.append((func, args, dict(kwargs or {}), fresh))
        return result


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for entry in value for t in _tensors(entry)] if isinstance(value, list | tuple) else []


class RecordedGraph(Graph):
    """See the module's docstring."""

    def __init__(self, device: RecordingDevice) -> None:
        self._device, self._notes = device, []
        self._recorder = _Recorder(self._notes)

    def __enter__(self) -> Graph:
        if "capture" in self._device.flaws:
            raise CaptureError("the runtime refuses to capture")
        self._recorder.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._recorder.__exit__(*exc)

    def replay(self) -> None:
        self._device.replays += 1
        if "frozen" in self._device.flaws:
            return
        for func, args, kwargs, fresh in self._notes:
            for old, new in zip(fresh, _outputs(func(*args, **kwargs), args, kwargs), strict=True):
                old.copy_(new)


def _outputs(result: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    given = {t.untyped_storage().data_ptr() for t in _tensors((args, kwargs))}
    return [t for t in _tensors(result) if t.untyped_storage().data_ptr() not in given]


class RecordingDevice(NullDevice):
    """Host memory, no streams of its own, graphs."""

    def __init__(self, index: int, flaws: frozenset[str]) -> None:
        caps = frozenset({Cap.BF16} if "no graphs" in flaws else {Cap.BF16, Cap.GRAPHS})
        props = DeviceProps("recording device", "recording", DriverKind.HOST, caps=caps)
        Device.__init__(self, "recording", "", index, props, torch.device("cpu"))
        self.flaws, self.replays, self._stream = flaws, 0, HostStream()
        self.shared: list[bool] = []

    def graph(self, share: Graph | None = None) -> Graph:
        self.shared.append(share is not None)
        return RecordedGraph(self)


class _Decode(Kernel):
    """flash_mla.decode without a look at lengths on the host: every key of the table, masked."""

    op, name = "flash_mla.decode", "masked_decode"

    def run(self, plan: Any, stream: Any, args: Any, out: Any, workspace: Any) -> None:
        q, cache, table, lens, _, _, d_v, _, scale = args
        page = cache.shape[1]
        keys = cache.reshape(-1, cache.shape[2])[(table[:, :, None] * page + torch.arange(page)).flatten(1)].float()
        seen = torch.arange(keys.shape[1]) < lens[:, None]
        keys = torch.where(seen[:, :, None], keys, 0.0)  # rows that nobody wrote may hold NaN
        logits = (q[:, 0].float() * scale) @ keys.transpose(1, 2)
        logits = torch.where(seen[:, None], logits, -torch.inf)
        total = logits.logsumexp(-1)
        weights = torch.where(seen[:, None], (logits - total[..., None]).exp(), 0.0)
        out[0].copy_((weights @ keys[..., :d_v])[:, None])
        out[1].copy_(total[..., None])


class _Write(Kernel):
    """flash_mla.kv_cache_write into float32 and bfloat16 rows; skipped slots write a row back onto itself."""

    op, name = "flash_mla.kv_cache_write", "masked_write"

    def run(self, plan: Any, stream: Any, args: Any, out: Any, workspace: Any) -> None:
        cache, rows, slots, _ = args
        flat, keep = cache.view(-1, cache.shape[2]), slots >= 0
        first = keep.int().argmax()
        pick = torch.where(keep, torch.arange(len(slots)), first)
        place = slots[pick].clamp(0)
        old = flat[place]
        flat[place] = torch.where(keep.any(), rows[pick].to(cache.dtype), old)


class _ReadingDecode(_Decode):
    """The same with one value read on the host: what must be found before a capture."""

    name = "reading_decode"

    def run(self, plan: Any, stream: Any, args: Any, out: Any, workspace: Any) -> None:
        if int(args[3].max()) >= 0:
            super().run(plan, stream, args, out, workspace)


class RecordingBackend(Backend):
    """`flaws`: "no graphs", "capture" (the runtime refuses), "frozen" (replays do nothing), "host read"."""

    name = "recording"
    priority = -2

    def __init__(self, flaws: Sequence[str] = ()) -> None:
        self._flaws = frozenset(flaws)

    def probe(self, driver: str = "") -> Probe:
        return Probe(available=True, device_count=1, version="1")

    def open(self, index: int, driver: str = "", arch: str | None = None) -> Device:
        return RecordingDevice(index, self._flaws)

    def kernels(self) -> Sequence[Kernel]:
        return (_ReadingDecode() if "host read" in self._flaws else _Decode(), _Write())


def factory(*flaws: str) -> Callable[[], Backend]:
    """A backend factory for `deepinfer.register_backend`."""
    return lambda: RecordingBackend(flaws)
