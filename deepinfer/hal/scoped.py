"""Choices that hold inside a `with` block, for one context (thread or task): the device, the fallback policy, pins.

Invariants: leaving a block never raises and never overrides a choice made after it; blocks that generators leave out of
order, or that the garbage collector or another task closes, restore the nearest choice whose block is still open. A
task or thread that copied the context inside the block keeps the choice, as context variables promise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")


class _Block(Generic[T]):
    """One open `with` block; `outer` is the choice round it."""

    __slots__ = ("left", "outer", "value")

    def __init__(self, value: T, outer: _Block[T] | None) -> None:
        self.value, self.outer, self.left = value, outer, False


class Scoped(Generic[T]):
    """A value with a default that blocks replace."""

    def __init__(self, name: str, default: T) -> None:
        self._default = default
        self._innermost: ContextVar[_Block[T] | None] = ContextVar(name, default=None)

    def get(self) -> T:
        """The choice of the innermost block of this context, else the default."""
        block = self._innermost.get()
        return self._default if block is None else block.value

    @contextlib.contextmanager
    def using(self, value: T) -> Iterator[T]:
        """Choose `value` inside the block."""
        block = _Block(value, _still_open(self._innermost.get()))
        self._innermost.set(block)
        try:
            yield value
        finally:
            block.left = True
            if self._innermost.get() is block:
                self._innermost.set(_still_open(block))


def _still_open(block: _Block[T] | None) -> _Block[T] | None:
    while block is not None and block.left:
        block = block.outer
    return block
