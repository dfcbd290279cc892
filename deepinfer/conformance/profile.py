"""What a backend does not claim: `conformance.toml` beside its package, read strictly.

    [[unsupported]]        the call must be refused with reasons; a result is an unexpected pass and fails
    [[expected_failure]]   the check must fail; a pass fails
    [[skip]]               not run (a simulator that would need hours, say)

Each entry has `op`, `case`, `check` (shell patterns, default "*"), may be limited to drivers by `driver`, and must have
a `reason` of at least a few words. Invariant: an entry that matches no item of the full listing is an error (stale).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepinfer.errors import InvalidArgument, invalid

if TYPE_CHECKING:
    from deepinfer.conformance.item import Item

KINDS = ("unsupported", "expected_failure", "skip")
FIELDS = ("op", "case", "check", "driver", "reason")
MIN_REASON = 10


@dataclass(frozen=True)
class Entry:
    """One exception with its reason."""

    kind: str
    reason: str
    op: str = "*"
    case: str = "*"
    check: str = "*"
    driver: str = "*"

    def matches(self, item: Item) -> bool:
        pairs = ((item.subject, self.op), (item.case, self.case), (item.check, self.check))
        return all(_match(value, pattern) for value, pattern in pairs)

    def __str__(self) -> str:
        return f"[[{self.kind}]] op={self.op!r} case={self.case!r} check={self.check!r}: {self.reason}"


def _match(value: str, pattern: str) -> bool:
    # Case ids hold brackets; only * and ? are special in a pattern.
    return fnmatchcase(value, pattern.replace("[", "[[]"))


@dataclass(frozen=True)
class Profile:
    """All entries that apply to one driver."""

    entries: tuple[Entry, ...] = ()
    path: str | None = None

    def find(self, item: Item) -> Entry | None:
        """The first entry that matches `item`."""
        return next((entry for entry in self.entries if entry.matches(item)), None)

    def stale(self, items: Iterable[Item]) -> list[Entry]:
        """Entries that match none of `items` (the full listing)."""
        listed = list(items)
        return [entry for entry in self.entries if not any(entry.matches(item) for item in listed)]


def load(path: Path | None, driver: str = "") -> Profile:
    """Read a conformance.toml; None = everything is claimed. InvalidArgument names file, entry and field."""
    if path is None:
        return Profile()
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InvalidArgument(f"conformance profile {path}: {error}") from error
    unknown = sorted(set(table) - set(KINDS))
    if unknown:
        raise invalid(f"{path}: table", unknown[0], f"must be one of {KINDS}", nearest=KINDS[0])
    entries = [_entry(path, kind, raw) for kind in KINDS for raw in table.get(kind, [])]
    return Profile(tuple(entry for entry in entries if fnmatchcase(driver, entry.driver)), str(path))


def _entry(path: Path, kind: str, raw: Mapping[str, Any]) -> Entry:
    where = f"{path}: [[{kind}]]"
    unknown = sorted(set(raw) - set(FIELDS))
    if unknown:
        raise invalid(f"{where} field", unknown[0], f"must be one of {FIELDS}", nearest=FIELDS[0])
    for name, value in raw.items():
        if not isinstance(value, str):
            raise invalid(f"{where} {name}", value, "must be text")
    if len(raw.get("reason", "").strip()) < MIN_REASON:
        raise invalid(f"{where} reason", raw.get("reason", ""), "every exception needs a full reason")
    return Entry(kind, **raw)
