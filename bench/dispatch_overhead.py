"""What a call costs beside its kernel: resolve hit, op call overhead, import time after torch. Exit 1 above a target.

    python bench/dispatch_overhead.py [--json]

The overhead is measured with a backend whose kernel does nothing, so the whole call is dispatch; "bound" is a call
whose result the caller gives, with tensors at addresses seen before. Every figure is the best of many short rounds,
which is what the code costs when the machine does nothing else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import timeit
from collections.abc import Callable, Sequence
from typing import Any

import torch

import deepinfer
from deepinfer.hal.backend import Backend
from deepinfer.hal.device import Device
from deepinfer.hal.null import NullDevice
from deepinfer.hal.types import Probe
from deepinfer.registry import Kernel, Op, get_spec

TARGETS = {
    "resolve_hit_us": 3.0, "op_overhead_us": 15.0, "public_op_overhead_us": 15.0, "bound_op_overhead_us": 6.0,
    "import_after_torch_s": 1.5,
}
ROUNDS, CALLS = 300, 200
IMPORT_CODE = "import torch, time; t = time.perf_counter(); import deepinfer.ops; print(time.perf_counter() - t)"


class NothingKernel(Kernel):
    """Takes any rms_norm and returns at once."""

    op, name = "norm.rms_norm", "nothing"

    def run(self, plan: Any, stream: Any, args: Any, out: Any, workspace: Any) -> None:
        return None

    def bind(self, plan: Any, args: Any, out: Any) -> Callable[[Any], None]:
        return lambda stream: None


class NothingDevice(NullDevice):
    """The null device under this backend's name."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.backend = NothingBackend.name


class NothingBackend(Backend):
    """A host device with the one kernel."""

    name, priority = "nothing", -1

    def probe(self, driver: str = "") -> Probe:
        return Probe(True, 1)

    def open(self, index: int, driver: str = "", arch: str | None = None) -> Device:
        return NothingDevice(index)

    def kernels(self) -> Sequence[Kernel]:
        return (NothingKernel(),)


def best_us(call: Callable[[], object]) -> float:
    """Microseconds per call, best round."""
    return min(timeit.repeat(call, number=CALLS, repeat=ROUNDS)) / CALLS * 1e6


def import_seconds() -> float:
    """Seconds of `import deepinfer.ops` in a fresh interpreter that has torch loaded; best of three."""
    command = [sys.executable, "-c", IMPORT_CODE]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in "123"]
    return min(float(run.stdout) for run in runs)


def measure() -> dict[str, float]:
    """All figures of `TARGETS`."""
    deepinfer.register_backend("nothing", NothingBackend)
    x, weight, y = torch.randn(4, 64), torch.randn(64), torch.empty(4, 64)
    op = Op(get_spec("norm.rms_norm"))
    with deepinfer.use_backend("nothing") as device:
        args = (x, weight, 1e-6)
        op(*args)
        return {
            "resolve_hit_us": best_us(lambda: op.resolve(device, args)),
            "op_overhead_us": best_us(lambda: op(*args)),
            "public_op_overhead_us": best_us(lambda: deepinfer.ops.norm.rms_norm(x, weight)),
            "bound_op_overhead_us": best_us(lambda: deepinfer.ops.norm.rms_norm(x, weight, out=y)),
            "import_after_torch_s": import_seconds(),
        }


def main() -> int:
    """Print the table; 1 when a figure exceeds its target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = measure()
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:24} {value:8.3f}  target < {TARGETS[name]}  {'ok' if value < TARGETS[name] else 'TOO SLOW'}")
    return 0 if all(value < TARGETS[name] for name, value in found.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
