"""Every error DeepInfer raises, and the one way to word a complaint about an argument.

Invariant: a message names the argument, the value that came, the rule it broke and, where there is one, the
nearest thing that works. All classes derive from `DeepInferError` and from the built-in a caller would expect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

LONGEST = 300  # characters of a value that a message shows


class DeepInferError(Exception):
    """Base class of all errors raised on purpose by DeepInfer."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled and copied as message and attributes, whatever the arguments of the class's `__init__`."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[DeepInferError], args: tuple[Any, ...], state: dict[str, Any]) -> DeepInferError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class InvalidArgument(DeepInferError, ValueError):
    """An argument breaks the contract of the function that got it; nothing was launched or changed."""


class UnsupportedError(DeepInferError, NotImplementedError):
    """The call is legal but no kernel of the current device takes it; `reasons` lists every candidate's."""

    def __init__(self, message: str, reasons: Sequence[str] = ()) -> None:
        super().__init__("\n  - ".join([message, *reasons]))
        self.reasons = tuple(reasons)


class BackendUnavailable(DeepInferError, RuntimeError):
    """A backend asked for by name cannot serve; `reasons` say why and `fix` is a command that would help."""

    def __init__(self, message: str, reasons: Sequence[str] = (), fix: str | None = None) -> None:
        lines = [message, *(f"  - {reason}" for reason in reasons)]
        if fix:
            lines.append(f"  To fix it: {fix}")
        super().__init__("\n".join(lines))
        self.reasons = tuple(reasons)
        self.fix = fix


class DriverError(DeepInferError, RuntimeError):
    """A driver call returned a failing status; `status` is its name in driver.h without the DI_ prefix."""

    def __init__(self, function: str, status: str, message: str) -> None:
        super().__init__(f"{function} failed with {status}: {message or 'no message from the driver'}")
        self.function, self.status = function, status


class OutOfMemory(DeepInferError, MemoryError):
    """The device has too little free memory for this call; the message names the op and its kernel."""


class AbiError(DeepInferError, RuntimeError):
    """A driver library speaks another ABI version, or its table is shorter than the fields that are needed."""


class CommTimeout(DeepInferError, TimeoutError):
    """A rank did not arrive before the deadline; `missing` names the ranks. The process stays usable."""

    def __init__(self, message: str, missing: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


class CheckpointError(DeepInferError, ValueError):
    """A model directory cannot be loaded; the message names the file and the tensor or field."""


def invalid(arg: str, value: object, rule: str, nearest: object | None = None) -> InvalidArgument:
    """Build the error for argument `arg`: `raise invalid("page", 0, "must be >= 1", nearest=1)`.

    `rule` is a clause that follows the value; `nearest` is the closest legal value, when one exists.
    """
    hint = "" if nearest is None else f"; nearest legal value: {nearest}"
    return InvalidArgument(f"{arg}: got {_shown(value)}, {rule}{hint}")


def _shown(value: object) -> str:
    """`repr`, cut where it would bury the rule; values of other libraries may not even have one."""
    try:
        text = repr(value)
    except Exception as error:
        return f"a {type(value).__name__} (its repr raised {type(error).__name__})"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"
