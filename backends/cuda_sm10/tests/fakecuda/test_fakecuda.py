"""The CUDA host layer in processes whose libcuda.so.1 is the PTX simulator: shipped code, no GPU.

Each test is one process, because a process has one libcuda.
"""

from __future__ import annotations

import re
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

ABI = Path(__file__).parents[2] / "deepinfer_cuda/sim/fakecuda/abi.h"
Scenario = Callable[..., str]

pytest.importorskip("cuda.bindings", reason="the host layer needs cuda-bindings")


@pytest.mark.parametrize(("profile", "how", "want"), [
    ("sm90:3", "LD_PRELOAD", ("NVIDIA H200 (simulated)", "sm_90", 132, 4_800_000_000_000)),
    ("sm100", "LD_LIBRARY_PATH", ("NVIDIA B200 (simulated)", "sm_100", 148, 8_000_000_000_000)),
    ("sm90:2", "soname", ("NVIDIA H200 (simulated)", "sm_90", 132, 4_800_000_000_000)),
])
def test_the_hardware_driver_opens_on_it(
    scenario: Scenario, profile: str, how: str, want: tuple[str, str, int, int]
) -> None:
    count = int(profile.partition(":")[2] or 1)
    assert repr([want] * count) in scenario("open_and_probe", profile, how)


@pytest.mark.parametrize("name", ["handles_and_errors", "launches", "order_and_events", "capture", "faults"])
def test_states_and_errors_are_those_of_a_driver(scenario: Scenario, name: str) -> None:
    assert f"{name} holds" in scenario(name)


def test_refusals_are_explained_on_stderr(scenario: Scenario) -> None:
    said = scenario("handles_and_errors")
    assert "cuModuleLoadData: error 209: the image is a cubin; the simulated device executes PTX only" in said
    assert re.search(r"cuMemsetD8_v2: error 1: destination 0x\w+ \+ 65 bytes leaves its allocation of 64 bytes", said)


def test_peer_memory_needs_peer_access(scenario: Scenario) -> None:
    assert "peers holds" in scenario("peers", "sm90:2")


@pytest.mark.parametrize("profile", ["sm90", "sm100,schedule=random,seed=3"])
def test_shipped_kernels_run_through_the_hardware_host_layer(scenario: Scenario, profile: str) -> None:
    assert "products_and_norm holds" in scenario("products_and_norm", profile)


def test_cuda_core_works_on_it(scenario: Scenario) -> None:
    pytest.importorskip("cuda.core", reason="cuda-core is optional")
    assert "cuda_core holds" in scenario("cuda_core")


@pytest.mark.parametrize(("profile", "visible", "words"), [
    ("sm80", "0", "known are sm90 and sm100"),
    ("sm90:9", "0", "possible are 0 to 8"),
    ("sm90,depth=3", "0", "unknown key 'depth'"),
    ("sm90:2", "", "leave no device"),
])
def test_a_wrong_environment_is_refused_by_cuinit(
    fakecuda: Path, scenario: Scenario, profile: str, visible: str, words: str
) -> None:
    with pytest.raises(AssertionError, match=re.escape(words)):
        scenario("launches", profile, CUDA_VISIBLE_DEVICES=visible)


def test_values_are_those_of_cuda_h(tmp_path: Path) -> None:
    """Codes, attribute numbers and structures of fakecuda/abi.h against the toolkit's header."""
    include = Path(sysconfig.get_path("purelib")) / "nvidia/cu13/include"
    if not (include / "cuda.h").exists():
        pytest.skip("cuda.h is not installed (package nvidia-cuda-runtime)")
    ours = ABI.read_text()
    codes = re.findall(r"^    (CUDA_\w+) = (\d+),", ours, re.M)
    assert len(codes) > 30
    lines = [f"static_assert({name} == {value});" for name, value in codes]
    attributes = {
        "COOPERATIVE": "kCooperative", "CLUSTER_DIMENSION": "kClusterDimension",
        "PROGRAMMATIC_STREAM_SERIALIZATION": "kProgrammaticSerialization", "PROGRAMMATIC_EVENT": "kProgrammaticEvent",
        "LAUNCH_COMPLETION_EVENT": "kLaunchCompletionEvent", "DEVICE_UPDATABLE_KERNEL_NODE": "kDeviceUpdatable",
        "PREFERRED_CLUSTER_DIMENSION": "kPreferredClusterDimension",
    }
    for theirs, name in attributes.items():
        number = re.search(rf"\b{name} = (\d+)", ours)
        assert number, name
        lines.append(f"static_assert(CU_LAUNCH_ATTRIBUTE_{theirs} == {number[1]});")
    for struct, size in re.findall(r"^static_assert\(sizeof\((\w+)\) == (\d+)\);", ours, re.M):
        lines.append(f"static_assert(sizeof({struct}) == {size});")
    source = tmp_path / "check.cpp"
    source.write_text("#include <cuda.h>\n" + "\n".join(lines) + "\n")
    command = ["g++", "-std=c++20", "-fsyntax-only", f"-I{include}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
