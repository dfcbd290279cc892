"""Peer memory: kernels of one device on memory of another, on simulated devices and through the hardware driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from deepinfer_cuda import jit, simdevice
from deepinfer_cuda.kernels import base, pack_rows

import deepinfer
from deepinfer.errors import UnsupportedError
from deepinfer.hal import Cap

HERE = Path(__file__).parent
FAKE = HERE.parents[3] / "build/ptxsim/fakecuda/libcuda.so.1"
built = pytest.mark.skipif(not simdevice.probe().available, reason="the PTX simulator is not built")


@built
@pytest.mark.parametrize("count", [2, 5])
def test_a_ring_of_simulated_devices_passes_a_tensor_on(count: int) -> None:
    """Device i reads device i-1's memory, whose tensors device i-1 wrote."""
    devices = [deepinfer.device(f"cuda_sm90/sim:{index}") for index in range(count)]
    values = torch.randn(70, 9, generator=torch.Generator().manual_seed(count)).bfloat16()
    for before, device in zip([devices[-1], *devices[:-1]], devices, strict=True):
        assert device.supports(Cap.PEER_MEMORY)
        device.enable_peer(before)
        device.enable_peer(before)
        packed = device.empty((70, 16), torch.bfloat16)
        code = base.load(device, pack_rows.UNIT)
        pack_rows.prepare(code, device, values, packed)(device.current_stream())
        device.synchronize()
        assert torch.equal(packed[:, :9], values), f"seed {count}"
        values = packed[:, :9]


@built
def test_devices_of_another_kind_are_refused() -> None:
    simulated, host = deepinfer.device("cuda_sm90/sim"), deepinfer.device("cpu")
    with pytest.raises(UnsupportedError, match=r"cannot reach the memory of cpu:0"):
        simulated.enable_peer(host)
    with pytest.raises(UnsupportedError, match="PEER_MEMORY"):
        host.enable_peer(simulated)


@pytest.mark.skipif(not FAKE.exists(), reason="the libcuda.so.1 over the simulator is not built")
def test_the_hardware_driver_enables_one_direction(tmp_path: Path) -> None:
    variables = {**os.environ, "LD_PRELOAD": str(FAKE), "DEEPINFER_FAKECUDA": "sm90:2", "OMP_NUM_THREADS": "1"}
    kernel = tmp_path / "pack.ptx"  # the compiler does not work beside that library
    kernel.write_bytes(jit.default_cache().get(pack_rows.UNIT.build("sm_90", "ptx"), jit.NvrtcCompiler()).image)
    command = [sys.executable, str(HERE / "peer_process.py"), str(kernel)]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=120)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    said = done.stdout.splitlines()
    assert sum("must be a context from open()" in line for line in said) == 2, said
    assert any("cannot reach the memory of device 0" in line for line in said), said
    assert "copied True 0" in said
    assert "the current context stays True" in said
    assert any(line.startswith("the other direction: ") for line in said), said
