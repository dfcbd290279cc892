"""One check of the suite, what it is run against, and how it ends.

Invariant: listing items is cheap and touches no tensor; all work happens in `Item.run`. A check that finds a breach
raises `Breach`; one that has nothing to look at on this input raises `Vacuous`, which is counted apart from passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from deepinfer.conformance.profile import Entry, Profile
from deepinfer.errors import DeepInferError
from deepinfer.hal.backend import Backend
from deepinfer.hal.device import Device


class Breach(DeepInferError, AssertionError):
    """The backend breaks the contract; the message says where and how."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        super().__init__(problems if isinstance(problems, str) else "\n".join(problems))


class Vacuous(Exception):
    """This input has no place that the check could look at; the text says which."""


@dataclass(frozen=True)
class Target:
    """What is under test. `model` is a checkpoint directory for L3 or None; `full` selects the long tier."""

    backend: Backend
    device: Device
    profile: Profile
    full: bool = False
    model: str | None = None


@dataclass(frozen=True)
class Item:
    """A check of level L0..L3. `subject` is an op, "backend", "device" or "engine"; `case` may be empty.

    `run` may return the name of the kernel that it proved.
    """

    level: str
    subject: str
    case: str
    check: str
    run: Callable[[Target], str | None] = field(compare=False, repr=False)
    expect: Entry | None = None

    @property
    def id(self) -> str:
        return "/".join(part for part in (self.level, self.subject, self.case, self.check) if part)


def require(condition: bool, problem: str) -> None:
    """Raise `Breach(problem)` unless `condition`."""
    if not condition:
        raise Breach(problem)


def require_none(problems: Sequence[str]) -> None:
    """Raise one `Breach` with all `problems` if there are any."""
    if problems:
        raise Breach(problems)
