"""Ranks of the multi-process tests.

    python rank_process.py rank SCENARIO RANK SIZE FOLDER        one rank
    python rank_process.py fork FOLDER SCENARIO:SIZE ...         all ranks of several scenarios at once

A rank runs the steps of its scenario and writes what it saw as JSON to FOLDER. Not collected by pytest.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from deepinfer_cpu.ep import rendezvous, shared
from deepinfer_cpu.ep import slab as shared_slab

import deepinfer
from deepinfer.errors import DeepInferError
from deepinfer.ops.deep_ep import ExpertBuffer
from deepinfer.ops.deep_ep.cases import ep_cases
from deepinfer.ops.deep_ep.transport import Deadline

SHAPE = {"max_tokens": 4, "hidden": 8, "num_experts": 12, "top_k": 2, "dtype": torch.float32}
FOLDER: list[Path] = []
DIRECTORY = shared_slab.directory
X, IDS = torch.ones(2, 8), torch.zeros(2, 2, dtype=torch.int64)


def matching_cases(size: int) -> list:
    """Every third quick case of this size, all edge patterns among them, and one whose messages need many chunks."""
    chosen = [case for case in ep_cases() if case.params["ranks"] == size and "quick" in case.tags]
    large = [case for case in ep_cases() if case.params["ranks"] == size and "full" in case.tags]
    return chosen[:: 3 if size == 2 else 1] + large[:1]


def attempt(function) -> dict:
    """Seconds it took, and the error's class, text and missing ranks."""
    began = time.monotonic()
    try:
        function()
    except DeepInferError as error:
        seen = {"error": type(error).__name__, "text": str(error), "missing": list(getattr(error, "missing", ()))}
    else:
        seen = {"error": None}
    return seen | {"seconds": time.monotonic() - began}


def names(buffer: ExpertBuffer) -> list[str]:
    """Slab names of a buffer that still exist."""
    return [str(slab.path) for slab in buffer._transport._slabs if slab.path.exists()]


def compare(rank: int, size: int) -> dict:
    """Bits of every case, chunk by chunk through a ring that is much smaller than the message."""
    device = deepinfer.device("cpu")
    texts = [text for case in matching_cases(size) for text in case.run_rank(dist.group.WORLD, rank, device)]
    return {"mismatches": texts, "cases": len(matching_cases(size))}


def stream(rank: int, size: int) -> bool:
    """One long message with different data in each row, larger than both chunks of its ring."""
    tokens, hidden = 1500, 2048
    with ExpertBuffer(dist.group.WORLD, tokens, hidden, size, 1, torch.float32, timeout=60.0) as buffer:
        x = torch.arange(tokens * hidden, dtype=torch.float32).view(tokens, hidden) + rank
        ids = (torch.arange(tokens) % size).unsqueeze(1)
        rows, _, _, handle = buffer.dispatch(x, ids)
        want = torch.cat([x[rank::size] - rank + source for source in range(size)])
        return torch.equal(rows, want) and torch.equal(buffer.combine(rows, handle), x)


def threads(rank: int, size: int) -> bool:
    """Two buffers used by two threads at once."""
    buffers = [ExpertBuffer(dist.group.WORLD, **SHAPE, timeout=60.0) for _ in range(2)]
    good = []

    def work(buffer: ExpertBuffer, value: float) -> None:
        for i in range(20):
            x = torch.full((3, 8), value + i + rank)
            rows, _, _, handle = buffer.dispatch(x, torch.tensor([[0, 7]] * 3), layout="experts")
            good.append(torch.equal(buffer.combine(rows, handle, reduce="slots"), x * 2))

    workers = [threading.Thread(target=work, args=(buffer, 100.0 * n)) for n, buffer in enumerate(buffers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for buffer in buffers:
        buffer.close()
        buffer.close()
    return len(good) == 40 and all(good)


def too_many(rank: int, size: int) -> dict:
    """Rank 0 has more tokens than the buffer takes."""
    with ExpertBuffer(dist.group.WORLD, **SHAPE, timeout=60.0) as buffer:
        buffer.timeout = 1.5
        count = 5 if rank == 0 else 2
        dist.barrier()
        seen = attempt(lambda: buffer.dispatch(torch.ones(count, 8), torch.zeros(count, 2).long()))
        dist.barrier()
        return seen


def disagree(rank: int, size: int) -> dict:
    """Rank 1 combines while the others dispatch."""
    with ExpertBuffer(dist.group.WORLD, **SHAPE, timeout=60.0) as buffer:
        rows, _, _, handle = buffer.dispatch(X, IDS)
        seen = attempt(lambda: buffer.combine(rows, handle) if rank == 1 else buffer.dispatch(X, IDS))
        dist.barrier()
        return seen


def other_sizes(rank: int, size: int) -> dict:
    return attempt(lambda: ExpertBuffer(dist.group.WORLD, **(SHAPE | {"hidden": 8 + rank}), timeout=60.0))


def early_close(rank: int, size: int) -> dict:
    """The last rank leaves in good order; the others are told at once."""
    buffer = ExpertBuffer(dist.group.WORLD, **SHAPE, timeout=60.0)
    if rank == size - 1:
        buffer.close()
        return {"seconds": 0.0}
    seen = attempt(lambda: buffer.dispatch(X, IDS))
    buffer.close()
    return seen


def killed(rank: int, size: int) -> dict:
    """The last rank is killed between two calls."""
    buffer = ExpertBuffer(dist.group.WORLD, **SHAPE, timeout=60.0)
    left = names(buffer)
    buffer.dispatch(X, IDS)
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    seen = attempt(lambda: buffer.dispatch(X, IDS))
    buffer.close()
    return seen | {"names_after_open": left, "names_after_close": names(buffer)}


def killed_early(rank: int, size: int) -> dict:
    """The last rank is killed while the buffer is being made, before it has mapped anything."""
    if rank == size - 1:
        shared.SharedTransport.join = _die
    return attempt(lambda: ExpertBuffer(dist.group.WORLD, **SHAPE, timeout=60.0))


def _die(transport: shared.SharedTransport, deadline: object) -> None:
    """Leave the slab's name behind, note it, and die."""
    (FOLDER[0] / "killed_early-path").write_text(str(transport._own.path))
    os.kill(os.getpid(), signal.SIGKILL)


def absent(rank: int, size: int) -> dict:
    """The last rank never constructs its buffer (it waits elsewhere until the others have given up)."""
    if rank == size - 1:
        time.sleep(3.0)
        return {}
    return attempt(lambda: ExpertBuffer(dist.group.WORLD, **SHAPE, timeout=0.5))


def stopped(rank: int, size: int) -> dict:
    """The last rank stands still between the barrier and the exchange of names, until the others have given up."""
    if rank == size - 1:
        gather = rendezvous._gather
        rendezvous._gather = lambda *args: time.sleep(3.0) or gather(*args[:3], Deadline(30.0))
    return attempt(lambda: ExpertBuffer(dist.group.WORLD, **SHAPE, timeout=0.5))


def late(rank: int, size: int) -> dict:
    """The last rank knows the names, and stands still before it maps the memory, until the others have given up."""
    gather = rendezvous._gather
    if rank == size - 1:
        rendezvous._gather = lambda *args: (gather(*args), time.sleep(3.0))[0]
    seen = attempt(lambda: ExpertBuffer(dist.group.WORLD, **SHAPE, timeout=0.5))
    rendezvous._gather = gather
    dist.barrier()
    return seen


def no_files(rank: int, size: int) -> dict:
    """The last rank cannot make its file; all are told why."""
    if rank == size - 1:
        shared_slab.directory = lambda: Path("/nowhere")
    seen = attempt(lambda: ExpertBuffer(dist.group.WORLD, **SHAPE, timeout=60.0))
    shared_slab.directory = DIRECTORY
    return seen


def stress(rank: int, size: int) -> dict:
    """Many rounds of random sizes and pauses; every row is checked at its exact place, and comes back whole."""
    tokens, hidden, lanes, bad = 700, 512, 3, []
    with ExpertBuffer(dist.group.WORLD, tokens, hidden, 2 * size, lanes, torch.float32, timeout=60.0) as buffer:
        for turn in range(200):
            generator = torch.Generator().manual_seed(turn)
            counts = [int(n) for n in torch.randint(0, tokens + 1, (size,), generator=generator) * (turn % 5 > 0)]
            ids = [torch.randint(-1, 2 * size, (count, lanes), generator=generator) for count in counts]
            x = [torch.arange(n).unsqueeze(1) * 16.0 + source + torch.zeros(hidden) for source, n in enumerate(counts)]
            time.sleep(0.002 * ((turn * 7 + rank * 3) % 4))
            here = [((home // 2 == rank) & (home >= 0)).any(1) for home in ids]
            rows, _, _, handle = buffer.dispatch(x[rank], ids[rank])
            if not torch.equal(rows, torch.cat([part[mine] for part, mine in zip(x, here, strict=True)])):
                bad.append(f"dispatch {turn}")
            y = buffer.combine(rows, handle)
            ranks = torch.tensor([len({e // 2 for e in line if e >= 0}) for line in ids[rank].tolist()]).float()
            if not torch.equal(y, x[rank] * ranks.unsqueeze(1)):
                bad.append(f"combine {turn}")
    return {"bad": bad, "turns": 200}


SCENARIOS = {
    "stress": (stress,),
    "works": (compare, stream, threads, too_many, disagree, other_sizes, early_close),
    "killed": (killed,),
    "killed_early": (killed_early,),
    "absent": (absent,),
    "stopped": (no_files, late, stopped),
}


def run_rank(scenario: str, rank: int, size: int, folder: str) -> None:
    """The life of one rank; ends the process."""
    torch.set_num_threads(1)
    FOLDER.append(Path(folder))
    store = dist.FileStore(f"{folder}/{scenario}-{size}-store", size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    out, seen = Path(folder) / f"{scenario}-{size}-{rank}.json", {}
    for step in SCENARIOS[scenario]:
        seen[step.__name__] = step(rank, size)
        out.write_text(json.dumps(seen))
    os._exit(0)  # no collective at exit: peers may be dead on purpose


def fork(folder: str, jobs: list[str]) -> None:
    """Fork a process per rank of every job "scenario:size" and write their exit codes (imports are paid once)."""
    torch.set_num_threads(1)
    started = {}
    for scenario, size in (job.split(":") for job in jobs):
        for rank in range(int(size)):
            pid = os.fork()
            if pid == 0:
                try:
                    run_rank(scenario, rank, int(size), folder)
                finally:
                    traceback.print_exc()
                    os._exit(1)
            started[pid] = f"{scenario}:{size}:{rank}"
    codes = {started[pid]: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in started}
    (Path(folder) / "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    if sys.argv[1] == "fork":
        fork(sys.argv[2], sys.argv[3:])
    else:
        run_rank(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
