"""Is there a GPU that this backend can use? Answers with reasons, creates no context, imports no torch.cuda.

Order: device nodes (instant; most machines without a GPU stop here), then the driver library, then cuInit and the
device list. `root` lets tests use a made-up file system.
"""

from __future__ import annotations

from pathlib import Path

from deepinfer.errors import DriverError
from deepinfer.hal import Probe

SUPPORTED = {(9, 0): "sm_90", (10, 0): "sm_100", (10, 3): "sm_103"}
INSTALL = "install the NVIDIA driver (580 or newer) and make the GPU visible to this process"


def device_nodes(root: Path = Path("/")) -> list[str]:
    """Names of NVIDIA device nodes, the WSL one included."""
    dev = root / "dev"
    found = sorted(path.name for path in dev.glob("nvidia[0-9]*")) if dev.is_dir() else []
    return found + (["dxg"] if (dev / "dxg").exists() else [])


def architectures() -> list[tuple[str, str]]:
    """(name, "sm_XX") of every device the driver lists. Raises DriverError or ImportError-like loader errors."""
    from cuda.bindings import driver

    from deepinfer_cuda.result import check

    check("cuInit", driver.cuInit(0))
    found: list[tuple[str, str]] = []
    attribute = driver.CUdevice_attribute
    for index in range(check("cuDeviceGetCount", driver.cuDeviceGetCount())):
        device = check("cuDeviceGet", driver.cuDeviceGet(index))
        name = check("cuDeviceGetName", driver.cuDeviceGetName(96, device)).rstrip(b"\0").decode()
        major, minor = (
            check("cuDeviceGetAttribute", driver.cuDeviceGetAttribute(which, device))
            for which in (
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        found.append((name, f"sm_{major}{minor}"))
    return found


def probe(root: Path = Path("/")) -> Probe:
    """Usable devices of this machine; never raises."""
    if not device_nodes(root):
        return Probe(False, reasons=("no NVIDIA device node in /dev",), fix=INSTALL)
    try:
        found = architectures()
    except (DriverError, ImportError, OSError, RuntimeError) as error:
        return Probe(False, reasons=(f"the NVIDIA driver cannot be used: {error}",), fix=INSTALL)
    usable = [entry for entry in found if entry[1] in SUPPORTED.values()]
    if not usable:
        seen = ", ".join(f"{name} ({arch})" for name, arch in found) or "no device"
        needed = ", ".join(SUPPORTED.values())
        return Probe(False, reasons=(f"found {seen}; needs one of {needed}",))
    return Probe(True, len(found), tuple(f"{name} ({arch})" for name, arch in found))
