"""Rows between ranks: every rank's launch under one scheduler, so that the race checker sees across ranks."""

from __future__ import annotations

import pytest
import torch
from deepinfer_ascend950.device import build_cache
from deepinfer_ascend950.drivers.sim import GroupLaunch, SimDriver
from deepinfer_ascend950.ops.exchange import Exchange
from deepinfer_ascend950.toolchain.gxx import GxxCompiler
from deepinfer_ascend950.toolchain.sources import sim_build

from deepinfer.errors import DriverError
from deepinfer.hal import Image

RANKS, CAPACITY, BLOCKS = 3, 6, 2


class Ranks:
    """Windows and kernels of all ranks, kept over several calls."""

    def __init__(self, sim: SimDriver, widths: tuple[int, ...], mutant: int = 0) -> None:
        self.sim, self.geometry, self.epoch = sim, Exchange(RANKS, CAPACITY, widths), 0
        self.windows = [torch.zeros(self.geometry.window_bytes, dtype=torch.uint8) for _ in range(RANKS)]
        self.table = torch.tensor([w.data_ptr() for w in self.windows])
        image = build_cache().get(sim_build("ep_exchange", (f"-DDEEPINFER_MUTANT={mutant}",)), GxxCompiler()).image
        self.functions = []
        for rank in range(RANKS):
            module = sim.module_load(sim.open(rank), Image(image, "elf", "ep_exchange"))
            self.functions.append(sim.function(module, "ep_exchange"))

    def call(self, seed: int) -> None:
        """One exchange of random rows; checks what every rank received."""
        g = torch.Generator().manual_seed(seed)
        self.epoch += 1
        counts = torch.randint(0, CAPACITY + 1, (RANKS, RANKS), generator=g, dtype=torch.int32)
        launches, keep, received = [], [], []
        for rank in range(RANKS):
            planes = [
                torch.randint(0, 256, (9, width), generator=g, dtype=torch.uint8) for width in self.geometry.widths
            ]
            index = torch.randint(0, 9, (int(counts[rank].sum()),), generator=g)
            out = [torch.zeros((RANKS * CAPACITY, width), dtype=torch.uint8) for width in self.geometry.widths]
            got, mine = torch.zeros(RANKS, dtype=torch.int32), counts[rank].clone()
            args = self.geometry.launch_arguments(
                rank, self.epoch, planes, out, index, mine, self.windows, self.table, got
            )
            launches.append(GroupLaunch(self.functions[rank], BLOCKS, args))
            keep.append((planes, index, mine))
            received.append((out, got))
        self.sim.launch_group(launches)
        for rank, (out, got) in enumerate(received):
            assert torch.equal(got, counts[:, rank])
            for k in range(len(self.geometry.widths)):
                rows = [keep[s][0][k][keep[s][1].split(counts[s].tolist())[rank]] for s in range(RANKS)]
                assert torch.equal(out[k][: int(got.sum())], torch.cat(rows))
                assert not out[k][int(got.sum()) :].any()


@pytest.mark.parametrize("policy", [0, 1, 2])
def test_exchanges(sim: SimDriver, policy: int) -> None:
    sim.set_option("policy", policy)
    ranks = Ranks(sim, (100, 4, 64))
    for seed in range(4):
        ranks.call(seed)


# 70 no completion of the stores before the flags; 71 no counts; 73 flags of one block only are awaited.
@pytest.mark.parametrize("mutant", [70, 71, 73])
def test_broken_protocols_are_found(sim: SimDriver, mutant: int) -> None:
    sim.set_option("deadline_s", 5)
    ranks = Ranks(sim, (100, 4), mutant)

    def attempts() -> None:
        for policy in (0, 1, 2, 2, 2):
            sim.set_option("policy", policy)
            sim.set_option("seed", policy + ranks.epoch)
            ranks.call(ranks.epoch)

    with pytest.raises((DriverError, AssertionError)):
        attempts()
