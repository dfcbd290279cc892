"""Two runs side by side: which cases got slower, by the ratio of medians and the spread of both runs.

A case is "slower" when its median grew beyond the threshold and even its p10 now lies above the old median; the second
clause keeps noise from failing a build. "missing" and "new" cases are listed; a missing one is not a pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepinfer.bench import rows
from deepinfer.bench.rows import Row
from deepinfer.errors import InvalidArgument, invalid


@dataclass(frozen=True)
class Comparison:
    """`rows`: op, case, before_us, after_us, ratio, verdict (same | faster | slower | missing | new)."""

    rows: list[dict[str, Any]]
    threshold: float

    @property
    def ok(self) -> bool:
        """False when a case got slower or vanished."""
        return all(row["verdict"] not in ("slower", "missing") for row in self.rows)

    def verdicts(self) -> dict[str, int]:
        """Number of cases by verdict."""
        found: dict[str, int] = {}
        for row in self.rows:
            found[row["verdict"]] = found.get(row["verdict"], 0) + 1
        return found


def compare(before: str | Path, after: str | Path, *, threshold: float = 0.05) -> Comparison:
    """Compare two JSONL files of rows; of several rows for one case the last one counts.

    Args:
        before, after: files that `run` wrote.
        threshold: relative growth of the median from which a case may count as slower, 0.05 = 5 %.

    Returns:
        A `Comparison`; its `ok` is False when a case got slower or vanished.

    Raises:
        InvalidArgument: a file cannot be read, the threshold is negative, or no case is in both files.
    """
    if not threshold >= 0:
        raise invalid("threshold", threshold, "must be >= 0", nearest=0.0)
    old, new = _latest(before), _latest(after)
    if not set(old) & set(new):
        raise InvalidArgument(f"compare: {before} and {after} have no case in common (op, case, device, clock, state)")
    found = [_judge(old.get(key), new.get(key), threshold) for key in [*old, *(key for key in new if key not in old)]]
    return Comparison(found, threshold)


def _latest(path: str | Path) -> dict[tuple[str, ...], Row]:
    return {rows.key(row): row for row in rows.read(path)}


def _known(row: Row, name: str) -> float:
    """The quantile, or the median of a row without a spread (one modelled time)."""
    return float(row["median_us"] if row[name] is None else row[name])


def _judge(old: Row | None, new: Row | None, threshold: float) -> dict[str, Any]:
    some: Mapping[str, Any] = old or new or {}
    row = {"op": some["op"], "case": some["case"], "before_us": None, "after_us": None, "ratio": None}
    if old is None or new is None:
        row["before_us" if new is None else "after_us"] = some["median_us"]
        return row | {"verdict": "missing" if new is None else "new"}
    ratio = new["median_us"] / old["median_us"]
    verdict = "same"
    if ratio > 1 + threshold and _known(new, "p10") > old["median_us"]:
        verdict = "slower"
    elif ratio < 1 / (1 + threshold) and _known(new, "p90") < old["median_us"]:
        verdict = "faster"
    return row | {
        "before_us": old["median_us"], "after_us": new["median_us"], "ratio": round(ratio, 4), "verdict": verdict,
    }
