"""Reading typed fields out of a JSON document of a checkpoint, with errors that name the file and the field.

Invariant: nothing is coerced silently; a wrong type, a number out of range or a missing field is a `CheckpointError`.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deepinfer.errors import CheckpointError

_REQUIRED: Any = object()
MAX_TEXT = 1 << 28  # bytes of one JSON or template file; the index of a model of 700 billion parameters has 9 MB
FLOAT32_MAX = 3.4028234663852886e38
SHOWN = 200  # characters of a wrong value in a message


def is_file(path: Path) -> bool:
    """Whether an optional file is there. What lies at its name but is no file is an error, not an absent file."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise CheckpointError(f"{path}: is a link to a file that does not exist") from None
        return False
    except (OSError, ValueError) as error:  # a name that no file system takes, a loop of links, no permission
        raise CheckpointError(f"{path}: cannot be opened: {getattr(error, 'strerror', None) or error}") from error
    if not stat.S_ISREG(mode):
        raise CheckpointError(f"{path}: is not a file")
    return True


def read_text(path: Path) -> str:
    """The UTF-8 text in `path`."""
    if not is_file(path):
        raise CheckpointError(f"{path}: the file does not exist")
    try:
        if path.stat().st_size > MAX_TEXT:
            raise CheckpointError(f"{path}: has {path.stat().st_size} bytes, must be at most {MAX_TEXT}")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read as UTF-8 text: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`."""
    text = read_text(path)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers with more digits than Python converts
        raise CheckpointError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: holds a JSON {type(data).__name__}, must be an object")
    return data


class Fields:
    """A JSON object together with where it came from."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self.data, self.where = data, where

    def error(self, name: str, rule: str) -> CheckpointError:
        """The error for field `name`."""
        value = repr(self.data[name]) if name in self.data else "nothing"
        value = value if len(value) <= SHOWN else value[:SHOWN] + "..."
        return CheckpointError(f"{self.where}: {name}: got {value}, {rule}")

    def present(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.data.get(name) is not None

    def _get(self, name: str, default: Any) -> Any:
        if self.present(name):
            return self.data[name]
        if default is _REQUIRED:
            raise self.error(name, "is required")
        return default

    def integer(self, name: str, default: int = _REQUIRED, *, low: int = 1, high: int = 2**31 - 1) -> int:
        """An integer in [low, high]."""
        value = self._get(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(name, f"must be an integer in [{low}, {high}]")
        return int(value)

    def number(self, name: str, default: float = _REQUIRED, *, low: float = 0.0) -> float:
        """A finite number >= low that fits float32, in which models compute."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= FLOAT32_MAX:
            raise self.error(name, f"must be a finite number >= {low} that fits float32")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        """true or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "must be true or false")
        return value

    def choice(self, name: str, default: str, allowed: Sequence[str]) -> str:
        """One of the texts in `allowed`."""
        value = self._get(name, default)
        if value not in allowed:
            raise self.error(name, f"must be one of {', '.join(allowed)}")
        return str(value)

    def object(self, name: str) -> Fields | None:
        """A nested object, None when absent or null."""
        if not self.present(name):
            return None
        if not isinstance(self.data[name], Mapping):
            raise self.error(name, "must be an object")
        return Fields(self.data[name], f"{self.where}: {name}")
