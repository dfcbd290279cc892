"""Finding Ascend devices in the one order that is safe.

`import torch_npu` on a machine without the vendor's runtime fails and can break torch itself, so nothing is imported
before device nodes were seen. Invariants: never raises; reads only /dev and /sys until a device node was found.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from deepinfer.hal.types import Probe

_NODE = re.compile(r"davinci\d+")
INSTALL = "install the Ascend driver and CANN 9.1 or later, then pip install 'deepinfer-ascend950[npu]'"


@dataclass(frozen=True)
class Nodes:
    """What the file system says: `count` device nodes, and where they were seen."""

    count: int
    where: str


def device_nodes(root: Path = Path("/")) -> Nodes:
    """Device nodes of Ascend accelerators below `root`."""
    dev = root / "dev"
    try:
        nodes = [p.name for p in dev.iterdir() if _NODE.fullmatch(p.name)] if dev.is_dir() else []
    except OSError:
        nodes = []
    if nodes:
        return Nodes(len(nodes), str(dev / "davinci*"))
    if (dev / "davinci_manager").exists():
        return Nodes(1, str(dev / "davinci_manager"))
    found = 0
    for entry in sorted((root / "sys/class/ubcore").glob("udma*/device/ub_totalues")):
        try:
            found += int(entry.read_text().strip() or "0") > 0
        except (OSError, ValueError):
            continue
    return Nodes(found, str(root / "sys/class/ubcore"))


def probe(root: Path = Path("/")) -> Probe:
    """Whether hardware can be opened: device nodes, the runtime library, then the torch extension."""
    nodes = device_nodes(root)
    if nodes.count == 0:
        return Probe(False, reasons=("no Ascend device node in /dev or /sys/class/ubcore",), fix=INSTALL)
    acl = import_module("deepinfer_ascend950.drivers.acl")
    reason = acl.why_unavailable()
    if reason:
        return Probe(False, reasons=(f"{nodes.count} device node(s) at {nodes.where}", reason), fix=INSTALL)
    if find_spec("torch_npu") is None:
        return Probe(False, reasons=("torch_npu is not installed, and tensors need it",), fix=INSTALL)
    return Probe(True, device_count=nodes.count, reasons=(f"device nodes at {nodes.where}",))


def import_torch_npu() -> str | None:
    """Import torch_npu once device nodes exist; the reason why it cannot be used, or None."""
    try:
        import_module("torch_npu")
        import torch

        if not torch.npu.is_available():  # type: ignore[attr-defined]
            return "torch_npu is installed but reports no available device"
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        hint = "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch itself usable"
        return f"torch_npu cannot be imported: {error} ({hint})"
    return None
