"""A static cost model: what a launch's counters cost at documented rates. Clock "model", never a measured time.

Every data path of an AI core works beside the others, so the estimate is the busiest path's time. It knows nothing of
latency, bank conflicts or queue depths: use it to compare variants of one kernel, and as a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer_ascend950.drivers.sim import Counters

CLOCK_HZ = 1.65e9
CORES = 32
# Multiply-accumulates per cycle and core, by element type of the operands.
CUBE_RATE = {"bf16": 4096, "f16": 4096, "f32": 256, "fp8": 8192, "i8": 8192}
# Bytes per cycle and core of each path; MTE2 and MTE3 count a core's share of the second-level cache.
MTE2_BYTES, MTE3_BYTES, MTE1_BYTES, FIX_BYTES = 96.0, 96.0, 512.0, 128.0
VECTOR_START_CYCLES = 20.0  # of one vector function, on one of the two vector cores


@dataclass(frozen=True)
class Estimate:
    """Cycles per path of the average core; `seconds` is the busiest path's time."""

    cycles: dict[str, float]

    @property
    def bound(self) -> str:
        """Name of the busiest path."""
        return max(self.cycles, key=lambda name: self.cycles[name])

    @property
    def seconds(self) -> float:
        return self.cycles[self.bound] / CLOCK_HZ


def estimate(counters: Counters, cores: int = CORES, operands: str = "bf16") -> Estimate:
    """Cost of a launch on `cores` AI cores whose cube work has `operands` elements."""
    share = 1.0 / max(1, min(cores, CORES))
    return Estimate(
        {
            "cube": counters.macs / CUBE_RATE[operands] * share,
            "mte2": counters.mte2_bytes / MTE2_BYTES * share,
            "mte3": counters.mte3_bytes / MTE3_BYTES * share,
            "mte1": counters.mte1_bytes / MTE1_BYTES * share,
            "fixpipe": counters.fix_bytes / FIX_BYTES * share,
            "vector starts": counters.vf * VECTOR_START_CYCLES / 2 * share,
        }
    )
