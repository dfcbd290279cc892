"""How the ranks of a process group find and map each other's slabs.

Order: barrier with a deadline -> every rank makes its slab -> names are gathered -> every rank maps all slabs and says
so in each -> when all peers have mapped a slab, its owner removes the name. A rank that fails to make its slab still
takes part in the gathering, so that the others hear why instead of waiting.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from deepinfer.errors import BackendUnavailable, CommTimeout, DeepInferError, InvalidArgument
from deepinfer.ops.deep_ep.geometry import Geometry
from deepinfer.ops.deep_ep.transport import Deadline, timed_out
from deepinfer_cpu.ep.slab import Slab, reclaim

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
CARD_BYTES = 1 << 14
ERROR_CHARS = 1 << 10  # of which each may become 12 bytes of JSON


@dataclass(frozen=True)
class Card:
    """What a rank tells the others about itself."""

    host: str
    path: str
    agreed: dict[str, int]
    error: str | None


def host() -> str:
    """Text that is equal for processes of one running system."""
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else socket.gethostname()


def barrier(group: Any, rank: int, deadline: Deadline) -> None:
    """Wait for all ranks; CommTimeout names those that are missing as far as the group can tell."""
    try:
        dist.monitored_barrier(group, timeout=timedelta(seconds=deadline.seconds), wait_all_ranks=True)
    except RuntimeError as error:
        found = re.search(r"[Rr]anks? ([\d, ]+?) failed", str(error))
        missing = [int(text) for text in found[1].split(",")] if found else [0]
        raise timed_out("hello", rank, deadline, missing, f"did not arrive within {deadline.seconds:g} s") from error


def connect(group: Any, geometry: Geometry, timeout: float) -> list[Slab]:
    """All ranks' slabs in rank order, this rank's own included."""
    barrier(group, geometry.rank, Deadline(timeout))
    reclaim()
    own = _make(geometry)
    slabs = [own] if isinstance(own, Slab) else []
    try:
        cards = _gather(group, geometry, own, Deadline(timeout))
        if not isinstance(own, Slab):
            raise own
        _agree(geometry.rank, cards)
        peers = {peer: Path(card.path) for peer, card in enumerate(cards) if peer != geometry.rank}
        for peer, path in peers.items():
            slabs.append(_attach(geometry, peer, path))
    except BaseException:  # an interrupt must not leave slabs behind either
        for slab in slabs:
            slab.close()
        if slabs:
            slabs[0].unlink()
        raise
    attached = dict(zip(peers, slabs[1:], strict=True)) | {geometry.rank: own}
    return [attached[rank] for rank in range(geometry.size)]


def _attach(geometry: Geometry, peer: int, path: Path) -> Slab:
    """Map a peer's slab; its name is gone if the peer gave up in the meantime (this rank may have been stopped)."""
    try:
        return Slab.attach(path, geometry)
    except FileNotFoundError as error:
        raise CommTimeout(
            f"deep_ep.hello: rank {geometry.rank}: rank {peer} gave up before this rank mapped its memory", [peer]
        ) from error
    except OSError as error:
        what = f"deep_ep: rank {geometry.rank} cannot map the memory of rank {peer}"
        raise BackendUnavailable(what, [str(error)]) from error


def _make(geometry: Geometry) -> Slab | DeepInferError:
    try:
        return Slab.create(geometry)
    except DeepInferError as error:
        return error  # told to the others before it is raised
    except OSError as error:
        return BackendUnavailable(f"deep_ep: rank {geometry.rank} cannot make its memory", [str(error)])


def _gather(group: Any, geometry: Geometry, own: Slab | DeepInferError, deadline: Deadline) -> list[Card]:
    """Everybody's card. Of one size, because only plain tensors can be gathered with a deadline of their own."""
    path, error = (str(own.path), None) if isinstance(own, Slab) else ("", str(own)[:ERROR_CHARS])
    text = json.dumps([host(), path, geometry.agreed(), error]).encode().ljust(CARD_BYTES)
    mine = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    cards = [torch.empty_like(mine) for _ in range(geometry.size)]
    try:
        dist.all_gather(cards, mine, group=group, async_op=True).wait(timedelta(seconds=deadline.remaining))
    except RuntimeError as cause:  # all were there at the barrier a moment ago
        raise CommTimeout(
            f"deep_ep.hello: rank {geometry.rank}: a rank left or stopped while ranks met: {cause}"
        ) from cause
    return [Card(*json.loads(bytes(card.numpy()))) for card in cards]


def _agree(rank: int, cards: Sequence[Card]) -> None:
    mine = cards[rank]
    for peer, card in enumerate(cards):
        if card.error:
            raise BackendUnavailable(f"deep_ep: rank {peer} has no shared memory", [card.error])
        if card.host != mine.host:
            where = f"ranks {rank} and {peer} are on different hosts"
            raise BackendUnavailable("deep_ep: shared memory joins processes of one host", [where])
        for name, value in mine.agreed.items():
            if card.agreed[name] != value:
                raise InvalidArgument(
                    f"deep_ep: {name}: got {value} on rank {rank} and {card.agreed[name]} on rank {peer}, "
                    "must be the same on all ranks"
                )
