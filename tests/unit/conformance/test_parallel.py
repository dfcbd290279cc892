"""The suite in several processes: the same results in the same order, and failures that are not lost."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import deepinfer
from deepinfer import conformance
from deepinfer.cli.main import main
from deepinfer.conformance import parallel, suite
from deepinfer.errors import InvalidArgument
from deepinfer.hal import discovery
from deepinfer.hal.null import NullBackend
from deepinfer.hal.types import DriverKind


def test_two_processes_give_the_results_of_one() -> None:
    chosen = {"levels": ["L0", "L2"], "ops": ["quant.pack_scales"]}
    seen: list[int] = []
    alone = conformance.run("cpu", **chosen)
    shared = conformance.run("cpu", **chosen, jobs=2, progress=lambda done, total, result: seen.append(total - done))
    assert [(r.id, r.outcome, r.kernel) for r in shared.results] == [(r.id, r.outcome, r.kernel) for r in alone.results]
    assert shared.kernels == alone.kernels
    assert shared.environment["jobs"] == 2
    assert seen == list(range(len(alone.results) - 1, -1, -1))


def test_every_item_is_handed_out_once_and_long_ones_first() -> None:
    items = suite.collect(suite.target("cpu"))
    order = list(parallel.chunks(items))
    assert sorted(number for numbers in order for number in numbers) == list(range(len(items)))
    assert all(len({items[number].subject for number in numbers}) == 1 for numbers in order)
    assert items[order[0][0]].level == "L3"
    homes = {(items[n].subject, items[n].case): set[int]() for n in range(len(items)) if items[n].level == "L2"}
    for home, numbers in enumerate(order):
        for number in numbers:
            homes.get((items[number].subject, items[number].case), set()).add(home)
    assert all(len(found) == 1 for found in homes.values()), "a case is in one process"


@pytest.mark.parametrize("jobs", [1, 2, 3, 8, 999])
def test_processes_start_at_different_ops_and_lose_no_batch(jobs: int) -> None:
    found = [[number] for number in range(37)]
    order = parallel.in_turn(found, jobs)
    assert sorted(order) == found
    first = sorted(batch[0] for batch in order[: min(jobs, 4)])
    assert all(b - a >= 37 // jobs for a, b in pairwise(first))
    assert parallel.in_turn([], jobs) == []


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 3), ("200000 100000", 2), ("50000 100000", 1), ("900000 100000", 3), ("?", 3)]
)
def test_cores_are_those_that_may_be_used(
    quota: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 5, 7}, raising=False)
    (tmp_path / "cpu.max").write_text(quota + "\n")
    assert parallel.usable_cores(tmp_path / "cpu.max") == cores
    assert parallel.usable_cores(tmp_path / "absent") == 3


def test_unasked_there_is_a_process_per_core_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    target = suite.target("cpu")
    items = suite.collect(target, ["L2", "L3"])
    engine = [item for item in items if item.level == "L3"]
    for cores, expected in ((1, 1), (4, 4), (64, parallel.MOST)):
        monkeypatch.setattr(parallel, "usable_cores", lambda cores=cores: cores)
        assert parallel.processes(target, items, None) == expected
        assert parallel.processes(target, engine, None) == expected
        assert parallel.processes(target, items[:99], None) == 1
        assert parallel.processes(target, items, 3) == 3

    class OnHardware:
        props = replace(target.device.props, kind=DriverKind.HARDWARE)

    hardware = replace(target, device=OnHardware())  # type: ignore[arg-type]
    assert parallel.processes(hardware, items, None) == 1
    assert parallel.processes(hardware, items, 2) == 2


@pytest.fixture
def registered() -> Iterator[None]:
    deepinfer.register_backend("null", NullBackend)
    yield
    discovery.unregister_backend("null")


@pytest.mark.usefixtures("registered")
def test_a_backend_of_this_process_alone_takes_one_process_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "deepinfer"):
        report = conformance.run("null", levels=["L0"], jobs=2)
    assert report.results
    assert report.environment["jobs"] == 1
    assert any("'null'" in text and "one process, not 2" in text for text in caplog.messages)
    assert not discovery.in_every_process("null")
    assert discovery.in_every_process("cpu")


def test_the_command_asks_for_the_usable_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[object] = []

    def run(*args: object, **options: object) -> conformance.Report:
        asked.append(options["jobs"])
        return conformance.Report("cpu", {"spec": "cpu"}, "quick", {}, [])

    monkeypatch.setattr(conformance, "run", run)
    for options in ([], ["--jobs", "3"]):
        main(["conformance", "cpu", "--quick", *options])
    assert asked == [None, 3]


def test_fewer_than_one_process_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="jobs"):
        conformance.run("cpu", levels=["L0"], jobs=0)
