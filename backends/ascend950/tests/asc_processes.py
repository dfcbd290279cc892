"""One rank of the multi-process tests:  python asc_processes.py SCENARIO RANK SIZE FOLDER  writes FOLDER/RANK.json.

Not collected by pytest.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

for folder in (Path(__file__).parent, Path(__file__).parent.parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from deepinfer_ascend950.plugin import create  # noqa: E402

import deepinfer  # noqa: E402
from deepinfer.errors import CommTimeout  # noqa: E402
from deepinfer.hal import discovery  # noqa: E402
from deepinfer.ops.deep_ep import ExpertBuffer  # noqa: E402
from deepinfer.ops.deep_ep.cases import ep_cases  # noqa: E402

SHAPE = {"max_tokens": 4, "hidden": 64, "num_experts": 12, "top_k": 2, "dtype": torch.float32}


def compare(rank: int, size: int) -> dict[str, object]:
    """Bits of every second quick case of this size."""
    chosen = [case for case in ep_cases() if case.params["ranks"] == size and "quick" in case.tags][::2]
    device = deepinfer.device(f"ascend950/sim:{rank}")
    texts = [text for case in chosen for text in case.run_rank(dist.group.WORLD, rank, device)]
    with deepinfer.use_backend(device), ExpertBuffer(dist.group.WORLD, **SHAPE, timeout=60) as buffer:
        used = buffer.transport
    return {"cases": len(chosen), "mismatches": texts, "transport": used}


def leaving(rank: int, size: int) -> dict[str, object]:
    """Rank 1 goes without a word (or with one, for `closing`) after a first exchange."""
    with deepinfer.use_backend(f"ascend950/sim:{rank}"):
        buffer = ExpertBuffer(dist.group.WORLD, **SHAPE, timeout=60)
        x, ids = torch.ones(2, 64), torch.zeros(2, 2, dtype=torch.int64)
        rows, _, _, handle = buffer.dispatch(x, ids)
        if rank == 1:
            if sys.argv[1] == "closing":
                buffer.close()
                time.sleep(2)
            os._exit(0)
        began = time.monotonic()
        try:
            buffer.combine(rows, handle)
        except CommTimeout as error:
            return {"text": str(error), "missing": list(error.missing), "seconds": time.monotonic() - began}
        return {"text": "nothing"}


def main() -> None:
    scenario, rank, size, where = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    if discovery.state("ascend950").backend is None:
        discovery.register_backend("ascend950", create)
    dist.init_process_group(
        "gloo", init_method=f"file://{where}/store", rank=rank, world_size=size, timeout=timedelta(seconds=120)
    )
    found = {"compare": compare, "dying": leaving, "closing": leaving}[scenario](rank, size)
    (where / f"{rank}.json").write_text(json.dumps(found))
    os._exit(0)  # a peer that died would keep the group's destructor waiting


if __name__ == "__main__":
    main()
