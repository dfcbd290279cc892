"""The table of op specifications, filled by `deepinfer.ops` on import."""

from __future__ import annotations

from importlib import import_module
from typing import TypeVar

from deepinfer.errors import invalid
from deepinfer.registry.spec import OpSpec

_specs: dict[str, OpSpec] = {}
_S = TypeVar("_S", bound=type[OpSpec])


def register(spec_class: _S) -> _S:
    """Class decorator: make one instance of an OpSpec known under its name."""
    spec = spec_class()
    if spec.name in _specs:
        raise invalid("spec", spec.name, "must be registered once")
    _specs[spec.name] = spec
    return spec_class


def get_spec(name: str) -> OpSpec:
    """The specification called `name` ("family.op")."""
    if name not in _specs:
        _load()
    try:
        return _specs[name]
    except KeyError:
        raise invalid("op", name, f"must be one of {', '.join(sorted(_specs))}") from None


def spec_names() -> list[str]:
    """Names of all ops, sorted."""
    _load()
    return sorted(_specs)


def all_specs() -> list[OpSpec]:
    """All specifications, sorted by name."""
    return [_specs[name] for name in spec_names()]


def _load() -> None:
    import_module("deepinfer.ops")
