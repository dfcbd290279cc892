"""Running the suite as a library: the cpu backend's own levels, selection, report and its JSON form."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

import deepinfer
from deepinfer import conformance
from deepinfer.conformance import op_items, suite
from deepinfer.errors import BackendUnavailable, InvalidArgument
from deepinfer.registry import all_specs


def test_cpu_passes_contract_and_device_levels() -> None:
    report = conformance.run("cpu", levels=["L0", "L1"])
    assert report.ok, report.text()
    assert {result.level for result in report.results} == {"L0", "L1"}


def test_null_backend_fails_ops_for_want_of_kernels() -> None:
    report = conformance.run("null", levels=["L2"], ops=["norm.rms_norm"])
    assert not report.ok
    reference = [result for result in report.results if result.check == "reference"]
    assert {result.outcome for result in reference} == {"failed"}
    assert all("not listed" in result.message for result in reference)


def test_report_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "report.json"
    seen: list[int] = []

    def left(done: int, total: int, result: conformance.Result) -> None:
        seen.append(total - done)

    report = conformance.run("cpu", levels=["L2"], ops=["norm.*"], report=path, progress=left)
    data = json.loads(path.read_text("utf-8"))
    assert data["ok"] is True
    assert data["counts"] == report.counts()
    assert data["cases"] == report.cases() > 20
    assert data["versions"]["deepinfer"] == deepinfer.__version__
    assert data["device"]["spec"] == "cpu:0"
    assert len(data["results"]) == len(report.results) == len(seen)
    assert seen[-1] == 0
    assert report.text().startswith("PASS cpu:0 (quick)")


def test_unknown_level_and_backend_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="L9"):
        conformance.run("cpu", levels=["L9"])
    with pytest.raises(BackendUnavailable, match="no-such"):
        conformance.run("no-such")


def test_empty_selection_is_not_a_pass() -> None:
    report = conformance.run("cpu", levels=["L2"], ops=["no.such.op"])
    assert not report.ok


@pytest.mark.parametrize(
    ("tags", "full", "profile", "chosen"),
    [
        (("quick",), False, None, True), (("full",), False, None, False), (("full",), True, None, True),
        (("bench",), True, None, False), (("bench", "full"), True, None, True), (("edge",), True, None, True),
        (("quick", "profile:big"), True, None, False), (("profile:big",), False, "big", True),
    ],
)
def test_tiers(tags: tuple[str, ...], full: bool, profile: str | None, chosen: bool) -> None:
    assert op_items.selected(tags, full, profile) is chosen


def test_case_ids_are_unique() -> None:
    for spec in all_specs():
        counts = Counter(case.id for case in spec.cases())
        repeated = [name for name, number in counts.items() if number > 1]
        assert not repeated, f"{spec.name}: {repeated[:5]}"


def test_full_tier_holds_the_quick_one() -> None:
    quick = {item.id for item in suite.collect(suite.target("cpu"), ["L2"], ["norm.*"])}
    full = {item.id for item in suite.collect(suite.target("cpu", full=True), ["L2"], ["norm.*"])}
    assert quick <= full
