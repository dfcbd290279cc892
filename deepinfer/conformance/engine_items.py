"""Level L3: the engine on the backend under test (filled by the engine's own contract; see docs/design/0002)."""

from __future__ import annotations

from collections.abc import Iterator

from deepinfer.conformance.item import Item, Target


def items(target: Target) -> Iterator[Item]:
    """All L3 items for `target`."""
    yield from ()
