"""Deep EP between processes, each with a simulated device: windows in shared memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from deepinfer_ascend950.ep import processes
from deepinfer_ascend950.ep.transport import PeerFactory

import deepinfer.hal as hal
from deepinfer.errors import BackendUnavailable
from deepinfer.hal import Cap
from deepinfer.ops.deep_ep.geometry import Geometry

SCRIPT = Path(__file__).with_name("asc_processes.py")


def spawn(folder: Path, scenario: str, size: int) -> dict[int, Any]:
    """What each rank wrote."""
    command = [sys.executable, str(SCRIPT), scenario]
    ranks = [
        subprocess.Popen([*command, str(rank), str(size), str(folder)], stderr=subprocess.PIPE, text=True)
        for rank in range(size)
    ]
    said = [process.communicate(timeout=150)[1] for process in ranks]
    found = {rank: json.loads(path.read_text()) for rank in range(size) if (path := folder / f"{rank}.json").exists()}
    assert 0 in found, said
    return found


@pytest.mark.parametrize("size", [2, 4])
def test_bits_are_those_of_the_reference(tmp_path: Path, size: int) -> None:
    before = set(Path("/dev/shm").glob("deepinfer-ascend-*")) if Path("/dev/shm").exists() else set()
    found = spawn(tmp_path, "compare", size)
    assert sorted(found) == list(range(size))
    assert all(result["mismatches"] == [] and result["cases"] > 3 for result in found.values())
    assert {result["transport"] for result in found.values()} == {"peer_memory"}
    if before or Path("/dev/shm").exists():
        assert set(Path("/dev/shm").glob("deepinfer-ascend-*")) <= before  # names are gone as soon as all have met


@pytest.mark.parametrize(("scenario", "why"), [("dying", "died"), ("closing", "closed its buffer")])
def test_a_rank_that_goes_is_named_at_once(tmp_path: Path, scenario: str, why: str) -> None:
    found = spawn(tmp_path, scenario, 2)[0]
    assert found["missing"] == [1]
    assert why in found["text"]
    assert found["seconds"] < 30  # the timeout is 60


def geometry() -> Geometry:
    return Geometry(0, 2, 4, 64, 4, 2, torch.float32, 2)


class Hardware:
    """As much of a device of the machine as `supports` looks at."""

    spec, simulated = "ascend950:0", False

    def supports(self, cap: Cap) -> bool:
        return cap is Cap.PEER_MEMORY


def test_what_cannot_meet_is_refused_with_the_reason() -> None:
    factory = PeerFactory()
    with hal.use_backend("ascend950/sim") as device:
        refused = factory.supports(object(), geometry(), device)
        assert not refused
        assert "neither a LocalGroup nor a ProcessGroup" in " ".join(refused.reasons)
    refused = factory.supports(object(), geometry(), Hardware())  # type: ignore[arg-type]
    assert "not mapped on hardware yet" in " ".join(refused.reasons)


def test_too_little_shared_memory_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(processes.os, "posix_fallocate", full)
    with pytest.raises(BackendUnavailable, match=r"(?s)1024 bytes of shared memory.*No space.*remount,size"):
        processes.Shared.create(1024)
