"""Detection of NVIDIA devices on made-up file systems, and the words a user gets when there is none."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from deepinfer_cuda import detect
from deepinfer_cuda.plugin import CudaBackend

import deepinfer
from deepinfer.errors import BackendUnavailable
from deepinfer.hal import discovery

LIBRARY = "libc.so.6"  # stands for a driver library that loads


def machine(root: Path, gpus: int) -> Path:
    (root / "dev").mkdir()
    (root / "dev/nvidiactl").touch()
    for index in range(gpus):
        (root / f"dev/nvidia{index}").touch()
        folder = root / f"proc/driver/nvidia/gpus/0000:0{index}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA H200\nIRQ: 1{index}\n")
    return root


def test_machine_without_a_gpu(tmp_path: Path) -> None:
    probe = detect.probe(machine(tmp_path, 0), None, LIBRARY)
    assert not probe.available
    assert "no NVIDIA device node" in probe.reasons[0]
    assert probe.fix


def test_machine_with_gpus_names_them(tmp_path: Path) -> None:
    probe = detect.probe(machine(tmp_path, 2), None, LIBRARY)
    assert (probe.available, probe.device_count, probe.reasons) == (True, 2, ("NVIDIA H200", "NVIDIA H200"))


@pytest.mark.parametrize(("visible", "count"), [("0", 1), ("1,0", 2), ("0,1,2", 2)])
def test_visible_devices_limit_the_count(tmp_path: Path, visible: str, count: int) -> None:
    assert detect.probe(machine(tmp_path, 2), visible, LIBRARY).device_count == count


def test_hidden_devices_are_a_reason(tmp_path: Path) -> None:
    probe = detect.probe(machine(tmp_path, 2), "", LIBRARY)
    assert not probe.available
    assert "CUDA_VISIBLE_DEVICES" in probe.reasons[0]


def test_missing_driver_library_is_a_reason(tmp_path: Path) -> None:
    probe = detect.probe(machine(tmp_path, 1), None, "libno-such-driver.so.1")
    assert not probe.available
    assert "libno-such-driver.so.1" in probe.reasons[0]


def test_wsl_has_one_node(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    assert detect.probe(tmp_path, None, LIBRARY).device_count == 1


def test_architecture_request_says_what_was_found_and_needed() -> None:
    detect.require("sm_90", None, "device 0")
    detect.require("sm_103", "sm_103", "device 0")
    with pytest.raises(BackendUnavailable, match=r"device 0 is sm_90, needs sm_100"):
        detect.require("sm_90", "sm_100", "device 0")
    with pytest.raises(BackendUnavailable, match=r"is sm_80, needs sm_90 or sm_100 or sm_103"):
        detect.require("sm_80", None, "device 0")


def test_probe_is_fast_and_set_backend_explains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = CudaBackend()
    start = time.perf_counter()
    detect.probe(machine(tmp_path, 1), None, LIBRARY)
    assert time.perf_counter() - start < 0.05
    monkeypatch.setattr(detect, "probe", lambda **_: detect_none)
    discovery.register_backend("cuda", lambda: backend)
    try:
        with pytest.raises(BackendUnavailable, match="no NVIDIA device node"):
            deepinfer.set_backend("cuda_sm90")
    finally:
        discovery.unregister_backend("cuda")


detect_none = detect.Probe(False, reasons=("no NVIDIA device node in /dev",), fix=detect.INSTALL)
