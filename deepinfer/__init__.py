"""DeepInfer: Flash MLA, Deep GMM and Deep EP on pluggable backends, and an offline inference engine on top.

>>> import deepinfer, torch
>>> device = deepinfer.set_backend("cpu")
>>> deepinfer.ops.norm.rms_norm(torch.ones(2, 4), torch.ones(4)).shape
torch.Size([2, 4])

Importing this package opens no device, imports no backend and needs no toolkit.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from deepinfer import errors
from deepinfer.config import configure_logging

if TYPE_CHECKING:
    from deepinfer import ops
    from deepinfer.api import explain
    from deepinfer.engine import LLM, RequestOutput, SamplingParams
    from deepinfer.hal.current import current_device, device, devices, set_backend, use_backend
    from deepinfer.hal.discovery import register_backend
    from deepinfer.registry.fallback import fallback

__version__ = "0.1.0"

__all__ = [
    "LLM", "RequestOutput", "SamplingParams", "__version__", "current_device", "device", "devices", "errors",
    "explain", "fallback", "ops", "register_backend", "set_backend", "use_backend",
]

# Nothing heavy is imported before it is used: the pytest plugin of the conformance suite is inside this package.
_LAZY = {
    "ops": ("deepinfer.ops", None),
    "explain": ("deepinfer.api", "explain"),
    "fallback": ("deepinfer.registry.fallback", "fallback"),
    "LLM": ("deepinfer.engine", "LLM"),
    "SamplingParams": ("deepinfer.engine", "SamplingParams"),
    "RequestOutput": ("deepinfer.engine", "RequestOutput"),
    **{
        name: ("deepinfer.hal", name)
        for name in ("current_device", "device", "devices", "register_backend", "set_backend", "use_backend")
    },
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'deepinfer' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    loaded = import_module(module)
    value = globals()[name] = getattr(loaded, attribute) if attribute else loaded
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


configure_logging()
