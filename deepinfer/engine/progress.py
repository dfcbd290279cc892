"""Progress on the terminal for long work; `rich` is loaded only when something is shown."""

from __future__ import annotations

import types
from typing import Any


class GenerateProgress:
    """A bar over the finished requests of one call; does nothing when `show` is false."""

    def __init__(self, total: int, show: bool, label: str = "generating") -> None:
        self._total, self._show, self._label = total, show, label
        self._bar: Any = None

    def __enter__(self) -> GenerateProgress:
        if self._show and self._total:
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._label, total=self._total)
        return self

    def update(self, done: int) -> None:
        """`done` of the total are finished."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
