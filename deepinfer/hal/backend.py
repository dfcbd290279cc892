"""The interface a backend package implements, and the table of backends that the core knows by name.

A backend is reached through the entry-point group "deepinfer.backends": the entry's object is called without
arguments and returns a `Backend`. Importing that object must be cheap: no driver is opened before `probe` or `open`.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepinfer.hal.device import Device
from deepinfer.hal.types import Probe

if TYPE_CHECKING:
    from deepinfer.registry.kernel import Kernel

API_VERSION = 1


class Backend(abc.ABC):
    """A family of devices and the kernels for them.

    Attributes:
        name: unique lower-case name, e.g. "ascend950".
        aliases: other names that select it.
        api_version: `API_VERSION` it was written for; another one is refused at load.
        priority: higher wins the automatic choice among backends that are available on hardware; negative = never
            chosen automatically.
        drivers: driver names, the first is the default; "" is the default driver's own name in a spec.
        portable_is_native: True when the portable tier is this backend's own (cpu), so it is not a fallback.
        bit_equal_engine: claims that engine options which change nothing (batch mix, chunks, prefix cache, block size)
            change no bit of a log-probability; level L3 of the conformance suite holds it to that.
    """

    name: str
    aliases: tuple[str, ...] = ()
    api_version: int = API_VERSION
    priority: int = 0
    drivers: tuple[str, ...] = ("",)
    portable_is_native: bool = False
    bit_equal_engine: bool = False

    @abc.abstractmethod
    def probe(self, driver: str = "") -> Probe:
        """Whether devices can be opened through `driver`. Never raises, < 50 ms, opens nothing."""

    @abc.abstractmethod
    def open(self, index: int, driver: str = "", arch: str | None = None) -> Device:
        """Open device `index`, restricted to architecture `arch` if given ("sm_90", ...)."""

    @abc.abstractmethod
    def kernels(self) -> Sequence[Kernel]:
        """All kernels this backend declares; called once, on first use."""

    def ep_transports(self) -> Sequence[Any]:
        """Deep EP transports (`deepinfer.ops.deep_ep.Transport` factories) this backend adds."""
        return ()

    def conformance(self) -> Path | None:
        """Path of the conformance.toml that lists what is not claimed, or None when everything is."""
        return None


@dataclass(frozen=True)
class KnownBackend:
    """A backend the project ships or knows of, so that a missing one can be explained."""

    name: str
    distribution: str
    install: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Alias:
    """Another name for a backend, optionally restricted to architectures (first match is opened)."""

    backend: str
    arch: tuple[str, ...] = ()


KNOWN: tuple[KnownBackend, ...] = (
    KnownBackend("cpu", "deepinfer", "pip install deepinfer"),
    KnownBackend("cuda", "deepinfer-cuda", "pip install deepinfer-cuda", aliases=("nvidia",)),
    KnownBackend("ascend950", "deepinfer-ascend950", "pip install deepinfer-ascend950", aliases=("ascend", "npu")),
    KnownBackend("null", "deepinfer", "pip install deepinfer"),
)

ARCH_ALIASES: dict[str, Alias] = {
    "cuda_sm10": Alias("cuda", ("sm_100", "sm_103")),
    "cuda_sm90": Alias("cuda", ("sm_90",)),
}
