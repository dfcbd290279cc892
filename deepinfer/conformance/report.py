"""Results of a run of the suite, as objects, as JSON and as a short text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

OK = ("passed", "vacuous", "unsupported", "expected_failure", "skipped")
FORMAT = 1
SHOWN = 40  # failures printed in full


@dataclass(frozen=True)
class Result:
    """How one item ended. `outcome` is "failed" or one of `OK`; `message` is the breach or the reason; `kernel` is what
    the check proved, where it knows."""

    id: str
    level: str
    subject: str
    case: str
    check: str
    outcome: str
    message: str = ""
    seconds: float = 0.0
    kernel: str = ""

    @property
    def ok(self) -> bool:
        return self.outcome in OK


@dataclass(frozen=True)
class Report:
    """All results against one device. `device` holds spec, name, arch and kind; `versions` python, torch, deepinfer.

    `kernels`: op -> kernel -> {"cases": number proved, "sources": file names, "hash": of their contents}.
    """

    backend: str
    device: Mapping[str, str]
    tier: str
    versions: Mapping[str, str]
    results: Sequence[Result]
    seconds: float = 0.0
    environment: Mapping[str, Any] = field(default_factory=dict)
    kernels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True when at least one item ran and none failed."""
        return bool(self.results) and all(result.ok for result in self.results)

    @property
    def failures(self) -> list[Result]:
        return [result for result in self.results if not result.ok]

    def counts(self) -> dict[str, int]:
        """Number of items by outcome."""
        return dict(Counter(result.outcome for result in self.results))

    def cases(self) -> int:
        """Number of distinct (op, case) pairs among the L2 items."""
        return len({(result.subject, result.case) for result in self.results if result.level == "L2"})

    def ops(self) -> dict[str, dict[str, int]]:
        """Outcome counts per op of level L2."""
        table: dict[str, Counter[str]] = {}
        for result in self.results:
            if result.level == "L2":
                table.setdefault(result.subject, Counter())[result.outcome] += 1
        return {op: dict(counts) for op, counts in sorted(table.items())}

    def to_json(self) -> dict[str, Any]:
        """A plain structure for json.dump; `format` grows when fields change their meaning."""
        return {
            "format": FORMAT, "ok": self.ok, "backend": self.backend, "device": dict(self.device), "tier": self.tier,
            "versions": dict(self.versions), "environment": dict(self.environment), "seconds": round(self.seconds, 3),
            "counts": self.counts(), "cases": self.cases(), "ops": self.ops(),
            "kernels": self.kernels, "results": [asdict(result) for result in self.results],
        }

    def write(self, path: str | Path) -> None:
        """Write the JSON form to `path`, creating its folder."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(self.to_json(), indent=1) + "\n", "utf-8")

    def text(self) -> str:
        """Counts and every failure, for a terminal."""
        counts = ", ".join(f"{number} {name}" for name, number in sorted(self.counts().items()))
        verdict = "PASS" if self.ok else "FAIL"
        lines = [
            f"{verdict} {self.device.get('spec', self.backend)} ({self.tier}): {len(self.results)} checks on "
            f"{self.cases()} op cases in {self.seconds:.1f} s: {counts or 'nothing ran'}"
        ]
        for result in self.failures[:SHOWN]:
            lines.append(f"  failed {result.id}\n    {result.message}".replace("\n", "\n    "))
        if len(self.failures) > SHOWN:
            lines.append(f"  and {len(self.failures) - SHOWN} more failures")
        return "\n".join(lines)
