"""A process group of one rank in this process: which transport is taken, what it reserves, what it gives back."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from deepinfer_cpu.ep import slab as slab_module
from deepinfer_cpu.ep.fence import Fence
from deepinfer_cpu.ep.rendezvous import Card, _agree

import deepinfer
from deepinfer.errors import BackendUnavailable, InvalidArgument, UnsupportedError
from deepinfer.ops.deep_ep import ExpertBuffer, size_hint


@pytest.fixture
def world(monkeypatch, tmp_path):
    monkeypatch.setattr(slab_module, "directory", lambda: tmp_path)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_one_rank_through_shared_memory(world, tmp_path):
    with ExpertBuffer(world, 4, 8, 2, 2, torch.float32, timeout=5.0) as buffer:
        assert buffer.transport == "shared_memory"
        assert buffer.nbytes == size_hint(4, 8, 2, 2, torch.float32, ranks=1)
        assert list(tmp_path.iterdir()) == [], "the name goes as soon as all have mapped it"
        x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
        rows, _, _, handle = buffer.dispatch(x, torch.tensor([[0, 1], [1, -1], [-1, -1]]), layout="experts")
        y = buffer.combine(rows, handle)
        assert torch.equal(y, x * torch.tensor([[2.0], [1.0], [0.0]]))
    with pytest.raises(InvalidArgument, match="closed"):
        buffer.dispatch(x, torch.zeros(3, 2).long())


def test_a_full_file_system_is_told_by_name(world, monkeypatch, tmp_path):
    def full(descriptor, nbytes):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(slab_module, "_allocate", full)
    with pytest.raises(BackendUnavailable, match="bytes of shared memory"):
        ExpertBuffer(world, 4, 8, 2, 2, timeout=5.0)
    assert list(tmp_path.iterdir()) == []


def test_other_transports_and_devices_say_why(world):
    with pytest.raises(UnsupportedError, match="local: it joins only the ranks of a LocalGroup"):
        ExpertBuffer(world, 4, 8, 2, 2, transport="local")
    with deepinfer.use_backend("null"), pytest.raises(UnsupportedError, match="no deep_ep transport"):
        ExpertBuffer(world, 4, 8, 2, 2)


def test_ranks_must_share_a_host_and_their_sizes():
    sizes = {"hidden": 8}
    here, there = Card("a", "/x", sizes, None), Card("b", "/y", sizes, None)
    with pytest.raises(BackendUnavailable, match="ranks 0 and 1 are on different hosts"):
        _agree(0, [here, there])
    with pytest.raises(BackendUnavailable, match="rank 1 has no shared memory"):
        _agree(0, [here, Card("a", "", sizes, "full")])
    with pytest.raises(InvalidArgument, match="hidden: got 8 on rank 0 and 9 on rank 1"):
        _agree(0, [here, Card("a", "/y", {"hidden": 9}, None)])


def test_a_fence_can_be_used_again_and_again():
    fence = Fence()
    for _ in range(1000):
        fence.full()
    assert fence._lock.locked()
