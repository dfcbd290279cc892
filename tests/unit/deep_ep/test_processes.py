"""Deep EP between real processes over shared memory: equal bits, deadlines, death of a rank, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from deepinfer_cpu.ep.slab import reclaim

RANK = Path(__file__).with_name("rank_process.py")
LIMIT_SECONDS = 120
JOBS = ("works:4", "killed:3", "killed_early:2", "absent:2", "stopped:3")


def start(arguments: list[str]) -> subprocess.Popen:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "DEEPINFER_BACKEND": "cpu"}
    return subprocess.Popen([sys.executable, str(RANK), *arguments], env=environment, stderr=subprocess.PIPE, text=True)


def finish(processes: list[subprocess.Popen]) -> str:
    """Wait for all; what they wrote to stderr."""
    try:
        return "".join(process.communicate(timeout=LIMIT_SECONDS)[1] for process in processes)
    finally:
        for process in processes:
            process.kill()


@pytest.fixture(scope="module")
def forked(tmp_path_factory):
    """Exit codes by "scenario:size:rank", and the folder of reports, of all jobs run side by side."""
    folder = tmp_path_factory.mktemp("forked")
    errors = finish([start(["fork", str(folder), *JOBS])])
    codes = json.loads((folder / "codes.json").read_text())
    assert set(codes.values()) <= {0, -signal.SIGKILL}, errors
    return codes, folder


@pytest.fixture(scope="module")
def spawned(tmp_path_factory):
    """Reports of two ranks started as programs of their own."""
    folder = tmp_path_factory.mktemp("spawned")
    processes = [start(["rank", "works", str(rank), "2", str(folder)]) for rank in range(2)]
    errors = finish(processes)
    assert [process.returncode for process in processes] == [0, 0], errors
    return reports(folder, "works", 2)


@pytest.fixture(scope="module", params=[2, 4])
def works(request):
    if request.param == 2:
        return request.getfixturevalue("spawned")
    return reports(request.getfixturevalue("forked")[1], "works", 4)


def reports(folder: Path, scenario: str, size: int) -> list[dict]:
    """What the ranks wrote; nothing for one that was killed before its first step ended."""
    outs = [folder / f"{scenario}-{size}-{rank}.json" for rank in range(size)]
    return [json.loads(out.read_text()) if out.exists() else {} for out in outs]


def test_bits_equal_the_reference(works):
    for report in works:
        assert report["compare"]["mismatches"] == []
        assert report["compare"]["cases"] >= 10


def test_messages_larger_than_the_ring(works):
    assert all(report["stream"] for report in works)


def test_two_buffers_in_two_threads(works):
    assert all(report["threads"] for report in works)


def test_too_many_tokens_c52(works):
    first, *others = (report["too_many"] for report in works)
    assert first["error"] == "InvalidArgument"
    assert "max_tokens = 4" in first["text"]
    for seen in others:
        assert seen["error"] == "CommTimeout"
        assert seen["missing"] == [0]
        assert 1.4 < seen["seconds"] < 20.0


def test_different_calls(works):
    assert all(report["disagree"]["error"] == "InvalidArgument" for report in works)
    assert "calls combine" in works[0]["disagree"]["text"]


def test_different_sizes(works):
    for report in works:
        assert report["other_sizes"]["error"] == "InvalidArgument"
        assert "hidden" in report["other_sizes"]["text"]


def test_a_rank_that_closes_is_noticed_at_once_c53(works):
    last = len(works) - 1
    for report in works[:-1]:
        seen = report["early_close"]
        assert seen["error"] == "CommTimeout"
        assert last in seen["missing"] or "gave up" in seen["text"]
        assert seen["seconds"] < 30.0, "its deadline is 60 s"


def test_a_killed_rank_is_named_c53(forked):
    """C53: kill -9 of one of three ranks: the others leave within the deadline, naming it, and leave nothing behind."""
    codes, folder = forked
    assert [codes[f"killed:3:{rank}"] for rank in range(3)] == [0, 0, -signal.SIGKILL]
    seen = [report["killed"] for report in reports(folder, "killed", 3)[:2]]
    for entry in seen:
        assert entry["error"] == "CommTimeout"
        assert entry["missing"] == [2] or "gave up" in entry["text"]
        assert entry["seconds"] < 30.0, "its deadline is 60 s"
        assert entry["names_after_open"] == []
        assert entry["names_after_close"] == []
    assert any(entry["missing"] == [2] and "died" in entry["text"] for entry in seen)


def test_a_rank_killed_in_the_constructor(forked):
    """The other rank is told, and the name that was left behind can be reclaimed."""
    codes, folder = forked
    assert [codes[f"killed_early:2:{rank}"] for rank in range(2)] == [0, -signal.SIGKILL]
    seen = reports(folder, "killed_early", 2)[0]["killed_early"]
    assert seen["error"] == "CommTimeout"
    assert seen["missing"] == [1]
    left = Path((folder / "killed_early-path").read_text())
    reclaim()
    assert not left.exists()


def test_a_rank_that_never_comes(forked):
    codes, folder = forked
    assert [codes[f"absent:2:{rank}"] for rank in range(2)] == [0, 0]
    seen = reports(folder, "absent", 2)[0]["absent"]
    assert seen["error"] == "CommTimeout"
    assert seen["missing"] == [1]
    assert seen["seconds"] < 20.0


def test_a_rank_that_stands_still_while_ranks_meet(forked):
    """The group's own deadline (half an hour) does not count; the late rank is told as well, and nothing is left."""
    codes, folder = forked
    assert [codes[f"stopped:3:{rank}"] for rank in range(3)] == [0, 0, 0]
    seen = reports(folder, "stopped", 3)
    for step in ("late", "stopped"):
        for report in seen:
            assert report[step]["error"] == "CommTimeout", report
            assert report[step]["seconds"] < 20.0
    assert seen[0]["late"]["missing"] == seen[1]["late"]["missing"] == [2]
    assert "gave up before" in seen[2]["late"]["text"]


def test_a_rank_without_files(forked):
    for report in reports(forked[1], "stopped", 3):
        assert report["no_files"]["error"] == "BackendUnavailable", report
        assert "rank 2" in report["no_files"]["text"]
        assert report["no_files"]["seconds"] < 30.0, "its deadline is 60 s"


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 3, 6])
def test_many_rounds_of_random_sizes(tmp_path, size):
    errors = finish([start(["fork", str(tmp_path), f"stress:{size}"])])
    for report in reports(tmp_path, "stress", size):
        assert report.get("stress") == {"bad": [], "turns": 200}, errors
