"""Is there a GPU that this backend can use? Answers with reasons, creates no context, imports no torch.cuda.

Order: device nodes (instant; most machines without a GPU stop here), then whether the driver library loads. What kind
of GPU it is is asked when a device is opened. `root` lets tests use a made-up file system.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from deepinfer.errors import BackendUnavailable
from deepinfer.hal import Probe

SUPPORTED = {(9, 0): "sm_90", (10, 0): "sm_100", (10, 3): "sm_103"}
INSTALL = "install the NVIDIA driver (580 or newer) and make the GPU visible to this process"


def device_nodes(root: Path = Path("/")) -> list[str]:
    """Names of NVIDIA device nodes, the WSL one included."""
    dev = root / "dev"
    found = sorted(path.name for path in dev.glob("nvidia[0-9]*")) if dev.is_dir() else []
    return found + (["dxg"] if (dev / "dxg").exists() else [])


def architectures() -> list[tuple[str, str]]:
    """(name, "sm_XX") of every device the driver lists. Initialises the driver; raises DriverError."""
    from cuda.bindings import driver

    from deepinfer_cuda.result import check

    check("cuInit", driver.cuInit(0))
    found: list[tuple[str, str]] = []
    attribute = driver.CUdevice_attribute
    for index in range(check("cuDeviceGetCount", driver.cuDeviceGetCount())):
        device = check("cuDeviceGet", driver.cuDeviceGet(index))
        name = check("cuDeviceGetName", driver.cuDeviceGetName(96, device)).partition(b"\0")[0].decode()
        major, minor = (
            check("cuDeviceGetAttribute", driver.cuDeviceGetAttribute(which, device))
            for which in (
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        found.append((name, f"sm_{major}{minor}"))
    return found


def models(root: Path = Path("/")) -> list[str]:
    """Model names that the kernel driver reports, one per GPU; empty where it does not tell."""
    folder = root / "proc/driver/nvidia/gpus"
    found: list[str] = []
    for information in sorted(folder.glob("*/information")) if folder.is_dir() else []:
        lines = information.read_text(errors="replace").splitlines()
        found += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return found


def probe(root: Path = Path("/"), visible: str | None = None, library: str = "libcuda.so.1") -> Probe:
    """Devices of this machine; never raises, initialises nothing (cuInit takes 100 ms and more).

    Args:
        root: file system to look at.
        visible: value of CUDA_VISIBLE_DEVICES, None = unset.
        library: driver library that must be loadable.

    A device of an unsupported architecture shows only when it is opened, with what was found and what is needed.
    """
    nodes = device_nodes(root)
    if not nodes:
        return Probe(False, reasons=("no NVIDIA device node in /dev",), fix=INSTALL)
    if visible is not None and not visible.strip():
        return Probe(False, reasons=("CUDA_VISIBLE_DEVICES is set and empty",), fix="unset CUDA_VISIBLE_DEVICES")
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return Probe(False, reasons=(f"the NVIDIA driver library cannot be loaded: {error}",), fix=INSTALL)
    count = len(nodes) if visible is None else min(len(nodes), len(visible.split(",")))
    return Probe(True, count, tuple(models(root)[:count]) or tuple(nodes[:count]))


def require(arch: str, wanted: str | None, label: str) -> None:
    """Raise BackendUnavailable unless a device of architecture `arch` serves a request for `wanted` (None = any)."""
    needed = [wanted] if wanted else list(SUPPORTED.values())
    if arch not in needed:
        raise BackendUnavailable(f"{label} does not fit", [f"{label} is {arch}, needs {' or '.join(needed)}"])
