"""Ranks of an exchange whose kernels run under one scheduler, so that the race checker sees across ranks, and the calls
that a broken protocol must fail in.
"""

from __future__ import annotations

import torch
from deepinfer_ascend950.device import build_cache
from deepinfer_ascend950.drivers.sim import GroupLaunch, SimDriver
from deepinfer_ascend950.ep import windows as layout
from deepinfer_ascend950.ep.windows import Windows
from deepinfer_ascend950.toolchain.gxx import GxxCompiler
from deepinfer_ascend950.toolchain.sources import sim_build

from deepinfer.hal import Arg, Image

RANKS, CAPACITY, BLOCKS, WIDTHS = 3, 6, 2, (100, 4, 64)


class Ranks:
    """Windows and kernels of all ranks, kept over several exchanges of random rows."""

    def __init__(self, sim: SimDriver, mutant: int = 0) -> None:
        self.sim, self.windows = sim, Windows(RANKS, CAPACITY * layout.record_bytes(WIDTHS))
        self.memory = [torch.zeros(self.windows.nbytes, dtype=torch.uint8) for _ in range(RANKS)]
        self.table = torch.tensor([w.data_ptr() for w in self.memory])
        image = build_cache().get(sim_build("ep_exchange", (f"-DDEEPINFER_MUTANT={mutant}",)), GxxCompiler()).image
        self.modules = [sim.module_load(sim.open(rank), Image(image, "elf", "ep_exchange")) for rank in range(RANKS)]
        self.sent: dict[tuple[int, int], tuple[list[torch.Tensor], torch.Tensor, list[int]]] = {}
        self.heads: dict[tuple[int, int], torch.Tensor] = {}
        self.faults = [torch.zeros(RANKS + 1, dtype=torch.int32) for _ in range(RANKS)]
        self.keep: list[object] = []

    def _member(self, entry: str, rank: int, grid: int, args: list[Arg]) -> GroupLaunch:
        return GroupLaunch(self.sim.function(self.modules[rank], entry), grid, args)

    def push(self, rank: int, epoch: int) -> GroupLaunch:
        g = torch.Generator().manual_seed(100 * epoch + rank)
        counts = torch.randint(0, CAPACITY + 1, (RANKS,), generator=g)
        planes = [torch.randint(0, 256, (9, width), generator=g, dtype=torch.uint8) for width in WIDTHS]
        index = torch.randint(0, 9, (int(counts.sum()),), generator=g)
        heads = torch.zeros(RANKS, layout.HEAD, dtype=torch.int64)
        heads[:, layout.ROWS], heads[:, layout.BLOCKS], heads[:, layout.WORDS] = counts, BLOCKS, 1000 * epoch + rank
        self.sent[rank, epoch] = (planes, index, counts.tolist())
        self.keep.append(heads)
        args = self.windows.push(rank, epoch, planes, index, heads, self.memory, self.table, self.faults[rank])
        return self._member("ep_push", rank, BLOCKS, args)

    def wait(self, rank: int, epoch: int, polls: int = 10000, final: bool = False) -> tuple[GroupLaunch, torch.Tensor]:
        heads, arrived = torch.zeros(RANKS, layout.HEAD, dtype=torch.int64), torch.zeros(RANKS, dtype=torch.int32)
        self.heads[rank, epoch] = heads
        args = self.windows.wait(rank, epoch, self.memory[rank], arrived, heads, self.faults[rank], polls, final)
        return self._member("ep_wait", rank, 1, args), arrived

    def pull(self, rank: int, epoch: int) -> None:
        """Pull, and compare everything that rank received."""
        heads = self.heads[rank, epoch]
        out = [torch.zeros((RANKS * CAPACITY, width), dtype=torch.uint8) for width in WIDTHS]
        args = self.windows.pull(rank, epoch, self.memory[rank], out, heads)
        self.sim.launch_group([self._member("ep_pull", rank, BLOCKS, args)])
        total = int(heads[:, layout.ROWS].sum())
        for s in range(RANKS):
            assert heads[s, layout.ROWS] == self.sent[s, epoch][2][rank]
            assert heads[s, layout.WORDS] == 1000 * epoch + s
        for k in range(len(WIDTHS)):
            rows = [planes[k][index.split(counts)[rank]] for planes, index, counts in self._received(epoch)]
            assert torch.equal(out[k][:total], torch.cat(rows))
            assert not out[k][total:].any()

    def _received(self, epoch: int) -> list[tuple[list[torch.Tensor], torch.Tensor, list[int]]]:
        return [self.sent[s, epoch] for s in range(RANKS)]

    def exchange(self, epoch: int) -> None:
        """Everybody pushes and waits at once, then pulls."""
        waits = [self.wait(rank, epoch) for rank in range(RANKS)]
        self.sim.launch_group([*(self.push(rank, epoch) for rank in range(RANKS)), *(launch for launch, _ in waits)])
        assert all(bool(arrived.all()) for _, arrived in waits)
        for rank in range(RANKS):
            self.pull(rank, epoch)


def hurried(ranks: Ranks) -> None:
    """Rank 0 is an exchange ahead before rank 1 looks at the first one."""
    ranks.sim.launch_group([ranks.push(rank, 1) for rank in range(RANKS)])
    launch, arrived = ranks.wait(0, 1)
    ranks.sim.launch_group([launch])
    assert arrived.all()
    ranks.pull(0, 1)
    ranks.sim.launch_group([ranks.push(0, 2)])
    for rank in (1, 2):
        launch, arrived = ranks.wait(rank, 1, polls=3)
        ranks.sim.launch_group([launch])
        assert arrived.all()
        ranks.pull(rank, 1)


def half_arrived(ranks: Ranks) -> None:
    """A rank of which one of two blocks has set its flag has not arrived."""
    ranks.sim.launch_group([ranks.push(rank, 1) for rank in range(RANKS)])
    flags = ranks.memory[0].view(torch.int32)
    flags[(layout.MAX_BLOCKS * (RANKS + 1) + 1) * layout.LINE // 4] = 0  # parity 1, source 1, block 1
    launch, arrived = ranks.wait(0, 1, polls=3)
    ranks.sim.launch_group([launch])
    assert arrived.tolist() == [1, 0, 1]
    assert ranks.faults[0].tolist() == [0, 0, 0, 0]


def missed(ranks: Ranks) -> None:
    """What a final wait misses is a fault: that rank pushes and finds nothing any more, and the others miss it."""
    ranks.sim.launch_group([ranks.push(rank, 1) for rank in (0, 2)])
    launch, arrived = ranks.wait(0, 1, polls=3, final=True)
    ranks.sim.launch_group([launch])
    assert arrived.tolist() == [1, 0, 1]
    assert ranks.faults[0].tolist() == [0, 1, 0, 1]
    ranks.sim.launch_group([ranks.push(rank, 2) for rank in range(RANKS)])
    launch, arrived = ranks.wait(0, 2, polls=3)
    ranks.sim.launch_group([launch])
    assert arrived.tolist() == [0, 0, 0]
    launch, arrived = ranks.wait(2, 2, polls=3, final=True)
    ranks.sim.launch_group([launch])
    assert arrived.tolist() == [0, 1, 1]
    assert ranks.faults[2].tolist() == [2, 0, 0, 2]


def too_many(ranks: Ranks, count: int) -> None:
    """A count beyond the records of a window, or the rows of the outputs, is cut: nothing else is read or written."""
    ranks.sim.launch_group([ranks.push(rank, 1) for rank in range(RANKS)])
    launch, _ = ranks.wait(0, 1)
    ranks.sim.launch_group([launch])
    heads = ranks.heads[0, 1]
    heads[1, layout.ROWS] = count
    first = int(heads[0, layout.ROWS])
    out = [torch.full((first + 2, width), 0x5A, dtype=torch.uint8) for width in WIDTHS]
    args = ranks.windows.pull(0, 1, ranks.memory[0], out, heads)
    ranks.sim.launch_group([ranks._member("ep_pull", 0, BLOCKS, args)])
    planes, index, counts = ranks.sent[0, 1]
    assert torch.equal(out[0][:first], planes[0][index.split(counts)[0]])


def attempts(sim: SimDriver, mutant: int) -> None:
    """Everything that must fail for a broken protocol."""
    hurried(Ranks(sim, mutant))
    half_arrived(Ranks(sim, mutant))
    missed(Ranks(sim, mutant))
    too_many(Ranks(sim, mutant), 1000)
    ranks = Ranks(sim, mutant)
    for epoch, policy in enumerate((0, 1, 2, 2, 2), 1):
        sim.set_option("policy", policy)
        sim.set_option("seed", epoch)
        ranks.exchange(epoch)
