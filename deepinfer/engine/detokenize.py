"""Tokens to text, piece by piece: never half of a character, never text that a stop string will cut off.

A byte-level tokenizer may split one character over several tokens; an unfinished one decodes to U+FFFD at the end of
the text. `TextStream` therefore holds trailing U+FFFD back until more tokens settle them or the sequence ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer.engine.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
UNSETTLED = 3  # an unfinished UTF-8 character has at most 3 bytes, so at most 3 replacement characters stand for it
WINDOW = 16  # tokens decoded again for context before the window is moved


class TextStream:
    """Text of one growing token list.

    Attributes:
        text: everything settled so far.
        cut: length at which a stop string ended the text, None while none was found.
    """

    def __init__(
        self, tokenizer: Tokenizer, skip_special: bool, stops: Sequence[str] = (), keep_stop: bool = False
    ) -> None:
        self._tokenizer, self._skip = tokenizer, skip_special
        self._stops, self._keep = tuple(stops), keep_stop
        self._longest = max((len(stop) for stop in self._stops), default=0)
        self._window: list[int] = []
        self._done = 0
        self._sent = 0
        self.text = ""
        self.cut: int | None = None

    def push(self, tokens: Sequence[int], check_stops: bool = True) -> str | None:
        """Add tokens; returns the stop string that is now complete, or None."""
        for token in tokens:
            self._window.append(token)
            decoded = self._tokenizer.decode(self._window, self._skip)
            settled = len(decoded) - _unsettled(decoded)
            found = self._extend(decoded[self._done : settled], check_stops)
            self._done = max(self._done, settled)
            if len(self._window) >= 2 * WINDOW:
                self._move_window()
            if found is not None:
                return found
        return None

    def finish(self, check_stops: bool = True) -> str | None:
        """No more tokens will come: what was held back as an unfinished character becomes text."""
        if self.cut is None:
            decoded = self._tokenizer.decode(self._window, self._skip)
            found = self._extend(decoded[self._done :], check_stops)
            self._done = len(decoded)
            return found
        return None

    def take(self, final: bool) -> str:
        """Text that became certain since the last call; everything with `final`."""
        end = len(self.text) if final or not self._stops else len(self.text) - self._held()
        piece = self.text[self._sent : end]
        self._sent = max(self._sent, end)
        return piece

    def _extend(self, piece: str, check_stops: bool) -> str | None:
        if not piece:
            return None
        old = len(self.text)
        self.text += piece
        if not self._stops or not check_stops:
            return None
        # A stop string counts where it ends: one that ended while stops were not checked is text like any other.
        hits = [(self.text.find(stop, max(old - len(stop) + 1, 0)), stop) for stop in self._stops]
        hits = [(at, stop) for at, stop in hits if at >= 0]
        if not hits:
            return None
        at, stop = min(hits, key=lambda hit: (hit[0], -len(hit[1])))
        self.cut = at + len(stop) if self._keep else at
        self.text = self.text[: self.cut]
        return stop

    def _held(self) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        for size in range(min(self._longest - 1, len(self.text)), 0, -1):
            tail = self.text[-size:]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0

    def _move_window(self) -> None:
        self._window = self._window[-WINDOW:]
        decoded = self._tokenizer.decode(self._window, self._skip)
        self._done = len(decoded) - _unsettled(decoded)


def _unsettled(decoded: str) -> int:
    count = 0
    while count < min(UNSETTLED, len(decoded)) and decoded[-1 - count] == REPLACEMENT:
        count += 1
    return count
